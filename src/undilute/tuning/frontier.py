"""How far should one go?  Every share of the learned θ has its price on plain text and its gain on questions.

θ was learned with its text kept as the untreated model had read it. Here the treated model reads everything itself, as
it will in use. Each point is θ times a scale: 0 is the untreated model, 1 all that was learned. The best point within a
budget of nats is taken, and all of them are kept with the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from undilute.evaluation.changes import LOSS, RUN, change
from undilute.models import text_loss
from undilute.models.forward_pass import evaluating
from undilute.progress import Progress
from undilute.treatment.apply import apply
from undilute.tuning.knobs import Knobs
from undilute.tuning.learning import Look, look
from undilute.tuning.rows import Kept

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

SCALES = (0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Point:
    """One scale of θ.

    Attributes
    ----------
    scale : what θ is multiplied by
    answer_loss, right : cross-entropy of the answers in nats, and the share that is right, on what was not learned from
    text_loss, low, high : change of the loss on plain text in nats, and its 95 % interval
    """

    scale: float
    answer_loss: float
    right: float
    text_loss: float
    low: float
    high: float


def frontier(
    model: PreTrainedModel,
    knobs: Knobs,
    theta: Tensor,
    chosen: Sequence[Kept],
    windows: Tensor,
    rows: str,
    joint: bool,
    on_progress: Progress,
    scales: Sequence[float] = SCALES,
) -> list[Point]:
    """Every scale of θ, measured; 0 first.

    Parameters
    ----------
    model : untreated
    knobs, theta : what was learned, (parameters,)
    chosen : samples that decide, with what the untreated model has kept of them
    windows : (windows, tokens) of plain text that nothing was learned from
    rows : "all", or "question": plain text is not touched then, and texts stay as they were read
    joint : whether the model takes several questions in one pass
    on_progress : called with (share done, what is being done)
    """
    with evaluating(model):
        on_progress(0.0, "the untreated model")
        before = text_loss.losses(model, windows) if rows == "all" else np.zeros((1, RUN))
        points = [_point(0.0, look(model, {}, chosen, 0, joint), before, before)]
        for place, scale in enumerate(scales, start=1):
            on_progress(place / (len(scales) + 1), f"{scale:g} of what was learned")
            plan = knobs.plan(scale * theta, type(model).__name__, {}, rows)
            with apply(model, plan):
                after = text_loss.losses(model, windows) if rows == "all" else before
                kept = [Kept(model, each.sample) for each in chosen] if rows == "all" else chosen
                points.append(_point(scale, look(model, {}, kept, 0, joint), before, after))
    return points


def _point(scale: float, looked: Look, before: NDArray[np.float64], after: NDArray[np.float64]) -> Point:
    blocks = np.arange(before.size).reshape(before.shape) // RUN
    made = change(LOSS, "nats", before.ravel(), after.ravel(), blocks.ravel(), better="lower")
    return Point(scale, looked.loss, looked.right, made.difference, made.low or 0.0, made.high or 0.0)


def best(points: Sequence[Point], budget: float) -> Point:
    """The point that answers best, of those whose text costs no more than the budget in nats.

    Examples
    --------
    >>> points = [Point(0.0, 2.0, 0.5, 0.0, 0.0, 0.0), Point(0.5, 1.0, 0.7, 0.01, 0.0, 0.02)]
    >>> best([*points, Point(1.0, 0.9, 0.8, 0.2, 0.1, 0.3)], budget=0.015).scale
    0.5
    """
    within = [each for each in points if each.text_loss <= budget]
    return min(within, key=lambda each: each.answer_loss)


def as_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points as data."""
    return [{name: round(value, 5) for name, value in asdict(each).items()} for each in points]


def combined(thetas: Sequence[Tensor]) -> Tensor:
    """One θ of several seeds': their mean, so that factors are multiplied by their geometric mean."""
    return torch.stack(list(thetas)).mean(0)
