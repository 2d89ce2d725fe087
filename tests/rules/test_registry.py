"""Names, the decorator, and errors that help."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.distribution import install
from undilute import rules

PRESETS = [
    *("softmax", "temperature", "adaptive", "adaptive-monotone", "ssmax", "logn", "yarn", "llama4"),
    *(
        "softmax1",
        "sink",
        "sparsemax",
        "entmax15",
        "entmax",
        "focus",
        "as-entmax",
        "sigmoid",
        "sa-softmax",
        "softpick",
        "top-k",
        "hard",
        "normmax",
        "budget",
    ),
]


def test_every_promised_preset_is_there() -> None:
    assert rules.names()[: len(PRESETS)] == PRESETS
    for name in PRESETS:
        preset = rules.preset(name)
        assert preset.formula
        assert preset.paper
        assert isinstance(rules.get(name), rules.Rule)
        assert isinstance(rules.learnable(name, 8, 2), rules.Rule)


@pytest.fixture
def squared_relu() -> Iterator[str]:
    @rules.register("squared-relu", formula="relu(z)² / Σ relu(z)²")
    class SquaredReLU(rules.Map):
        is_sparse = True
        is_shift_invariant = False
        sums_to_one = False

        def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
            w = logits.relu().square().masked_fill(~visible, 0.0)
            return w / w.sum(-1, keepdim=True).clamp(min=1e-30)

        def lipschitz(self, n: int) -> float:
            return math.inf

    yield "squared-relu"
    rules.unregister("squared-relu")


def test_a_users_rule_works_everywhere(squared_relu: str) -> None:
    assert rules.get(squared_relu)(torch.tensor([2.0, 1.0, -3.0])).tolist() == pytest.approx([0.8, 0.2, 0.0])
    q = torch.randn(1, 2, 5, 4)
    assert ud.attention(q, q, q, rule=squared_relu, is_causal=True).shape == q.shape
    assert ud.nn.Attention(8, 2, rule=squared_relu)(torch.randn(1, 3, 8)).shape == (1, 3, 8)
    assert squared_relu in rules.names()


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ud.InvalidValue, match="'ssmax' is taken"):
        rules.register("ssmax")(lambda: rules.Rule())


def test_listeners_hear_of_every_name_there_is_and_will_be(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    heard: list[str] = []
    monkeypatch.setattr("undilute.rules.registry._listeners", [])
    rules.on_register(heard.append)
    before = rules.names()
    assert heard == before
    name = request.getfixturevalue("squared_relu")
    assert heard == [*before, name]
    rules.register(name)(rules.preset(name).factory)  # the same thing again is no news
    with pytest.raises(ud.InvalidValue):
        rules.register("ssmax")(lambda: rules.Rule())
    assert heard == [*before, name]
    rules.unregister(name)
    rules.register(name)(rules.Softmax)
    assert heard == [*before, name, name]


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ud.UnknownName, match="did you mean 'sparsemax'"):
        rules.get("sparse-max")
    for written, meant in (("SSMax", "ssmax"), ("ASEntmax", "as-entmax"), ("SA_Softmax", "sa-softmax")):
        with pytest.raises(ud.UnknownName, match=f"did you mean '{meant}'"):
            rules.get(written)
    with pytest.raises(ud.UnknownName, match="known: adaptive, adaptive-monotone, as-entmax"):
        rules.get("qqqq")
    with pytest.raises(LookupError):
        ud.attention(*torch.randn(3, 1, 1, 2, 4).unbind(), rule="sofmax")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rules.Entmax(1.0), "alpha = 1.0: must be a finite number > 0 other than 1.*use Softmax"),
        (lambda: rules.Entmax(1), "alpha = 1: must be a finite number > 0 other than 1"),
        (lambda: rules.Entmax(0.0), "alpha = 0.0: must be a finite number > 0"),
        (lambda: rules.Entmax(-0.5), "alpha = -0.5"),
        (lambda: rules.Entmax(math.nan), "alpha = nan"),
        (lambda: rules.Entmax(torch.tensor([1.5, -0.5])), "alpha holds -0.5: every value must be"),
        (lambda: rules.Entmax(torch.tensor([1.5, 1.0])), "alpha holds 1.0: every value must be.*use Softmax"),
        (lambda: rules.Entmax(torch.tensor([2, 3])), "alpha has dtype torch.int64"),
        (lambda: rules.Entmax("big"), "alpha = 'big'"),
        (lambda: rules.Normmax(1.0), "alpha = 1.0: must be a finite number > 1.*use Hard"),
        (lambda: rules.Normmax(torch.tensor([2.0, 0.5])), "alpha holds 0.5: every value must be"),
        (lambda: rules.Budget(-1), "budget = -1: must be a finite number of at least 0"),
        (lambda: rules.Budget(math.inf), "budget = inf"),
        (lambda: rules.Budget(torch.tensor([0.0, -2.0])), "budget holds -2.0: every value must be"),
        (lambda: rules.TopK(0), "k = 0: must be a whole number of at least 1"),
        (lambda: rules.TopK(2.5), "k = 2.5"),
        (lambda: rules.TopK(), "give exactly one"),
        (lambda: rules.TopK(2, 0.5), "give exactly one"),
        (lambda: rules.TopK(fraction=0.0), "fraction = 0.0"),
        (lambda: rules.TopK(fraction=1.5), "fraction = 1.5"),
        (lambda: rules.Temperature(0.0), "T = 0.0"),
        (lambda: rules.Temperature(-1), "T = -1"),
        (lambda: rules.LogLength(math.inf), "s = inf"),
        (lambda: rules.LogN(1), "train_length = 1"),
        (lambda: rules.YaRN(0), "factor = 0"),
        (lambda: rules.Llama4(floor_length=0), "floor_length = 0"),
        (lambda: rules.Softpick(0.0), "epsilon = 0.0"),
        (lambda: rules.SelfAdjusted("V7"), "variant = 'V7': must be one of V0, V1, V2, V3"),
        (lambda: rules.EntropyAdaptive([]), r"coefficients = \[\]: must be a list of numbers"),
        (lambda: rules.EntropyAdaptive(3.0), "coefficients = 3.0"),
        (lambda: rules.TopK(fraction="x"), "fraction = 'x'"),
        (lambda: rules.Temperature(1e-40), "T = 1e-40"),
        (lambda: rules.LogN(torch.tensor([2.0, 1.0])), "train_length holds 1.0"),
        (lambda: rules.LogLength(floor=math.nan), "floor = nan: must be one finite number, or None for no floor"),
        (lambda: rules.LogLength(floor=torch.ones(2)), "floor is a tensor"),
        (lambda: rules.Rule(rules.Entmax(2.0)), r"scale = Entmax.*must be a Scale; write Rule\(scale=…, map=…\)"),
        (lambda: rules.Rule(map="entmax15"), "map = 'entmax15': must be a Map"),
        (lambda: rules.Rule().lipschitz(0), "n = 0"),
        (lambda: rules.EntropyAdaptive([1.0, math.nan]), "coefficients = nan"),
        (lambda: rules.get("top-k", kay=3), r"got parameters \['kay'\]: it takes k, fraction"),
        (lambda: rules.get(rules.Rule(), k=3), "go with a rule's name"),
        (lambda: rules.get(3), "rule = 3 of type int"),
        (lambda: rules.LearnablePowLogLength(8, 2)(torch.zeros(3), torch.ones(3).bool()), "call rule.on"),
    ],
)
def test_bad_parameters_get_one_clear_error(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ud.InvalidValue, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r(torch.zeros(3, dtype=torch.int64)), "logits are torch.int64"),
        (lambda r: r([1.0, 2.0]), "logits are list"),
        (lambda r: r(torch.tensor(1.0)), "no dimension"),
        (lambda r: r(torch.zeros(2, 3), torch.ones(2, 3)), "mask has dtype torch.float32"),
        (lambda r: r(torch.zeros(3), [True, True, False]), "mask is list"),
        (lambda r: r(torch.zeros(2, 3), torch.ones(4, 3).bool()), r"\(4, 3\) does not broadcast.*\(2, 3\)"),
        (lambda r: r(torch.zeros(3), torch.ones(2, 3).bool()), "does not broadcast"),
        (lambda r: r(torch.zeros(3), torch.ones(3, device="meta").bool()), "mask is on meta"),
        (lambda r: rules.Rule(rules.LogLength(torch.ones(4)))(torch.zeros(2, 3, 5, 5)), r"s has shape \(4,\)"),
        (lambda r: rules.Rule(map=rules.Sink(torch.ones(4)))(torch.zeros(5, 5)), "one value per head"),
    ],
)
def test_bad_tensors_get_one_clear_error(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ud.InvalidTensor, match=message):
        call(rules.get("softmax"))


def test_errors_are_one_family_and_fit_pythons() -> None:
    assert issubclass(ud.InvalidValue, ud.UndiluteError)
    assert issubclass(ud.InvalidValue, ValueError)
    assert issubclass(ud.InvalidTensor, RuntimeError)
    assert issubclass(ud.UnknownName, LookupError)
    assert issubclass(ud.MissingExtra, ImportError)


def test_errors_survive_a_worker_process() -> None:
    for error in (ud.UnknownName("rule", "x", ["y"]), ud.MissingExtra("rich", "cli"), ud.InvalidValue("k = 0")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_numpy_integers_are_whole_numbers() -> None:
    assert rules.TopK(np.int64(2)).k == 2


def test_rules_can_be_copied_saved_and_deferred() -> None:
    for name in rules.names():
        rule = rules.learnable(name, 8, 2)
        assert repr(copy.deepcopy(rule)) == repr(rule)
        pickle.loads(pickle.dumps(rule)).load_state_dict(rule.state_dict())
        with torch.device("meta"):
            rules.learnable(name, 8, 2)


def test_rules_print_what_they_are() -> None:
    text = repr(rules.Rule(rules.LogLength(0.43), rules.Entmax(torch.tensor([1.2, 1.4]))))
    assert "LogLength(s=0.43, b=0)" in text
    assert "Entmax(alpha=<2 values>)" in text


# ---------------------------------------------------------------- packages that bring rules

BRINGS = """[undilute.rules]
all-of-it = brought_rules
brought-half = brought_rules:half
"""
RULES_OF_A_PACKAGE = """
import undilute as ud

