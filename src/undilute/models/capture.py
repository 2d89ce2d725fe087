"""What did any forward pass attend to?  Measures of sampled rows, taken while the model runs.

    with undilute.capture(model, rows=128) as c:
        model(ids)
    c.frame()

A row t of a causal model sees t + 1 keys, so rows at log-spaced positions of one pass give every measure over context
length. Only those rows' logits are computed again, a block at a time; nothing is ever as large as n × n, and the
model's own attention function still makes its output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
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
from undilute.models.cross_attention import CrossAttention, Queries
from undilute.models.head_rules import rules_of
from undilute.models.passes import Run, Runs, layer_names
from undilute.models.tensor_parallel import check_whole
from undilute.models.watch import Attention, check_supported, intercepted
from undilute.rules.parameters import count, whole

if TYPE_CHECKING:
    import pandas

X = Literal["values", "input"]
BLOCK = 2**17  # logits measured at a time: what a core's cache holds
SHORTEST = 16  # sampled rows of a long pass see at least so many keys: shorter ones say nothing about length


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


@dataclass(eq=False)
class Capture(AbstractContextManager["Capture"]):
    """The context manager behind :func:`capture`; afterwards it holds what was measured."""

    model: nn.Module
    rows: int
    measures: list[registry.Measure]
    settings: Settings
    x: X
    on_layer: Callable[[str], None] | None = None
    _pieces: dict[Run, list[_Piece]] = field(default_factory=dict, init=False)
    _ahead: dict[Run, bool] = field(default_factory=dict, init=False)
    _windows: dict[Run, int | None] = field(default_factory=dict, init=False)
    _undo: list[Callable[..., Any]] = field(default_factory=list, init=False)
    _crossing: set[Run] = field(default_factory=set, init=False)
    _runs: Runs = field(init=False)
    _cross: CrossAttention = field(init=False)
    _inputs: dict[tuple[nn.Module, int], Tensor] = field(default_factory=dict, init=False)

    def __enter__(self) -> Capture:
        if self._undo:
            raise InvalidValue("this capture is running already: must be left before it is entered again.")
        check_supported(self.model)
        self._runs, self._cross = Runs(self.model), CrossAttention(self.model)  # before anybody's pass can ask
        interception = intercepted(self.model, self._around)
        interception.__enter__()
        self._undo = [lambda: interception.__exit__(None, None, None)]
        for watcher in (self._runs, self._cross):
            watcher.__enter__()
            self._undo.append(partial(watcher.__exit__, None, None, None))
        if any(each.needs_x for each in self.measures) and self.x == "input":
            self._undo += [hook.remove for hook in self._input_hooks()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()
        self._inputs.clear()

    @property
    def layers(self) -> list[LayerSample]:
        """What was measured, one entry per attention layer, in the order in which they ran."""
        names = layer_names(self._pieces)
        return [
            self._joined(index, name, run)
            for index, (name, run) in enumerate(zip(names, self._pieces, strict=True))
            if self._pieces[run]
        ]

    def clear(self) -> None:
        """Forget what was measured so far."""
        self._pieces.clear()

    def frame(self) -> pandas.DataFrame:
        """One line per layer, head and sampled row, with a column for each measure."""
        return frame_of(self.layers)

    def _around(self, implementation: str, function: Attention) -> Attention:
        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **options: Any
        ) -> Any:
            result = function(module, query, key, value, mask, *args, **options)
            with torch.no_grad():
                is_cross = self._cross.of(module, query, key)
                self._measure(AttentionCall(module, implementation, query, key, value, mask, options, is_cross))
            return result

        return attend

    def _measure(self, call: AttentionCall) -> None:
        check_whole(call)
        if (run := self._runs.of(call.module, call.query, call.key)) is None:
            return
        pieces = self._pieces.setdefault(run, [])
        self._ahead[run] = self._ahead.get(run, False) or call.looks_ahead
        self._windows[run] = call.window
        if call.is_cross:
            self._crossing.add(run)
        for batch, (real, start) in enumerate(self._queries(call)):
            if not len(real):
                continue
            chosen = sampled(real, self.rows, evenly=call.looks_ahead)
            first = self._first_key(call, batch, real[:1]) if call.is_cross else call.offset - start
            for rows in blocks(call, chosen):
                pieces.append(self._piece(call, batch, rows, first, start))
        if self.on_layer is not None:
            self.on_layer(run.module)

    def _queries(self, call: AttentionCall) -> Sequence[Queries]:
        """The queries of each sequence; those of a cross-attention are known from the self-attention before it."""
        if call.is_cross:
            return self._cross.queries(call.module, call.query)
        found = []
        for batch in range(call.query.shape[0]):
            real = call.real(batch).nonzero().squeeze(-1)
            found.append(Queries(real, call.offset - self._first_key(call, batch, real[:1]) if len(real) else 0))
        self._cross.keep(call.module, call.queries, found)
        return found

    def _piece(self, call: AttentionCall, batch: int, rows: Tensor, first: int, start: int) -> _Piece:
        own = rows + call.offset
        keys = call.keys if call.looks_ahead else min(call.keys, int(own[-1]) + 1)
        visible = call.visible(batch, rows, keys)
        if visible is not None and bool(visible.all()):
            visible = None
        logits, reach, used = call.logits(batch, rows, keys), call.reach(batch, rows, keys, visible), None
        if (rules := rules_of(call.module, call.implementation, len(logits))) is not None:
            (logits, used), reach = rules.weigh(logits, visible), None  # the bound knows no scale but the model's
        block = Rows(
            logits,
            visible,
            None if call.is_cross else own,
            first=first,
            outside=call.outside,
            reach=reach,
            x=self._vectors(call, batch, keys),
            settings=self.settings,
            used=used,
        )
        measured = {each.name: each.compute(block).double().cpu() for each in self.measures}
        n = block.n[0].long().cpu()
        return _Piece(batch, (rows + start).cpu(), first, n, measured, *self._heaviest(block))

    @staticmethod
    def _heaviest(block: Rows) -> tuple[Tensor, Tensor]:
        """Indices and weights of the RANKED heaviest keys, −1 and 0 where a row sees fewer."""
        keys = block.ranked[..., :RANKED]
        weights = (block.probabilities.gather(-1, keys) * block.kept).double()
        missing = torch.arange(keys.shape[-1], device=keys.device) >= block.n[..., None]
        keys, weights = keys.masked_fill(missing, -1), weights.masked_fill(missing, 0.0)
        absent = (0, RANKED - keys.shape[-1])
        return nn.functional.pad(keys, absent, value=-1).cpu(), nn.functional.pad(weights, absent).cpu()

    def _first_key(self, call: AttentionCall, batch: int, query: Tensor) -> int:
        """Index of the sequence's first real token, where a sink would be; below 0 if a window's cache has dropped it.

        The first real query of a pass sees that token, unless it continues a cache beyond its window.
        """
        position = None if call.is_cross else call.position(batch, int(query))
        if call.window and call.queries < call.keys and position is not None and position >= call.window:
            return int(query) + call.offset - position
        seen = call.visible(batch, query, call.keys)
        return 0 if seen is None else int(seen.flatten(0, -2).any(0).int().argmax())

    def _vectors(self, call: AttentionCall, batch: int, keys: int) -> Tensor | None:
        if not any(each.needs_x for each in self.measures):
            return None
        if self.x == "values":
            return call.value[batch][:, :keys]
        given = self._inputs.get((call.module, threading.get_ident()))
        if given is None or call.is_cross or given.shape[1] < call.keys:
            raise InvalidValue(
                f"x = 'input': the input of {type(call.module).__name__} does not hold every key of the call (a cache "
                "does, or the text that a decoder looks at); use x = 'values', or run the model without a cache."
            )
        return given[batch, :keys][None]

    def _input_hooks(self) -> Iterator[Any]:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            given = (kwargs or {}).get("hidden_states", args[0] if args else None)  # none while a hook comes or goes
            if isinstance(given, Tensor) and given.ndim == 3:
                self._inputs[module, threading.get_ident()] = given.detach()

        for module in self.model.modules():
            if "attention" in type(module).__name__.lower():
                yield module.register_forward_pre_hook(keep, with_kwargs=True)

    def _joined(self, index: int, name: str, run: Run) -> LayerSample:
        pieces = self._pieces[run]

        def rows(tensors: Iterable[Tensor]) -> NDArray[Any]:
            return torch.cat(list(tensors), 1).numpy()

        return LayerSample(
            name=name,
            index=index,
            batch=np.concatenate([np.full(len(piece.position), piece.batch) for piece in pieces]),
            position=torch.cat([piece.position for piece in pieces]).numpy(),
            n=torch.cat([piece.n for piece in pieces]).numpy(),
            measures={each.name: rows(piece.measures[each.name] for piece in pieces) for each in self.measures},
            keys=rows(torch.where(piece.keys < 0, -1, piece.keys - piece.first) for piece in pieces),
            key_weights=rows(piece.key_weights for piece in pieces),
            looks_ahead=self._ahead[run],
            window=self._windows[run],
            is_cross=run in self._crossing,
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
        with whatever implementation it has; it is put back as it was on exit, also after an error
    rows : how many rows of each call, sequence and head to measure: log-spaced for a causal pass, evenly spaced for an
        encoder's, all of them if there are no more
    measures : names from ``undilute.measures.registry``; all by default
    x : what the weights select from in d̃ and N_s/N: the layer's "values", or its "input"
    top : the N of top-N mass, d̃ and N_s/N
    sinks : how many of the first tokens count as sink
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
    """Rows in runs of about ``BLOCK`` logits over all heads."""
    heads, start = call.query.shape[1], 0
    stops = (rows + call.offset + 1).tolist() if not call.looks_ahead else [call.keys] * len(rows)
    for end in range(1, len(rows) + 1):
        if end == len(rows) or heads * (end + 1 - start) * stops[end] > BLOCK:
            yield rows[start:end]
            start = end


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
