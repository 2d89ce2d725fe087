"""A kind of treatments is one file: it applies, undoes, composes, and is judged like a rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import undilute as ud
from tests.evaluation.test_tasks import imported
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue, UnknownName
from undilute.treatment import InForce, Treatment
from undilute.treatment.apply import _readers, get

OWN = '''
from dataclasses import dataclass

import undilute as ud


@dataclass(frozen=True)
class Gain:
    """A factor on what every attention layer puts out."""

    factor: float

    @property
    def label(self):
        return f"gain {self.factor}"

    def enter(self, model):
        hooks = [layer.self_attn.register_forward_hook(self.scaled) for layer in model.model.layers]
        return ud.treatment.InForce(lambda: [hook.remove() for hook in hooks], f"Every output times {self.factor}.")

    def scaled(self, module, inputs, outputs):
        return (outputs[0] * self.factor, *outputs[1:])


@ud.treatment.kind("gain")
def read(given):
    name, _, factor = given.partition("=") if isinstance(given, str) else ("", "", "")
    return Gain(float(factor)) if name == "gain" else None
'''
IDS = tokens(1, 40)


@pytest.fixture
def kind(tmp_path: Path) -> Iterator[ModuleType]:
    (tmp_path / "my_gain.py").write_text(OWN)
    yield imported(tmp_path / "my_gain.py")
    del _readers["gain"]


def test_a_kind_of_ones_own_applies_and_undoes(kind: ModuleType) -> None:
    model = random_model("llama")
    before = model(IDS).logits
    with ud.apply(model, "gain=1.0"):
        assert torch.equal(model(IDS).logits, before)
    with ud.apply(model, kind.Gain(0.5)) as now:
        half = model(IDS).logits
        assert now.summary == "Every output times 0.5."
    assert not torch.allclose(half, before)
    assert torch.equal(model(IDS).logits, before)
    assert isinstance(kind.Gain(1.0), Treatment)
    with pytest.raises(InvalidValue, match=r"learn = \('s',\): only rules have parameters to learn, not gain 2\.0"):
        ud.apply(model, "gain=2.0", learn=("s",))
    with pytest.raises(UnknownName, match=r"unknown rule 'gian=2\.0'"):
        ud.apply(model, "gian=2.0")


def test_treatments_compose_and_are_undone_in_reverse(kind: ModuleType) -> None:
    model = random_model("llama")
    before = model(IDS).logits
    with ud.apply(model, "ssmax"), ud.apply(model, "gain=0.5"):
        both = model(IDS).logits
    with ud.apply(model, ["ssmax", "gain=0.5"]) as now:
        assert torch.equal(model(IDS).logits, both)
        assert now.summary == "ssmax for 8 of 8 heads of LlamaForCausalLM. Then: Every output times 0.5."
    assert torch.equal(model(IDS).logits, before)
    with ud.apply(model, [{"*": "ssmax"}, {"layers.0.*": "top-k"}]):  # two of the same layers
        assert ud.Plan.of(model).heads == [(layer, head) for layer in range(2) for head in range(4)]
    assert torch.equal(model(IDS).logits, before)
    assert get(["ssmax", kind.Gain(2.0)]).label == "ssmax + gain 2.0"


def test_if_one_of_several_fails_none_is_left(kind: ModuleType) -> None:
    model = random_model("llama")
    before = model(IDS).logits
    with pytest.raises(InvalidValue, match=r"no head matches 'layers\.9\.\*'"):
        ud.apply(model, ["gain=0.5", "ssmax", {"layers.9.*": "ssmax"}])
    assert torch.equal(model(IDS).logits, before)
    with pytest.raises(InvalidValue, match="the treatment is an empty list"):
        ud.apply(model, [])


@pytest.mark.parametrize("returned", [None, nullcontext()])
def test_what_is_not_in_force_is_no_treatment(returned: object) -> None:
    model = random_model("llama")
    before = model(IDS).logits
    given = SimpleNamespace(label="mine", enter=lambda model: returned)
    for each in (given, ["ssmax", given]):
        with pytest.raises(InvalidValue, match=r"enter of mine returned a .*: must put the treatment in force"):
            ud.apply(model, each)
        with pytest.raises(InvalidValue, match="enter of mine returned a"):
            ud.evaluate(model, None, tokens(600), each, length=64, haystacks=0)
    assert torch.equal(model(IDS).logits, before)


def test_undo_is_called_once() -> None:
    undone: list[int] = []
    now = InForce(lambda: undone.append(1))
    with now:
        pass
    now.undo()
    assert undone == [1]


def test_a_kind_of_ones_own_is_judged_like_a_rule(kind: ModuleType, tmp_path: Path) -> None:
    model = random_model("llama")
    ids = torch.arange(600) % 60
    options = {"length": 64, "haystacks": 0, "windows": 2}
    one = ud.evaluate(model, None, ids, kind.Gain(0.5), **options)
    assert one.findings[0].startswith("With gain 0.5 instead of softmax, next-token loss ")
    assert one.findings[1] == "The treatment: Every output times 0.5."
    assert {path.name for path in one.save(tmp_path)} >= {"index.html", "results.json"}
    assert not (tmp_path / "plan.json").exists()
    many = ud.compare(
        model, None, ids, {"half": "gain=0.5", "both": ["ssmax", "gain=0.5"], "none": "gain=1"}, **options
    )
    assert list(many.changes) == ["half", "both", "none"]
    assert many.changes["half"][0].after == one.changes["gain 0.5"][0].after
    assert many.changes["none"][0].difference == 0.0
    assert many.changes["both"][0].after != many.changes["half"][0].after
    assert set(many.frame("cost")["rule"]) == {"softmax", "half", "both", "none"}
