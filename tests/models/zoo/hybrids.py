"""Which models attend in some of their layers only, and remember by a state or a convolution in the others?"""

from __future__ import annotations

from typing import Any

from tests.models.attending import WINDOW
from tests.models.zoo.architecture import BASE, HYBRID, Architecture
from tests.models.zoo.causal import EVERYTHING, LATENT, ROUTED, TWO

STEPS = (9, 1, 1, 1, 1, 1)  # a state goes on by one token at a time
FINE = 1e-9  # transformers cuts time steps at the shortest only where there is no cache
SECOND: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
DELTA: dict[str, Any] = SECOND | {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}


def hybrid(model: str, sizes: dict[str, Any], **others: Any) -> Architecture:
    return Architecture(model, HYBRID, BASE | sizes, EVERYTHING, pieces=STEPS, **others)


ARCHITECTURES = [
    hybrid("BambaForCausalLM", MAMBA | {"attn_layer_indices": [1]}),
    hybrid("FalconH1ForCausalLM", MAMBA | {"head_dim": 8, "mamba_d_ssm": 64}),
    hybrid(
        "GraniteMoeHybridForCausalLM",
        MAMBA
        | {"layer_types": ["mamba", "attention"], "attention_multiplier": 0.3}
        | {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 16},
    ),
    hybrid(
        "JambaForCausalLM",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
        | {"num_experts": 2, "num_experts_per_tok": 1}
        | {"mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    hybrid("KimiLinearForCausalLM", LATENT | ROUTED | SECOND | {"linear_head_dim": 8, "linear_num_heads": 2}),
    hybrid("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    hybrid(
        "MiniMaxForCausalLM",
        SECOND | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 8},
    ),
    hybrid(
        "NemotronHForCausalLM",
        {"head_dim": 8, "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 16}
        | {"ssm_state_size": 8, "n_groups": 1, "chunk_size": 8, "time_step_min": FINE},
    ),
    hybrid("OlmoHybridForCausalLM", DELTA),
    hybrid(
        "Qwen3NextForCausalLM", DELTA | TWO | {"head_dim": 8, "num_experts": 2, "shared_expert_intermediate_size": 16}
    ),
    hybrid("Qwen3_5ForCausalLM", DELTA | {"head_dim": 8}),
    hybrid(
        "RecurrentGemmaForCausalLM",
        {"head_dim": 8, "block_types": ["recurrent", "attention"], "lru_width": 32, "attention_window_size": WINDOW},
        takes_cache=True,
    ),
    hybrid(
        "Zamba2ForCausalLM",
        {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]}
        | {"mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 1, "mamba_headdim": 16, "chunk_size": 8}
        | {"num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 4, "time_step_min": FINE},
    ),
]