@ud.rules.register("brought-twice")
def twice(factor: float = 2.0):
    return ud.rules.Temperature(1 / factor)

def half(T: float = 2.0):
    return ud.rules.Temperature(T)
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of packages, in a registry that has not looked for any yet."""
    before = dict(rules.registry._presets)
    monkeypatch.setattr("undilute.rules.registry._plugins", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    rules.registry._presets.clear()
    rules.registry._presets.update(before)
    for module in ("brought_rules", "broken_rules", "half_broken"):
        sys.modules.pop(module, None)


def test_a_package_brings_a_module_of_rules_and_a_factory(fresh: Path) -> None:
    install(fresh, "brings-rules", BRINGS, brought_rules=RULES_OF_A_PACKAGE)
    assert rules.get("brought-twice(factor=4)").scale.bound(1) == 4.0  # a name that is not known yet is looked for
    assert rules.get("brought-half(T=4)").scale.bound(1) == 0.25
    assert rules.names()[-2:] == ["brought-twice", "brought-half"]
    assert rules.text(rules.get("brought-half")) == "temperature(T=2)" or "brought" in rules.text("brought-half")
    assert "brought_rules" in sys.modules


def test_a_package_is_loaded_when_names_are_asked_for_and_never_before(tmp_path: Path) -> None:
    install(tmp_path, "brings-rules", BRINGS, brought_rules=RULES_OF_A_PACKAGE)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import undilute as ud\n"
        "ud.rules.get('ssmax(s=0.4)'); print('brought_rules' in sys.modules)\n"
        "print(ud.rules.names()[-2:])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout == "False\n['brought-twice', 'brought-half']\n", said.stderr


@pytest.mark.parametrize(
    ("points", "source", "message"),
    [
        ("x = broken_rules", "1 / 0", r"'x' of the package 'broken-rules' cannot be used \(ZeroDivisionError"),
        ("x = broken_rules", "import nothing_here", "ModuleNotFoundError: No module named 'nothing_here'"),
        ("x = broken_rules", "raise SystemExit(3)", "SystemExit: 3"),
        ("x = broken_rules:missing", "", "AttributeError"),
        ("ssmax = broken_rules:other", "def other(): ...", "rule name 'ssmax' is taken"),
        ("x = broken_rules:three", "three = 3", "'int' object is not callable"),
        ("x = broken_rules:none", "def none(): ...", "rule = None of type NoneType"),
    ],
)
def test_a_broken_package_is_one_warning_that_names_it(fresh: Path, points: str, source: str, message: str) -> None:
    install(fresh, "broken-rules", f"[undilute.rules]\n{points}\n", broken_rules=source)
    install(fresh, "brings-rules", BRINGS, brought_rules=RULES_OF_A_PACKAGE)
    before = dict(rules.registry._presets)
    with pytest.warns(UserWarning, match=message) as warned:
        known = rules.names()
    assert len(warned) == 1
    assert "'broken-rules'" in str(warned[0].message)
    assert known == [*before, "brought-twice", "brought-half"]  # the others are there
    assert rules.names() == known  # and nobody is told twice


def test_a_package_keeps_the_rules_that_work(fresh: Path) -> None:
    source = RULES_OF_A_PACKAGE + "ud.rules.register('brought-nothing')(lambda: 3)\nraise ValueError('half way')\n"
    install(fresh, "half-broken", "[undilute.rules]\nx = half_broken\n", half_broken=source)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert rules.names()[-1] == "brought-twice"
    assert ["half way" in str(said[0].message), "rule = 3" in str(said[1].message)] == [True, True]


def test_listeners_hear_of_packages_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(fresh, "brings-rules", BRINGS, brought_rules=RULES_OF_A_PACKAGE)
    monkeypatch.setattr("undilute.rules.registry._listeners", [])
    heard: list[str] = []
    rules.on_register(heard.append)
    assert heard == rules.names()
    assert heard.count("brought-twice") == 1
