"""However a model hands its attention function what it needs, everyone who stands in between gets it in one form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.llama import modeling_llama

import undilute as ud
from tests.models.architectures import built
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue
from undilute.models.attention_call import AttentionCall, arguments
from undilute_papers.reproduction.attended import each_layer

Call = Callable[..., Any]
STYLES: dict[str, Callable[[Call], Call]] = {
    "mask by name": lambda attend: (
        lambda module, q, k, v, mask, **rest: attend(module, q, k, v, attention_mask=mask, **rest)
    ),
    "all by name": lambda attend: (
        lambda module, q, k, v, mask, **rest: attend(module, query=q, key=k, value=v, attention_mask=mask, **rest)
    ),
    "no mask": lambda attend: lambda module, q, k, v, mask, **rest: attend(module, q, k, v, **rest),
}


@pytest.fixture(params=STYLES)
def styled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Llama that calls its attention function in another style; its own functions take it only in theirs."""
    original = modeling_llama.ALL_ATTENTION_FUNCTIONS

    class Styled(type(original)):  # type: ignore[misc]
        def get_interface(self, name: str, default: Call) -> Call:
            function: Call = original.get_interface(name, default)
            return STYLES[request.param](function) if name.startswith("undilute") else function

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Styled())
    return random_model("llama")


def test_every_use_takes_every_style(styled: Any) -> None:
    ids = tokens(1, 128)
    plain = random_model("llama")
    with torch.no_grad():
        before = styled(ids).logits
        with ud.capture(styled, measures=["entropy"]) as c:
            assert torch.equal(styled(ids).logits, before)
        with ud.capture(plain, measures=["entropy"]) as expected:
            plain(ids)
        assert c.frame().equals(expected.frame())
        with ud.apply(styled, "ssmax"):
            treated = styled(ids).logits
        styled.set_attn_implementation("undilute:ssmax")
        torch.testing.assert_close(styled(ids).logits, treated)
        styled.set_attn_implementation("sdpa")
    assert len(ud.diagnose(styled, None, ids[0]).heads) == 8
    seen: list[Tensor] = []
    each_layer(styled, ids[0], lambda layer: seen.append(layer.weights))
    assert len(seen) == 2
    text = tokens(300)
    made = [ud.calibrate(each, None, text, "top-k", length=64, select=True).to_json() for each in (styled, plain)]
    assert made[0] == made[1]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["doge", "afmoe", "deepseek-v3.2"])
def test_real_models_with_another_style(kind: str, implementation: str) -> None:
    """Doge and AFMoE name their mask; DeepSeek-V3.2 hands over indices of keys under names that it does not know."""
    model, ids = built(kind, attn_implementation=implementation), tokens(1, 128)
    with torch.no_grad():
        before = model(ids).logits
        with ud.capture(model, rows=200) as c:
            assert torch.equal(model(ids).logits, before)
        with ud.apply(model, "softmax"):
            torch.testing.assert_close(model(ids).logits, before, atol=1e-4, rtol=1e-4)
        with ud.apply(model, {"layers.1.heads.0": "softmax"}):
            torch.testing.assert_close(model(ids).logits, before, atol=1e-4, rtol=1e-4)
        assert torch.equal(model(ids).logits, before)
        assert ud.diagnose(model, None, ids[0]).heads
        model.set_attn_implementation("undilute:softmax")
        torch.testing.assert_close(model(ids).logits, before, atol=1e-4, rtol=1e-4)
    if kind == "deepseek-v3.2":
        assert c.layers[1].n.max() == model.config.index_topk


def test_vision_layers_that_attend_to_each_image_alone_are_one_layer() -> None:
    """Qwen2-VL names its mask and calls its attention once for each image."""
    config = transformers.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig(
        depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=2, temporal_patch_size=1, mlp_ratio=2
    )
    torch.manual_seed(0)
    model = transformers.models.qwen2_vl.modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel(config).eval()
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    patches = torch.randn(24, config.in_channels * 4)
    with torch.no_grad():
        before = model(patches, grid_thw=grid)[0]
        with ud.capture(model, rows=64, measures=["entropy"]) as c:
            assert torch.equal(model(patches, grid_thw=grid)[0], before)
    assert [layer.name for layer in c.layers] == ["blocks.0.attn", "blocks.1.attn"]
    assert [sorted(layer.n.tolist()) for layer in c.layers] == [[8] * 8 + [16] * 16] * 2


def test_arguments_without_a_name_or_a_meaning_are_refused() -> None:
    with pytest.raises(InvalidValue, match="Identity gives its attention function 5 positional arguments"):
        arguments(torch.nn.Identity(), "sdpa", [1, 2, 3, 4, 0.125], {})
    with pytest.raises(InvalidValue, match="Identity chooses its keys by block_indices"):
        arguments(torch.nn.Identity(), "sdpa", [1, 2, 3, 4], {"block_indices": torch.zeros(1)})
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(InvalidValue, match="Identity chooses its keys by cache, which cannot be read from outside"):
        AttentionCall(torch.nn.Identity(), "sdpa", q, q, q, None, {"cache": object()})


@pytest.mark.parametrize(
    ("implementation", "dtype"), [("sdpa", torch.bool), ("sdpa", torch.float32), ("eager", torch.float32)]
)
def test_a_mask_with_one_row_for_all_queries_is_a_row_for_each(implementation: str, dtype: torch.dtype) -> None:
    model, ids = random_model("bert", implementation, dtype=torch.float32), tokens(2, 14)
    row = torch.ones(2, 1, 1, 14, dtype=torch.bool)
    row[1, ..., 9:] = False
    if dtype != torch.bool:
        row = torch.zeros(row.shape).masked_fill(~row, torch.finfo(dtype).min)
    frames = []
    for mask in (row, row.expand(-1, -1, 14, -1).contiguous()):
        with torch.no_grad(), ud.capture(model, rows=99) as c:
            model(ids, attention_mask=mask)
        frames.append(c.frame())
    assert frames[0].equals(frames[1])
    assert c.layers[0].n.tolist() == [14] * 14 + [9] * 9
