"""How far is what a row leaves out from what it selects, and can the selected be told apart?

With I the N heaviest keys, vᵢ = pᵢxᵢ, s = Σ_{i∈I} vᵢ and x̄ = Σ vᵢ (Mudarisov et al., arXiv:2508.17821, corrected;
proofs in ``undilute.theory.distance`` and ``undilute.theory.separability``):
    d̃ = Σ_{i∉I} ‖vᵢ − s‖
    expected over random sets of N:  (1−N/n) Σ cᵢ ≤ E ≤ (1−N/n) Σ √(cᵢ² + Vᵢ),  cᵢ = ‖(1+q)vᵢ − q·x̄‖, q = N/(n−1)
    bound:  d̃ ≤ (1−A)·max_{i∉I}‖xᵢ‖ + A(n−N)·max_{i∈I}‖xᵢ‖,  A = Σ_{i∈I} pᵢ; Theorem 1 with its largest distance between
            a selected and another vector replaced by the sum of their lengths, which is linear in n
    N_s/N = share of i ∈ I with ‖vᵢ − s‖ < r, r = distance of the nearest key left out (open ball).
N_s/N has degeneracies: it is 1 for N = 1 and N = n, s contains the selected vectors themselves, and a head that puts
nearly everything on one key scores 1/N.

Every length is expanded, ‖pᵢxᵢ − s‖² = pᵢ²‖xᵢ‖² − 2pᵢ⟨xᵢ, s⟩ + ‖s‖², so that rows × keys × features is a matrix product
and never a tensor. Between near-equal vectors that cancels; the selected keys, where it happens, are taken one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure


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


class Products:
    """x and its products with vectors of each row, for heads that share key heads.

    Attributes
    ----------
    squares : (heads, 1, keys), ‖xᵢ‖²
    """

    def __init__(self, rows: Rows) -> None:
        assert rows.x is not None
        self.x, self.heads = rows.x.to(rows.logits.dtype), rows.logits.shape[0]
        groups = self.heads // self.x.shape[0]
        self.squares = self.x.square().sum(-1).repeat_interleave(groups, 0)[:, None]

    def times(self, vectors: Tensor) -> Tensor:
        """(heads, rows, features) → (heads, rows, keys): ⟨xᵢ, vector of the row⟩."""
        heads, rows, features = vectors.shape
        grouped = vectors.reshape(self.x.shape[0], -1, features) @ self.x.transpose(-1, -2)
        return grouped.view(heads, rows, -1)

    def mean(self, weights: Tensor) -> Tensor:
        """(heads, rows, keys) → (heads, rows, features): Σ weight · x."""
        heads, rows, keys = weights.shape
        return (weights.reshape(self.x.shape[0], -1, keys) @ self.x).view(heads, rows, -1)

    def picked(self, indices: Tensor, key_head: Tensor) -> Tensor:
        """(heads, rows, N) → (heads, rows, N, features): the vectors at these keys."""
        vectors: Tensor = self.x[key_head[:, None, None], indices]
        return vectors


class Selection:
    """d̃, its bound and N_s/N of the N heaviest keys; (heads, rows) each."""

    def __init__(self, rows: Rows) -> None:
        products = rows.derived(Products)
        heaviest, indices = rows.heaviest
        seen = torch.arange(indices.shape[-1], device=indices.device) < rows.n[..., None]
        selected = products.picked(indices, rows.key_head)  # (heads, rows, N, features)
        v = heaviest[..., None] * selected
        s = v.sum(-2)
        apart = self._apart(products, rows.probabilities, s)
        nearest = self._left_out(rows, apart, indices, torch.inf).amin(-1, keepdim=True)
        self.distance = self._left_out(rows, apart, indices, 0.0).sum(-1)
        own = torch.linalg.vector_norm(v - s[..., None, :], dim=-1)
        count = seen.sum(-1).expand(own.shape[:-1])
        self.separable: Tensor = ((own < nearest) & seen).sum(-1) / count.clamp(min=1).to(own.dtype)
        longest = selected.square().sum(-1).masked_fill(~seen, 0.0).amax(-1).sqrt()
        others = self._left_out(rows, products.squares.expand_as(apart), indices, 0.0).amax(-1).sqrt()
        A = heaviest.sum(-1)
        self.bound = (1 - A) * others + A * (rows.n - count) * longest

    @staticmethod
    def _apart(products: Products, p: Tensor, s: Tensor) -> Tensor:
        """(heads, rows, keys): ‖pᵢxᵢ − s‖."""
        squares = (p * products.squares).sub_(products.times(s), alpha=2.0).mul_(p)
        return squares.add_(s.square().sum(-1, keepdim=True)).clamp_(min=0.0).sqrt_()

    @staticmethod
    def _left_out(rows: Rows, values: Tensor, indices: Tensor, instead: float) -> Tensor:
        """``values`` of the keys that are seen and not selected, ``instead`` for the others."""
        if rows.visible is None:
            return values.scatter(-1, indices, instead)
        shown = values * rows.derived(_shown) if instead == 0.0 else values - rows.derived(_hidden)
        return shown.scatter_(-1, indices, instead)


def _shown(rows: Rows) -> Tensor:
    """(…, rows, keys): 1 where a row sees a key, 0 elsewhere."""
    assert rows.visible is not None
    return rows.visible.to(rows.logits.dtype)


def _hidden(rows: Rows) -> Tensor:
    """(…, rows, keys): −∞ where a key is hidden, 0 elsewhere."""
    return (rows.derived(_shown) - 1).mul_(torch.finfo(rows.logits.dtype).max).mul_(2)


class Expectation:
    """Bounds of E[d̃] over sets of N keys drawn at random; (heads, rows) each.

    Both cᵢ² and Vᵢ are linear in ‖vᵢ‖² and ⟨vᵢ, x̄⟩, with coefficients of the row:
        cᵢ² = (1+q)²‖vᵢ‖² − 2q(1+q)⟨vᵢ, x̄⟩ + q²‖x̄‖²,
        Vᵢ = u·(Σ‖vⱼ‖² − ‖vᵢ‖² − (‖x̄‖² − 2⟨vᵢ, x̄⟩ + ‖vᵢ‖²)/(n−1)),   u = q(n−1−N)/(n−2).
    """

    def __init__(self, rows: Rows) -> None:
        products, p = rows.derived(Products), rows.probabilities
        n = rows.n[..., None].expand(*p.shape[:-1], 1)
        N, others = n.clamp(max=float(rows.settings.top)), (n - 1).clamp(min=1)
        q, share = N / others, (1 - N / n.clamp(min=1)).squeeze(-1)
        u = q * (n - 1 - N).clamp(min=0.0) / (n - 2).clamp(min=1)
        mean = products.mean(p)
        length = mean.square().sum(-1, keepdim=True)
        squares = p.square().mul_(products.squares)  # ‖vᵢ‖²
        inner = products.times(mean).mul_(p)  # ⟨vᵢ, x̄⟩
        seen = None if rows.visible is None else rows.derived(_shown)
        centre = ((1 + q).square(), -2 * q * (1 + q), q.square() * length)
        spread = (-u * (1 + 1 / others), 2 * u / others, u * (squares.sum(-1, keepdim=True) - length / others))
        self.lower = share * self._lengths(squares, inner, centre, seen)
        both = [a + b for a, b in zip(centre, spread, strict=True)]
        self.upper = torch.maximum(self.lower, share * self._lengths(squares, inner, both, seen))  # up to rounding

    @staticmethod
    def _lengths(squares: Tensor, inner: Tensor, coefficients: Sequence[Tensor], seen: Tensor | None) -> Tensor:
        """Σ √(a·squares + b·inner + c) over what each row sees."""
        a, b, c = coefficients
        lengths = (a * squares).addcmul_(inner, b).add_(c).clamp_(min=0.0).sqrt_()
        return lengths.sum(-1) if seen is None else lengths.mul_(seen).sum(-1)
