"""A treated model generates as it should: with its cache, padded, in a batch; and afterwards it is what it was."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from tests.models.attending import CLASSES, CONFIGURATIONS, WITHOUT_SDPA, random_model, tokens
from tests.models.attending import KINDS as ALL_KINDS
from tests.treatment.generating import KINDS, generated, generating_model
from undilute.errors import InvalidTensor, InvalidValue, UnknownName

SOME = ("ssmax", "adaptive", "entmax15", "sigmoid", "top-k")  # a rule of each route
PADDED = [(kind, name) for kind in KINDS for name in (ud.rules.names() if kind in ("llama", "gemma3") else SOME)]
MIXED = {"layers.0.*": "ssmax", "layers.*.heads.1": "top-k", "layers.1.heads.2": "entmax15"}


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    return ud.models.load("smollm2")


@pytest.mark.parametrize("name", ud.rules.names())
@pytest.mark.parametrize("kind", KINDS)
def test_generation_with_a_cache_is_generation_without(kind: str, name: str) -> None:
    model, ids = generating_model(kind), tokens(2, 10)
    with ud.apply(model, name):
        assert generated(model, ids, use_cache=True) == generated(model, ids, use_cache=False)


@pytest.mark.parametrize("name", ud.rules.names())
def test_smollm2_generates_with_a_cache_as_without(smollm2: tuple[Any, Any], name: str) -> None:
    """Each token is what one pass without a cache over all that comes before it would choose."""
    model, tokenizer = smollm2
    ids = tokenizer("The capital of France is Paris. The capital of Italy is", return_tensors="pt").input_ids
    with ud.apply(model, name), torch.no_grad():
        found = generated(model, ids, 3, use_cache=True)
        read = torch.cat([ids, torch.tensor(found)[:, :-1]], 1)
        assert found == model(read, use_cache=False, logits_to_keep=3).logits.argmax(-1).tolist()


@pytest.mark.parametrize(("kind", "name"), PADDED)
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


@pytest.mark.parametrize(("kind", "name"), [*PADDED, *(("encoder", name) for name in ud.rules.names())])
def test_padding_on_the_right_changes_no_row(kind: str, name: str) -> None:
    model = random_model("bert") if kind == "encoder" else generating_model(kind)
    short = tokens(1, 6, seed=1)
    ids = torch.cat([tokens(1, 10), torch.cat([short, torch.zeros(1, 4, dtype=torch.int64)], 1)])
    mask = torch.tensor([[1] * 10, [1] * 6 + [0] * 4])
    with torch.no_grad(), ud.apply(model, name):
        torch.testing.assert_close(model(ids, attention_mask=mask)[0][1, :6], model(short)[0][0])


@pytest.mark.parametrize("name", SOME)
def test_a_static_cache_gives_the_same_tokens(name: str) -> None:
    model, ids = generating_model("llama"), tokens(1, 10)
    with ud.apply(model, name):
        static = generated(model, ids, cache_implementation="static", disable_compile=True)
        assert static == generated(model, ids)


@pytest.mark.parametrize("name", ud.rules.names())
def test_padding_changes_no_row_of_a_long_input(name: str) -> None:
    """Long enough for the fast routes, which get the masks as the model makes them."""
    model, alone = random_model("mistral"), tokens(1, 96, seed=1)
    padding = torch.zeros(1, 30, dtype=torch.int64)
    with torch.no_grad(), ud.apply(model, name):
        expected = model(alone)[0][0]
        for ids, seen in (
            (torch.cat([padding, alone], 1), slice(30, None)),
            (torch.cat([alone, padding], 1), slice(0, 96)),
        ):
            mask = torch.zeros_like(ids)
            mask[:, seen] = 1
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            found = model(ids.expand(4, -1), attention_mask=mask.expand(4, -1), position_ids=positions.expand(4, -1))[0]
            torch.testing.assert_close(found[3, seen], expected, atol=1e-9, rtol=1e-9)


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
        with pytest.raises(InvalidValue, match="a later treatment of the same layers"):
            first.undo()
        second.undo()
        assert torch.equal(model(ids)[0], once)
        first.undo()
        first.undo()
        assert torch.equal(model(ids)[0], before)


def test_for_good_means_for_good() -> None:
    """Nobody keeps the result: the treatment stays, and learns."""
    model, ids = random_model("llama"), tokens(1, 24)
    with torch.no_grad():
        before = model(ids)[0]
    ud.apply(model, "ssmax", learn=("s",))
    gc.collect()
    after = model(ids)[0]
    assert not torch.equal(after, before)
    after.square().mean().backward()
    learned = [each for name, each in model.named_parameters() if name.endswith(".s")]
    assert len(learned) == 2
    assert all(each.grad is not None and bool(each.grad.any()) for each in learned)
    assert len(ud.Plan.of(model).heads) == 8


def test_treatments_of_other_layers_end_in_any_order() -> None:
    model, ids = random_model("llama"), tokens(1, 24)
    with torch.no_grad():
        before = model(ids)[0]
        first, second = ud.apply(model, {"layers.0": "ssmax"}), ud.apply(model, {"layers.1": "hard"})
        first.undo()
        with ud.apply(random_model("llama"), {"layers.1": "hard"}) as other:
            expected = other.model(ids)[0]
        assert torch.equal(model(ids)[0], expected)
        second.undo()
        assert torch.equal(model(ids)[0], before)
    assert model.config._attn_implementation == "sdpa"


def test_a_treatment_outlives_who_was_watching() -> None:
    model, ids = random_model("llama"), tokens(1, 24)
    with torch.no_grad():
        before = model(ids)[0]
        with ud.capture(model):
            treated = ud.apply(model, "hard")
        assert not torch.equal(model(ids)[0], before)
        with ud.capture(model, measures=["top_weight"]) as c:
            treated.undo()
            model(ids)
        assert torch.equal(model(ids)[0], before)
    assert (c.layers[1].measures["top_weight"] < 1).any()
    assert model.config._attn_implementation == "sdpa"


def test_models_that_share_a_configuration() -> None:
    config = CONFIGURATIONS["llama"]()
    models, ids = [CLASSES["llama"](config).eval() for _ in range(2)], tokens(1, 24)
    with torch.no_grad():
        before = [model(ids)[0] for model in models]
        first, second = (ud.apply(model, "hard") for model in models)
        first.undo()
        assert torch.equal(models[0](ids)[0], before[0])
        assert not torch.equal(models[1](ids)[0], before[1])
        second.undo()
        assert torch.equal(models[1](ids)[0], before[1])
    assert config._attn_implementation == "sdpa"


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


def test_only_what_this_treatment_gives_learns() -> None:
    """Neither heads that keep their softmax, nor those of an earlier treatment or of an implementation."""
    model, ids = random_model("llama"), tokens(1, 24)
    with ud.apply(model, {"layers.0.heads.0": "temperature"}, learn=("T",)) as treated:
        assert [tuple(each.shape) for each in treated.parameters()] == [(1,)]
    with torch.no_grad():
        for implementation in ("sdpa", "undilute:ssmax"):
            model.set_attn_implementation(implementation)
            with ud.apply(model, "ssmax"):
                expected = model(ids)[0]
                with ud.apply(model, {"layers.0.heads.0": "ssmax"}, learn=("s",)) as treated:
                    assert [tuple(each.shape) for each in treated.parameters()] == [(1,)]
                assert torch.equal(model(ids)[0], expected)
    twin = ud.rules.LearnableLogLength(4)
    model.set_attn_implementation("sdpa")
    with ud.apply(model, twin) as treated:
        assert len({id(each) for each in treated.parameters()}) == 1  # one rule that learns, shared
    with ud.apply(model, twin, learn=("s",)) as treated:
        assert len({id(each) for each in treated.parameters()}) == 2  # its own for each layer
    assert isinstance(twin.s, torch.nn.Parameter)


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
        assert all(part.training for part in model.transformer.h)
    assert all(part.training for part in model.modules())


def test_a_copy_of_a_treated_model_stays_treated() -> None:
    model, ids = random_model("llama"), tokens(1, 12)
    with torch.no_grad():
        with ud.apply(model, "ssmax"):
            twin, expected = copy.deepcopy(model), model(ids)[0]
        assert torch.equal(twin(ids)[0], expected)
        with ud.apply(twin, "hard"):
            assert not torch.equal(twin(ids)[0], expected)
        assert torch.equal(twin(ids)[0], expected)


def test_weights_are_not_returned_and_other_kinds_are_refused() -> None:
    model = random_model("llama", "eager")
    with ud.apply(model, "ssmax"), pytest.raises(InvalidValue, match="output_attentions = True: a treated model"):
        model(tokens(1, 12), output_attentions=True)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    with pytest.raises(InvalidValue, match="ViTModel cannot be run on token ids alone"):
        ud.apply(transformers.ViTModel(config), "ssmax")


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
        (3.5, "treatment = 3.5: must be a rule, {pattern: rule}, a plan or the path of one"),
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
    with pytest.raises(InvalidValue, match=r"no rule of the treatment has a parameter 'alpha'; they have b, .*s"):
        ud.apply(random_model("llama"), "ssmax", learn=("alpha",))
    for learn in ("s", True, 1):
        with pytest.raises(InvalidValue, match=r"must be names of parameters in a list, such as \('s',\)"):
            ud.apply(random_model("llama"), "ssmax", learn=learn)


def test_a_plan_for_another_model_is_refused(tmp_path: Path) -> None:
    with ud.apply(random_model("llama"), "ssmax") as treated:
        path = treated.plan.save(tmp_path / "plan.json")
    model = random_model("gpt2")
    with pytest.raises(
        InvalidValue, match=r"another model: for LlamaForCausalLM with 2 .* this is GPT2LMHeadModel with 3"
    ):
        ud.apply(model, path)
    assert model.config._attn_implementation == "sdpa"
    for text, message in (("{", "not JSON"), ("[]", "schema is None"), ('{"schema": "undilute.plan/1"}', "is missing")):
        path.write_text(text)
        with pytest.raises(InvalidValue, match=f"cannot read the plan .*{message}"):
            ud.apply(model, path)


def test_packed_sequences_are_refused() -> None:
    model, ids = random_model("llama"), tokens(1, 12)
    borders = torch.tensor([0, 5, 12])
    with ud.apply(model, "ssmax"), pytest.raises(InvalidValue, match="several sequences packed into one row"):
        model(ids, cu_seq_lens_q=borders, cu_seq_lens_k=borders, max_length_q=7, max_length_k=7)
