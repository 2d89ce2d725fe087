"""A layer that looks at another text is told from one that looks at its own, and its rows are the decoder's."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor
from transformers.models.mllama.modeling_mllama import MllamaTextModel

import undilute as ud
from tests.models.architectures import PLAIN, SEQUENCES, T5
from tests.models.attending import SIZES, VOCABULARY, tokens
from undilute.errors import InvalidValue
from undilute.models.attention_call import AttentionCall
from undilute.models.capture import LayerSample
from undilute.models.head_rules import attention

NAMES = {"bart": "model.decoder.layers.0.encoder_attn", "t5": "decoder.block.0.layer.1.EncDecAttention"}


def built(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "bart":
        return transformers.BartForConditionalGeneration(transformers.BartConfig(**SEQUENCES, init_std=0.4)).eval()
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, decoder_start_token_id=0)).eval()


def captured(model: Any, rows: int = 100, **inputs: Any) -> dict[str, LayerSample]:
    with torch.no_grad(), ud.capture(model, rows, measures=["entropy", "attended_distance", "recent_share"]) as c:
        model(**inputs)
    return {layer.name: layer for layer in c.layers}


def crossing(model: Any, **inputs: Any) -> list[str]:
    return [name for name, layer in captured(model, **inputs).items() if layer.is_cross]


def entropies(model: Any, **inputs: Tensor) -> Tensor:
    """(heads, batch × queries) of the last cross-attention, from eager's weights."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).cross_attentions[-1]
    model.set_attn_implementation("sdpa")
    return torch.special.entr(weights).sum(-1).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("decoded", [1, 9, 14, 20])
@pytest.mark.parametrize("side", ["left", "right", None])
def test_rows_are_the_decoders_whatever_the_lengths(kind: str, decoded: int, side: str | None) -> None:
    model, mask = built(kind), torch.ones(2, 14, dtype=torch.int64)
    if side is not None:
        mask[1, slice(0, 5) if side == "left" else slice(9, None)] = 0
    inputs = {"input_ids": tokens(2, 14), "attention_mask": mask, "decoder_input_ids": tokens(2, decoded, seed=1)}
    layer = captured(model, **inputs)[NAMES[kind]]
    assert layer.is_cross
    assert layer.looks_ahead
    assert_array_equal(layer.position, np.tile(np.arange(decoded), 2))
    assert_array_equal(layer.n, [14] * decoded + [14 if side is None else 9] * decoded)
    assert (layer.keys >= 0).all()  # from the first key that is no padding
    assert (layer.keys < layer.n[:, None]).all()
    assert_allclose(layer.measures["entropy"], entropies(model, **inputs), atol=1e-4)
    assert np.isnan(layer.measures["attended_distance"]).all()
    assert np.isnan(layer.measures["recent_share"]).all()


@pytest.mark.parametrize("kind", NAMES)
def test_tokens_that_are_generated_are_those_of_one_pass(kind: str) -> None:
    model, ids = built(kind), tokens(2, 14)
    with ud.capture(model, measures=["entropy"]) as c:
        made = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, num_beams=1)
    one = captured(model, input_ids=ids, decoder_input_ids=made[:, :-1])
    assert [layer.name for layer in c.layers] == list(one)
    for layer in c.layers:
        order = np.lexsort([layer.position, layer.batch])
        assert_array_equal(layer.position[order], one[layer.name].position)
        assert_allclose(layer.measures["entropy"][:, order], one[layer.name].measures["entropy"], atol=1e-4)
        assert layer.is_cross == one[layer.name].is_cross


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_decoder_has_no_rows(side: str) -> None:
    model, mask = built("bart"), torch.ones(2, 14, dtype=torch.int64)
    mask[1, slice(0, 5) if side == "left" else slice(9, None)] = 0
    inputs = {"input_ids": tokens(2, 14), "decoder_input_ids": tokens(2, 14, seed=1), "decoder_attention_mask": mask}
    layer = captured(model, **inputs)[NAMES["bart"]]
    assert_array_equal(layer.position, [*range(14), *range(9)])
    assert_array_equal(layer.batch, [0] * 14 + [1] * 9)
    assert_allclose(layer.measures["entropy"], entropies(model, **inputs)[:, mask.flatten().bool()], atol=1e-4)


