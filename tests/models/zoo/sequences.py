"""Which models have an encoder and a decoder that looks at it?"""

from __future__ import annotations

from typing import Any

from tests.models.attending import VOCABULARY
from tests.models.zoo.architecture import BASE, BOTH, SPECTRUM, Architecture
from tests.models.zoo.causal import LOCAL

# implementation, apply, capture, diagnose, cache, padding
EVERYTHING = "yes yes yes yes yes yes"
WITH_BOTH_TEXTS = "yes refused yes refused yes yes"  # unlike BART they make no text for the decoder of the encoder's
IN_PARTS = "refused refused yes refused — —"
OF_SOUND = "yes refused yes refused yes —"

BART: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "init_std": 0.4,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "initializer_factor": 1.0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}


def both(model: str, sizes: dict[str, Any], outcomes: str = WITH_BOTH_TEXTS, **others: Any) -> Architecture:
    return Architecture(model, BOTH, sizes, outcomes, pieces=(5, 1, 1, 3, 1), **others)


ARCHITECTURES = [
    both("BartModel", BART, EVERYTHING),
    both("BlenderbotModel", BART),
    both("BlenderbotSmallModel", BART),
    both("LongT5Model", T5, IN_PARTS, note="its encoder attends in code of its own; what is captured is its decoder's"),
    both("M2M100Model", BART),
    both("MarianModel", BART),
    both("MBartModel", BART, EVERYTHING),
    both(
        "MoonshineModel",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "initializer_range": 0.4}
        | {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2, "max_position_embeddings": 128}
        | {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4},
        OF_SOUND,
        reads="speech",
    ),
    both("MT5Model", T5),
    both("PegasusModel", BART),
    both("PLBartModel", BART, EVERYTHING),
    both(
        "SwitchTransformersModel",
        T5 | {"num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    ),
    both("T5Model", T5),
    both("T5GemmaModel", {"encoder": BASE | LOCAL | {"head_dim": 8}, "decoder": BASE | LOCAL | {"head_dim": 8}}),
    both("UMT5Model", T5),
    both(
        "WhisperModel",
        {name: value for name, value in BART.items() if name != "max_position_embeddings"}
        | {"num_mel_bins": SPECTRUM[0], "max_source_positions": SPECTRUM[1] // 2, "max_target_positions": 128},
        OF_SOUND,
        reads="spectrum",
    ),
]
