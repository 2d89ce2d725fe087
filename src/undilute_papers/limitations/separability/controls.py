"""What is N_s/N where the vectors are known exactly?  Synthetic rows to compare with those of a model.

Logits come from N(0, 1); the vectors are independent and uniform on a sphere, orthonormal, or with a common direction
(cosine 0.5). In a last control one token has weight 0.97, as in a head that is as selective as can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undilute.report.result import Row
from undilute_papers.limitations.separability.balls import Ball, balls, unit

DRAWS = 8  # of the vectors of a control, each with as many rows of logits
CONTROLS = {
    "sphere, 64 features": 64,
    "sphere, 768 features": 768,
    "orthonormal": 0,
    "common direction, cosine 0.5": 768,
    "sharp head, weight 0.97": 64,
}


def control_shares(length: int, tops: Sequence[int], seed: int) -> list[Row]:
    """N_s/N of rows whose vectors are known: one line for each control and N.

    Examples
    --------
    >>> lines = control_shares(64, [1, 8], seed=0)
    >>> [line["mean"] for line in lines if line["control"] == "orthonormal"]
    [1.0, 1.0]
    """
    rng = torch.Generator().manual_seed(seed)
    lines: list[Row] = []
    for name, features in CONTROLS.items():
        drawn = [draw(name, length, features or length, rng) for _ in range(DRAWS)]
        shares = torch.cat([torch.stack([ball.share[0] for ball in _all_seen(w, x, tops)]) for w, x in drawn], -1)
        for top, each in zip(tops, shares, strict=True):
            lines.append(
                {
                    "control": name,
                    "features": features or length,
                    "N": top,
                    "mean": float(each.mean()),
                    "lowest": float(each.min()),
                    "highest": float(each.max()),
                }
            )
    return lines


def draw(name: str, length: int, features: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights (rows, length) and unit vectors (length, features) of one draw of a control."""
    weights = torch.randn(DRAWS, length, generator=rng, dtype=torch.float64).softmax(-1)
    if name == "orthonormal":
        return weights, torch.eye(length, dtype=torch.float64)
    x = unit(torch.randn(1, length, features, generator=rng, dtype=torch.float64))[0]
    if name.startswith("common"):
        x = unit((x + unit(torch.randn(1, 1, features, generator=rng, dtype=torch.float64))[0])[None])[0]
    if name.startswith("sharp"):
        weights[:, 0] = 0.0
        weights *= 0.03 / weights.sum(-1, keepdim=True)
        weights[:, 0] = 0.97
    return weights, x


def _all_seen(weights: Tensor, x: Tensor, tops: Sequence[int]) -> list[Ball]:
    return balls(weights[None], x[None], tops, torch.ones(weights.shape, dtype=torch.bool))
