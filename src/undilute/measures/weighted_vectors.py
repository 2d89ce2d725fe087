"""How far is every pᵢxᵢ of a row from a vector of that row?  From matrix products, never rows × keys × features.

With vᵢ = pᵢxᵢ, x̄ = Σ vᵢ and s any vector of the row,
    ‖vᵢ − s‖² = kᵢ + ‖s‖²,   kᵢ = pᵢ(pᵢ‖xᵢ‖² − 2⟨xᵢ, s⟩):
two of these lengths compare as their kᵢ do, without the rounding of ‖s‖².

The mean of Σ_{i∉I} ‖vᵢ − s‖, s = Σ_{i∈I} vᵢ, over sets I of N keys drawn at random lies between (1−N/n) Σ cᵢ and
(1−N/n) Σ √(cᵢ² + Vᵢ) (proof in ``undilute_papers.theory.distance``). Both cᵢ² and Vᵢ are linear in ‖vᵢ‖² and
⟨vᵢ, x̄⟩, with coefficients of the row: for q = N/(n−1) and u = q(n−1−N)/(n−2),
    cᵢ² = (1+q)²‖vᵢ‖² − 2q(1+q)⟨vᵢ, x̄⟩ + q²‖x̄‖²,
    Vᵢ = u·(Σ‖vⱼ‖² − ‖vᵢ‖² − (‖x̄‖² − 2⟨vᵢ, x̄⟩ + ‖vᵢ‖²)/(n−1)).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class WeightedVectors:
    """Rows of weights and the vectors that they average.

    Parameters
    ----------
    p : (rows, keys) or (heads, rows, keys), the weights; next to 0 where hidden
    x : (keys, features), or (key heads, keys, features), each for as many heads in a row
    squares : (keys,) or (key heads, keys), ‖xᵢ‖², if they are known
    shown : like ``p``, 1 where a row sees a key and 0 elsewhere; None if every row sees every key
    """

    def __init__(self, p: Tensor, x: Tensor, squares: Tensor | None = None, shown: Tensor | None = None) -> None:
        squares = torch.linalg.vector_norm(x, dim=-1).square_() if squares is None else squares
        if x.ndim == 3 and (len(x) == 1 or x.stride(0) == 0):  # one matrix for all heads: one product
            x, squares = x[0], squares[0]
        self.p, self.x, self.squares, self.shown = p, x, squares, shown

    @cached_property
    def weighted(self) -> Tensor:
        """(..., rows, keys): pᵢ‖xᵢ‖²."""
        squares = self.squares
        if squares.ndim == 2:
            squares = squares.repeat_interleave(self.p.shape[0] // len(squares), 0)[:, None]
        return self.p * squares

    def sum(self, weights: Tensor) -> Tensor:
        """(..., rows, keys) → (..., rows, features): Σ weight · x."""
        return self._times(weights, self.x)

    def offsets(self, s: Tensor) -> Tensor:
        """(..., rows, features) → (..., rows, keys): kᵢ = ‖vᵢ − s‖² − ‖s‖²."""
        x, flat = self.x.transpose(-1, -2), (*self.x.shape[:-2], -1)
        weighted = self.weighted.reshape(*flat, self.p.shape[-1])
        add = torch.addmm if x.ndim == 2 else torch.baddbmm
        products = add(weighted, s.reshape(*flat, s.shape[-1]), x, alpha=-2.0)
        return products.view(self.p.shape).mul_(self.p)

    @staticmethod
    def lengths(offsets: Tensor, s: Tensor) -> Tensor:
        """(..., rows, keys): ‖vᵢ − s‖ from :meth:`offsets`, which are overwritten."""
        return offsets.add_(s.square().sum(-1, keepdim=True)).clamp_(min=0.0).sqrt_()

    def expected(self, n: Tensor, top: Tensor | float) -> Tensor:
        """(..., rows): (1−N/n) Σ cᵢ, what the mean over random sets is at least.

        Parameters
        ----------
        n : (..., rows, 1), how many keys each row sees
        top : N, the same for all rows or (..., rows, 1); at most n
        """
        return self._outside(n, top) * self._sum_of_roots(*self._centre(n, top))

    def expected_upper(self, n: Tensor, top: Tensor | float) -> Tensor:
        """(..., rows): (1−N/n) Σ √(cᵢ² + Vᵢ), what the mean over random sets is at most; parameters as above."""
        both = [a + b for a, b in zip(self._centre(n, top), self._spread(n, top), strict=True)]
        return self._outside(n, top) * self._sum_of_roots(*both)

    @cached_property
    def inner(self) -> Tensor:
        """(..., rows, keys): ⟨xᵢ, x̄⟩."""
        return self._times(self._mean, self.x.transpose(-1, -2))

    @cached_property
    def mean_square(self) -> Tensor:
        """(..., rows, 1): ‖x̄‖²."""
        return self._mean.square().sum(-1, keepdim=True)

    @cached_property
    def _mean(self) -> Tensor:
        return self.sum(self.p)

    @cached_property
    def _total(self) -> Tensor:
        """(..., rows, 1): Σ‖vᵢ‖²."""
        return (self.weighted * self.p).sum(-1, keepdim=True)

    def _times(self, a: Tensor, b: Tensor) -> Tensor:
        """(..., rows, m) and (m, k) or (key heads, m, k) → (..., rows, k)."""
        if b.ndim == 2:
            return a @ b
        return (a.reshape(len(b), -1, a.shape[-1]) @ b).view(*a.shape[:-1], -1)

    @staticmethod
    def _outside(n: Tensor, top: Tensor | float) -> Tensor:
        return (1 - top / n.clamp(min=1)).squeeze(-1)

    def _centre(self, n: Tensor, top: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients of cᵢ² in ‖vᵢ‖², ⟨vᵢ, x̄⟩ and 1, each (..., rows, 1)."""
        q = top / (n - 1).clamp(min=1)
        return (1 + q).square(), -2 * q * (1 + q), q.square() * self.mean_square

    def _spread(self, n: Tensor, top: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients of Vᵢ, likewise."""
        others = (n - 1).clamp(min=1)
        u = top / others * (n - 1 - top).clamp(min=0.0) / (n - 2).clamp(min=1)
        return -u * (1 + 1 / others), 2 * u / others, u * (self._total - self.mean_square / others)

    def _sum_of_roots(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Σ √(a‖vᵢ‖² + b⟨vᵢ, x̄⟩ + c) over what each row sees."""
        roots = (self.weighted * a).addcmul_(self.inner, b).mul_(self.p).add_(c).clamp_(min=0.0).sqrt_()
        return roots.sum(-1) if self.shown is None else roots.mul_(self.shown).sum(-1)
