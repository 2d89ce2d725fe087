"""What did any forward pass attend to?  Measures of sampled rows, taken while the model runs.

    with undilute.capture(model, rows=128) as c:
        model(ids)
    c.frame()

A row t of a causal model sees t + 1 keys, so rows at log-spaced positions of one pass give every measure over context
length. Only the logits of those rows are computed again, a block at a time. Nothing is ever as large as n × n, and the
model's own attention function still makes its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from undilute.errors import InvalidValue, MissingExtra
from undilute.measures import registry
from undilute.measures.attention_rows import RANKED, Rows, Settings
from undilute.models.attention_call import AttentionCall
from undilute.models.passes import Run, layer_names
from undilute.models.tensor_parallel import check_whole
from undilute.models.watch import watch
from undilute.models.watched_call import WatchedCall
from undilute.rules.parameters import count, whole

if TYPE_CHECKING:
    import pandas

X = Literal["values", "input"]
BLOCK = 2**18  # logits measured at a time: a megabyte, so that a few such arrays stay in the cache
EACH = 80_000  # logits that take as long to measure as each block does in any case
SHORTEST = 16  # sampled rows of a long pass see at least this many keys: shorter ones say nothing about length


@dataclass
class LayerSample:
    """The sampled rows of one attention layer, over all calls.

    Attributes
    ----------
    name : the layer's name in the model; of a module that runs several times in a pass, with the number of the run
        (``undilute.models.passes``)
    index : its place among the layers, in the order in which they first ran
    batch, position, n : (rows,): which sequence, the query's position in it, and the keys it sees
    measures : name → (heads, rows), float64
    keys, key_weights : (heads, rows, 8): the heaviest keys' positions and weights, heaviest first; −1 and 0 where a
        row sees fewer
    looks_ahead : whether queries see later keys, as in an encoder or a cross-attention
    window : how many keys back a query sees; None without a sliding window
    is_cross : whether the keys are another text's, as those of a decoder that looks at its encoder: ``position`` is
        the query's in its own text and ``keys`` are positions in the other, so that measures of the distance between
        them are NaN
    gains : (heads, rows): what a treatment multiplies the output of each head by. No measure has it in it: weights are
        those of the rule, and d̃ and N_s/N are about the vectors that the weights select, before the gain
    """

    name: str
    index: int
    batch: NDArray[np.int64]
    position: NDArray[np.int64]
    n: NDArray[np.int64]
    measures: dict[str, NDArray[np.float64]]
    keys: NDArray[np.int64]
    key_weights: NDArray[np.float64]
    looks_ahead: bool
    window: int | None = None
    is_cross: bool = False
    gains: NDArray[np.float64] | None = None

    @property
    def heads(self) -> int:
        return len(self.keys)


@dataclass
class _Piece:
    """What one block of rows of one call gave."""

    batch: int
    position: Tensor
    first: int
    n: Tensor
    measures: dict[str, Tensor]
    keys: Tensor
    key_weights: Tensor
    gains: Tensor


@dataclass
class _Layer:
    """What was seen of one layer."""

    window: int | None
    is_cross: bool
    looks_ahead: bool = False
    pieces: list[_Piece] = field(default_factory=list)


@dataclass(eq=False)
class Capture(AbstractContextManager["Capture"]):
    """The context manager behind :func:`capture`; afterwards it holds what was measured."""

    model: nn.Module
    rows: int
    measures: list[registry.Measure]
    settings: Settings
    x: X
    on_layer: Callable[[str], None] | None = None
    _layers: dict[Run, _Layer] = field(default_factory=dict, init=False)
    _watching: AbstractContextManager[None] | None = field(default=None, init=False)

    def __enter__(self) -> Capture:
        if self._watching is not None:
            raise InvalidValue("this capture is already running: leave it before you enter it again.")
        watching = watch(self.model, self._measure)
        watching.__enter__()
        self._watching = watching
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.__exit__(None, None, None)

    @property
    def layers(self) -> list[LayerSample]:
        """What was measured, one entry per attention layer, in the order in which they ran."""
        found = zip(layer_names(self._layers), self._layers.values(), strict=True)
        return [self._joined(index, name, each) for index, (name, each) in enumerate(found) if each.pieces]

    def clear(self) -> None:
        """Forget what was measured so far."""
        self._layers.clear()

    def frame(self) -> pandas.DataFrame:
        """One line per layer, head and sampled row, with a column for each measure."""
        return frame_of(self.layers)

    def _measure(self, call: WatchedCall) -> None:
        check_whole(call)
        if call.is_repeat:
            return
        layer = self._layers.setdefault(call.run, _Layer(call.window, call.is_cross))
        layer.window, layer.is_cross = call.window, layer.is_cross or call.is_cross
        layer.looks_ahead = layer.looks_ahead or call.looks_ahead
        for batch, (real, _) in enumerate(call.sequences):
            if len(real):
                chosen = sampled(real, self.rows, evenly=call.looks_ahead)
                layer.pieces += [self._piece(call, batch, rows) for rows in blocks(call, chosen)]
        if self.on_layer is not None:
            self.on_layer(call.layer)

    def _piece(self, call: WatchedCall, batch: int, rows: Tensor) -> _Piece:
        block = call.block(batch, rows, x=self._vectors(call, batch), settings=self.settings)
        measured = {each.name: each.of(block).double().cpu() for each in self.measures}
        position = (rows + call.sequences[batch].start).cpu()
        keys, weights = self._heaviest(block)
        gains = call.gains_of(batch, rows).detach().double().cpu()
        return _Piece(batch, position, block.first, block.n[0].long().cpu(), measured, keys, weights, gains)

    @staticmethod
    def _heaviest(block: Rows) -> tuple[Tensor, Tensor]:
        """Indices and weights of the RANKED heaviest keys, −1 and 0 where a row sees fewer."""
        keys = block.ranked[..., :RANKED]
        weights = (block.probabilities.gather(-1, keys) * block.kept).double()
        missing = torch.arange(keys.shape[-1], device=keys.device) >= block.n[..., None]
        keys, weights = keys.masked_fill(missing, -1), weights.masked_fill(missing, 0.0)
        absent = (0, RANKED - keys.shape[-1])
        return nn.functional.pad(keys, absent, value=-1).cpu(), nn.functional.pad(weights, absent).cpu()

    def _vectors(self, call: WatchedCall, batch: int) -> Tensor | None:
        if not any(each.needs_x for each in self.measures):
            return None
        if self.x == "values":
            return call.value[batch]
        given = call.input
        if given is None or call.is_cross or given.shape[1] < call.keys:
            raise InvalidValue(
                f"x = 'input': the input of {type(call.module).__name__} does not hold every key of the call (some are "
                "in a cache, or in the text that a decoder looks at); use x = 'values', or run without a cache."
            )
        return given[batch][None]

    def _joined(self, index: int, name: str, layer: _Layer) -> LayerSample:
        pieces = layer.pieces

        def joined(tensors: Iterable[Tensor]) -> NDArray[Any]:
            return torch.cat(list(tensors), 1).numpy()

        return LayerSample(
            name=name,
            index=index,
            batch=np.concatenate([np.full(len(piece.position), piece.batch) for piece in pieces]),
            position=torch.cat([piece.position for piece in pieces]).numpy(),
            n=torch.cat([piece.n for piece in pieces]).numpy(),
            measures={each.name: joined(piece.measures[each.name] for piece in pieces) for each in self.measures},
            keys=joined(torch.where(piece.keys < 0, -1, piece.keys - piece.first) for piece in pieces),
            key_weights=joined(piece.key_weights for piece in pieces),
            looks_ahead=layer.looks_ahead,
            window=layer.window,
            is_cross=layer.is_cross,
            gains=joined(piece.gains for piece in pieces),
        )


def capture(
    model: nn.Module,
    rows: int = 128,
    *,
    measures: Iterable[str] | None = None,
    x: X = "values",
    top: int = 5,
    sinks: int = 1,
    recent: int = 64,
    on_layer: Callable[[str], None] | None = None,
) -> Capture:
    """Measure what a Hugging Face model attends to while it runs; its output stays the same.

    Parameters
    ----------
    model : any causal language model, encoder, or both in one, whose attention goes through ``AttentionInterface``,
        with any implementation; it is put back as it was on exit, even after an error
    rows : how many rows of each call, sequence and head to measure: log-spaced for a causal pass, evenly spaced for an
        encoder's; at most all of them
    measures : names, see :func:`undilute.measures.names`; all by default, including the user's own
    x : what the weights select from in d̃ and N_s/N: the layer's "values", or its "input"
    top : the N of top-N mass, d̃ and N_s/N
    sinks : how many of the first tokens count as the sink
    recent : how many of the last keys count as recent
    on_layer : called with the name of the layer's module after each attention call, for progress

    Returns
    -------
    Capture
        With ``layers`` (:class:`LayerSample`), ``frame()`` and ``clear()``.

    Examples
    --------
    >>> import torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> with ud.capture(model, rows=8, measures=["entropy"]) as c:
    ...     _ = model(torch.arange(40)[None])
    >>> len(c.layers), c.layers[0].measures["entropy"].shape, c.layers[0].n.max()
    (2, (4, 8), np.int64(40))
    """
    if x not in ("values", "input"):
        raise InvalidValue(f"x = {x!r}: must be 'values' or 'input'.")
    settings = Settings(top=count("top", top), sinks=whole("sinks", sinks, 0), recent=count("recent", recent))
    return Capture(model, count("rows", rows), registry.chosen(measures), settings, x, on_layer)


def sampled(real: Tensor, rows: int, *, evenly: bool) -> Tensor:
    """Some of the queries that are no padding, in order: log-spaced by how many keys they see, or evenly spaced.

    Parameters
    ----------
    real : (queries,), indices in order
    rows : how many; all if there are no more
    evenly : evenly spaced instead

    Examples
    --------
    >>> sampled(torch.arange(2048), 5, evenly=False)
    tensor([  15,   53,  180,  608, 2047])
    """
    if len(real) <= rows:
        return real
    if evenly or rows == 1:
        places = torch.linspace(0, len(real) - 1, rows).round().long() if rows > 1 else torch.tensor([len(real) - 1])
    else:
        shortest = min(SHORTEST, len(real) - rows + 1)
        places = torch.logspace(np.log2(shortest), np.log2(len(real)), rows, base=2.0, dtype=torch.float64)
        places = places.round().long() - 1
        # where log-spacing would take a query twice, the next free one
        steps = torch.arange(rows)
        places = (places - steps).cummax(0).values + steps
        places = places.clamp(max=len(real) - rows + steps)
    return real[places.to(real.device)]


def blocks(call: AttentionCall, rows: Tensor) -> Iterator[Tensor]:
    """Rows in the runs that are measured fastest, of up to ``BLOCK`` logits over all heads."""
    stops = (rows + call.offset + 1).tolist() if not call.looks_ahead else [call.keys] * len(rows)
    for start, end in _runs(tuple(stops), call.query.shape[1]):
        yield rows[start:end]


@lru_cache(maxsize=64)
def _runs(stops: tuple[int, ...], heads: int) -> list[tuple[int, int]]:
    """Where to cut rows that see so many keys, in order: short ones should not be read as far as long ones are.

    A block has as many logits in each row as its last one, hidden or not. Few blocks waste logits, and many waste
    ``EACH``; the best cuts of all rows are those of the rows before the last block, and that block.

    Examples
    --------
    >>> _runs((16, 32, 64, 8192, 8192), 9)
    [(0, 3), (3, 5)]
    """
    best, begins = [0], [0]  # the cost of the first so many rows, and where their last block begins
    for end, stop in enumerate(stops, 1):
        first = min(end - 1, max(0, end - BLOCK // max(heads * stop, 1)))
        cost, start = min((best[start] + EACH + heads * (end - start) * stop, start) for start in range(first, end))
        best.append(cost)
        begins.append(start)
    runs, end = [], len(stops)
    while end:
        runs.append((begins[end], end))
        end = begins[end]
    return runs[::-1]


def frame_of(layers: list[LayerSample]) -> pandas.DataFrame:
    """One line per layer, head and sampled row."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise MissingExtra("pandas", "models") from None

    parts = []
    for layer in layers:
        heads, rows = layer.heads, len(layer.n)
        columns: dict[str, Any] = {
            "layer": np.full(heads * rows, layer.index),
            "head": np.repeat(np.arange(heads), rows),
            "batch": np.tile(layer.batch, heads),
            "position": np.tile(layer.position, heads),
            "n": np.tile(layer.n, heads),
        }
        parts.append(pandas.DataFrame(columns | {name: values.ravel() for name, values in layer.measures.items()}))
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()
