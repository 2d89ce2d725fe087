"""What are the distances of some rows of every head of a model, at many lengths and many N?  One pass, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute.engine.threads import share
from undilute.errors import InvalidValue
from undilute.models.texts import SHORTEST_LENGTH
from undilute.rules.parameters import count
from undilute_papers.limitations.row_distances import RowDistances, Vectors
from undilute_papers.reproduction.attended import Layer, X, each_layer, evenly, selected_from

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK, ROWS = 2**17, 128  # weights, and rows, worked on at a time by one thread: more rows see ever more hidden keys
SHORT_ROWS = ("left out", "zero")  # what to do with a row that sees no more than N keys

Wanted = Mapping[int, Mapping[int, Sequence[str]]]  # length → N → quantities


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
