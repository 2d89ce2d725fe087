"""Small models on disk for the tests of loading: folders in Hugging Face's layout, and GGUF files made by hand."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

WORDS = ["<unk>", "<s>", "the", "a", "cat", "dog", "sat", "on", "mat", "and", "ran", "far"]
BYTES = [*bytes_to_unicode().values(), "th", "the", "<s>", "</s>"]
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS = 4, 2, 16, 64, 2

LLAMA = LlamaConfig(
    hidden_size=HIDDEN,
    intermediate_size=96,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    vocab_size=len(BYTES),
    max_position_embeddings=128,
    tie_word_embeddings=False,
)
GPT2 = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=16, n_positions=64, bos_token_id=1, eos_token_id=1)
BERT = BertConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=16,
    max_position_embeddings=40,
)


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>")


def q8_0(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows as blocks of 32: a float16 scale, then 32 signed bytes."""
    return np.asarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0))


def from_q8_0(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The definition of Q8_0, block by block: value = scale · byte."""
    out = []
    for row in rows:
        for block in row.reshape(-1, 34):
            scale = np.float32(block[:2].view(np.float16)[0])
            out.append(scale * block[2:].view(np.int8).astype(np.float32))
    return np.concatenate(out).reshape(len(rows), -1)


def q4_1(generator: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random rows as blocks of 32: a float16 scale, a float16 minimum, then 16 bytes of two values each."""
    head = np.array([0.013, -0.1], np.float16).view(np.uint8)
    nibbles = generator.integers(0, 256, (rows, columns // 32, 16), dtype=np.uint8)
    return np.concatenate([np.broadcast_to(head, (rows, columns // 32, 4)), nibbles], -1).reshape(rows, -1)


def from_q4_1(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The definition of Q4_1: value = scale · nibble + minimum; low nibbles are the first 16 values of a block."""
    out = []
    for row in rows:
        for block in row.reshape(-1, 20):
            scale, minimum = block[:4].view(np.float16).astype(np.float32)
            nibbles = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
            out.append(scale * np.array(nibbles, np.float32) + minimum)
    return np.concatenate(out).reshape(len(rows), -1)


def interleaved(weight: NDArray[np.float32], head_dim: int = HEAD_DIM) -> NDArray[np.float32]:
    """llama.cpp's order of query and key rows: row 2i + j of a head is transformers' row j·head_dim/2 + i."""
    half = head_dim // 2
    out = np.empty_like(weight)
    for head in range(len(weight) // head_dim):
        for j in range(2):
            for i in range(half):
                out[head * head_dim + 2 * i + j] = weight[head * head_dim + j * half + i]
    return out


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outside:
        return f"{outside[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def write_llama(
    path: Path,
    *,
    architecture: str = "llama",
    begin: bool = False,
    tokens: bool = True,
    scaling: str | None = None,
    left_out: str | None = None,
    extra: dict[str, NDArray[np.float32]] | None = None,
) -> LlamaForCausalLM:
    """Write a random llama as GGUF, values as Q8_0 and up projections as Q4_1; returns the model as it should load."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LLAMA).eval()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(LLAMA.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(LLAMA.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(LLAMA.rms_norm_eps)
    writer.add_vocab_size(len(BYTES))
    if scaling is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", scaling)
    if tokens:
        _write_tokenizer(writer, begin)
    generator = np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        if name != left_out:
            _write_tensor(writer, name, parameter, generator)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    _finish(writer)
    return model


GPT2_NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def write_gpt2(path: Path) -> GPT2LMHeadModel:
    """Write a random GPT-2 as GGUF, whose linear layers are (out, in) there and (in, out) in transformers."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**{**GPT2.to_dict(), "vocab_size": len(BYTES), "n_positions": 1024})).eval()
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(GPT2.n_layer)
    writer.add_context_length(1024)
    writer.add_embedding_length(GPT2.n_embd)
    writer.add_feed_forward_length(4 * GPT2.n_embd)
    writer.add_head_count(GPT2.n_head)
    writer.add_layer_norm_eps(GPT2.layer_norm_epsilon)
    _write_tokenizer(writer, begin=False)
    outside = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    for name, parameter in model.transformer.named_parameters():
        stem, kind = name.rsplit(".", 1)
        values = parameter.detach().numpy()
        if stem in outside:
            writer.add_tensor(f"{outside[stem]}.{kind}", values.copy())
        else:
            _, layer, part = stem.split(".", 2)
            is_matrix = ".c_" in stem and kind == "weight"
            writer.add_tensor(f"blk.{layer}.{GPT2_NAMES[part]}.{kind}", (values.T if is_matrix else values).copy())
    writer.add_tensor("output.weight", model.lm_head.weight.detach().numpy().copy())
    _finish(writer)
    return model


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tokenizer(writer: gguf.GGUFWriter, begin: bool) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(BYTES)
    writer.add_token_types([1] * (len(BYTES) - 2) + [3, 3])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(len(BYTES) - 2)
    writer.add_eos_token_id(len(BYTES) - 1)
    writer.add_add_bos_token(begin)


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, parameter: torch.nn.Parameter, generator: np.random.Generator
) -> None:
    """Write one tensor, and give ``parameter`` the values that the file then states."""
    values, out = parameter.detach().numpy(), gguf_name(name)
    if "v_proj" in name:
        rows = q8_0(values)
        values[:] = from_q8_0(rows)
        writer.add_tensor(out, rows, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    elif "up_proj" in name:
        rows = q4_1(generator, *values.shape)
        values[:] = from_q4_1(rows)
        writer.add_tensor(out, rows, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    elif "q_proj" in name or "k_proj" in name:
        writer.add_tensor(out, interleaved(values))
    else:
        writer.add_tensor(out, values.copy())
