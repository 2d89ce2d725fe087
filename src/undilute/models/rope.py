"""Which rotary scaling do a GGUF file's divisors come from?

A Llama 3.1 to 3.3 file holds one divisor d per rotary frequency, θ_i → θ_i / d_i, where transformers states the recipe:
with the wavelength λ = 2π/θ_i, d = 1 for λ < L/high, d = factor for λ > L/low, and between them
1/d = (1 − s)/factor + s with s = (L/λ − low)/(high − low). All these models have low = 1, high = 4 and L = 8,192;
the factor is the largest divisor. The recipe is used only if it gives the file's divisors back.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from undilute.errors import InvalidValue

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LOW, HIGH, TRAINED_LENGTH = 1.0, 4.0, 8192


def divisors(factor: float, theta: float, head_dim: int) -> NDArray[np.float64]:
    """The divisors of all ``head_dim / 2`` rotary frequencies under the recipe above.

    >>> divisors(8.0, 500_000.0, 8).round(3)
    array([1.   , 1.   , 2.695, 8.   ])
    """
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    share = np.clip((TRAINED_LENGTH / wavelength - LOW) / (HIGH - LOW), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - share) / factor + share))


def apply_divisors(config: PreTrainedConfig, stated: NDArray[np.float32], path: Path) -> None:
    """Write the recipe that gives the ``stated`` divisors into ``config``."""
    factor, theta = float(stated.max()), config.rope_parameters["rope_theta"]
    recipe = divisors(factor, theta, config.head_dim)
    if recipe.shape != stated.shape or not np.allclose(recipe, stated, rtol=1e-4):
        raise InvalidValue(
            f"{str(path)!r} scales its rotary frequencies in a way that is not Llama 3's; "
            "give the original safetensors folder or hub id instead."
        )
    config.rope_parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": TRAINED_LENGTH,
    }
