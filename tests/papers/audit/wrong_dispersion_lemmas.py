"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

from typing import Any

import torch

from undilute.theory import dispersion
from undilute.theory.dispersion import Bounds
from undilute_papers.audit import dispersion_lemmas
from undilute_papers.theory import capacity


def without_self(n: int, low: torch.Tensor, high: torch.Tensor) -> Bounds:
    """The sharp form with L in place of L − 1."""
    return Bounds(low / (low + n * high), high / (high + n * low))


WRONG: list[tuple[str, str, Any]] = [
    ("B1", "printed", lambda n, low, high: Bounds(low / high / n, (high / low).sqrt() / n)),
    ("B1", "printed", lambda n, low, high: Bounds((low / high).sqrt() / n, high / low / n)),
    ("B1", "printed", lambda n, low, high: Bounds(low / high / n, 2 * high / low / n)),
    ("B1", "corrected", without_self),
    ("B1", "corrected", dispersion_lemmas._constants_over_length),
    ("B2", "printed", lambda n, product, T: dispersion_lemmas._corollary(n, product / 2, T)),
    ("B2", "printed", lambda n, product, T: dispersion_lemmas._corollary(n, 50 * product, T)),
    ("B2", "corrected", lambda n, spread, T: dispersion.weight_bounds(n, spread / 1.01, T)),
    ("B2", "corrected", lambda n, spread, T: dispersion.weight_bounds(n, 1.01 * spread, T)),
    ("B2", "corrected", lambda n, spread, T: dispersion.weight_bounds(n, spread)),
    ("B15.1", "coverage", lambda p, heads: p**heads),
    ("B15.1", "coverage", lambda p, heads: (heads * p).clamp(max=1.0)),
    ("B15.1", "needed", lambda p, target: capacity.heads_needed(p, target) + 1),
    ("B15.1", "needed", lambda p, target: (capacity.heads_needed(p, target) - 1).clamp(min=0.0)),
    ("B15.2", "printed", lambda p, heads: (heads * p).clamp(max=1.0)),
    ("B15.2", "corrected", lambda p, heads: Bounds(capacity.coverage(p, heads), (heads * p).clamp(max=1.0))),
    ("B15.2", "corrected", lambda p, heads: Bounds(p, capacity.coverage(p, heads))),
    ("B16", "weight", lambda n, gap: torch.full_like(n * gap, 0.5)),
    ("B16", "weight", lambda n, gap: dispersion.relevant_weight(n, gap)),
    ("B16", "limit", lambda gap: torch.full_like(gap, 0.5)),
    ("B16", "limit", lambda gap: (gap > 1).double()),
]
