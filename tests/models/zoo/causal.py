"""Which causal models of text are in the table?  Those whose layers all attend."""

from __future__ import annotations

from typing import Any

from tests.models.attending import VOCABULARY, WINDOW
from tests.models.zoo.architecture import BASE, CAUSAL, UNGROUPED, Architecture

# implementation, apply, capture, diagnose, cache, padding
EVERYTHING = "yes yes yes yes yes yes"
WITHOUT_CACHE = "yes yes yes yes — yes"

HEADS: dict[str, Any] = BASE | {"head_dim": 8}
LOCAL: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA: dict[str, Any] = HEADS | LOCAL | {"query_pre_attn_scalar": 8}
TWO: dict[str, Any] = {"num_experts_per_tok": 1, "moe_intermediate_size": 16}  # experts
ROUTED: dict[str, Any] = TWO | {
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = UNGROUPED | {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


def causal(model: str, sizes: dict[str, Any], outcomes: str = EVERYTHING, **others: Any) -> Architecture:
    return Architecture(model, CAUSAL, sizes, outcomes, **others)


ARCHITECTURES = [
    causal(
        "AfmoeForCausalLM", HEADS | LOCAL | TWO | {"num_experts": 2, "num_shared_experts": 1, "num_dense_layers": 1}
    ),
    causal("ApertusForCausalLM", BASE),
    causal("ArceeForCausalLM", BASE),
    causal("BioGptForCausalLM", UNGROUPED),
    causal("BitNetForCausalLM", BASE),
    causal("CLIPTextModel", UNGROUPED | {"projection_dim": 16}, WITHOUT_CACHE),
    causal("CohereForCausalLM", BASE),
    causal("Cohere2ForCausalLM", BASE | LOCAL),
    causal("CTRLLMHeadModel", UNGROUPED),
    causal(
        "DbrxForCausalLM",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "vocab_size": VOCABULARY,
            "max_seq_len": 128,
            "initializer_range": 0.4,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
            "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 16, "moe_num_experts": 2, "moe_top_k": 1},
        },
    ),
    causal("DeepseekV2ForCausalLM", LATENT | ROUTED),
    causal("DeepseekV3ForCausalLM", LATENT | ROUTED),
    causal("DiffLlamaForCausalLM", BASE),
    causal("DogeForCausalLM", BASE),
    causal("Dots1ForCausalLM", HEADS | ROUTED),
    causal("Ernie4_5ForCausalLM", HEADS),
    causal(
        "Ernie4_5_MoeForCausalLM",
        BASE
        | {"moe_num_experts": 2, "moe_k": 1, "moe_intermediate_size": 16}
        | {"moe_num_shared_experts": 1, "moe_layer_start_index": 1},
    ),
    causal("Exaone4ForCausalLM", BASE | LOCAL),
    causal("FlexOlmoForCausalLM", BASE | {"num_experts": 2, "num_experts_per_tok": 1}),
    causal("GemmaForCausalLM", HEADS),
    causal("Gemma2ForCausalLM", GEMMA | {"attn_logit_softcapping": 2.0}),
    causal("Gemma3ForCausalLM", GEMMA),
    causal(
        "Gemma3nForCausalLM",
        HEADS
        | LOCAL
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0}
        | {"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0, 0.0]},
    ),
    causal(
        "Gemma4ForCausalLM",
        HEADS
        | LOCAL
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0}
        | {"global_head_dim": 8},
    ),
    causal("GlmForCausalLM", HEADS),
    causal("Glm4ForCausalLM", HEADS),
    causal("Glm4MoeForCausalLM", HEADS | ROUTED),
    causal("GPT2LMHeadModel", UNGROUPED | {"scale_attn_by_inverse_layer_idx": True}),
    causal("GPTBigCodeForCausalLM", UNGROUPED | {"multi_query": True}),
    causal("GPTNeoXForCausalLM", UNGROUPED),
    causal(
        "GptOssForCausalLM",
        HEADS
        | LOCAL
        | {"num_local_experts": 2, "num_experts_per_tok": 1}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        rule="ssmax",
        note="learned sinks: only rules that are a softmax with a scale of its own, such as ssmax; others are refused",
    ),
    causal("GraniteForCausalLM", BASE | {"attention_multiplier": 0.3}),
    causal(
        "GraniteMoeForCausalLM",
        BASE | {"attention_multiplier": 0.3, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    causal("HeliumForCausalLM", HEADS),
    causal("HunYuanDenseV1ForCausalLM", HEADS),
    causal("HunYuanMoEV1ForCausalLM", HEADS | {"num_experts": 2, "moe_topk": 1}),
    causal("JetMoeForCausalLM", BASE | {"kv_channels": 8, "num_local_experts": 2, "num_experts_per_tok": 2}),
    causal("LlamaForCausalLM", BASE),
    causal(
        "Llama4ForCausalLM",
        HEADS
        | {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 48, "no_rope_layers": [1, 0]}
        | {"attention_chunk_size": WINDOW, "layer_types": ["chunked_attention", "full_attention"]},
    ),
    causal("MinistralForCausalLM", HEADS | LOCAL),
    causal("Ministral3ForCausalLM", HEADS),
    causal("MistralForCausalLM", BASE | {"sliding_window": WINDOW}),
    causal("MixtralForCausalLM", BASE | {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1}),
    causal("ModernBertDecoderForCausalLM", UNGROUPED | LOCAL | {"local_attention": 2 * WINDOW}),
    causal("NanoChatForCausalLM", BASE),
    causal("NemotronForCausalLM", BASE),
    causal("OlmoForCausalLM", BASE),
    causal("Olmo2ForCausalLM", BASE),
    causal("Olmo3ForCausalLM", BASE | LOCAL),
    causal("OlmoeForCausalLM", BASE | {"num_experts": 2, "num_experts_per_tok": 1}),
    causal(
        "OPTForCausalLM",
        {name: value for name, value in UNGROUPED.items() if name not in ("intermediate_size", "initializer_range")}
        | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4},
    ),
    causal("PersimmonForCausalLM", UNGROUPED),
    causal("PhiForCausalLM", BASE),
    causal("Phi3ForCausalLM", BASE | {"sliding_window": WINDOW}),
    causal("PhimoeForCausalLM", BASE | {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1}),
    causal("Qwen2ForCausalLM", BASE | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    causal("Qwen2MoeForCausalLM", BASE | TWO | {"num_experts": 2, "shared_expert_intermediate_size": 16}),
    causal("Qwen3ForCausalLM", HEADS),
    causal("Qwen3MoeForCausalLM", HEADS | TWO | {"num_experts": 2}),
    causal("SeedOssForCausalLM", HEADS),
    causal("SmolLM3ForCausalLM", BASE | {"no_rope_layers": [1, 0]}),
    causal("StableLmForCausalLM", BASE),
    causal("Starcoder2ForCausalLM", BASE | {"sliding_window": WINDOW}),
    causal("VaultGemmaForCausalLM", GEMMA | {"attn_logit_softcapping": 2.0}),
]
