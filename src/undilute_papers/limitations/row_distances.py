"""How far is what each row leaves out from what it selects, for every head of a model and many N at once?

With p the weights of a row that sees n keys, vᵢ = pᵢxᵢ, x̄ = Σvᵢ, I the N heaviest keys, s = Σ_{i∈I} vᵢ and
A = Σ_{i∈I} pᵢ (Mudarisov et al., arXiv:2508.17821v1; proofs and corrections in ``undilute.theory.distance``):
    distance  d̃ = Σ_{i∉I} ‖vᵢ − s‖
    expected  the same for sets of N keys drawn uniformly: its mean over random draws, so without bias
    main      (1−N/n) Σ ‖(1+q)vᵢ − q·x̄‖, q = N/(n−1): what the expectation is at least
    upper     (1−N/n) Σ √(cᵢ² + Vᵢ): what the expectation is at most
    printed   (1−N/n) Σ ‖(pᵢ+q)xᵢ − x̄‖: the main term as Theorem 1(2) has it, a misprint
    bound     (1−A)·d₁ + max_{j∈I}‖xⱼ‖·[A(n−N) − (1−A)], d₁ = max_{i∉I, j∈I} ‖xᵢ−xⱼ‖: Theorem 1(1), with d₁ exact
    norms     Σ‖vᵢ‖, to which Corollary 2(i) holds the expectation equal
Every length is expanded into matrix products, ‖pᵢxᵢ − s‖² = pᵢ²‖xᵢ‖² − 2pᵢ⟨xᵢ, s⟩ + ‖s‖², a few rows of one head at a
time: nothing is as large as rows × keys × features. A row must see more than N keys, or its values are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute.engine.threads import share
from undilute.errors import InvalidValue
from undilute.measures.attention_rows import FLOOR
from undilute.models.first_tokens import SHORTEST_LENGTH
from undilute.rules.parameters import count
from undilute_papers.reproduction.attended import Layer, X, each_layer, evenly, selected_from

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QUANTITIES = ("distance", "expected", "main", "upper", "printed", "bound", "norms")
BLOCK, ROWS = 2**17, 128  # weights, and rows, worked on at a time by one thread: more rows see ever more hidden keys
FARTHEST = 8  # keys farthest from each key that are always known
SHORT_ROWS = ("left out", "zero")  # what to do with a row that sees no more than N keys

Wanted = Mapping[int, Mapping[int, Sequence[str]]]  # length → N → quantities


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
        self.vectors, self.x, self.squares = vectors, vectors.x[:keys], vectors.squares[:keys]
        self.shown = visible.to(logits.dtype)
        self.n = self.shown.sum(-1, keepdim=True)
        below = (logits - logits.amax(-1, keepdim=True)).clamp_(min=FLOOR[logits.dtype])
        self.p = below.exp_().mul_(self.shown)
        self.p /= self.p.sum(-1, keepdim=True)

    def distance(self, top: int) -> Tensor:
        return self._apart(self._chosen(self._ranks, top))

    def expected(self, top: int) -> Tensor:
        drawn = [self._apart(self._chosen(ranks, top)) for ranks in self._drawn]
        return torch.stack(drawn).mean(0)

    def main(self, top: int) -> Tensor:
        return self._outside(top) * self._lengths(*self._centre(top))

    def upper(self, top: int) -> Tensor:
        both = [a + b for a, b in zip(self._centre(top), self._spread(top), strict=True)]
        return self._outside(top) * self._lengths(*both)

    def printed(self, top: int) -> Tensor:
        weights = self.p + top / (self.n - 1)
        squares = (weights * self.squares).sub_(self._inner, alpha=2.0).mul_(weights).add_(self._mean_square)
        return self._outside(top) * squares.clamp_(min=0.0).sqrt_().mul_(self.shown).sum(-1)

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
        s = (self.p * selected) @ self.x
        squares = torch.addmm(self._weighted, s, self.x.T, alpha=-2.0).mul_(self.p)
        lengths = squares.add_(s.square().sum(-1, keepdim=True)).clamp_(min=0.0).sqrt_()
        return lengths.mul_(self.shown - selected).sum(-1)

    @cached_property
    def _weighted(self) -> Tensor:
        """(rows, keys): pᵢ‖xᵢ‖²."""
        return self.p * self.squares

    @cached_property
    def _mean(self) -> Tensor:
        return self.p @ self.x

    @cached_property
    def _mean_square(self) -> Tensor:
        return self._mean.square().sum(-1, keepdim=True)

    @cached_property
    def _inner(self) -> Tensor:
        """(rows, keys): ⟨xᵢ, x̄⟩."""
        return self._mean @ self.x.T

    @cached_property
    def _total(self) -> Tensor:
        """(rows, 1): Σ‖vᵢ‖²."""
        return (self.p.square() @ self.squares)[:, None]

    def _outside(self, top: int) -> Tensor:
        return (1 - top / self.n).squeeze(-1)

    def _centre(self, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients of cᵢ² in ‖vᵢ‖², ⟨vᵢ, x̄⟩ and 1, each (rows, 1)."""
        q = top / (self.n - 1)
        return (1 + q).square(), -2 * q * (1 + q), q.square() * self._mean_square

    def _spread(self, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients of Vᵢ = u·(Σ‖vⱼ‖² − ‖vᵢ‖² − ‖x̄ − vᵢ‖²/(n−1)), u = q(n−1−N)/(n−2)."""
        others = self.n - 1
        u = top / others * (others - top).clamp(min=0.0) / (others - 1).clamp(min=1.0)
        return -u * (1 + 1 / others), 2 * u / others, u * (self._total - self._mean_square / others)

    def _lengths(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Σ √(a‖vᵢ‖² + b⟨vᵢ, x̄⟩ + c) over what each row sees."""
        squares = (self._weighted * a).addcmul_(self._inner, b).mul_(self.p).add_(c)
        return squares.clamp_(min=0.0).sqrt_().mul_(self.shown).sum(-1)

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


@dataclass(frozen=True, eq=False)
class Sample:
    """What was computed for some rows of every head.

    Attributes
    ----------
    layer, head : (heads,): which layer, and which of its heads
    names : of the layers
    positions : (rows,)
    n : (heads, rows): how many keys each row sees
    values : quantity and N → (heads, rows), NaN where a row sees no more than N keys
    """

    layer: Tensor
    head: Tensor
    names: Sequence[str]
    positions: Tensor
    n: Tensor
    values: Mapping[tuple[str, int], Tensor]

    def per_head(self, quantity: str, top: int, *, short_rows: str = "left out") -> Tensor:
        """(heads,): the mean over the rows, of those that see more than N keys or with 0 for the others."""
        values = self.values[quantity, top]
        return values.nan_to_num(nan=0.0).mean(-1) if short_rows == "zero" else values.nanmean(-1)

    def at(self, positions: Tensor) -> Sample:
        """The same for some of the rows."""
        places = torch.searchsorted(self.positions, positions)
        values = {key: value[:, places] for key, value in self.values.items()}
        return replace(self, positions=positions, n=self.n[:, places], values=values)

    def of(self, heads: Tensor) -> Sample:
        """The same for some of the heads: (heads,) bool."""
        values = {key: value[heads] for key, value in self.values.items()}
        return replace(self, layer=self.layer[heads], head=self.head[heads], n=self.n[heads], values=values)


def check_options(x: str, rows: int, short_rows: str, draws: int, seed: int) -> None:
    """Raise unless the options of the experiments on samples make sense."""
    selected_from(x)
    if short_rows not in SHORT_ROWS:
        raise InvalidValue(f"--short-rows = {short_rows!r}: must be {' or '.join(map(repr, SHORT_ROWS))}.")
    for name, value in (("--rows", rows), ("--seed", seed)):
        if not isinstance(value, int) or value < 0:
            raise InvalidValue(f"{name} = {value!r}: must be a whole number, 0 or more.")
    count("--draws", draws)


def of_the_whole_text(found: Mapping[int, Sample], option: str) -> tuple[dict[int, Sample], list[str]]:
    """The heads that see every token of the longest text, and a sentence on the others, if there are any.

    A head with a sliding window selects from its window, whatever the length L of the text: no curve over L, and none
    with N up to L, is about such a head.

    Parameters
    ----------
    found : length → Sample
    option : where the longest length comes from, for the error if no head is left
    """
    longest = max(found)
    sample = found[longest]
    most = sample.n.amax(-1)
    whole = most >= longest
    if whole.all():
        return dict(found), []
    first = int((~whole).nonzero()[0])
    name, width = sample.names[int(sample.layer[first])], int(most[first])
    if not whole.any():
        widest = int(most.max())
        shorter = f"{option} must be at most {widest:,}, or " if widest >= SHORTEST_LENGTH else ""
        raise InvalidValue(
            f"{option} = {longest:,}: no layer lets a token see so many keys, {name} only the {width:,} of a sliding "
            f"window; {shorter}--model must be one with a layer that does."
        )
    layers = f"{len(sample.layer[~whole].unique())} of {len(sample.names)} layers"
    return {length: each.of(whole) for length, each in found.items()}, [
        f"{int((~whole).sum())} of {len(whole)} heads, in {layers}, see a sliding window of the text only "
        f"({name}: {width:,} keys) and are left out: L is not the number of tokens that they select from."
    ]


def samples(
    model: PreTrainedModel,
    ids: Tensor,
    wanted: Wanted,
    *,
    rows: int = 0,
    x: X = "values",
    seed: int = 0,
    draws: int = 1,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[int, Sample]:
    """Every wanted quantity at every length, for all heads.

    Row t of a causal model is the same whatever comes after it, so one pass over the longest text gives every length;
    an encoder is run at each.

    Parameters
    ----------
    model, ids : as in :func:`each_layer`
    wanted : length → N → quantities
    rows : evenly spaced rows at each length; 0 for all
    x : what the weights select from
    seed, draws : of the random sets, of which each row draws ``draws``
    progress : told the share that is done

    Returns
    -------
    length → Sample
    """
    layers, looks_ahead = _probed(model, ids)
    positions = {length: evenly(length, rows) for length in wanted}
    if not looks_ahead:
        recorder = _Recorder(wanted, positions, seed, draws, lambda done: progress(done / layers))
        each_layer(model, ids[: max(wanted)], recorder.use, x=x, rows=recorder.positions)
        whole = recorder.sample()
        return {length: whole.at(positions[length]) for length in wanted}
    found = {}
    for index, length in enumerate(wanted):
        before = index * layers

        def tell(done: int, before: int = before) -> None:
            progress((before + done) / (layers * len(wanted)))

        recorder = _Recorder({length: wanted[length]}, positions, seed, draws, tell)
        each_layer(model, ids[:length], recorder.use, x=x, rows=recorder.positions)
        found[length] = recorder.sample()
    return found


def _probed(model: PreTrainedModel, ids: Tensor) -> tuple[int, bool]:
    """How many attention layers the model has, and whether a row sees keys after its own."""
    ahead: list[bool] = []
    each_layer(model, ids[:4], lambda layer: ahead.append(bool(layer.visible[..., 0, 1:].any())))
    return len(ahead), any(ahead)


class _Recorder:
    """Computes what is wanted of each layer, on all cores, and keeps it."""

    def __init__(
        self, wanted: Wanted, positions: Mapping[int, Tensor], seed: int, draws: int, told: Callable[[int], None]
    ) -> None:
        self.wanted, self.seed, self.draws, self.told = wanted, seed, draws, told
        self.positions = torch.cat([positions[length] for length in wanted]).unique()
        self.asked = {(quantity, top) for tops in wanted.values() for top, names in tops.items() for quantity in names}
        self.layers: list[dict[tuple[str, int], Tensor]] = []
        self.n: list[Tensor] = []
        self.names: list[str] = []

    def use(self, layer: Layer) -> None:
        heads, rows, _ = layer.logits.shape
        found = {key: layer.logits.new_full((heads, rows), torch.nan) for key in self.asked}
        self.n.append(layer.seen)
        self.names.append(layer.name)
        groups = layer.groups
        vectors = [Vectors(layer.x[head]) for head in range(0, heads, groups)]
        last = self._last_keys(layer)
        blocks = list(_blocks(last))
        bounded = any(name == "bound" for name, _ in self.asked)
        stops = {int(last[block][-1]) for block in blocks} if bounded else set()
        farthest = [each.farthest(stops) for each in vectors]
        work = [(index, block) for block in blocks for index in range(len(vectors))]

        def do(item: tuple[int, slice], scratch: None) -> None:
            index, block = item
            keys = int(last[block][-1])
            known = farthest[index].get(keys)
            for head in range(index * groups, (index + 1) * groups):
                rows = self._rows(layer, head, block, keys, vectors[index], known)
                self._fill(found, rows, head, block, int(layer.rows[block][0]))

        share(work, do, lambda: None)
        self.layers.append(found)
        self.told(len(self.layers))

    def sample(self) -> Sample:
        heads = [len(n) for n in self.n]
        return Sample(
            layer=torch.cat([torch.full((number,), index) for index, number in enumerate(heads)]),
            head=torch.cat([torch.arange(number) for number in heads]),
            names=tuple(self.names),
            positions=self.positions,
            n=torch.cat(self.n),
            values={key: torch.cat([layer[key] for layer in self.layers]) for key in sorted(self.asked)},
        )

    @staticmethod
    def _last_keys(layer: Layer) -> Tensor:
        """(rows,): how many keys there are up to the last one that a row, or one before it, sees."""
        seen = layer.visible if layer.visible.ndim == 2 else layer.visible.any(0)
        return (seen * torch.arange(1, seen.shape[-1] + 1)).amax(-1).cummax(0).values

    def _tops(self, first: int) -> Iterable[tuple[int, set[str]]]:
        """N and its quantities for rows from position ``first`` on."""
        tops: dict[int, set[str]] = {}
        for length, asked in self.wanted.items():
            for top, names in asked.items() if length > first else ():
                tops.setdefault(top, set()).update(names)
        return tops.items()

    def _rows(
        self,
        layer: Layer,
        head: int,
        block: slice,
        keys: int,
        vectors: Vectors,
        farthest: tuple[Tensor, Tensor] | None,
    ) -> RowDistances:
        visible = layer.visible.expand(layer.logits.shape)[head, block, :keys]
        generator = np.random.default_rng([self.seed, layer.index, head, int(layer.rows[block][0])])

        def random() -> Tensor:
            return torch.from_numpy(generator.random(tuple(visible.shape), dtype=np.float32))

        return RowDistances(layer.logits[head, block, :keys], visible, vectors, farthest, random, self.draws)

    def _fill(
        self, found: dict[tuple[str, int], Tensor], rows: RowDistances, head: int, block: slice, first: int
    ) -> None:
        n = rows.n.squeeze(-1)
        for top, names in self._tops(first):
            for name in names if int(n.max()) > top else ():
                values: Tensor = getattr(rows, name)(top)
                found[name, top][head, block] = values.masked_fill(n <= top, torch.nan)


def _blocks(last: Tensor) -> Iterator[slice]:
    """Runs of up to ROWS rows and BLOCK weights; ``last`` (rows,): how many keys there are up to the last one seen."""
    start = 0
    for end in range(1, len(last) + 1):
        rows = end + 1 - start
        if end == len(last) or rows > ROWS or rows * int(last[end]) > BLOCK:
            yield slice(start, end)
            start = end
