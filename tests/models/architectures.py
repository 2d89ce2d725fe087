"""Small random models of architectures that are special: own attention code, shared layers, hybrids, several inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.models.attending import SIZES, VOCABULARY

PLAIN: dict[str, Any] = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
SHORT: dict[str, Any] = {"vocab_size": VOCABULARY, "n_layer": 1, "n_head": 4}
SEQUENCES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": VOCABULARY}
IMAGES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
FALCON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
EXPERTS: dict[str, Any] = {"num_experts": 2, "num_experts_per_tok": 1}

CONFIGURATIONS: dict[str, Callable[[], tuple[Any, Any]]] = {
    # attention in code of their own
    "bloom": lambda: (transformers.BloomForCausalLM, transformers.BloomConfig(hidden_size=32, **SHORT)),
    "codegen": lambda: (
        transformers.CodeGenForCausalLM,
        transformers.CodeGenConfig(n_embd=32, rotary_dim=4, **SHORT, bos_token_id=1, eos_token_id=1),
    ),
    "xglm": lambda: (
        transformers.XGLMForCausalLM,
        transformers.XGLMConfig(d_model=32, ffn_dim=32, num_layers=1, attention_heads=4, vocab_size=VOCABULARY),
    ),
    "mpt": lambda: (
        transformers.MptForCausalLM,
        transformers.MptConfig(d_model=32, n_layers=1, n_heads=4, vocab_size=VOCABULARY),
    ),
    "mpnet": lambda: (transformers.MPNetModel, transformers.MPNetConfig(**PLAIN)),
    "deberta-v2": lambda: (transformers.DebertaV2Model, transformers.DebertaV2Config(**PLAIN)),
    "gptj": lambda: (
        transformers.GPTJForCausalLM,
        transformers.GPTJConfig(n_embd=32, rotary_dim=4, **SHORT, bos_token_id=1, eos_token_id=1),
    ),
    "gpt-neo": lambda: (
        transformers.GPTNeoForCausalLM,
        transformers.GPTNeoConfig(
            hidden_size=32,
            num_layers=1,
            num_heads=4,
            attention_types=[[["global"], 1]],
            vocab_size=VOCABULARY,
            bos_token_id=1,
            eos_token_id=1,
        ),
    ),
    "falcon": lambda: (transformers.FalconForCausalLM, transformers.FalconConfig(**FALCON)),
    # in one part of them
    "longt5": lambda: (transformers.LongT5Model, transformers.LongT5Config(**T5)),
    "git": lambda: (
        transformers.GitForCausalLM,
        transformers.GitConfig(**PLAIN, vision_config=IMAGES, bos_token_id=1, eos_token_id=1),
    ),
    # none at all
    "mamba": lambda: (
        transformers.MambaForCausalLM,
        transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=VOCABULARY),
    ),
    # the mask by keyword; keys that are selected
    "doge": lambda: (transformers.DogeForCausalLM, transformers.DogeConfig(**SIZES, keep_window_size=8)),
    "afmoe": lambda: (
        transformers.AfmoeForCausalLM,
        transformers.AfmoeConfig(
            **SIZES,
            **EXPERTS,
            moe_intermediate_size=16,
            head_dim=8,
            num_dense_layers=1,
            num_shared_experts=1,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    "deepseek-v3.2": lambda: (
        transformers.DeepseekV32ForCausalLM,
        transformers.DeepseekV32Config(
            **PLAIN,
            num_key_value_heads=4,
            n_routed_experts=2,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            index_topk=6,
            index_n_heads=2,
            index_head_dim=16,
            first_k_dense_replace=1,
            n_shared_experts=1,
        ),
    ),
    # layers that run several times
    "albert": lambda: (
        transformers.AlbertForMaskedLM,
        transformers.AlbertConfig(**{**PLAIN, "num_hidden_layers": 3, "embedding_size": 16}),
    ),
    "hrm": lambda: (
        transformers.HrmTextForCausalLM,
        transformers.HrmTextConfig(**{**PLAIN, "num_hidden_layers": 6}, num_layers_per_stack=1, H_cycles=2, L_cycles=2),
    ),
    # layers that do not attend
    "jamba": lambda: (transformers.JambaForCausalLM, jamba()),
    "jamba without head": lambda: (transformers.JambaModel, jamba()),
    # other inputs than tokens
    "vit": lambda: (transformers.ViTModel, transformers.ViTConfig(**IMAGES)),
    "siglip": lambda: (transformers.SiglipVisionModel, transformers.SiglipVisionConfig(**IMAGES)),
    "clip": lambda: (
        transformers.CLIPModel,
        transformers.CLIPConfig(text_config=PLAIN, vision_config=IMAGES, projection_dim=8),
    ),
    "whisper": lambda: (
        transformers.WhisperForConditionalGeneration,
        transformers.WhisperConfig(**SEQUENCES, pad_token_id=0, bos_token_id=1, eos_token_id=1),
    ),
    "t5": lambda: (transformers.T5ForConditionalGeneration, transformers.T5Config(**T5)),
    "pegasus": lambda: (transformers.PegasusForConditionalGeneration, transformers.PegasusConfig(**SEQUENCES)),
}


def jamba() -> Any:
    """Four layers, of which the second and the last attend."""
    return transformers.JambaConfig(
        **{**SIZES, "num_hidden_layers": 4},
        **EXPERTS,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=4,
        mamba_d_conv=2,
        mamba_expand=1,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    )


def llava(text: Any) -> Any:
    """The configuration of a model of two: images, and text by ``text``."""
    return transformers.LlavaConfig(text_config=text, vision_config=transformers.CLIPVisionConfig(**IMAGES))


def built(kind: str, **options: Any) -> Any:
    """A random model, the same every time."""
    torch.manual_seed(0)
    family, config = CONFIGURATIONS[kind]()
    return family._from_config(config, **options).eval()
