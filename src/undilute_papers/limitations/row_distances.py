"""How far is what each row leaves out from what it selects, for every head of a model and many N at once?

With p the weights of a row that sees n keys, vᵢ = pᵢxᵢ, x̄ = Σvᵢ, I the N heaviest keys, s = Σ_{i∈I} vᵢ and
A = Σ_{i∈I} pᵢ (Mudarisov et al., arXiv:2508.17821v1; proofs and corrections in ``undilute_papers.theory.distance``):
    distance  d̃ = Σ_{i∉I} ‖vᵢ − s‖
    expected  the same for sets of N keys drawn uniformly: its mean over random draws, so without bias
    main      (1−N/n) Σ ‖(1+q)vᵢ − q·x̄‖, q = N/(n−1): what the expectation is at least
    upper     (1−N/n) Σ √(cᵢ² + Vᵢ): what the expectation is at most
    printed   (1−N/n) Σ ‖(pᵢ+q)xᵢ − x̄‖: the main term as Theorem 1(2) has it, a misprint
    bound     (1−A)·d₁ + max_{j∈I}‖xⱼ‖·[A(n−N) − (1−A)], d₁ = max_{i∉I, j∈I} ‖xᵢ−xⱼ‖: Theorem 1(1), with d₁ exact
    norms     Σ‖vᵢ‖, to which Corollary 2(i) holds the expectation equal
Lengths come from the matrix products of ``undilute.measures.weighted_vectors``, a few rows of one head at a time. A row
must see more than N keys, or its values are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from undilute.measures.attention_rows import FLOOR
from undilute.measures.weighted_vectors import WeightedVectors

QUANTITIES = ("distance", "expected", "main", "upper", "printed", "bound", "norms")
FARTHEST = 8  # keys farthest from each key that are always known


class Vectors:
    """The vectors that the heads of one key head select from, and what only depends on them.

    Parameters
    ----------
    x : (keys, features)
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x.contiguous()
        self.squares = x.square().sum(-1)
        self.lengths = self.squares.sqrt()

    @cached_property
    def apart(self) -> Tensor:
        """(keys, keys): ‖xᵢ − xⱼ‖²; taken from the mean, so that a common part does not cancel."""
        centred = self.x - self.x.mean(0)
        squares = centred.square().sum(-1)
        return (squares[:, None] + squares).sub_(centred @ centred.T, alpha=2.0).clamp_(min=0.0)

    def farthest(self, stops: Iterable[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """For each number of keys, the FARTHEST of them from every key: squared distances and indices, (keys, ≤ 8)."""
        found, start = {}, 0
        values, indices = self.apart[:, :0], torch.zeros(len(self.x), 0, dtype=torch.int64)
        for stop in sorted(set(stops)):
            values = torch.cat([values, self.apart[:, start:stop]], -1)
            indices = torch.cat([indices, torch.arange(start, stop).expand(len(self.x), -1)], -1)
            values, places = values.topk(min(FARTHEST, stop))
            indices = indices.gather(1, places)
            found[stop], start = (values, indices), stop
        return found


class RowDistances:
    """Some rows of one head; every method takes N and gives (rows,), meaningless where a row sees no more than N keys.

    Parameters
    ----------
    logits : (rows, keys), −∞ where hidden
    visible : (rows, keys) bool; every row sees at least one key
    vectors : of at least these keys
    farthest : what ``vectors.farthest`` gives for these keys; only for ``bound``
    random : makes (rows, keys) numbers in [0, 1), whose order decides each drawn set; only for ``expected``
    draws : how many sets to draw for each row
    """

    def __init__(
        self,
        logits: Tensor,
        visible: Tensor,
        vectors: Vectors,
        farthest: tuple[Tensor, Tensor] | None = None,
        random: Callable[[], Tensor] | None = None,
        draws: int = 1,
    ) -> None:
        keys = logits.shape[-1]
        self.logits, self.visible, self.farthest, self.random, self.draws = logits, visible, farthest, random, draws
        self.vectors, self.shown = vectors, visible.to(logits.dtype)
        self.n = self.shown.sum(-1, keepdim=True)
        below = (logits - logits.amax(-1, keepdim=True)).clamp_(min=FLOOR[logits.dtype])
        self.p = below.exp_().mul_(self.shown)
        self.p /= self.p.sum(-1, keepdim=True)
        self.weighted = WeightedVectors(self.p, vectors.x[:keys], vectors.squares[:keys], self.shown)

    def distance(self, top: int) -> Tensor:
        return self._apart(self._chosen(self._ranks, top))

    def expected(self, top: int) -> Tensor:
        drawn = [self._apart(self._chosen(ranks, top)) for ranks in self._drawn]
        return torch.stack(drawn).mean(0)

    def main(self, top: int) -> Tensor:
        return self.weighted.expected(self.n, top)

    def upper(self, top: int) -> Tensor:
        return self.weighted.expected_upper(self.n, top)

    def printed(self, top: int) -> Tensor:
        weights, of = self.p + top / (self.n - 1), self.weighted
        squares = (weights * of.squares).sub_(of.inner, alpha=2.0).mul_(weights).add_(of.mean_square)
        lengths = squares.clamp_(min=0.0).sqrt_().mul_(self.shown)
        return (1 - top / self.n).squeeze(-1) * lengths.sum(-1)

    def bound(self, top: int) -> Tensor:
        chosen = self._heaviest[:, :top]
        selected = self._chosen(self._ranks, top)
        A = (self.p * selected).sum(-1)
        longest = self.vectors.lengths[chosen].amax(-1)
        outside = self.n.squeeze(-1) - top
        return (1 - A) * self._largest_apart(chosen, self.shown - selected).sqrt() + longest * (A * outside - (1 - A))

    def norms(self, top: int) -> Tensor:
        return self.p @ self.vectors.lengths[: self.p.shape[-1]]

    @cached_property
    def _heaviest(self) -> Tensor:
        return _ascending(-self.logits)

    @cached_property
    def _ranks(self) -> Tensor:
        return _ranks(self._heaviest)

    @cached_property
    def _drawn(self) -> list[Tensor]:
        assert self.random is not None
        random = [self.random().masked_fill_(~self.visible, torch.inf) for _ in range(self.draws)]
        return [_ranks(_ascending(each)) for each in random]

    def _chosen(self, ranks: Tensor, top: int) -> Tensor:
        """(rows, keys): 1 for the keys of the first ``top`` ranks, 0 elsewhere."""
        return (ranks < top).to(self.p.dtype)

    def _apart(self, selected: Tensor) -> Tensor:
        """Σ ‖vᵢ − s‖ over the keys that are seen and not selected."""
        s = self.weighted.sum(self.p * selected)
        lengths = self.weighted.lengths(self.weighted.offsets(s), s)
        return lengths.mul_(self.shown - selected).sum(-1)

    def _largest_apart(self, chosen: Tensor, left_out: Tensor) -> Tensor:
        """d₁²: from each selected key to the farthest that is left out, among its FARTHEST if one of them is."""
        assert self.farthest is not None
        values, indices = (each[chosen] for each in self.farthest)  # (rows, N, ≤ FARTHEST), farthest first
        outside = left_out.gather(1, indices.flatten(1)).view_as(values)
        largest = (values * outside).flatten(1).amax(-1)
        # A selected key none of whose FARTHEST is left out is searched in full, unless it cannot be the farthest.
        at_most, places = (values[..., -1] * (outside.amax(-1) == 0)).sort(descending=True)
        for rank in range(chosen.shape[-1]):
            rows = (at_most[:, rank] > largest).nonzero().squeeze(-1)
            if not len(rows):
                break
            apart = self.vectors.apart[chosen[rows, places[rows, rank]], : left_out.shape[-1]]
            largest[rows] = torch.maximum(largest[rows], (apart * left_out[rows]).amax(-1))
        return largest


def _ascending(values: Tensor) -> Tensor:
    """(rows, keys): indices in ascending order; NumPy sorts rows several times as fast as torch."""
    return torch.from_numpy(np.argsort(values.numpy(), axis=-1))


def _ranks(order: Tensor) -> Tensor:
    """(rows, keys): the place of every key in ``order``; to compare it with N is quicker than to mark the first N."""
    places = torch.arange(order.shape[-1], dtype=torch.int32).expand_as(order)
    return torch.empty_like(places).scatter_(1, order, places)
