"""Which encoders of text are in the table?  Rows see the whole input, so there is no cache."""

from __future__ import annotations

from typing import Any

from tests.models.attending import VOCABULARY, WINDOW
from tests.models.zoo.architecture import BASE, ENCODER, SHARED, UNGROUPED, Architecture

# implementation, apply, capture, diagnose, cache, padding
ENCODES = "yes yes yes yes — yes"

TYPED: dict[str, Any] = UNGROUPED | {"type_vocab_size": 2}


def encoder(model: str, sizes: dict[str, Any], outcomes: str = ENCODES) -> Architecture:
    return Architecture(model, ENCODER, sizes, outcomes)


ARCHITECTURES = [
    Architecture(
        "AlbertModel",
        SHARED,
        TYPED | {"embedding_size": 16},
        ENCODES,
        note="one module runs in place of every layer: each run is a layer, all have the same rules",
    ),
    encoder("BertModel", TYPED),
    encoder("CamembertModel", TYPED),
    encoder("Data2VecTextModel", TYPED),
    encoder(
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
        | {"max_position_embeddings": 128, "initializer_range": 0.4},
    ),
    encoder("ElectraModel", TYPED | {"embedding_size": 16}),
    encoder("ErnieModel", TYPED),
    encoder("EsmModel", TYPED | {"position_embedding_type": "rotary"}),
    encoder("EuroBertModel", BASE),
    encoder(
        "ModernBertModel",
        UNGROUPED | {"layer_types": ["sliding_attention", "full_attention"], "local_attention": WINDOW},
    ),
    encoder("NomicBertModel", TYPED),
    encoder("RobertaModel", TYPED),
    encoder("RobertaPreLayerNormModel", TYPED),
    encoder("SiglipTextModel", UNGROUPED),
    encoder("XLMRobertaModel", TYPED),
    encoder("XmodModel", TYPED | {"languages": ["en"], "default_language": "en"}),
]
