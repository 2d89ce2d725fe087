"""Captured measures equal the dense float64 oracle's, and the model never notices."""

from __future__ import annotations

import itertools
import math
import pydoc_data.topics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from tests.measures.oracles import deviation, tolerance
from tests.models.attending import (
    CLASSES,
    KINDS,
    OURS,
    VOCABULARY,
    Attended,
    attending_with,
    dense_layers,
    observed,
    random_model,
    tokens,
)
from undilute.errors import InvalidValue, UnknownName
from undilute.measures import registry
from undilute.measures.attention_rows import Settings
from undilute.models import LayerSample, capture
from undilute.models.capture import BLOCK, EACH, _runs, sampled
from undilute.models.watch import OURS as PREFIX

SETTINGS = Settings(top=3, sinks=1, recent=4)
COUNTS: dict[str, Any] = {"top": 3, "sinks": 1, "recent": 4}
ALL = 1000  # more rows than any pass here has


def check(sample: LayerSample, dense: Attended, *, eps: float = 1e-13, left: list[int] | None = None) -> None:
    """Each captured number is its oracle's; ``left`` tells how many tokens of padding come before each sequence."""
    for row, (batch, position) in enumerate(zip(sample.batch, sample.position, strict=True)):
        first = 0 if left is None else left[batch]
        for head in range(sample.heads):
            seen = dense.row(batch, head, position + first, SETTINGS, first=first)
            assert sample.n[row] == seen.n
            for name, values in sample.measures.items():
                off = deviation(values[head, row], name, seen)
                assert off <= tolerance(name, seen, eps), (
                    f"{name} of {sample.name}, head {head}, position {position}: {values[head, row]}, off by {off:.3g}"
                )


def check_same(got: LayerSample, expected: LayerSample, *, batch: int = 0, precision: float = 1e-8) -> None:
    """One sequence of ``got`` has the rows of ``expected``, whatever order they were measured in."""
    order = np.flatnonzero(got.batch == batch)
    order = order[np.argsort(got.position[order])]
    assert_array_equal(got.position[order], expected.position)
    assert_array_equal(got.n[order], expected.n)
    for name, values in expected.measures.items():
        assert_allclose(
            got.measures[name][:, order], values, rtol=precision, atol=precision, err_msg=f"{name} of {got.name}"
        )
    shown = min(got.keys.shape[-1], expected.keys.shape[-1])
    weights = expected.key_weights[..., :shown]
    assert_allclose(got.key_weights[:, order, :shown], weights, atol=precision)
    some = weights > 1e-9  # a row of few keys is filled up with keys that get nothing
    assert_array_equal(got.keys[:, order, :shown][some], expected.keys[..., :shown][some])


def captured(model: Any, ids: Tensor, rows: int = ALL, **inputs: Any) -> list[LayerSample]:
    with capture(model, rows, **COUNTS) as c, torch.no_grad():
        model(ids, **inputs)
    return c.layers


def precision(implementation: str, layer: int) -> float:
    """Transformers' eager attention rounds its weights to float32 even in a float64 model: later layers see that."""
    return 1e-5 if implementation == "eager" and layer > 0 else 1e-12


@pytest.mark.parametrize("rows", [ALL, 5])
@pytest.mark.parametrize(("kind", "implementation"), KINDS)
def test_measures_are_the_dense_ones(kind: str, implementation: str, rows: int) -> None:
    model, ids = random_model(kind, implementation), tokens(2, 13)
    with capture(model, rows, **COUNTS) as c, torch.no_grad():
        model(ids)
    dense = dense_layers(model, ids)
    assert len(c.layers) == len(dense) == model.config.num_hidden_layers
    for layer, (sample, truth) in enumerate(zip(c.layers, dense, strict=True)):
        assert len(sample.n) == 2 * min(rows, 13)
        assert sample.looks_ahead == (kind == "bert")
        check(sample, truth, eps=precision(implementation, layer))


@pytest.mark.parametrize("kind", CLASSES)
def test_the_dense_oracle_is_transformers_own_attention(kind: str) -> None:
    model, ids = random_model(kind, "eager"), tokens(2, 18)
    mask = torch.ones_like(ids)
    mask[0, -4:] = 0
    with torch.no_grad():
        eager = model(ids, attention_mask=mask, output_attentions=True).attentions
    for layer, dense in zip(eager, dense_layers(model, ids, attention_mask=mask), strict=True):
        assert_allclose(dense.weights[0, :, :-4], layer[0, :, :-4], atol=2e-5)
        assert_allclose(dense.weights[1], layer[1], atol=2e-5)


