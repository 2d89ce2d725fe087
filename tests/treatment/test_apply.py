"""A treated model generates as it should: with its cache, padded, in a batch; and afterwards it is what it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.models.attending import KINDS as ALL_KINDS
from tests.models.attending import WITHOUT_SDPA, random_model, tokens
from tests.treatment.generating import KINDS, generated, generating_model
from undilute.errors import InvalidTensor, InvalidValue, UnknownName
from undilute.models.head_rules import HeadRules
from undilute.rules.base import Rule

MIXED = {"layers.0.*": "ssmax", "layers.*.heads.1": "top-k", "layers.1.heads.2": "entmax15"}


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    return ud.models.load("smollm2")


@pytest.mark.parametrize("kind", KINDS)
def test_generation_with_a_cache_is_generation_without(kind: str, rule: Rule) -> None:
    model, ids = generating_model(kind), tokens(2, 10)
    with ud.apply(model, rule):
        assert generated(model, ids, use_cache=True) == generated(model, ids, use_cache=False)


@pytest.mark.parametrize("name", ud.rules.names())
def test_smollm2_generates_with_a_cache_as_without(smollm2: tuple[Any, Any], name: str) -> None:
    model, tokenizer = smollm2
    ids = tokenizer("The capital of France is Paris. The capital of Italy is", return_tensors="pt").input_ids
    with ud.apply(model, name):
        assert generated(model, ids, 4, use_cache=True) == generated(model, ids, 4, use_cache=False)


@pytest.mark.parametrize("name", ud.rules.names())
@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_left_changes_no_token(kind: str, name: str) -> None:
    model, long, short = generating_model(kind), tokens(1, 10), tokens(1, 6, seed=1)
    ids = torch.cat([long, torch.cat([torch.zeros(1, 4, dtype=torch.int64), short], 1)])
    mask = torch.tensor([[1] * 10, [0] * 4 + [1] * 6])
    if kind == "bert":  # counts its positions from the first place, padding or not
        return _padded_logits(model, name, ids, mask, [long, short])
    with ud.apply(model, name):
        together = generated(model, ids, attention_mask=mask)
        assert together == [generated(model, each)[0] for each in (long, short)]
    return None


def _padded_logits(model: Any, name: str, ids: Tensor, mask: Tensor, alone: list[Tensor]) -> None:
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad(), ud.apply(model, name):
        together = model(ids, attention_mask=mask, position_ids=positions).logits
        for number, each in enumerate(alone):
            torch.testing.assert_close(together[number, -each.shape[1] :], model(each).logits[0])


@pytest.mark.parametrize("name", ud.rules.names())
@pytest.mark.parametrize("kind", [*KINDS, "encoder"])
def test_padding_on_the_right_changes_no_row(kind: str, name: str) -> None:
    model = random_model("bert") if kind == "encoder" else generating_model(kind)
    short = tokens(1, 6, seed=1)
    ids = torch.cat([tokens(1, 10), torch.cat([short, torch.zeros(1, 4, dtype=torch.int64)], 1)])
    mask = torch.tensor([[1] * 10, [1] * 6 + [0] * 4])
    with torch.no_grad(), ud.apply(model, name):
        torch.testing.assert_close(model(ids, attention_mask=mask)[0][1, :6], model(short)[0][0])


@pytest.mark.parametrize("name", ud.rules.names())
def test_a_static_cache_gives_the_same_tokens(name: str) -> None:
    model, ids = generating_model("llama"), tokens(1, 10)
    with ud.apply(model, name):
        static = generated(model, ids, cache_implementation="static", disable_compile=True)
        assert static == generated(model, ids)


@pytest.mark.parametrize(("kind", "implementation"), ALL_KINDS)
def test_softmax_is_the_identity(kind: str, implementation: str) -> None:
    model, ids = random_model(kind, implementation), tokens(2, 20)
    with torch.no_grad():
        before = model(ids)[0]
        with ud.apply(model, "softmax"):
            torch.testing.assert_close(model(ids)[0], before, atol=1e-5, rtol=1e-5)  # eager makes float32 weights
        with ud.apply(model, ud.rules.get("temperature", T=0.5)):
            assert not torch.allclose(model(ids)[0], before, atol=1e-3)


@pytest.mark.parametrize(("kind", "implementation"), ALL_KINDS)
def test_afterwards_the_logits_are_bit_identical(kind: str, implementation: str) -> None:
    model, ids = random_model(kind, implementation), tokens(2, 20)
    scale = "ssmax" if kind == "gpt-oss" else "entmax15"
    state = list(model.state_dict())
    with torch.no_grad():
        before = model(ids)[0]
        with ud.apply(model, scale):
            assert not torch.equal(model(ids)[0], before)
        assert torch.equal(model(ids)[0], before)
        with pytest.raises(RuntimeError, match="on purpose"), ud.apply(model, scale):
            raise RuntimeError("on purpose")
        assert torch.equal(model(ids)[0], before)
    assert list(model.state_dict()) == state


def test_each_head_gets_its_own_rule() -> None:
    """Against the same layer with all heads treated: a head's output depends on its own rule only."""
    model, ids = random_model("llama"), tokens(1, 24)
    wanted = {(0, 0): "ssmax", (0, 1): "top-k", (0, 2): "ssmax", (0, 3): "ssmax"}
    attention = model.model.layers[0].self_attn
    outputs: dict[str, Tensor] = {}

    def watched(name: str, treatment: Any) -> Tensor:
        hook = attention.o_proj.register_forward_pre_hook(lambda _, given: outputs.__setitem__(name, given[0]))
        with torch.no_grad(), ud.apply(model, treatment):
            model(ids)
        hook.remove()
        return outputs[name].view(1, 24, 4, -1)

    mixed = watched("mixed", MIXED)
    for (_, head), name in wanted.items():
        torch.testing.assert_close(mixed[:, :, head], watched(name, name)[:, :, head])
    untouched = watched("some", {"layers.0.heads.3": "hard"})
    torch.testing.assert_close(untouched[:, :, :3], watched("softmax", "softmax")[:, :, :3])


