"""Which models does nobody read from outside?  Those that attend in code of their own, and those that never attend."""

from __future__ import annotations

from typing import Any

from tests.models.attending import VOCABULARY, WINDOW
from tests.models.zoo.architecture import NONE, OWN, UNGROUPED, Architecture
from tests.models.zoo.encoders import TYPED
from tests.models.zoo.images_and_sounds import WAV2VEC2
from tests.models.zoo.sequences import BART

# implementation, apply, capture, diagnose, cache, padding
NOTHING = "refused refused refused refused — —"
NEVER = "refused refused — refused — —"  # nothing is captured where nothing attends

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}


def own(model: str, sizes: dict[str, Any], reads: str = "text") -> Architecture:
    return Architecture(model, OWN, sizes, NOTHING, reads)


ARCHITECTURES = [
    own("BloomForCausalLM", UNGROUPED),
    own("CodeGenForCausalLM", UNGROUPED | {"rotary_dim": 4}),
    own("ConvBertModel", TYPED | {"embedding_size": 16}),
    own("DebertaModel", TYPED),
    own("DebertaV2Model", TYPED | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    own("FalconForCausalLM", UNGROUPED | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    own("GPTJForCausalLM", UNGROUPED | {"rotary_dim": 4}),
    own("GPTNeoForCausalLM", UNGROUPED | {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW}),
    own(
        "LEDModel",
        BART | {"attention_window": 4, "max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 128},
    ),
    own("MPNetModel", UNGROUPED),
    own(
        "MptForCausalLM",
        {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": VOCABULARY, "max_seq_len": 128}
        | {"initializer_range": 0.4},
    ),
    own("MvpModel", BART),
    own("OpenAIGPTLMHeadModel", UNGROUPED),
    own("RemBertModel", TYPED | {"input_embedding_size": 16, "output_embedding_size": 16}),
    own("RoFormerModel", TYPED),
    own("WavLMModel", WAV2VEC2, reads="sound"),
    own(
        "XGLMForCausalLM",
        {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}
        | {"max_position_embeddings": 128, "init_std": 0.4, "pad_token_id": 0},
    ),
    own("XLNetLMHeadModel", {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    own("RwkvForCausalLM", SMALL | {"attention_hidden_size": 32, "context_length": 128}),
    Architecture("FNetModel", NONE, TYPED, NEVER),
    Architecture("MambaForCausalLM", NONE, SMALL | {"state_size": 8, "use_mambapy": False}, NEVER),
    Architecture(
        "Mamba2ForCausalLM",
        NONE,
        SMALL | {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
        NEVER,
    ),
]
