"""Which rules are sparse, length-adaptive and gradient-stable?  The worst that is found for each as rows grow longer.

Weights and supports are looked for on a stated class of rows: the top logit leads the one of rank K + 1 by ``lead`` or
more, so that at most K keys are nearly as good as the best. Steepness is looked for on any rows, by a search over where
the first key, the second, the next K − 2, the one of rank K + 1 and all others stand. What a search finds is a lower
bound of the worst; the constant that a rule declares, and the tests verify, is an upper bound of its steepness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from undilute.rules import Entmax, Rule, Temperature, get, names

LENGTHS = (100, 1_000, 10_000, 100_000)
KEPT = 16  # K of the class, and of the preset focus
LEAD = 0.125  # of the class: the lead that takes any row out of the tie region of the preset focus
OFFSETS = (-4.0, 0.0, 4.0)  # of whole rows, for rules that are not shift-invariant
FAR = 10**6, 10**12  # keys, between which a declared constant must not grow
GROWTH = 1.1  # what stays below this multiple of itself does not grow
HELD = 0.5  # of the worst top weight, from the last length but one to the last: more than this is held
APART = 1e-13  # between one key and the next, so that no two are equal
STEP = 1e-7  # of a single logit, where a jump is looked for: beyond all keys that are only ``APART``
JUMP = 1e4  # a steepness that only a jump, or something as bad, has
TYPICAL = 1_000  # keys of the rows of standard normal logits


@dataclass(frozen=True)
class Properties:
    """What was found for one rule, the worst at each length.

    Attributes
    ----------
    name : of the rule
    lengths : n, rising
    top_weight : the least weight of the key with the top logit, over the class
    support : the largest number of keys with weight, over the class
    steepest : the largest ‖change of weights‖₂/‖change of logits‖₂ found on rows of that length or shorter
    declared : the rule's own Lipschitz constant at the last length
    settled : is it finite, and the same for far longer rows?
    one_hot : the share of rows of standard normal logits in which one key has all the weight, so that no gradient flows
    """

    name: str
    lengths: tuple[int, ...]
    top_weight: tuple[float, ...]
    support: tuple[int, ...]
    steepest: tuple[float, ...]
    declared: float
    settled: bool
    one_hot: float

    @property
    def length_adaptive(self) -> bool:
        """Does the worst top weight stay, where 1/n would fall with n?"""
        return self.top_weight[-1] > HELD * self.top_weight[-2]

    @property
    def sparse(self) -> bool:
        """Does the largest support no longer grow with n?"""
        return self.support[-1] <= self.support[-2] < self.lengths[-2]

    @property
    def gradient_stable(self) -> bool | None:
        """Is there a Lipschitz constant that does not grow with n?  None if neither a bound nor growth was found."""
        if self.settled:
            return True
        grows = self.steepest[-1] > min(GROWTH * self.steepest[-2], JUMP)
        return False if grows else None

    @property
    def all_three(self) -> bool:
        return self.length_adaptive and self.sparse and self.gradient_stable is True


def candidates() -> dict[str, Rule]:
    """Every preset, and entmax at focus's largest scale, the plainest rule that rivals it.

    Examples
    --------
    >>> list(candidates())[-1]
    'entmax15, T = 1/16'
    """
    return {**{name: get(name) for name in names()}, "entmax15, T = 1/16": Rule(Temperature(1 / 16), Entmax(1.5))}


def properties(
    rules: Mapping[str, Rule] | None = None,
    lengths: Sequence[int] = LENGTHS,
    lead: float = LEAD,
    tries: int = 24,
    seed: int = 0,
) -> list[Properties]:
    """The worst found for each rule.

    Parameters
    ----------
    rules : by name; :func:`candidates` unless told
    lengths : n, rising, two at least, above 2·K
    lead : z₁ − z_{K+1} of the class, positive
    tries : generations of the search on short rows; long ones get fewer
    seed : of the search

    Examples
    --------
    >>> [found] = properties({"sparsemax": get("sparsemax")}, lengths=(40, 80), tries=2)
    >>> found.length_adaptive, found.sparse, found.gradient_stable
    (True, False, True)
    """
    return [_measure(name, rule, lengths, lead, tries, seed) for name, rule in (rules or candidates()).items()]


def _measure(name: str, rule: Rule, lengths: Sequence[int], lead: float, tries: int, seed: int) -> Properties:
    rng = torch.Generator().manual_seed(seed)
    tops, supports = [], []
    with torch.no_grad():
        for n in lengths:
            weights = rule(class_rows(n, lead))
            tops.append(float(weights[:, 0].min()))
            supports.append(int((weights > 0).sum(-1).max()))
        typical = rule(torch.randn(200, TYPICAL, generator=rng, dtype=torch.float64))
    near, far = (rule.lipschitz(n) for n in FAR)
    settled = math.isfinite(far) and far <= GROWTH * near
    one_hot = float(((typical > 0).sum(-1) == 1).double().mean())
    steepest = tuple(accumulate(_steepest(rule, lengths, tries, rng), max))
    declared = rule.lipschitz(lengths[-1])
    return Properties(name, tuple(lengths), tuple(tops), tuple(supports), steepest, declared, settled, one_hot)


def class_rows(n: int, lead: float, K: int = KEPT) -> Tensor:
    """Rows (rows, n) of the class, its worst ones among them; the first key is a top one.

    Parameters
    ----------
    n : above K
    lead : of the first key over the one of rank K + 1
    K : at least 4

    Returns
    -------
    1, 4 or K equal leaders, or K evenly spread ones; all others equal, or those beyond rank K + 10 a little further
    behind; each at several offsets. Equal means apart by less than any lead that counts.
    """
    made = []
    for leaders in (1, 4, K):
        for behind in (0.0, 0.02):
            row = torch.full((n,), -behind, dtype=torch.float64)
            row[: K + 10] = 0.0
            row[:leaders] = lead
            made.append(row)
    spread = torch.zeros(n, dtype=torch.float64)
    spread[:K] = torch.linspace(lead, lead / K, K, dtype=torch.float64)
    rows = torch.stack([*made, spread]) - APART * torch.arange(n)
    return torch.cat([rows + offset for offset in OFFSETS])


def _steepest(rule: Rule, lengths: Sequence[int], tries: int, rng: torch.Generator) -> Iterator[float]:
    """The largest steepness found at each length; long rows get few tries, from where shorter ones ended."""
    places, step = _any_places(rng, 48), 2.0
    for n in lengths:
        share, count = (1, 48) if n <= 200 else (3, 24) if n <= 2_000 else (3, 12) if n <= 20_000 else (6, 6)
        places, found = _evolve(rule, n, places[:count], step, -(-tries // share), rng)
        step = 0.4
        yield found


def _any_places(rng: torch.Generator, count: int) -> Tensor:
    """Where the keys of rows stand, (count, 5).

    Four logarithms: how far the first key, the second and the next K − 2 are above the key of rank K + 1, and how far
    all others are below it. And an offset of the whole row.
    """
    places = -20.0 + 24.0 * torch.rand(count, 4, generator=rng, dtype=torch.float64).sqrt()
    places[::4, 1] = places[::4, 0]  # two at the top
    places[1::4, 2] = places[1::4, 1]  # one against the next K − 1
    offset = torch.randint(-2, 3, (count, 1), generator=rng).double()
    return torch.cat([places, offset], -1)


def _rows_at(places: Tensor, n: int, K: int = KEPT) -> Tensor:
    """Rows (count, n) with their keys at ``places``."""
    first, second, others, behind = places[:, :4].exp().split(1, -1)
    rows = [first, second, others.expand(-1, K - 2), torch.zeros_like(first), -behind.expand(-1, n - K - 1)]
    return torch.cat(rows, -1) + places[:, 4:] - APART * torch.arange(n)


def _evolve(rule: Rule, n: int, places: Tensor, step: float, tries: int, rng: torch.Generator) -> tuple[Tensor, float]:
    """Where the keys of steep rows of n keys stand, steepest first, and the largest steepness.

    An evolution: the best third stays, and moves by ever smaller steps, each logarithm by itself or all as one.
    """
    steepness = _steepness(rule, _rows_at(places, n))
    for _ in range(tries):
        moves = torch.randn(places.shape, generator=rng, dtype=torch.float64)
        moves[::3] = moves[::3, :1]
        moves[:, 4] = 0.0
        moved, step = places + step * moves, 0.8 * step
        both = torch.cat([places, moved])
        slopes = torch.cat([steepness, _steepness(rule, _rows_at(moved, n))])
        best = slopes.argsort(descending=True)[: len(places) // 3]
        best = best.repeat(3)[: len(places)]
        places, steepness = both[best], slopes[best]
    return places, float(steepness[0])


def _steepness(rule: Rule, logits: Tensor, K: int = KEPT) -> Tensor:
    """A lower bound of ‖∂w/∂z‖₂ for each row, (rows,): the norm of some rows of it, or what a small step does."""
    n, z = logits.shape[-1], logits.clone().requires_grad_()
    weights = rule(z)
    slopes = []
    for group in (slice(0, 1), slice(1, 2), slice(2, K), slice(K, K + 1), slice(K + 1, n)):
        total = weights[:, group].sum() / math.sqrt(len(range(n)[group]))
        slopes.append(torch.autograd.grad(total, z, retain_graph=True)[0])
    some = torch.stack(slopes, 1)
    norms = torch.linalg.eigvalsh(some @ some.mT)[:, -1].clamp(min=0.0).sqrt()
    nudge = torch.zeros_like(logits)
    nudge[:, 1], nudge[:, -1] = STEP, STEP
    with torch.no_grad():
        moved: Tensor = torch.linalg.vector_norm(rule(logits + nudge) - weights, dim=-1) / (math.sqrt(2) * STEP)
    return torch.maximum(norms.nan_to_num(0.0), moved)
