"""Trainable layers: attention with any rule, differential attention, and one module per learnable scale or map."""

from undilute.nn.attention import Attention
from undilute.nn.cache import KVCache
from undilute.nn.differential import DifferentialAttention
from undilute.rules import (
    LearnableEntmax,
    LearnableFocus,
    LearnableLogLength,
    LearnablePowLogLength,
    LearnableSink,
    LearnableTemperature,
)

__all__ = [
    "Attention",
    "DifferentialAttention",
    "KVCache",
    "LearnableEntmax",
    "LearnableFocus",
    "LearnableLogLength",
    "LearnablePowLogLength",
    "LearnableSink",
    "LearnableTemperature",
]