PADDINGS = {
    "left": [[0] * 5 + [1] * 9, [1] * 14],
    "right": [[1] * 9 + [0] * 5, [1] * 14],
    "both": [[0] * 3 + [1] * 7 + [0] * 4, [0] * 2 + [1] * 12],
    "none": [[1] * 14, [1] * 14],
    "holes": [[1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1], [0, 1] * 7],
}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("kind", "implementation"), [k for k in KINDS if k[0] in ("bert", "llama", "mistral")])
def test_padded_batches_are_measured_as_the_dense_oracle_says(kind: str, implementation: str, padding: str) -> None:
    """Eager attention runs in float32 here: in float64 its lowest number becomes −∞, and a row of padding NaN."""
    single = implementation == "eager"
    model = random_model(kind, implementation, torch.float32 if single else torch.float64)
    ids, mask = tokens(2, 14), torch.tensor(PADDINGS[padding])
    samples = captured(model, ids, attention_mask=mask)
    left = [int(row.argmax()) for row in mask]
    for layer, (sample, dense) in enumerate(zip(samples, dense_layers(model, ids, attention_mask=mask), strict=True)):
        own = [position + left[batch] for batch, position in zip(sample.batch, sample.position, strict=True)]
        assert_array_equal([mask[batch, query] for batch, query in zip(sample.batch, own, strict=True)], 1)
        assert len(own) == mask.sum()
        check(sample, dense, eps=(1e-5 if layer else 1e-6) if single else 1e-12, left=left)


@pytest.mark.parametrize("rows", [ALL, 6])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "mistral", "gemma3", "gpt-oss"])
def test_a_padded_sequence_is_the_sequence_alone(kind: str, side: str, rows: int) -> None:
    model = random_model(kind, "eager" if kind == "gpt-oss" else "sdpa")
    alone, longer = tokens(1, 21), tokens(1, 30, seed=1)
    padding = torch.zeros(1, 9, dtype=torch.long)
    parts = [padding, torch.ones_like(alone)]
    mask = torch.cat([torch.cat(parts if side == "left" else parts[::-1], 1), torch.ones(1, 30, dtype=torch.long)])
    ids = torch.cat([torch.cat([padding, alone] if side == "left" else [alone, padding], 1), longer])
    places = {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    both = captured(model, ids, rows, attention_mask=mask, **places)
    for got, one, other in zip(both, captured(model, alone, rows), captured(model, longer, rows), strict=True):
        check_same(got, one, batch=0)
        check_same(got, other, batch=1)


@pytest.mark.parametrize("pieces", [[9] + [1] * 7, [1] * 16, [5, 4, 1, 6]], ids=str)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "qwen2", "gemma2", "gemma3", "gpt-oss"])
def test_a_cache_gives_the_rows_of_one_pass(kind: str, pieces: list[int]) -> None:
    model, ids = random_model(kind, "eager" if kind in ("gemma2", "gpt-oss") else "sdpa"), tokens(2, 16)
    cache = DynamicCache(config=model.config)
    with capture(model, ALL, **COUNTS) as c, torch.no_grad():
        for piece in ids.split(pieces, 1):
            model(piece, past_key_values=cache)
    for got, whole in zip(c.layers, captured(model, ids, use_cache=False), strict=True):
        for batch in range(2):
            alone = whole.batch == batch
            check_same(
                got,
                replace(
                    whole,
                    batch=whole.batch[alone],
                    position=whole.position[alone],
                    n=whole.n[alone],
                    measures={name: values[:, alone] for name, values in whole.measures.items()},
                    keys=whole.keys[:, alone],
                    key_weights=whole.key_weights[:, alone],
                ),
                batch=batch,
                precision=1e-5 if kind == "gemma2" else 1e-8,  # its weights are rounded to float32
            )


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "gemma3"])
def test_a_static_cache_gives_the_rows_of_one_pass(kind: str) -> None:
    model, ids = random_model(kind), tokens(1, 20)
    cache = StaticCache(config=model.config, max_cache_len=32)
    with capture(model, ALL, **COUNTS) as c, torch.no_grad():
        for piece in ids.split([9, 1, 1, 4, 5], 1):
            model(piece, past_key_values=cache)
    for got, whole in zip(c.layers, captured(model, ids, use_cache=False), strict=True):
        check_same(got, whole)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
