"""Which encoders of images and sounds are in the table?  Rows see every patch or frame of an input of one size."""

from __future__ import annotations

from typing import Any

from tests.models.zoo.architecture import AUDIO, IMAGE, UNGROUPED, VISION, Architecture

# implementation, apply, capture, diagnose, cache, padding
SEES = "yes refused yes refused — —"

VIT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.4,
    "image_size": IMAGE,
    "patch_size": 4,
}
WAV2VEC2: dict[str, Any] = UNGROUPED | {
    "conv_dim": (8, 8),
    "conv_kernel": (4, 4),
    "conv_stride": (2, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "mask_time_prob": 0.0,
}


def vision(model: str, sizes: dict[str, Any], outcomes: str = SEES) -> Architecture:
    return Architecture(model, VISION, sizes, outcomes, "image")


def audio(model: str, sizes: dict[str, Any], outcomes: str = SEES) -> Architecture:
    return Architecture(model, AUDIO, sizes, outcomes, "sound")


ARCHITECTURES = [
    vision("BeitModel", VIT | {"use_relative_position_bias": True}),
    vision("CLIPVisionModel", VIT),
    vision("DeiTModel", VIT),
    vision("Dinov2Model", VIT),
    vision("Dinov2WithRegistersModel", VIT),
    vision("DINOv3ViTModel", VIT),
    vision("IJepaModel", VIT),
    vision("SiglipVisionModel", VIT),
    vision(
        "SwinModel",
        {"image_size": IMAGE, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]}
        | {"window_size": 4, "initializer_range": 0.4},
    ),
    vision("ViTModel", VIT),
    vision("ViTMSNModel", VIT),
    vision("YolosModel", VIT | {"image_size": [IMAGE, IMAGE], "num_detection_tokens": 4}),
    audio("HubertModel", WAV2VEC2),
    audio("UniSpeechModel", WAV2VEC2),
    audio("Wav2Vec2Model", WAV2VEC2),
]
