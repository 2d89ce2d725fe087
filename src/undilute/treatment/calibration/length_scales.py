"""Which scale s·ln n + b, or ln n / ln L, keeps a head as sharp on long rows as it is at a reference length?

At the reference length n₀ the head's median row has some top weight (or entropy). On longer rows, half an octave of n
at a time, the β that gives the median row that same value is read off; β is 1 at n₀ and grows with n if the head
dilutes.

- LogLength: the line 1 + s·ln(n/n₀) through (n₀, 1) that is closest to these β, and never below 1: rows up to n₀ stay
  as they are, where a line without that floor would flatten or even invert them.
- LogN: max(1, ln n / ln L) with the closest L that is not below n₀.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from undilute.rules.base import Rule
from undilute.rules.scales.log_length import LogLength
from undilute.rules.scales.log_n import LogN
from undilute.treatment.calibration.sharpening import Sharpened, needed

WIDTH = math.sqrt(2)  # of a bin of n, to both sides of the reference; the bins above it are half an octave each
STEEPEST = 4.0  # of s: β rises by 2.8 in each octave


def betas_by_length(
    layer: Sharpened, head: int, reference: int, falls: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean n of each bin above the reference length, and the β that holds the median row there at its level."""
    near = (layer.n >= reference / WIDTH) & (layer.n <= reference * WIDTH)
    level = float(np.median(layer.measured[0, head, near]))
    borders = [reference * WIDTH]
    while borders[-1] < layer.n.max():
        borders.append(borders[-1] * WIDTH)
    lengths, betas = [], []
    for low, high in itertools.pairwise(borders):
        rows = (layer.n > low) & (layer.n <= high)
        if rows.any():
            lengths.append(float(np.exp(np.log(layer.n[rows]).mean())))
            betas.append(needed(np.median(layer.measured[:, head, rows], axis=1), level, falls))
    return np.array(lengths), np.array(betas)


def log_length(layer: Sharpened, heads: Sequence[int], reference: int, falls: bool) -> tuple[Rule, NDArray[np.float64]]:
    """SSMax's scale for some heads of a layer, and its factor on the longest rows, (heads,)."""
    slopes = []
    for head in heads:
        n, beta = betas_by_length(layer, head, reference, falls)
        x = np.log(n / reference)
        slopes.append(float(np.clip((x * (beta - 1)).sum() / (x * x).sum(), 0.0, STEEPEST)))
    s = torch.tensor(slopes)
    factor = 1 + np.array(slopes) * math.log(layer.n.max() / reference)
    return Rule(LogLength(s=s, b=1 - s * math.log(reference), floor=1.0)), factor


def log_n(layer: Sharpened, heads: Sequence[int], reference: int, falls: bool) -> tuple[Rule, NDArray[np.float64]]:
    """LogN's scale for some heads of a layer, and its factor on the longest rows, (heads,)."""
    longest = int(layer.n.max())
    tried = np.geomspace(1 / math.log(longest), 1 / math.log(reference), 2000)  # of 1 / ln L
    lengths = []
    for head in heads:
        n, beta = betas_by_length(layer, head, reference, falls)
        error = ((np.maximum(1.0, tried[:, None] * np.log(n)) - beta) ** 2).sum(1)
        lengths.append(math.exp(1 / tried[int(error.argmin())]))
    train_length = torch.tensor(lengths)
    return Rule(LogN(train_length)), np.maximum(1.0, math.log(longest) / np.log(lengths))