def test_generation_from_a_padded_batch(kind: str) -> None:
    model, alone, longer = random_model(kind), tokens(1, 5), tokens(1, 9, seed=1)
    ids = torch.cat([torch.nn.functional.pad(alone, (4, 0)), longer])
    mask = torch.cat([torch.tensor([[0] * 4 + [1] * 5]), torch.ones(1, 9, dtype=torch.long)])
    with capture(model, ALL, **COUNTS) as c:
        out = model.generate(ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    for batch, start in enumerate((4, 0)):
        for got, whole in zip(c.layers, captured(model, out[batch : batch + 1, start:-1]), strict=True):
            check_same(got, whole, batch=batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "implementation"), KINDS)
def test_the_output_is_the_same_bit_for_bit(kind: str, implementation: str, dtype: torch.dtype) -> None:
    model, ids = random_model(kind, implementation, dtype), tokens(2, 18)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    for inputs in ({}, {"attention_mask": mask}):
        with torch.no_grad():
            plain = model(ids, output_hidden_states=True, **inputs)
            with capture(model, 5):
                watched = model(ids, output_hidden_states=True, **inputs)
        assert torch.equal(plain[0], watched[0])
        assert all(map(torch.equal, plain.hidden_states, watched.hidden_states))


@pytest.mark.parametrize(("kind", "implementation"), [("llama", "sdpa"), ("gpt2", "sdpa"), ("llama", "eager")])
def test_training_is_the_same_bit_for_bit(kind: str, implementation: str) -> None:
    """GPT-2 trains with dropout: capture draws no random number either."""

    def gradients(around: Callable[[Any], AbstractContextManager[Any]] | None) -> list[Tensor]:
        model, ids = random_model(kind, implementation, torch.float32).train(), tokens(2, 18)
        if around is None:
            model(ids, labels=ids).loss.backward()
        else:
            with around(model):
                model(ids, labels=ids).loss.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    plain, watched = gradients(None), gradients(lambda model: capture(model, 5))
    assert len(plain) > 10
    assert all(map(torch.equal, plain, watched))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_mask_of_the_users_own_may_add_to_the_logits(implementation: str) -> None:
    """A slope as ALiBi has it, by a mask of four dimensions."""
    model, ids = random_model("llama", implementation), tokens(1, 18)
    behind = (torch.arange(18)[:, None] - torch.arange(18)).double()
    mask = torch.where(behind >= 0, -0.3 * behind, torch.finfo(torch.float64).min)[None, None]
    dense = dense_layers(model, ids, attention_mask=mask)
    for layer, (sample, truth) in enumerate(zip(captured(model, ids, attention_mask=mask), dense, strict=True)):
        assert np.isnan(sample.measures["spread_bound"]).all()
        check(sample, truth, eps=precision(implementation, layer))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_every_grad_mode(mode: Callable[[], AbstractContextManager[None]]) -> None:
    model, ids = random_model("llama"), tokens(1, 18)
    with capture(model, ALL, **COUNTS) as c, mode():
        model(ids)
    for got, expected in zip(c.layers, captured(model, ids), strict=True):
        check_same(got, expected)


def state(model: Any) -> tuple[Any, ...]:
    """Everything that a capture could leave behind; names of ours that transformers knows stay for the next one."""
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    configs = [part.config._attn_implementation for part in model.modules() if hasattr(part, "config")]
    known = [AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping]
    return (
        configs,
        hooks,
        [{name: each[name] for name in each if not name.startswith(PREFIX)} for each in known],
    )


