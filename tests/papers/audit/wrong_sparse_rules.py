"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from undilute.theory import jacobian, sparse


def times(factor: float, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: factor * function(*arguments)


def reach(z: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """The looser bound, m = 1."""
    return (z > z.amax(-1, keepdim=True) - sparse.one_hot_gap(alpha)).sum(-1)


_BY_ID: dict[str, list[tuple[str, Callable[..., Any]]]] = {
    "U1": [
        ("gap", lambda alpha: 0.95 / (alpha - 1)),
        ("gap", lambda alpha: 1.05 / (alpha - 1)),
        ("gap", lambda alpha: 1 / alpha),
    ],
    "U2": [
        ("floor", times(1.01, sparse.weight_floor)),
        ("floor", lambda g, alpha: ((alpha - 1) * g).clamp(max=1.0)),
        ("floor", lambda g, alpha: 0 * g),
        ("weight", lambda g, n, alpha: sparse.needle_weight(g, n, torch.tensor(1.0, dtype=torch.float64))),
        ("weight", lambda g, n, alpha: (1.01 * sparse.needle_weight(g, n, alpha)).clamp(max=1.0)),
        ("weight", times(0.99, sparse.needle_weight)),
        ("gap", lambda c, n, alpha: c ** (alpha - 1) / (alpha - 1)),
        ("gap", lambda c, n, alpha: sparse.gap_to_hold(c, n, torch.tensor(1.0, dtype=torch.float64))),
    ],
    "U3": [
        ("constant", lambda alpha, n: 1.0),
        ("constant", lambda alpha, n: 2.0 ** (alpha - 2)),
        ("constant", times(0.999, sparse.lipschitz_constant)),
        ("norm", lambda p, alpha: jacobian.spectral_norm(p)),
        ("norm", times(0.999, jacobian.entmax_spectral_norm)),
    ],
    "U4": [
        ("size", lambda z, alpha: (z > z.amax(-1, keepdim=True) - 1).sum(-1)),
        ("size", reach),
        ("bound", reach),
        ("bound", lambda z, alpha: sparse.support_size(z, alpha) - 1),
        (
            "growth",
            lambda n, alpha, spread=None: 1.2 * sparse.gaussian_support(n, alpha, 1.0 if spread is None else spread),
        ),
        ("growth", lambda n, alpha, spread=1.0: (2 * n.log()).sqrt() / spread),
    ],
}
WRONG = [(id, form, wrong) for id, table in _BY_ID.items() for form, wrong in table]