def test_a_later_pattern_wins_and_others_keep_softmax() -> None:
    model = random_model("llama")
    with ud.apply(model, MIXED):
        plan = ud.Plan.of(model)
    assert plan.heads == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    kinds = {head: type(rule.map).__name__ for head in plan.heads if (rule := plan.rule_of(*head))}
    assert kinds == {
        (0, 0): "Softmax",
        (0, 1): "TopK",
        (0, 2): "Softmax",
        (0, 3): "Softmax",
        (1, 1): "TopK",
        (1, 2): "Entmax",
    }
    assert plan.rule_of(1, 0) is None


def test_heads_with_the_same_rule_run_together() -> None:
    with ud.apply(random_model("llama"), {f"layers.0.heads.{head}": "ssmax" for head in (0, 2, 3)}) as treated:
        assert [each.heads for each in treated.plan.assignments] == [(0, 2, 3)]


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    model, ids = random_model("llama"), tokens(1, 24)
    per_head = ud.rules.LogLength(s=torch.tensor([0.1, 0.2, 0.3, 0.4]), b=0.5)
    with torch.no_grad(), ud.apply(model, {"layers.0": per_head, "layers.1.heads.0": "sparsemax"}) as treated:
        treated.plan.save(tmp_path / "plan.json")
        expected = model(ids)[0]
    for given in (str(tmp_path / "plan.json"), tmp_path / "plan.json", ud.Plan.load(tmp_path / "plan.json")):
        with torch.no_grad(), ud.apply(model, given):
            assert torch.equal(model(ids)[0], expected)


def test_for_good_and_undone() -> None:
    model, ids = random_model("gpt2"), tokens(1, 24)
    with torch.no_grad():
        before = model(ids)[0]
        first = ud.apply(model, "ssmax")
        once = model(ids)[0]
        second = ud.apply(model, {"layers.1.heads.0": "hard"})
        assert not torch.equal(model(ids)[0], once)
        rules = model.transformer.h[1].attn.undilute_rules
        assert [type(rules.of_head(head).scale).__name__ for head in range(4)] == ["Temperature"] + ["LogLength"] * 3
        with pytest.raises(InvalidValue, match="a later treatment"):
            first.undo()
        second.undo()
        assert torch.equal(model(ids)[0], once)
        first.undo()
        first.undo()
        assert torch.equal(model(ids)[0], before)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "bert"])
def test_gradients_reach_weights_and_what_is_learned(kind: str) -> None:
    model, ids = random_model(kind, "eager" if kind in WITHOUT_SDPA else "sdpa"), tokens(2, 12)
    with ud.apply(model, "ssmax", learn=("s",)) as treated:
        assert [tuple(each.shape) for each in treated.parameters()] == [(4,), (4,)]
        assert set(map(id, treated.parameters())) <= set(map(id, model.parameters()))
        model(ids)[0].square().mean().backward()
        assert all(each.grad is not None and bool((each.grad != 0).all()) for each in treated.parameters())
        weights = [each for name, each in model.named_parameters() if "q_proj.weight" in name or "query.weight" in name]
        assert weights
        assert all(each.grad is not None and bool((each.grad != 0).any()) for each in weights)
        _slope_is_right(model, ids, treated.parameters()[0])


def _slope_is_right(model: Any, ids: Tensor, s: Tensor, step: float = 1e-2) -> None:
    """Against a central difference; s is float32, so the step must be large."""
    assert s.grad is not None
    slope, found = float(s.grad[1]), []
    with torch.no_grad():
        for sign in (1, -1):
            s[1] += sign * step
            found.append(float(model(ids)[0].square().mean()))
            s[1] -= sign * step
    assert slope == pytest.approx((found[0] - found[1]) / (2 * step), rel=2e-2, abs=1e-7)


