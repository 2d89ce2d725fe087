"""A module that runs several times in a pass is several layers, in the same order wherever they are counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from tests.models.architectures import built
from tests.models.attending import SIZES, VOCABULARY, random_model, tokens
from undilute.errors import InvalidValue
from undilute.treatment.layers import first_calls
from undilute_papers.reproduction.attended import Layer, each_layer

ALBERT = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
LOW, HIGH = "model.L_module.layers.0.self_attn", "model.H_module.layers.0.self_attn"
NAMES = {
    "albert": [f"{ALBERT}.passes.{number}" for number in range(3)],
    "hrm": [f"{name}.passes.{number}" for name, number in zip([LOW, LOW, HIGH] * 2, [0, 1, 0, 2, 3, 1], strict=True)],
}


@pytest.mark.parametrize("kind", NAMES)
def test_layers_are_counted_alike_everywhere(kind: str) -> None:
    model, ids = built(kind), tokens(128)
    with ud.capture(model, measures=["entropy"]) as c, torch.no_grad():
        model(ids[None])
    assert [layer.name for layer in c.layers] == list(first_calls(model)) == NAMES[kind]
    assert [layer.index for layer in c.layers] == list(range(len(NAMES[kind])))
    diagnosis = ud.diagnose(model, None, ids)
    assert list(dict.fromkeys((head.layer, head.name) for head in diagnosis.heads)) == list(enumerate(NAMES[kind]))
    with ud.apply(model, "ssmax") as treated:
        assert [layer.name for layer in treated.plan.layers] == NAMES[kind]
    seen: list[Layer] = []
    each_layer(model, ids, seen.append)
    assert [layer.name for layer in seen] == NAMES[kind]


def test_rows_of_a_layer_are_those_of_one_run() -> None:
    model, ids = built("albert", attn_implementation="eager"), tokens(2, 20)
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
        with ud.capture(model, 100, measures=["entropy"]) as c:
            model(ids)
    assert len(weights) == len(c.layers) == 3
    for layer, p in zip(c.layers, weights, strict=True):
        expected = torch.special.entr(p).sum(-1)  # (batch, heads, queries)
        np.testing.assert_allclose(layer.measures["entropy"], expected.transpose(0, 1).flatten(1), atol=1e-5)


def test_the_same_queries_and_keys_once_more_are_the_same_rows() -> None:
    """DiffLlama attends twice in a layer, with each half of its values; a call for each image is another matter."""
    config = transformers.DiffLlamaConfig(**SIZES)
    torch.manual_seed(0)
    model, ids = transformers.DiffLlamaForCausalLM(config).eval(), tokens(2, 12)
    with ud.capture(model, measures=["entropy"]) as c, torch.no_grad():
        model(ids)
        model(ids)
    assert [(layer.name, layer.position.tolist()) for layer in c.layers] == [
        (f"model.layers.{layer}.self_attn", [*range(12)] * 4) for layer in range(2)
    ]
    seen: list[Layer] = []
    each_layer(model, ids[0], seen.append)
    assert [layer.name for layer in seen] == [layer.name for layer in c.layers]


@pytest.mark.parametrize("kind", NAMES)
def test_another_pass_begins_again(kind: str) -> None:
    model, ids = built(kind), tokens(1, 12)
    with ud.capture(model, measures=["entropy"]) as c, torch.no_grad():
        model(ids)
        model.base_model(ids)
        with pytest.raises(IndexError):
            model(ids + VOCABULARY)
        model(ids)
    assert [layer.name for layer in c.layers] == NAMES[kind]
    assert {len(layer.n) for layer in c.layers} == {36}
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_generation_is_a_pass_for_each_token() -> None:
    model, ids = built("hrm"), tokens(1, 12)
    with ud.capture(model, measures=["entropy"]) as c:
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert [layer.name for layer in c.layers] == NAMES["hrm"]
    assert {len(layer.n) for layer in c.layers} == {15}


def test_passes_of_several_threads_are_counted_apart() -> None:
    model, ids = built("hrm"), tokens(1, 12)
    with ud.capture(model, measures=["entropy"]) as c, ThreadPoolExecutor(4) as pool, torch.no_grad():
        for done in [pool.submit(model, ids) for _ in range(12)]:
            done.result()
    assert {layer.name for layer in c.layers} <= set(NAMES["hrm"])


def test_a_layer_alone_is_no_pass_of_the_model() -> None:
    model = random_model("llama", dtype=torch.float32)
    attention, hidden = model.model.layers[1].self_attn, torch.randn(1, 5, 32)
    places = model.model.rotary_emb(hidden, torch.arange(5)[None])
    with ud.capture(model, measures=["entropy"]) as c, torch.no_grad():
        for _ in range(3):
            attention(hidden, position_embeddings=places, attention_mask=None)
    assert [(layer.name, len(layer.n)) for layer in c.layers] == [("model.layers.1.self_attn", 15)]


@pytest.mark.parametrize(("kind", "reentrant"), [("llama", False), ("llama", True), ("hrm", False)])
def test_what_checkpointing_computes_again_is_measured_once(kind: str, reentrant: bool) -> None:
    model: Any = (random_model("llama", dtype=torch.float32) if kind == "llama" else built(kind)).train()
    ids = tokens(1, 12)

    def frame() -> Any:
        with ud.capture(model, measures=["entropy"]) as c:
            embedded: Tensor = model.get_input_embeddings()(ids)
            model(inputs_embeds=embedded.requires_grad_(), labels=ids, use_cache=False).loss.backward()
        return c.frame()

    plain = frame()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert frame().equals(plain)


def test_a_rule_for_all_runs_works_and_different_ones_are_refused() -> None:
    model, ids = built("albert"), tokens(1, 20)
    with torch.no_grad():
        before = model(ids).logits
        with ud.apply(model, {f"{ALBERT}.heads.1": "ssmax"}, learn=("s",)) as treated:
            assert treated.plan.heads == [(0, 1), (1, 1), (2, 1)]
            assert list(treated.rules) == [ALBERT]
            assert ud.Plan.of(model).heads == treated.plan.heads
            changed = model(ids).logits
            plan = ud.Plan.from_json(treated.plan.to_json())
        assert not torch.equal(changed, before)
        with ud.apply(model, plan):
            assert torch.equal(model(ids).logits, changed)
        for refused in ({"layers.1.*": "ssmax"}, {"*": "ssmax", "layers.2.heads.0": "top-k"}):
            with pytest.raises(InvalidValue, match=r"attention runs 3 times in one pass, and has one set of rules"):
                ud.apply(model, refused)
        assert torch.equal(model(ids).logits, before)


def test_a_selected_head_is_selected_in_all_its_runs() -> None:
    model, text = built("hrm"), torch.randint(2, VOCABULARY, (400,), generator=torch.Generator().manual_seed(0))
    plan = ud.calibrate(model, None, text, "top-k", length=128, select=True)
    runs = {(NAMES["hrm"][layer].split(".passes")[0], head) for layer, head in plan.heads}
    assert len(plan.heads) == sum(4 if module == LOW else 2 for module, _ in runs)
    assert max(trial["heads"] for trial in plan.made["tried"]) <= 8