@pytest.mark.parametrize("x", ["values", "input"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_everything_is_put_back(implementation: str, x: Any) -> None:
    model, ids = random_model("llama", implementation), tokens(1, 8)
    before = state(model)

    def fail(name: str) -> None:
        raise ZeroDivisionError(name)

    with capture(model, x=x):
        assert state(model) != before
        model(ids)
    assert state(model) == before
    with pytest.raises(ZeroDivisionError), capture(model, x=x):
        fail("inside")
    assert state(model) == before
    with pytest.raises(IndexError), capture(model, x=x):
        model(ids + VOCABULARY)  # no such tokens
    assert state(model) == before
    with pytest.raises(ZeroDivisionError), capture(model, x=x, on_layer=fail):
        model(ids)
    assert state(model) == before


def test_an_implementation_chosen_by_the_user_stays() -> None:
    model, ids = random_model("llama", "sdpa"), tokens(1, 8)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(ids, output_attentions=True).attentions
        with capture(model):
            watched = model(ids, output_attentions=True).attentions
    assert model.config._attn_implementation == "eager"
    assert all(map(torch.equal, plain, watched))


def test_the_models_own_function_runs_under_its_own_name() -> None:
    model, names = random_model("llama"), []

    def attend(module: Any, *args: Any, **options: Any) -> tuple[Tensor, None]:
        names.append(module.config._attn_implementation)
        return sdpa_attention_forward(module, *args, **options)

    with attending_with(model, attend, sdpa_mask), capture(model), capture(model):
        model(tokens(1, 8))
    assert names == [OURS, OURS]


def test_captures_inside_each_other() -> None:
    model, ids = random_model("llama"), tokens(1, 18)
    before = state(model)
    with capture(model, ALL, **COUNTS) as outer, torch.no_grad():
        with capture(model, ALL, **COUNTS) as inner:
            output = model(ids).logits
        model(ids[:, :4])
    assert state(model) == before
    with torch.no_grad():
        assert torch.equal(output, model(ids).logits)
    for both, got, expected in zip(outer.layers, inner.layers, captured(model, ids), strict=True):
        check_same(got, expected)
        assert len(both.n) == 18 + 4


def test_captures_of_two_models() -> None:
    one, other, ids = random_model("llama"), random_model("gpt2"), tokens(1, 18)
    with capture(one, ALL, **COUNTS) as c, capture(other, ALL, **COUNTS) as d, torch.no_grad():
        one(ids)
        other(ids)
    for model, layers in ((one, c.layers), (other, d.layers)):
        for got, expected in zip(layers, captured(model, ids), strict=True):
            check_same(got, expected)


def test_a_capture_entered_again_goes_on() -> None:
    model = random_model("llama")
    before, c = state(model), capture(model, ALL, **COUNTS)
    for length in (18, 7):
        with c:
            model(tokens(1, length))
    assert len(c.layers[0].n) == 25
    c.clear()
    assert c.layers == []
    with pytest.raises(InvalidValue, match="already running"), c, c:
        pass
    assert state(model) == before


def inputs_of_attention(model: Any, kind: str, ids: Tensor) -> list[Tensor]:
    """Each layer's input from the hidden states, normalised where the model does so first."""
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states
        if kind == "llama":
            return [layer.input_layernorm(h) for layer, h in zip(model.model.layers, hidden, strict=False)]
        if kind == "gpt2":
            return [layer.ln_1(h) for layer, h in zip(model.transformer.h, hidden, strict=False)]
        return list(hidden[:-1])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_x_can_be_the_input(kind: str) -> None:
    model, ids = random_model(kind), tokens(2, 18)
    selected_from = [name for name, each in registry.every().items() if each.needs_x]
    with capture(model, ALL, measures=selected_from, x="input", **COUNTS) as c, torch.no_grad():
        model(ids)
    for sample, dense, x in zip(c.layers, dense_layers(model, ids), inputs_of_attention(model, kind, ids), strict=True):
        assert sample.measures.keys() == set(selected_from)
        check(sample, replace(dense, x=x[:, None]), eps=1e-12)


def test_x_as_input_needs_every_key() -> None:
    model, cache = random_model("llama"), DynamicCache()
    with torch.no_grad(), capture(model, x="input"):
        model(tokens(1, 8), past_key_values=cache)
        with pytest.raises(InvalidValue, match=r"LlamaAttention.*cache.*x = 'values'"):
            model(tokens(1, 1), past_key_values=cache)
    with torch.no_grad(), capture(model, measures=["entropy"], x="input") as c:  # nothing here looks at x
        model(tokens(1, 1), past_key_values=cache)
    assert c.layers[0].n.tolist() == [10]


def test_only_the_measures_asked_for() -> None:
    model = random_model("llama")
    with capture(model, measures=["top_weight", "entropy"]) as c:
        model(tokens(1, 18))
    assert list(c.layers[0].measures) == ["entropy", "top_weight"]


def test_frame_and_progress() -> None:
    model, ids = random_model("llama"), tokens(2, 18)
    seen: list[str] = []
    with capture(model, 5, on_layer=seen.append, **COUNTS) as c:
        model(ids)
    assert seen == [layer.name for layer in c.layers] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    frame = c.frame()
    assert len(frame) == 2 * 4 * 2 * 5
    for line in frame.sample(20, random_state=0).to_dict("records"):
        layer = c.layers[line["layer"]]
        row = np.flatnonzero((layer.batch == line["batch"]) & (layer.position == line["position"]))
        assert layer.n[row] == line["n"] == line["position"] + 1
        for name, values in layer.measures.items():
            assert_array_equal(values[line["head"], row], line[name])


def test_a_capture_of_nothing_is_empty() -> None:
    with capture(random_model("llama")) as c:
        pass
    assert c.layers == []
    assert c.frame().empty


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows = 0"),
        ({"rows": 2.5}, "rows = 2.5"),
        ({"top": 0}, "top = 0"),
        ({"recent": -3}, "recent = -3"),
        ({"x": "keys"}, "x = 'keys': must be 'values' or 'input'"),
        ({"sinks": -1}, "sinks = -1"),
        ({"sinks": 0.5}, "sinks = 0.5"),
    ],
    ids=str,
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        capture(random_model("llama"), **options)


def test_unknown_measures() -> None:
    with pytest.raises(UnknownName, match="unknown measure 'entrpy': did you mean 'entropy'"):
        capture(random_model("llama"), measures=["entrpy"])


def bloom() -> PreTrainedModel:
    return transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=50))


