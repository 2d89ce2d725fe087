"""How would each head's rows look if their logits were multiplied by β?

One pass over a few windows of text: every sampled row is measured at each β of a grid, so that the β which brings a
row, or a head's median row, to any level is read off without another pass. Entropy falls and the top weight rises
with β.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undilute.measures.attention_rows import Rows, Settings
from undilute.measures.registry import Measure
from undilute.models.capture import Capture
from undilute.models.forward_pass import evaluating, forward_pass

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Hold = Literal["top", "entropy"]
BETAS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.5, 8.0)
LOWEST = -80.0
ROWS = 128  # of each window: 18 in each octave of n at 2,048 tokens


@dataclass(frozen=True, eq=False)
class Sharpened:
    """The sampled rows of one layer at every β.

    Attributes
    ----------
    n : (rows,), keys that a row sees
    measured : (betas, heads, rows)
    """

    n: NDArray[np.int64]
    measured: NDArray[np.float64]


def top_weight_at(beta: float) -> Callable[[Rows], Tensor]:
    """Logit of the largest weight at β, the sink left out: ln p − ln(1 − p), which is a line in β for equal rivals."""

    def compute(rows: Rows) -> Tensor:
        total = _times(beta, rows.without_sink).exp().sum(-1)
        return -(total - 1).clamp(min=torch.finfo(total.dtype).eps).log()

    return compute


def entropy_at(beta: float) -> Callable[[Rows], Tensor]:
    """Entropy of the whole row at β, in nats."""

    def compute(rows: Rows) -> Tensor:
        z = _times(beta, rows)
        e = z.exp()
        total = e.sum(-1)
        return (total.log() - (e * z).sum(-1) / total).clamp(min=0.0)

    return compute


def _times(beta: float, rows: Rows) -> Tensor:
    """(heads, rows, keys): β·(z − max z), not so low that a weight becomes a denormal number, which is slow."""
    return (beta * rows.below).clamp_(min=LOWEST)


AT: dict[Hold, Callable[[float], Callable[[Rows], Tensor]]] = {"top": top_weight_at, "entropy": entropy_at}


def sharpened(
    model: PreTrainedModel, windows: Tensor, hold: Hold, on_window: Callable[[int], None], *, sinks: int = 1
) -> list[Sharpened]:
    """Every layer's rows at every β of ``BETAS``.

    Parameters
    ----------
    model : a causal language model
    windows : (windows, tokens) token ids
    hold : what to measure: the logit of the top weight, sink left out, or the entropy of the whole row
    on_window : called with the number of windows read so far
    sinks : how many of the first tokens count as sink
    """
    measures = [Measure(f"at_{beta}", "", "", "", AT[hold](beta), False) for beta in BETAS]
    capturing = Capture(model, ROWS, measures, Settings(sinks=sinks), "values")
    with torch.inference_mode(), evaluating(model), capturing:
        for number, ids in enumerate(windows, start=1):
            forward_pass(model, ids)
            on_window(number)
    return [
        Sharpened(layer.n, np.stack([layer.measures[each.name] for each in measures])) for layer in capturing.layers
    ]


def needed(levels: NDArray[np.float64], target: float, falls: bool) -> float:
    """The β at which something measured on the grid ``BETAS`` reaches ``target``; 1 if it is there, 8 if it never is.

    Parameters
    ----------
    levels : (betas,), monotone up to noise
    falls : whether it falls as β grows, as entropy does

    Examples
    --------
    >>> levels = np.array([3.0 - beta for beta in BETAS])
    >>> round(needed(levels, target=1.4, falls=True), 6)
    1.6
    """
    rising = np.maximum.accumulate(-levels if falls else levels)
    goal = -target if falls else target
    if not np.isfinite(rising).all() or rising[0] >= goal:
        return 1.0
    if rising[-1] <= goal:
        return BETAS[-1]
    above = int(np.searchsorted(rising, goal))
    low, high = rising[above - 1], rising[above]
    share = (goal - low) / (high - low)
    return float(BETAS[above - 1] + share * (BETAS[above] - BETAS[above - 1]))
