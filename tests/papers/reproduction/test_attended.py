"""Every layer that is handed over is the dense float64 oracle's, and the model never notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.testing import assert_close

from tests.models import small
from tests.models.attending import KINDS, dense_layers, random_model, tokens
from undilute.errors import InvalidValue
from undilute_papers.reproduction import attended
from undilute_papers.reproduction.attended import Layer, blocks, each_layer, evenly, loaded, scope

LENGTH = 24


def layers(model: Any, ids: Tensor, **options: Any) -> list[Layer]:
    kept: list[Layer] = []
    each_layer(model, ids, kept.append, **options)
    return kept


@pytest.mark.parametrize(("kind", "implementation"), KINDS)
def test_weights_and_values_are_the_dense_oracles(kind: str, implementation: str) -> None:
    model, ids = random_model(kind, implementation), tokens(LENGTH)
    got, dense = layers(model, ids), dense_layers(model, ids[None])
    close = 1e-9 if implementation == "sdpa" else 1e-5  # eager attention has a softmax in single precision
    assert [layer.index for layer in got] == list(range(len(dense)))
    for layer, expected in zip(got, dense, strict=True):
        of_keys = expected.weights[0] / (1 - expected.outside[0])[..., None]
        assert_close(layer.weights, of_keys, atol=close, rtol=100 * close)
        assert torch.equal(layer.visible.expand_as(layer.logits), layer.logits.isfinite())
        groups = layer.logits.shape[0] // expected.x.shape[1]
        assert_close(layer.x, expected.x[0].repeat_interleave(groups, 0), atol=close, rtol=100 * close)
        assert model.get_submodule(layer.name) is not None


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2"])
def test_some_rows_are_rows_of_all(kind: str) -> None:
    model, ids, rows = random_model(kind), tokens(LENGTH), torch.tensor([0, 5, 6, LENGTH - 1])
    for some, every in zip(layers(model, ids, rows=rows), layers(model, ids), strict=True):
        assert_close(some.logits, every.logits[:, rows])
        assert torch.equal(some.visible, every.visible[rows])
        assert torch.equal(some.rows, rows)
        assert torch.equal(some.x, every.x)


@pytest.mark.parametrize(("kind", "scales"), [("llama", [1, 1]), ("gpt2", [1, 2, 3])])
def test_the_scale_is_the_calls_own(kind: str, scales: list[int]) -> None:
    """This GPT-2 divides its logits by the number of the layer, too."""
    for layer, more in zip(layers(random_model(kind), tokens(LENGTH)), scales, strict=True):
        assert layer.scale == pytest.approx(8**-0.5 / more)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_seen_is_what_is_finite(kind: str) -> None:
    for layer in layers(random_model(kind), tokens(LENGTH)):
        assert torch.equal(layer.seen, layer.logits.isfinite().sum(-1))


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2"])
def test_other_vectors_than_values(kind: str) -> None:
    model, ids = random_model(kind), tokens(LENGTH)
    own = model.get_input_embeddings()(ids).detach()
    for layer in layers(model, ids, x="embedding"):
        assert_close(layer.x, own.expand_as(layer.x))
    for layer in layers(model, ids, x="input"):
        seen: list[Tensor] = []
        module = model.get_submodule(layer.name)
        hook = module.register_forward_pre_hook(
            lambda _, args, kwargs, seen=seen: seen.append(kwargs.get("hidden_states", args[0] if args else None)),
            with_kwargs=True,
        )
        with torch.no_grad():
            model(ids[None])
        hook.remove()
        assert_close(layer.x, seen[0].expand_as(layer.x))


def test_the_model_does_not_notice() -> None:
    model, ids = random_model("llama", dtype=torch.float32).train(), tokens(LENGTH)
    body, hooks = model.base_model, [len(part._forward_pre_hooks) for part in model.modules()]
    outputs: list[Tensor] = []
    hook = body.register_forward_hook(lambda *call: outputs.append(call[2][0].detach()))
    with torch.no_grad():
        body(input_ids=ids[None])
    got = layers(model, ids, x="input")
    hook.remove()
    assert torch.equal(outputs[0], outputs[-1])  # before it, two tokens show which layers there are
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert [len(part._forward_pre_hooks) for part in model.modules()] == hooks
    assert got[0].logits.dtype == torch.float32


def test_an_error_in_use_leaves_the_model_as_it_was() -> None:
    model, ids = random_model("llama"), tokens(LENGTH)

    def fail(layer: Layer) -> None:
        raise KeyError(layer.name)

    with pytest.raises(KeyError):
        each_layer(model, ids, fail, x="input")
    assert model.config._attn_implementation == "sdpa"
    assert not any(part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": "keys"}, "x = 'keys': must be 'values', 'input' or 'embedding'"),
        ({"rows": torch.tensor([LENGTH])}, f"0 to {LENGTH - 1}"),
        ({"rows": torch.tensor([0.0])}, r"\(rows,\) of torch.int64"),
        ({"rows": torch.tensor([], dtype=torch.int64)}, r"\(rows,\) of torch.int64"),
    ],
)
def test_refuses(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        layers(random_model("llama"), tokens(LENGTH), **options)


def test_refuses_what_is_no_sequence_and_no_transformer() -> None:
    with pytest.raises(InvalidValue, match="one sequence of token ids"):
        layers(random_model("llama"), tokens(2, LENGTH))
    with pytest.raises(InvalidValue, match="must be a Hugging Face model"):
        layers(torch.nn.Linear(2, 2), tokens(LENGTH))


def saved(folder: Path) -> Path:
    transformers.GPT2LMHeadModel(small.GPT2).save_pretrained(folder)
    small.tokenizer().save_pretrained(folder)
    return folder


def test_loaded_reads_the_text_once_per_model(tmp_path: Path) -> None:
    folder, text = str(saved(tmp_path / "model")), tmp_path / "text.txt"
    text.write_text("the cat sat on a mat and the dog ran far " * 20, encoding="utf-8")
    attended._named.cache_clear()
    model, ids = loaded(folder, (str(text),), 64)
    again, same = loaded(folder, str(text), 64)
    assert model is again
    assert torch.equal(ids, same)
    assert ids.tolist()[:3] == [small.WORDS.index(word) for word in ("the", "cat", "sat")]
    assert len(ids) == 64


@pytest.mark.parametrize(
    ("length", "says"),
    [
        (63, "^--lengths = 63: at least 64 tokens"),
        (65, "^--lengths = 65: GPT2LMHeadModel reads at most 64 tokens"),
        (64, "the text has 3 tokens"),
    ],
)
def test_loaded_refuses_what_is_too_short(tmp_path: Path, length: int, says: str) -> None:
    folder, text = str(saved(tmp_path / "model")), tmp_path / "text.txt"
    text.write_text("the cat sat", encoding="utf-8")
    with pytest.raises(InvalidValue, match=says):
        loaded(folder, (str(text),), length, "--lengths")
    with pytest.raises(InvalidValue, match="give a text file that exists"):
        loaded(folder, (str(tmp_path / "none.txt"),), 64)


def test_scope_names_the_model_and_every_text() -> None:
    assert scope("a/model", ("one.txt", "books/two.txt"), 64) == "a/model on 64 tokens of one.txt, two.txt"


def test_evenly_spaced_rows() -> None:
    assert evenly(5, 0).tolist() == [0, 1, 2, 3, 4]
    assert evenly(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert evenly(5, 1).tolist() == [4]
    assert evenly(1024, 4).tolist() == [255, 511, 767, 1023]
    for length in (64, 100, 1000):
        rows = evenly(length, 7)
        assert len(rows.unique()) == 7
        assert int(rows[-1]) == length - 1
    with pytest.raises(InvalidValue, match=r"^--rows = -1: "):
        evenly(5, -1)


@pytest.mark.parametrize("size", [1, 60, 10**6])
def test_blocks_are_the_layer(size: int) -> None:
    heads, rows = 3, 12
    visible = torch.ones(rows, rows, dtype=torch.bool).tril()
    drawn = torch.randn(heads, rows, rows, generator=torch.Generator().manual_seed(0))
    logits = drawn.masked_fill(~visible, -torch.inf)
    seen = visible.expand(heads, -1, -1).clone()
    seen[0, 5:, 0] = False  # heads may differ in what they see
    for mask in (visible, seen, torch.ones_like(visible)):
        layer = Layer(0, "layer", logits, mask, torch.zeros(heads, rows, 4), torch.arange(rows))
        pieces = list(blocks(layer, size))
        assert torch.cat([piece.rows for piece in pieces]).tolist() == list(range(rows))
        for piece in pieces:
            keys = piece.logits.shape[-1]
            assert torch.equal(piece.logits, logits[:, piece.rows, :keys])
            assert torch.equal(piece.visible, mask[..., piece.rows, :keys])
            assert not mask[..., piece.rows, keys:].any()
            assert piece.x.shape[1] == keys
            assert len(piece.rows) == 1 or piece.logits.numel() <= size
            assert keys >= 2
