"""How far is what a row leaves out from what it selects, and can the selected be told apart?

With I the N heaviest keys, vᵢ = pᵢxᵢ, s = Σ_{i∈I} vᵢ and x̄ = Σ vᵢ (Mudarisov et al., arXiv:2508.17821, corrected;
proofs in ``undilute_papers.theory.distance`` and ``undilute_papers.theory.separability``):
    d̃ = Σ_{i∉I} ‖vᵢ − s‖
    expected over random sets of N:  (1−N/n) Σ cᵢ ≤ E ≤ (1−N/n) Σ √(cᵢ² + Vᵢ),  cᵢ = ‖(1+q)vᵢ − q·x̄‖, q = N/(n−1)
    bound:  d̃ ≤ (1−A)·max_{i∉I}‖xᵢ‖ + A(n−N)·max_{i∈I}‖xᵢ‖,  A = Σ_{i∈I} pᵢ; Theorem 1 with its largest distance between
            a selected and another vector replaced by the sum of their lengths, which is linear in n
    N_s/N = share of i ∈ I with ‖vᵢ − s‖ < r, r = distance of the nearest key left out (open ball).
N_s/N has degeneracies: it is 1 for N = 1 and N = n, s contains the selected vectors themselves, and a head that puts
nearly everything on one key scores 1/N.

``measures.weighted_vectors`` computes the lengths, from matrix products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure
from undilute.measures.weighted_vectors import WeightedVectors


@measure("distance", label="representation distance d̃", formula="Σ_{i∉I} ‖pᵢxᵢ − s‖", needs_x=True)
def distance(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return rows.derived(Selection).distance


@measure("expected_distance", label="d̃ of a random selection, at least", formula="(1−N/n) Σ cᵢ", needs_x=True)
def expected_distance(rows: Rows) -> Tensor:
    """(heads, rows): the main term, a lower bound of the expectation."""
    return rows.derived(Expectation).lower


@measure(
    "expected_distance_upper", label="d̃ of a random selection, at most", formula="(1−N/n) Σ √(cᵢ²+Vᵢ)", needs_x=True
)
def expected_distance_upper(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return rows.derived(Expectation).upper


@measure(
    "distance_bound",
    label="bound on d̃ (Theorem 1, loosened)",
    formula="(1−A)·max_{i∉I}‖xᵢ‖ + A(n−N)·max_{i∈I}‖xᵢ‖",
    needs_x=True,
)
def distance_bound(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return rows.derived(Selection).bound


@measure("separable_fraction", label="separable share N_s/N", formula="#{i ∈ I : ‖pᵢxᵢ − s‖ < r} / N", needs_x=True)
def separable_fraction(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return rows.derived(Selection).separable


class Selection:
    """d̃, its bound and N_s/N of the N heaviest keys; (heads, rows) each."""

    def __init__(self, rows: Rows) -> None:
        vectors = rows.derived(_vectors)
        heaviest, indices = rows.heaviest
        seen = torch.arange(indices.shape[-1], device=indices.device) < rows.n[..., None]
        selected = _picked(rows, indices)  # (heads, rows, N, features)
        s = (heaviest[..., None] * selected).sum(-2)
        offsets = vectors.offsets(s)
        nearest = self._left_out(rows, offsets, indices, torch.inf).amin(-1, keepdim=True)
        inside = (offsets.gather(-1, indices) < nearest) & seen
        count = seen.sum(-1).expand(inside.shape[:-1])
        self.separable: Tensor = inside.sum(-1) / count.clamp(min=1).to(s.dtype)
        self.distance = self._left_out(rows, vectors.lengths(offsets, s), indices, 0.0).sum(-1)
        longest = selected.square().sum(-1).masked_fill(~seen, 0.0).amax(-1).sqrt()
        squares = vectors.squares.reshape(-1, 1, vectors.squares.shape[-1])
        squares = squares.repeat_interleave(len(s) // len(squares), 0).expand_as(offsets)
        others = self._left_out(rows, squares, indices, 0.0).amax(-1).sqrt()
        A = heaviest.sum(-1)
        self.bound = (1 - A) * others + A * (rows.n - count) * longest

    @staticmethod
    def _left_out(rows: Rows, values: Tensor, indices: Tensor, instead: float) -> Tensor:
        """``values`` of the keys that are seen and not selected, ``instead`` for the others."""
        if rows.visible is None:
            return values.scatter(-1, indices, instead)
        shown = values * rows.derived(_shown) if instead == 0.0 else values - rows.derived(_hidden)
        return shown.scatter_(-1, indices, instead)


class Expectation:
    """Bounds of E[d̃] over sets of N keys drawn at random; (heads, rows) each."""

    def __init__(self, rows: Rows) -> None:
        vectors = rows.derived(_vectors)
        n = rows.n[..., None]
        N = n.clamp(max=float(rows.settings.top))
        self.lower = vectors.expected(n, N)
        self.upper = torch.maximum(self.lower, vectors.expected_upper(n, N))  # up to rounding


def _vectors(rows: Rows) -> WeightedVectors:
    assert rows.x is not None
    shown = None if rows.visible is None else rows.derived(_shown)
    return WeightedVectors(rows.probabilities, rows.x.to(rows.logits.dtype), shown=shown)


def _picked(rows: Rows, indices: Tensor) -> Tensor:
    """(heads, rows, N) → (heads, rows, N, features): the vectors at these keys."""
    assert rows.x is not None
    vectors: Tensor = rows.x[rows.key_head[:, None, None], indices].to(rows.logits.dtype)
    return vectors


def _shown(rows: Rows) -> Tensor:
    """(…, rows, keys): 1 where a row sees a key, 0 elsewhere."""
    assert rows.visible is not None
    return rows.visible.to(rows.logits.dtype)


def _hidden(rows: Rows) -> Tensor:
    """(…, rows, keys): −∞ where a key is hidden, 0 elsewhere."""
    return (rows.derived(_shown) - 1).mul_(torch.finfo(rows.logits.dtype).max).mul_(2)
