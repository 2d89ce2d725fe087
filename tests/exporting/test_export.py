"""A plan in plain weights: as the treated model answers, loaded by transformers alone; or a refusal that says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from undilute.errors import InvalidValue
from undilute.exporting import layouts
from undilute.treatment import Assignment
from undilute.treatment.layers import first_calls, layers_of

SMALL: dict[str, Any] = {"vocab_size": 60, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
GROUPED = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 256}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 60, "bos_token_id": 1, "eos_token_id": 1}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 64, "max_position_embeddings": 256}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Llama with biases": ("LlamaForCausalLM", GROUPED | {"attention_bias": True}),
    "Mistral": ("MistralForCausalLM", GROUPED | {"sliding_window": 16}),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED),
    "GPT-2": ("GPT2LMHeadModel", GPT2),
    "OPT": ("OPTForCausalLM", SMALL | OPT),
    "Phi": ("PhiForCausalLM", GROUPED | {"max_position_embeddings": 256}),
    "Phi-3": ("Phi3ForCausalLM", GROUPED),
    "GPT-NeoX": ("GPTNeoXForCausalLM", SMALL | {"max_position_embeddings": 256}),
}
IDS = torch.randint(2, 60, (2, 40), generator=torch.Generator().manual_seed(1))


def made(name: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """A random model whose biases are not 0."""
    kind, sizes = MODELS[name] if name in MODELS else REFUSED[name][:2]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**sizes)).eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def drawn(model: transformers.PreTrainedModel, *, beta: bool = True, gains: bool = True) -> ud.Plan:
    """Another β and another gain for every head."""
    generator = torch.Generator().manual_seed(5)
    layers = layers_of(first_calls(model))
    assignments = []
    for index, layer in enumerate(layers):
        T, g = (torch.rand(layer.heads, generator=generator, dtype=torch.float64) * 1.5 + 0.5 for _ in range(2))
        rule = ud.rules.get("temperature", T=T) if beta else ud.rules.get("softmax")
        assignments.append(Assignment(index, tuple(range(layer.heads)), rule, tuple(g.tolist()) if gains else None))
    return ud.Plan(type(model).__name__, layers, assignments)


def logits(model: transformers.PreTrainedModel, plan: Any = None) -> Tensor:
    with torch.inference_mode():
        if plan is None:
            return model(IDS).logits.double()
        with ud.apply(model, plan):
            return model(IDS).logits.double()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_factors_fold_into_weights(name: str, dtype: torch.dtype, close: float, tmp_path: Path) -> None:
    model = made(name, dtype)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plan = drawn(model)
    wanted = logits(model, plan)
    found = ud.export(model, plan, tmp_path / "out")
    assert not found.approximated
    assert not found.refused
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=dtype).eval()
    difference = float((logits(loaded) - wanted).abs().max())
    assert difference <= close * max(1.0, float(wanted.abs().max()) / 10)
    assert float((wanted - logits(model)).abs().max()) > 100 * close  # the plan does something
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "Qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 16}, "norms the queries"),
    "Gemma-3": ("Gemma3ForCausalLM", GROUPED | {"head_dim": 16}, "norms the queries"),
    "Gemma-2": ("Gemma2ForCausalLM", GROUPED | {"head_dim": 16}, "caps its logits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_bends_beta_is_refused_head_by_head_and_gains_still_go(name: str, tmp_path: Path) -> None:
    model, reason = made(name), REFUSED[name][2]
    with pytest.raises(InvalidValue, match=reason):
        ud.export(model, drawn(model, gains=False), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    plan = drawn(model)
    found = ud.export(model, plan, tmp_path / "out", partial=True)
    assert {part.what for part in found.refused} == {"logits"}
    assert len(found.refused) == len(plan.heads)
    assert reason in found.refused[0].reason
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    only = logits(model, drawn_gains(model, plan))
    assert float((logits(loaded) - only).abs().max()) <= 1e-4 * max(1.0, float(only.abs().max()))


def drawn_gains(model: transformers.PreTrainedModel, plan: ud.Plan) -> ud.Plan:
    kept = [Assignment(each.layer, each.heads, ud.rules.get("softmax"), each.gains) for each in plan.assignments]
    return ud.Plan(plan.architecture, plan.layers, kept)


@pytest.mark.parametrize("curve", ["ssmax(s=0.3, b=0.5)", "ssmax", "llama4(beta=0.4, floor_length=8)"])
def test_curves_of_the_length_go_into_the_configuration(curve: str, tmp_path: Path) -> None:
    model = made("Llama")
    found = ud.export(model, curve, tmp_path / "out", approximate=True)
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert content["model_type"] == "ministral3"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(loaded).__name__ == "Ministral3ForCausalLM"
    wanted = logits(model, curve)
    apart = float((logits(loaded) - wanted).abs().max())
    if curve.startswith("ssmax"):
        assert apart <= 2e-4 * max(1.0, float(wanted.abs().max()))
        assert not found.approximated
    else:  # the model counts positions from 0, the rule keys from 1: they differ where n is a multiple of 8
        assert found.approximated
        assert 0 < apart < 0.2 * float((wanted - logits(model)).abs().max())


def test_what_is_approximate_must_be_allowed(tmp_path: Path) -> None:
    model = made("Llama")
    with pytest.raises(InvalidValue, match="can only be approximated"):
        ud.export(model, {"layers.0.*": "ssmax"}, tmp_path / "out")
    found = ud.export(model, {"layers.0.*": "ssmax"}, tmp_path / "out", approximate=True)
    assert found.approximation > 1e-4
    assert max(part.error for part in found.approximated) > 0.01


@pytest.mark.parametrize(
    ("plan", "reason"),
    [("entmax15", "Entmax"), ("adaptive", "reads the logits"), ("sigmoid", "Sigmoid"), ("sink", "sink")],
)
def test_what_no_engine_says_is_refused(plan: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=reason):
        ud.export(made("Llama"), plan, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_curve_has_no_place_in_gpt2(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="grows with the length"):
        ud.export(made("GPT-2"), "ssmax", tmp_path / "out")


def test_question_rows_cannot_be_folded(tmp_path: Path) -> None:
    model = made("Llama")
    plan = drawn(model)
    only = ud.Plan(plan.architecture, plan.layers, plan.assignments, rows="question")
    with pytest.raises(InvalidValue, match="question rows only"):
        ud.export(model, only, tmp_path / "out")


def test_wrong_weights_are_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads in another order: what is compared must notice."""
    times = layouts.Fold.times
    monkeypatch.setattr(layouts.Fold, "times", lambda fold, weight, factors: times(fold, weight, factors[::-1]))
    model = made("Llama")
    with pytest.raises(InvalidValue, match="nothing was written"):
        ud.export(model, drawn(model), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    model, folder = made("Llama"), tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(InvalidValue, match="is there already"):
        ud.export(model, drawn(model), folder)
    assert (folder / "mine.txt").read_text() == "mine"
    ud.export(model, drawn(model), folder, overwrite=True, max_shard_size="60KB")
    assert not (folder / "mine.txt").exists()
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert not (folder / "undilute_plan.json").exists()
    assert "undilute" not in (folder / "config.json").read_text()
    assert ud.Plan.load(folder / "exported_plan.json").heads == drawn(model).heads
    assert "exported_plan.json" in (folder / "README.md").read_text()


def test_a_treated_model_is_refused(tmp_path: Path) -> None:
    model = made("Llama")
    with ud.apply(model, "ssmax"), pytest.raises(InvalidValue, match="the model is treated"):
        ud.export(model, "temperature(T=0.5)", tmp_path / "out")


ALONE = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
ids = torch.load(sys.argv[2], weights_only=True)
with torch.inference_mode():
    logits = model(ids).logits
text = model.generate(ids[:1, :8], max_new_tokens=12, do_sample=False, pad_token_id=0)
assert "undilute" not in sys.modules
torch.save({"logits": logits, "text": text}, sys.argv[3])
"""


def test_a_process_without_undilute_answers_the_same(tmp_path: Path) -> None:
    model = made("Llama")
    plan = drawn(model)
    ud.export(model, plan, tmp_path / "out")
    torch.save(IDS, tmp_path / "ids")
    command = [sys.executable, "-c", ALONE, *(str(tmp_path / each) for each in ("out", "ids", "answers"))]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    found = torch.load(tmp_path / "answers", weights_only=True)
    with ud.apply(model, plan), torch.inference_mode():
        text = model.generate(IDS[:1, :8], max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert float((found["logits"].double() - logits(model, plan)).abs().max()) < 1e-4
    assert torch.equal(found["text"], text)