def mpt() -> PreTrainedModel:
    return transformers.MptForCausalLM(transformers.MptConfig(d_model=32, n_layers=1, n_heads=4, vocab_size=50))


@pytest.mark.parametrize(
    ("build", "name"), [(lambda: torch.nn.Linear(2, 2), "Linear"), (bloom, "BloomForCausalLM"), (mpt, "MptForCausalLM")]
)
def test_models_that_cannot_be_read(build: Callable[[], torch.nn.Module], name: str) -> None:
    with pytest.raises(InvalidValue, match=rf"{name}.*AttentionInterface"), capture(build()):
        pass


@given(
    real=st.lists(st.integers(0, 5000), min_size=1, max_size=300, unique=True).map(sorted),
    rows=st.integers(1, 320),
    evenly=st.booleans(),
)
def test_sampled_queries(real: list[int], rows: int, evenly: bool) -> None:
    got = sampled(torch.tensor(real), rows, evenly=evenly).tolist()
    assert len(got) == min(rows, len(real))
    assert got == sorted(set(got))
    assert set(got) <= set(real)
    assert got[-1] == real[-1]
    if len(real) <= rows:
        assert got == real


@given(length=st.integers(1000, 10**6), rows=st.integers(2, 20))
def test_sampled_queries_are_log_spaced(length: int, rows: int) -> None:
    n = sampled(torch.arange(length), rows, evenly=False).double() + 1
    assert_allclose(n, 16 * (length / 16) ** (np.arange(rows) / (rows - 1)), rtol=0, atol=0.5 + 1e-6)


SMOLLM2_LAYERS, SMOLLM2_HEADS = (0, 14, 29), (0, 4, 8)


def test_smollm2(smollm2: tuple[PreTrainedModel, Any]) -> None:
    """Float32 measures of a real model at 512 tokens against the dense float64 of the same queries and keys."""
    model, tokenizer = smollm2
    text = "\n".join(pydoc_data.topics.topics.values())
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :512]
    before = model.config._attn_implementation
    with torch.no_grad():
        plain = model.model(ids, use_cache=False).last_hidden_state
        with capture(model, 8, **COUNTS) as c:
            watched = model.model(ids, use_cache=False).last_hidden_state
    assert torch.equal(plain, watched)
    assert model.config._attn_implementation == before
    dense = observed(model, ids, layers=SMOLLM2_LAYERS)
    for index in SMOLLM2_LAYERS:
        sample = c.layers[index]
        assert sample.n.tolist() == (sample.position + 1).tolist()
        assert sample.n[-1] == 512
        for row, position in enumerate(sample.position):
            for head in SMOLLM2_HEADS:
                seen = dense[index].row(0, head, position, SETTINGS, hair=3e-3)
                for name, values in sample.measures.items():
                    off = deviation(values[head, row], name, seen)
                    assert off <= tolerance(name, seen, torch.finfo(torch.float32).eps), f"{name}: off by {off:.3g}"


def test_blocks_hold_each_row_once_and_cost_as_little_as_any() -> None:
    stops, heads = (3, 4, 900, 2_000, 2_100, 9_000), 9

    def cost(cuts: tuple[int, ...]) -> float:
        runs = list(itertools.pairwise((0, *cuts, len(stops))))
        sizes = [heads * (end - start) * stops[end - 1] for start, end in runs]
        too_large = any(size > BLOCK and end - start > 1 for size, (start, end) in zip(sizes, runs, strict=True))
        return math.inf if too_large else sum(sizes) + EACH * len(sizes)

    inner = range(1, len(stops))
    least = min(cost(cuts) for number in range(len(stops)) for cuts in itertools.combinations(inner, number))
    runs = _runs(stops, heads)
    assert [row for start, end in runs for row in range(start, end)] == list(range(len(stops)))
    assert cost(tuple(end for _, end in runs[:-1])) == least
    assert _runs((BLOCK, BLOCK), 2) == [(0, 1), (1, 2)]  # a row alone may be larger than a block
