"""Which figures of an evaluation does a report show?  Loss by position, recall by length, task and depth, and cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from undilute.evaluation.changes import RUN, interval
from undilute.evaluation.outcome import TASKS, Answer, Evaluation, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

COSTS = {  # by what it is called in tables and charts
    "reading, s": "prefill_seconds",
    "one more token, s": "decode_seconds",
    "memory for reading, MB": "extra_megabytes",
}
DEPTHS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))


@dataclass(frozen=True)
class Mean:
    """A mean with its 95 % interval; NaN where there is none.

    Attributes
    ----------
    value, low, high : the interval is NaN where there is only one independent part
    count : how many were averaged
    """

    value: float
    low: float
    high: float
    count: int


def mean(parts: Sequence[Sequence[float]]) -> Mean:
    """The mean of all values, with the bootstrap's interval over parts that are independent of each other.

    Examples
    --------
    >>> mean([[1.0, 3.0], [2.0, 2.0], [0.0, 4.0]])
    Mean(value=2.0, low=2.0, high=2.0, count=6)
    >>> mean([[1.0, 3.0]])
    Mean(value=2.0, low=nan, high=nan, count=2)
    """
    every = [value for part in parts for value in part]
    if not every or not all(map(math.isfinite, every)):
        return Mean(math.nan, math.nan, math.nan, len(every))
    value = statistics.fmean(every)
    if len(parts) < 2:
        return Mean(value, math.nan, math.nan, len(every))
    low, high = interval(np.array([sum(part) for part in parts]), np.array([len(part) for part in parts], float))
    return Mean(value, low, high, len(every))


def loss_within(evaluation: Evaluation, first: int, last: int) -> Mean:
    """Next-token loss after ``first`` to ``last`` tokens, in nats."""
    return mean(_runs(evaluation.losses[:, first - 1 : last]))


def _runs(losses: NDArray[np.float64]) -> list[list[float]]:
    """Runs of tokens that are averaged first."""
    return [row[start : start + RUN].tolist() for row in losses for start in range(0, len(row), RUN)]


def recall(answers: Sequence[Answer]) -> Mean:
    """The share of right answers in percent, with its interval over haystacks."""
    haystacks: dict[int, list[float]] = {}
    for answer in answers:
        haystacks.setdefault(answer.haystack, []).append(100 * answer.right)
    return mean(list(haystacks.values()))


def chance(answers: Sequence[Answer]) -> float:
    """Recall by guessing, in percent."""
    return 100 * statistics.fmean(answer.chance for answer in answers) if answers else math.nan


def log_probability(answers: Sequence[Answer]) -> float:
    """Mean log-probability of the right candidates among all candidates, in nats."""
    return statistics.fmean(answer.log_probability for answer in answers) if answers else math.nan


def tasks(evaluation: Evaluation) -> list[Task]:
    """The tasks that were asked, in their usual order."""
    asked = {answer.task for answer in evaluation.answers}
    return [task for task in TASKS if task in asked]


def lengths(evaluation: Evaluation) -> list[int]:
    """The lengths that were asked at."""
    return sorted({answer.length for answer in evaluation.answers})


def answers(evaluation: Evaluation, *, task: Task | None = None, length: int | None = None) -> list[Answer]:
    """The answers of one task, of one length, or of both."""
    return [each for each in evaluation.answers if task in (None, each.task) and length in (None, each.length)]


def at_depth(evaluation: Evaluation, low: float, high: float) -> list[Answer]:
    """The answers about what stands between two depths; the end of the haystack belongs to the last of them."""
    return [each for each in evaluation.answers if low <= each.depth < high or each.depth == high == 1.0]


def entropies(evaluation: Evaluation) -> list[tuple[int, float, float, float]]:
    """(n, median, first quartile, third quartile) of the heads' entropies in nats, for each n that was sampled."""
    spread = evaluation.spread
    found: list[tuple[int, float, float, float]] = []
    for n in np.unique(spread.n):
        values = spread.entropy[:, :, spread.n == n].reshape(-1)
        values = values[np.isfinite(values)]
        if len(values):
            median, first, third = np.quantile(values, (0.5, 0.25, 0.75)).tolist()
            found.append((int(n), median, first, third))
    return found


def ratio(after: float | None, before: float | None) -> float:
    """How many times as much; NaN where that cannot be said."""
    return after / before if after is not None and before is not None and before > 0 else math.nan
