"""What if only the best k keys counted?  Top-k softmax: softmax over the k largest logits, 0 elsewhere.

Gupta et al. 2021, arXiv:2106.06899. Logits equal to the k-th largest are all kept, so the result does not depend on the
order of the keys. The weights jump where a key enters or leaves the top k: no Lipschitz constant unless k covers n.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Self

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.rules.base import Map
from undilute.rules.forms import SparseForm
from undilute.rules.maps.softmax import Softmax, softmax_over
from undilute.rules.parameters import count, number
from undilute.rules.registry import register


class TopK(Map):
    """Softmax over the k largest visible logits of each row.

    Parameters
    ----------
    k : how many keys to keep; or
    fraction : what share of the row's visible keys to keep, 0 < fraction ≤ 1, rounded up
    """

    is_sparse = True
    is_continuous = False

    def __init__(self, k: int | None = None, fraction: float | None = None) -> None:
        super().__init__()
        if (k is None) == (fraction is None):
            raise InvalidValue(f"k = {k!r} and fraction = {fraction!r}: give exactly one of the two.")
        self.k = None if k is None else count("k", k)
        self.fraction = None if fraction is None else number("fraction", fraction)
        if self.fraction is not None and not 0.0 < self.fraction <= 1.0:
            raise InvalidValue(f"fraction = {fraction!r}: must be > 0 and at most 1.")
        self._share = Fraction(str(self.fraction or 0.0)).limit_denominator(10**6)  # 0.3 is 3/10, so 0.3·10 is 3

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        z = logits.detach().masked_fill(~visible, -torch.inf)
        last = (self.kept(visible.sum(-1, keepdim=True)) - 1).clamp(max=z.shape[-1] - 1)
        smallest_kept = z.sort(-1, descending=True).values.gather(-1, last)
        return softmax_over(logits, visible & ~(z < smallest_kept))

    def kept(self, n: Tensor) -> Tensor:
        """How many keys a row of n visible ones keeps, ties aside."""
        if self.k is not None:
            return torch.full_like(n, self.k)
        return (-(-n * self._share.numerator // self._share.denominator)).clamp(min=1)  # rounded up

    def as_sparse(self) -> SparseForm:
        return SparseForm(epsilon=None, k=self.kept)

    def at_length(self, n: Tensor) -> Self | None:
        return self if self.fraction is None else None

    def lipschitz(self, n: int) -> float:
        kept = int(self.kept(torch.tensor(n)))
        return Softmax().lipschitz(n) if kept >= n else math.inf

    def extra_repr(self) -> str:
        return f"k={self.k}" if self.k is not None else f"fraction={self.fraction}"


@register("top-k", formula="softmax over the k largest z, else 0", paper="arXiv:2106.06899")
def top_k(k: int | None = None, fraction: float | None = None) -> Map:
    return TopK(32) if k is None and fraction is None else TopK(k, fraction)