def bert_and_bert() -> Any:
    both = transformers.BertConfig(**PLAIN), transformers.BertConfig(**PLAIN)
    return transformers.EncoderDecoderModel(transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*both))


def gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": VOCABULARY}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, add_cross_attention=True))


def q_former() -> Any:
    return transformers.Blip2QFormerModel(transformers.Blip2QFormerConfig(**PLAIN, encoder_hidden_size=24))


def detr() -> Any:
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
    sizes = {name: value for name, value in SEQUENCES.items() if "_" in name and "vocab" not in name}
    return transformers.DetrModel(transformers.DetrConfig(backbone_config=backbone, num_queries=16, **sizes))


def sam() -> Any:
    grid = {"image_size": 32, "patch_size": 8}
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_channels": 256}
    decoder = {"num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 32}
    return transformers.SamModel(
        transformers.SamConfig(vision_config=grid | vision, prompt_encoder_config=grid, mask_decoder_config=decoder)
    )


OTHERS: list[tuple[Callable[[], Any], dict[str, Tensor], list[str]]] = [
    (
        bert_and_bert,
        {"input_ids": tokens(2, 12), "decoder_input_ids": tokens(2, 12)},
        [f"decoder.bert.encoder.layer.{layer}.crossattention.self" for layer in (0, 1)],
    ),
    (
        gpt2,
        {"input_ids": tokens(2, 12), "encoder_hidden_states": torch.ones(2, 12, 32)},
        ["h.0.crossattention"],
    ),
    (
        q_former,
        {"query_embeds": torch.ones(2, 7, 32), "encoder_hidden_states": torch.ones(2, 7, 24)},
        ["encoder.layer.0.crossattention.attention"],
    ),
    (detr, {"pixel_values": torch.ones(1, 3, 32, 32)}, ["decoder.layers.0.encoder_attn"]),
    (
        sam,
        {"pixel_values": torch.ones(1, 3, 32, 32), "input_points": torch.ones(1, 1, 1, 2)},
        [
            "mask_decoder.transformer.layers.0.cross_attn_token_to_image",
            "mask_decoder.transformer.layers.0.cross_attn_image_to_token",
            "mask_decoder.transformer.final_attn_token_to_image",
        ],
    ),
    (
        lambda: transformers.MobileBertModel(
            transformers.MobileBertConfig(
                vocab_size=VOCABULARY, num_hidden_layers=1, hidden_size=32, embedding_size=16, intermediate_size=16
            )
        ),
        {"input_ids": tokens(2, 12)},
        [],  # it is given queries, keys and values, of one text
    ),
]


@pytest.mark.parametrize(("make", "inputs", "expected"), OTHERS, ids=lambda value: getattr(value, "__name__", ""))
def test_layers_that_look_at_another_text_are_known(
    make: Callable[[], Any], inputs: dict[str, Tensor], expected: list[str]
) -> None:
    torch.manual_seed(0)
    assert crossing(make().eval(), **inputs) == expected


def test_an_image_is_another_text_also_when_it_comes_from_a_cache() -> None:
    """Mllama is given its image once; later its keys are in the cache, as many as there are queries."""
    config: Any = transformers.models.mllama.configuration_mllama.MllamaTextConfig(
        **SIZES,
        cross_attention_layers=[1],
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model, cache = MllamaTextModel(config).eval(), transformers.DynamicCache(config=config)
    places = []
    for count, image in ((5, {"cross_attention_states": torch.randn(2, 4, 32)}), (1, {}), (4, {})):
        masks = {
            "cross_attention_mask": torch.zeros(2, 1, count, 4),
            "full_text_row_masked_out_mask": torch.ones(2, 1, count, 1),
        }
        layer = captured(model, input_ids=tokens(2, count), past_key_values=cache, **masks, **image)[
            "layers.1.cross_attn"
        ]
        assert layer.is_cross
        assert set(layer.n) == {4}
        places.append(layer.position[: len(layer.position) // 2].tolist())
    assert places == [[0, 1, 2, 3, 4], [5], [6, 7, 8, 9]]


def test_a_cache_is_no_other_text() -> None:
    """More keys than queries, in a decoder and in an encoder with a prefix."""
    prefix = transformers.DynamicCache()
    for layer in range(2):
        prefix.update(torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8), layer)
    encoder = transformers.BertModel(transformers.BertConfig(**PLAIN)).eval()
    layers = captured(encoder, input_ids=tokens(2, 12), past_key_values=prefix)
    assert not any(layer.is_cross for layer in layers.values())
    assert set(layers["encoder.layer.0.attention.self"].position) == set(range(5, 17))
    assert crossing(gpt2().eval(), input_ids=tokens(2, 12)) == []
    assert crossing(bert_and_bert().encoder.eval(), input_ids=tokens(2, 12)) == []


def test_threads_do_not_mix_their_texts() -> None:
    model = built("bart")
    inputs = [{"input_ids": tokens(1, 14), "decoder_input_ids": tokens(1, 3)} for _ in range(12)]
    with ud.capture(model, measures=["entropy"]) as c, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(torch.no_grad()(model), **each) for each in inputs]:
            done.result()
    for layer in c.layers:
        assert layer.is_cross == (layer.name == NAMES["bart"])
        assert set(layer.position) <= set(range(14 if "encoder.layers" in layer.name else 3))


def test_nothing_stays_behind() -> None:
    model = built("bart")
    captured(model, input_ids=tokens(1, 5), decoder_input_ids=tokens(1, 3))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_the_layers_input_holds_none_of_the_other_texts_keys() -> None:
    model = built("bart")
    with (
        pytest.raises(InvalidValue, match=r"x = 'input': the input of BartAttention does not hold every key"),
        ud.capture(model, x="input"),
        torch.no_grad(),
    ):
        model(input_ids=tokens(1, 9), decoder_input_ids=tokens(1, 9))


def test_a_verdict_is_not_made_of_what_has_no_meaning(tmp_path: Path) -> None:
    """BART makes its decoder's text of the encoder's, of the same length: no head of a cross-attention is local."""
    found = ud.diagnose(built("bart"), None, tokens(128), target=4096, rows=16, recent=8)
    cross = [layer.index for layer in found.layers if layer.is_cross]
    assert [found.layers[index].name for index in cross] == [NAMES["bart"]]
    for head in found.heads:
        is_known = not np.isnan(head.medians["recent_share_without_sink"])
        assert is_known == (head.layer not in cross)
        assert np.isfinite(head.gamma)
        assert np.isfinite(head.top_target)
        assert is_known or head.kind != "local"
    plain = json.loads(found.save_json(tmp_path / "diagnosis.json").read_text())
    assert [layer["is_cross"] for layer in plain["layers"]] == [False, False, True]
    assert found.save_html(tmp_path / "diagnosis.html").exists()


@pytest.mark.parametrize(("queries", "keys"), [(9, 4), (4, 9), (6, 6)])
def test_a_flag_without_a_mask_means_what_torch_makes_of_it(queries: int, keys: int) -> None:
    """Also where the keys are fewer than the queries, which can only be another text's."""
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8)
    module = torch.nn.Identity()
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True)
    found = attention("undilute:softmax")(module, query, key, key, None)[0].transpose(1, 2)
    torch.testing.assert_close(found, expected)
    call = AttentionCall(module, "sdpa", query, key, key, None, {}, is_cross=True)
    seen = call.visible(0, torch.arange(queries), call.keys)
    assert seen is not None
    assert torch.equal(seen, torch.ones(queries, keys, dtype=torch.bool).tril()[:, : call.keys])
