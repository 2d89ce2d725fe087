"""A fingerprint is the same for the same model, and another for whatever computes otherwise."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.models.attending import random_model
from tests.models.small import tokenizer
from undilute.models.fingerprint import of_model
from undilute.rules import Map, Rule, Scale

TOKENIZER = tokenizer()
MADE = """
import torch
from tests.models.attending import random_model
from tests.models.small import tokenizer
from undilute.models.fingerprint import of_model
import undilute as ud
model = random_model("llama", dtype=torch.float32)
print(of_model(model, tokenizer()))
ud.apply(model, "ssmax")
print(of_model(model, tokenizer()))
"""


def model(kind: str = "llama") -> Any:
    return random_model(kind, dtype=torch.float32)


def print_of(given: Any) -> str:
    return of_model(given, TOKENIZER)


class Hidden(Map):
    """Softmax of logits times a number that its text does not show."""

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return (logits * 2).masked_fill(~visible, -torch.inf).softmax(-1)

    def lipschitz(self, n: int) -> float:
        return 1.0

    def __repr__(self) -> str:
        return "Hidden()"


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class Opaque:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")

    def __deepcopy__(self, memo: Any) -> Opaque:
        return self


def of_rule(rule: Any) -> str:
    treated = model()
    with ud.apply(treated, rule):
        return print_of(treated)


def test_the_same_model_has_the_same() -> None:
    first = model()
    found = print_of(first)
    assert len(found) == 64
    assert print_of(first) == print_of(model()) == print_of(copy.deepcopy(first)) == found
    first.train()
    first.config._name_or_path = "elsewhere"
    with ud.watch(first, lambda call: None):
        assert print_of(first) == found
    with ud.apply(first, "ssmax"):
        assert print_of(first) != found
    assert print_of(first) == found


def test_another_process_finds_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", MADE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [print_of(model()), of_rule("ssmax")]


def change(path: str, value: Any) -> Callable[[Any], None]:
    def apply(given: Any) -> None:
        *parts, last = path.split(".")
        for part in parts:
            given = given[int(part)] if part.isdigit() else getattr(given, part)
        setattr(given, last, value)

    return apply


def one_number(given: Any) -> None:
    given.get_input_embeddings().weight.data[17, 3] += 1e-4


def two_heads_swapped(given: Any) -> None:
    weight = given.model.layers[0].self_attn.q_proj.weight.data
    weight[:16] = weight[:16].roll(8, 0)


def rotary(given: Any) -> None:
    """A buffer that no checkpoint holds."""
    given.model.rotary_emb.inv_freq *= 0.5


def hooked(given: Any, factor: float = 2.0) -> None:
    given.model.layers[0].register_forward_hook(lambda module, args, output: output * factor)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "one number": one_number,
    "swapped heads": two_heads_swapped,
    "half precision": lambda given: given.to(torch.bfloat16),
    "rotary frequencies": rotary,
    "configuration": change("config.rms_norm_eps", 1e-3),
    "attribute of a module": change("model.layers.0.self_attn.scaling", 0.5),
    "implementation": lambda given: given.set_attn_implementation("eager"),
    "rule by implementation": lambda given: given.set_attn_implementation("undilute:ssmax"),
    "other rule by implementation": lambda given: given.set_attn_implementation("undilute:entmax15"),
    "ssmax": lambda given: ud.apply(given, "ssmax"),
    "ssmax, another number": lambda given: ud.apply(given, "ssmax(s=0.43000001)"),
    "ssmax, one head": lambda given: ud.apply(given, {"layers.1.heads.2": "ssmax"}),
    "ssmax, another head": lambda given: ud.apply(given, {"layers.1.heads.3": "ssmax"}),
    "hook": hooked,
    "hook, another number": partial(hooked, factor=3.0),
}


def test_every_change_is_another_model() -> None:
    found = {"": print_of(model())}
    for name, apply in CHANGES.items():
        given = model()
        apply(given)
        found[name] = print_of(given)
    assert len(set(found.values())) == len(found)


def test_a_learned_rule_changes_as_it_learns() -> None:
    given = model()
    ud.apply(given, ud.rules.LearnableLogLength(4))
    before = print_of(given)
    learned = [each for name, each in given.named_parameters() if "undilute_rules" in name]
    assert learned
    learned[0].data += 1e-3
    assert print_of(given) != before


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "number": (lambda: 1.0, lambda: 1.0 + 1e-12),
    "tensor": (lambda: torch.arange(3.0), lambda: torch.tensor([0.0, 2.0, 1.0])),
    "nested": (lambda: {"a": [1, {2, 3}]}, lambda: {"a": [1, {2, 4}]}),
    "object": (lambda: Slotted(1.0), lambda: Slotted(2.0)),
    "array": (lambda: torch.arange(3).numpy(), lambda: torch.arange(1, 4).numpy()),
    "rule": (lambda: ud.rules.get("ssmax"), lambda: ud.rules.get("entmax15")),
    "function": (lambda: lambda x: x + 1, lambda: lambda x: x + 2),
    "part of a function": (lambda: partial(max, 1), lambda: partial(max, 2)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_what_a_rule_holds_counts_and_not_what_it_shows(kind: str) -> None:
    one, other = PAIRS[kind]
    assert repr(Hidden(one())) == repr(Hidden(other()))
    assert of_rule(Hidden(one())) == of_rule(Hidden(one()))
    assert of_rule(Hidden(one())) != of_rule(Hidden(other()))


def test_a_rule_that_holds_itself_ends() -> None:
    rule = Hidden([1.0])
    rule.factor.append(rule.factor)
    assert of_rule(rule) == of_rule(rule)


def test_what_shows_nothing_is_never_the_same() -> None:
    rule = Hidden(Opaque())
    assert of_rule(rule) != of_rule(rule)


def test_a_rule_whose_code_was_changed_is_another() -> None:
    """The class has the same name: a program was edited between two runs."""

    def made(factor: float) -> Rule:
        space: dict[str, Any] = {"Scale": Scale, "__name__": "mine"}
        exec(
            "class Mine(Scale):\n"
            f"    def at_length(self, n):\n        return {factor}\n"
            f"    def bound(self, n):\n        return {factor}\n",
            space,
        )
        return Rule(space["Mine"]())

    assert of_rule(made(2.0)) == of_rule(made(2.0))
    assert of_rule(made(2.0)) != of_rule(made(3.0))


# ---------------------------------------------------------------- tensors of every kind


def test_weights_that_are_elsewhere_are_known_in_this_process_only() -> None:
    one, other = model().to("meta"), model().to("meta")
    assert print_of(one) == print_of(one)
    assert print_of(one) != print_of(other)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_weights_count() -> None:
    def quantised(scale: float) -> Any:
        given = model()
        weight = given.get_input_embeddings().weight.detach()
        given.register_buffer("packed", torch.quantize_per_tensor(weight, scale, 0, torch.qint8))
        return given

    assert print_of(quantised(0.1)) == print_of(quantised(0.1)) != print_of(quantised(0.2))


def test_tensors_of_a_class_of_their_own_count() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def of_two(second: float) -> Any:
        given = model()
        given.register_buffer("two", TwoTensor(torch.ones(3), torch.full((3,), second)))
        return given

    assert print_of(of_two(1.0)) == print_of(of_two(1.0)) != print_of(of_two(2.0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.float64, torch.complex64])
def test_buffers_of_any_type_count(dtype: torch.dtype) -> None:
    def with_buffer(size: int, place: int) -> Any:
        given = model()
        held = torch.zeros(size, dtype=dtype)
        held[place] = 1
        given.register_buffer("mine", held, persistent=False)
        return given

    assert print_of(with_buffer(5, 1)) == print_of(with_buffer(5, 1)) != print_of(with_buffer(5, 2))
    assert print_of(with_buffer(5, 1)) != print_of(with_buffer(6, 1))


def test_tied_and_absent_weights() -> None:
    tied = model("gpt2")
    assert tied.lm_head.weight is tied.transformer.wte.weight
    assert print_of(tied) == print_of(model("gpt2"))
    empty = model()
    empty.register_buffer("nothing", torch.zeros(0))
    assert print_of(empty) != print_of(model())


# ---------------------------------------------------------------- tokenizers


def test_a_changed_tokenizer_is_another() -> None:
    given, plain = model(), of_model(model(), TOKENIZER)
    more = copy.deepcopy(TOKENIZER)
    more.add_tokens(["heronry"])
    assert of_model(given, more) != plain
    small = copy.deepcopy(TOKENIZER)
    from tokenizers.normalizers import Lowercase

    small.backend_tokenizer.normalizer = Lowercase()
    assert small.get_vocab() == TOKENIZER.get_vocab()
    assert of_model(given, small) != plain
    used = copy.deepcopy(TOKENIZER)
    used("the cat", truncation=True, max_length=1)
    assert of_model(given, used) == plain