def test_what_was_learned_is_in_the_plan() -> None:
    model = random_model("llama")
    with ud.apply(model, "ssmax", learn=("s",)) as treated:
        with torch.no_grad():
            treated.parameters()[1][2] = 0.75
        plan = ud.Plan.from_json(ud.Plan.of(model).to_json())
    rule = plan.rule_of(1, 2)
    assert rule is not None
    assert float(rule.scale.s) == 0.75


def test_dropout_is_the_models() -> None:
    model = random_model("gpt2")
    model.config.attn_pdrop = 0.5
    for block in model.transformer.h:
        block.attn.attn_dropout.p = 0.5
    ids = tokens(1, 20)
    with torch.no_grad(), ud.apply(model, "ssmax"):
        calm = model(ids)[0]
        assert torch.equal(model(ids)[0], calm)
        model.train()
        model.transformer.drop.p = 0.0
        assert not torch.equal(model(ids)[0], model(ids)[0])


def test_applying_leaves_random_numbers_and_modes_alone() -> None:
    model = random_model("gpt2").train()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with ud.apply(model, "ssmax"):
        assert torch.equal(torch.rand(3), expected)
        assert all(
            part.training for part in model.modules() if not isinstance(part, HeadRules | Rule) and part is model
        )
    assert model.training


def test_a_copy_of_a_treated_model_is_treated() -> None:
    model, ids = random_model("llama"), tokens(1, 12)
    with torch.no_grad(), ud.apply(model, "ssmax"):
        assert torch.equal(copy.deepcopy(model)(ids)[0], model(ids)[0])


@pytest.mark.parametrize(
    ("treatment", "message"),
    [
        (
            {"layers.7.*": "ssmax"},
            r"no head matches 'layers.7.\*': there are layers.0 to layers.1 .* heads.0 to heads.3",
        ),
        ({"layers.0.heads.9": "ssmax"}, "no head matches 'layers.0.heads.9'"),
        ({}, "empty mapping"),
        ({3: "ssmax"}, "pattern 3: must be text"),
        ("no-such-plan.json", "cannot read the plan 'no-such-plan.json': No such file"),
        (ud.rules.Rule(ud.nn.LearnablePowLogLength(32, 4)), "computed from the layer's input.*cannot decode"),
        (ud.rules.PowLogLength(beta=torch.ones(1, 4, 24, 1), gamma=1.0), "rows of one input, so it cannot decode"),
        (ud.rules.LogLength(s=torch.ones(3)), r"s has shape \(3,\)"),
        (3.5, "must be a rule's name, a Rule, a Map or a Scale"),
    ],
)
def test_what_cannot_be_applied_leaves_the_model_untouched(treatment: Any, message: str) -> None:
    model, ids = random_model("llama"), tokens(1, 12)
    with torch.no_grad():
        before = model(ids)[0]
        with pytest.raises((InvalidValue, InvalidTensor), match=message):
            ud.apply(model, treatment)
        assert torch.equal(model(ids)[0], before)
    assert model.config._attn_implementation == "sdpa"


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(UnknownName, match="ssmacks"):
        ud.apply(random_model("llama"), "ssmacks")
    with pytest.raises(InvalidValue, match="model is a Linear"):
        ud.apply(torch.nn.Linear(2, 2), "ssmax")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="layer 0: GptOssAttention has learned sinks"):
        ud.apply(random_model("gpt-oss", "eager"), "entmax15")
    with pytest.raises(InvalidValue, match=r"no rule of the treatment has a parameter 'alpha'; there is b, .*s"):
        ud.apply(random_model("llama"), "ssmax", learn=("alpha",))
    with pytest.raises(InvalidValue, match=r"must be names of parameters in a list, such as \('s',\)"):
        ud.apply(random_model("llama"), "ssmax", learn="s")


def test_a_plan_for_another_model_is_refused(tmp_path: Path) -> None:
    with ud.apply(random_model("llama"), "ssmax") as treated:
        path = treated.plan.save(tmp_path / "plan.json")
    model = random_model("gpt2")
    with pytest.raises(
        InvalidValue, match=r"another model: for LlamaForCausalLM with 2 .* this is GPT2LMHeadModel with 3"
    ):
        ud.apply(model, path)
    assert model.config._attn_implementation == "sdpa"
    for text, message in (("{", "not JSON"), ("[]", "schema is None"), ('{"schema": "undilute.plan/1"}', "incomplete")):
        path.write_text(text)
        with pytest.raises(InvalidValue, match=f"cannot read the plan .*{message}"):
            ud.apply(model, path)


def test_packed_sequences_are_refused() -> None:
    model, ids = random_model("llama"), tokens(1, 12)
    borders = torch.tensor([0, 5, 12])
    with ud.apply(model, "ssmax"), pytest.raises(InvalidValue, match="several sequences packed into one row"):
        model(ids, cu_seq_lens_q=borders, cu_seq_lens_k=borders, max_length_q=7, max_length_k=7)
