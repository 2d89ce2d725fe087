"""Does attention dilute while a model is trained?  A few numbers about every head, from the training passes themselves.

    monitor = DilutionMonitor(model, every=100)
    for batch in data:
        with monitor:
            loss = model(**batch).loss
        ...
        monitor.log(print)

Every 100th pass is measured while it runs. Nothing is run twice, and the other passes are not touched. Only long rows
count: averages are over each layer's sampled rows that see at least half as many keys as the longest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from undilute.errors import InvalidValue, MissingExtra
from undilute.models.capture import Capture, LayerSample, capture
from undilute.rules.parameters import count

EVERY = 100
ROWS = 32  # of each sequence: log-spaced, so that a few are at the long end
MEASURES = ("entropy", "normalised_entropy", "n_eff", "top_weight", "sink_share")


class DilutionMonitor(AbstractContextManager["DilutionMonitor"]):
    """Measure every ``every``-th pass through its ``with`` block, and do nothing in the others.

    Parameters
    ----------
    model : a Hugging Face model whose attention goes through ``AttentionInterface``, or any module around one: PEFT,
        ``DistributedDataParallel``, ``torch.compile`` (a measured pass then runs without the compiled code)
    every : measure one pass in this many; 1 measures every pass
    rows : rows to sample from each sequence
    per_layer : also give the numbers of each layer

    Attributes
    ----------
    model : the Hugging Face model that is measured
    passes : how many times the block was entered
    latest : what the last pass gave, by key (see :func:`summary`); None if it was not measured

    Examples
    --------
    >>> import torch, transformers
    >>> model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50))
    >>> monitor = DilutionMonitor(model, every=2)
    >>> for step in (1, 2):
    ...     with monitor:
    ...         _ = model(torch.arange(40)[None])
    ...     monitor.log(lambda values: print(step, *values, sep="\\n"))
    2
    dilution/entropy
    dilution/normalised_entropy
    dilution/n_eff
    dilution/top_weight
    dilution/sink_share
    dilution/top_weight_min
    """

    def __init__(self, model: nn.Module, every: int = EVERY, rows: int = ROWS, *, per_layer: bool = False) -> None:
        self.model = attending(model)
        self.every = count("every", every)
        self.rows = count("rows", rows)
        self.per_layer = per_layer
        self.passes = 0
        self.latest: dict[str, float] | None = None
        self._capture: Capture | None = None
        self._open = ExitStack()
        with self._new_capture():
            pass  # a model that cannot be measured says so now, not hours into the training

    def __enter__(self) -> DilutionMonitor:
        self.latest = None
        self.passes += 1
        if self.passes % self.every == 0:
            self._open.enter_context(uncompiled())
            self._capture = self._open.enter_context(self._new_capture())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        measured, self._capture = self._capture, None
        if measured is None or error is not None:
            return
        layers = measured.layers
        if not layers:
            raise InvalidValue(
                f"no attention of {type(self.model).__name__} ran inside the monitor's block: call that model "
                "inside it."
            )
        self.latest = summary(layers, per_layer=self.per_layer)

    def log(self, report: Callable[[dict[str, float]], object]) -> None:
        """Give the numbers to ``report``, such as ``print`` or ``wandb.log``, if the last pass was measured."""
        if self.latest is not None:
            report(self.latest)

    def _new_capture(self) -> Capture:
        return capture(self.model, self.rows, measures=MEASURES)


def summary(layers: Sequence[LayerSample], *, per_layer: bool = False) -> dict[str, float]:
    """Means over all heads, each over its long rows: those that see at least half the keys of the layer's longest row.

    Parameters
    ----------
    layers : what a capture with at least ``MEASURES`` gave
    per_layer : the same of each layer too, as ``dilution/layer_03/entropy``

    Returns
    -------
    dict
        ``dilution/`` with entropy, normalised_entropy, n_eff, top_weight, sink_share, and top_weight_min, the top
        weight of the head that has the smallest.
    """
    heads = [_heads(layer) for layer in layers]
    values = _named("dilution", np.concatenate(heads, axis=1))
    if per_layer:
        for layer, of_layer in zip(layers, heads, strict=True):
            values |= _named(f"dilution/layer_{layer.index:02d}", of_layer)
    return values


def _heads(layer: LayerSample) -> NDArray[np.float64]:
    """(measures, heads): the mean of each head's long rows."""
    long = 2 * layer.n >= layer.n.max()
    return np.stack([layer.measures[name][:, long].mean(-1) for name in MEASURES])


def _named(prefix: str, heads: NDArray[np.float64]) -> dict[str, float]:
    values = {f"{prefix}/{name}": float(row.mean()) for name, row in zip(MEASURES, heads, strict=True)}
    return values | {f"{prefix}/top_weight_min": float(heads[MEASURES.index("top_weight")].min())}


def attending(model: nn.Module) -> nn.Module:
    """The outermost Hugging Face model in ``model``: itself, or what PEFT, DDP or torch.compile are wrapped around."""
    try:
        from transformers import PreTrainedModel
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "models") from None
    if isinstance(model, nn.DataParallel):
        raise InvalidValue(
            "model is a DataParallel: its copies run in threads, which cannot be measured; must be a plain model or "
            "one in DistributedDataParallel."
        )
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return next((part for part in parts if isinstance(part, PreTrainedModel)), model)


def uncompiled() -> AbstractContextManager[Any]:
    """Inside, compiled modules run their plain code: otherwise each measured pass would compile the model again."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and importing it takes seconds
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
