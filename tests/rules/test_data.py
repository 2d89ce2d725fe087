"""Rules as data: what is written is read back as the same rule, and nothing else is read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.cases import rows, some_mask
from undilute import rules
from undilute.rules import Map, Rule, Scale, from_data, to_data


def written_and_read(rule: Rule) -> Rule:
    return from_data(json.loads(json.dumps(to_data(rule))))


def same(one: Rule, other: Rule, *shape: int) -> None:
    z, mask = rows(*shape, seed=1), some_mask(*shape, seed=2)
    assert torch.equal(one(z, mask), other(z, mask))
    assert torch.equal(one(z.float(), mask), other(z.float(), mask))


def test_every_rule_comes_back_the_same(rule: Rule) -> None:
    again = written_and_read(rule)
    assert repr(again) == repr(rule)
    assert to_data(again) == to_data(rule)
    same(rule, again, 20, 9)


HEADS = torch.tensor([0.1, 0.7, 1 / 3])
PER_HEAD = {
    "LogLength": Rule(rules.LogLength(HEADS, -HEADS, floor=0.3)),
    "LogN": Rule(rules.LogN(1 + HEADS)),
    "PowLogLength": Rule(rules.PowLogLength(HEADS, 0.5, HEADS[:, None, None]), rules.Entmax(1 + HEADS)),
    "EntropyCurve": Rule(rules.EntropyCurve(HEADS[:, None] * torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 1.1]] * 3))),
    "Temperature": Rule(rules.Temperature(HEADS), rules.Sink(HEADS)),
    "Sigmoid": Rule(map=rules.Sigmoid(HEADS)),
}


@pytest.mark.parametrize("name", PER_HEAD)
def test_tensors_come_back_exactly(name: str) -> None:
    again = written_and_read(PER_HEAD[name])
    state = PER_HEAD[name].state_dict()
    assert state.keys() == again.state_dict().keys()
    assert state
    for key, value in again.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, state[key])
    same(PER_HEAD[name], again, 2, 3, 5, 8)


def test_learned_rules_become_constants_with_what_they_learned() -> None:
    for name in ("ssmax", "temperature", "sink", "entmax"):
        learned = rules.learnable(name, 8, 3)
        with torch.no_grad():
            for parameter in learned.parameters():
                parameter.add_(HEADS)
        data = to_data(learned)
        assert not any(part["kind"].startswith("Learnable") for part in data.values())
        again = from_data(data)
        assert not list(again.parameters())
        torch.testing.assert_close(again(rows(3, 4, 7)), learned(rows(3, 4, 7)).detach(), rtol=1e-6, atol=1e-7)
    assert to_data(rules.learnable("ssmax", 8, 2))["scale"] == {
        "kind": "LogLength",
        "s": [1.0, 1.0],
        "b": 0.0,
        "floor": None,
    }


def test_what_reads_the_layers_input_is_refused() -> None:
    with pytest.raises(
        ud.InvalidValue,
        match="LearnablePowLogLength cannot be written as data: it does not show its embed_dim, num_heads",
    ):
        to_data(rules.learnable("as-entmax", 8, 2))
    with pytest.raises(ud.InvalidValue, match="rule = 'ssmax': must be a Rule"):
        to_data("ssmax")  # type: ignore[arg-type]


class Powers(Map):
    """A map as a user may write it: annotated or not, kept under the same names or not."""

    def __init__(self, powers: Sequence[float], gains=1.0, label: str = "", *, offset: float | None = None) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.powers, self.gains, self.label, self.offset = tuple(powers), gains, label, offset

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        w = sum((logits.abs() + 0.1) ** p for p in self.powers) * rules.parameters.per_head("gains", self.gains, logits)
        return w.masked_fill(~visible, 0.0)

    def lipschitz(self, n: int) -> float:
        return math.inf


def test_a_users_map_comes_back_the_same() -> None:
    rule = Rule(map=Powers([1.0, 2.5], gains=HEADS, label="mine"))
    data = to_data(rule)["map"]
    assert data == {"kind": "Powers", "powers": [1.0, 2.5], "gains": HEADS.tolist(), "label": "mine", "offset": None}
    again = written_and_read(rule)
    assert again.map.powers == (1.0, 2.5)
    same(rule, again, 2, 3, 5, 8)


def test_of_two_classes_with_one_name_undilutes_is_meant() -> None:
    class Softmax(Map):
        def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
            return visible.to(logits.dtype)

    assert type(from_data({"map": {"kind": "Softmax"}}).map) is rules.Softmax
    with pytest.raises(ud.InvalidValue, match=r"Softmax of .*test_data cannot be written as data: another Map"):
        to_data(Rule(map=Softmax()))


def test_a_class_that_behaves_otherwise_is_not_written_as_its_parent() -> None:
    class Squared(rules.LogLength):
        def __init__(self, extra: float) -> None:
            super().__init__(0.5)
            self.more = extra

        def at_length(self, n: Tensor) -> Tensor:
            return super().at_length(n) ** 2 * self.more

    with pytest.raises(ud.InvalidValue, match="Squared cannot be written as data: it does not show its extra"):
        to_data(Rule(Squared(2.0)))


def test_parameters_that_are_no_data_are_refused() -> None:
    class Odd(Scale):
        def __init__(self, function: object) -> None:
            super().__init__()
            self.function = function

        def at_length(self, n: Tensor) -> float:
            return 1.0

    with pytest.raises(ud.InvalidValue, match=r"Odd.function = .* of type type cannot be written as data"):
        to_data(Rule(Odd(int)))


def test_what_is_left_out_has_its_default() -> None:
    assert to_data(from_data({"map": {"kind": "Hard"}}))["scale"] == {"kind": "Temperature", "T": 1.0}
    assert from_data({"scale": {"kind": "LogLength", "b": 0.5}}).scale.s == 0.43
    assert from_data({"scale": {"kind": "EntropyAdaptive"}}).scale.beta(3.0) == pytest.approx(2.25, abs=1e-4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"rule data hold \[\]: must be 'scale', 'map' or both"),
        ("softmax", "rule data hold 'softmax'"),
        ({"scales": {"kind": "LogN"}}, r"rule data hold \['scales'\]"),
        ({"map": "Softmax"}, "map = 'Softmax': must be data with a 'kind'"),
        ({"map": {"kind": 3}}, "map = {'kind': 3}: must be data with a 'kind'"),
        ({"map": None}, "map = None"),
        ({"map": {"kind": "Softmax", "T": 2.0}}, "Softmax has no parameter T: it takes none"),
        ({"scale": {"kind": "LogLength", "slope": 1}}, "LogLength has no parameter slope: it takes s, b, floor"),
        ({"scale": {"kind": "PowLogLength", "beta": 1.0}}, "PowLogLength lacks its parameter gamma"),
        ({"scale": {"kind": "LogLength", "s": "big"}}, "scale of kind 'LogLength': s = 'big': must be a finite number"),
        ({"scale": {"kind": "LogLength", "s": ["big"]}}, r"s = \['big'\]: must be numbers"),
        ({"scale": {"kind": "LogLength", "s": [[1.0], [1.0, 2.0]]}}, "in lists of equal length"),
        ({"scale": {"kind": "LogLength", "s": []}}, r"s = \[\]: must hold at least one number"),
        ({"scale": {"kind": "LogLength", "s": None}}, "s = None"),
        ({"scale": {"kind": "LogLength", "s": {"a": 1}}}, "s = {'a': 1}"),
        ({"scale": {"kind": "YaRN", "factor": [1.0, 2.0]}}, "factor is a tensor: must be one finite number"),
        ({"scale": {"kind": "EntropyAdaptive", "coefficients": 3.0}}, "coefficients = 3.0"),
        ({"scale": {"kind": "EntropyCurve", "entropies": [1.0], "betas": [0.5]}}, "betas hold 0.5"),
        ({"map": {"kind": "TopK", "k": 2.5}}, "k = 2.5: must be a whole number"),
        ({"map": {"kind": "SelfAdjusted", "variant": ["V0"]}}, r"variant = \['V0'\]: must be numbers"),
        ({"map": {"kind": "Powers", "powers": 3}}, "map of kind 'Powers': "),
    ],
)
def test_bad_data_get_one_clear_error(data: dict[str, object], message: str) -> None:
    with pytest.raises(ud.InvalidValue, match=message):
        from_data(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"scale": {"kind": "LogLenght"}}, "unknown scale 'LogLenght': did you mean 'LogLength'"),
        ({"map": {"kind": "LogLength"}}, "unknown map 'LogLength'"),
        ({"scale": {"kind": "os.system"}}, "unknown scale 'os.system'"),
        ({"scale": {"kind": "OfEntropy"}}, "unknown scale 'OfEntropy'"),
        ({"scale": {"kind": "Scale"}}, "unknown scale 'Scale'"),
    ],
)
def test_unknown_kinds_suggest_the_nearest(data: dict[str, object], message: str) -> None:
    with pytest.raises(ud.UnknownName, match=message):
        from_data(data)
