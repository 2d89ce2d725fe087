"""Which figures and pictures show what a treatment does to a model?  Curves for one, heat maps for many.

Loss by position, recall by length, task and depth, entropy and cost, each with its interval; the first measurement is
that of the model as it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from undilute.evaluation.changes import LOSS, RUN, Change, after_tokens, interval
from undilute.evaluation.measure import Answer, Measurement
from undilute.models.text_loss import position_buckets
from undilute.report.result import Chart, HeatMap, Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCKS = f"Shaded: 95 % intervals over runs of {RUN} tokens; what counts is the paired difference in the table."
HAYSTACKS = "Shaded: 95 % intervals over haystacks; what counts is the paired difference in the table."
COSTS = {  # by what it is called in tables and charts
    "reading, s": "prefill_seconds",
    "one more token, s": "decode_seconds",
    "memory for reading, MB": "extra_megabytes",
}
DEPTHS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))


# ---------------------------------------------------------------- figures


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


def loss_within(measured: Measurement, first: int, last: int) -> Mean:
    """Next-token loss after ``first`` to ``last`` tokens, in nats."""
    return mean(_runs(measured.losses[:, first - 1 : last]))


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


def at_depth(measured: Measurement, low: float, high: float) -> list[Answer]:
    """The answers about what stands between two depths; the end of the haystack belongs to the last of them."""
    return [each for each in measured.answers if low <= each.depth < high or each.depth == high == 1.0]


def entropies(measured: Measurement) -> list[tuple[int, float, float, float]]:
    """(n, median, first quartile, third quartile) of the heads' entropies in nats, for each n that was sampled."""
    spread = measured.spread
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


# ---------------------------------------------------------------- one treatment


def curves(measurements: Sequence[Measurement], changes: Sequence[Change]) -> list[Chart]:
    """Everything by what it depends on: loss by position, recall by length and depth, entropy by visible keys.

    Parameters
    ----------
    measurements : the model as it is, and as it is treated
    changes : from the first of them to the second, if there is one
    """
    tasks = measurements[0].tasks
    recalls = [_recall_by_length(measurements, task) for task in tasks]
    depths = [_recall_by_depth(measurements)] if tasks else []
    differences = [_loss_change(measurements[1], changes)] if changes else []
    return [_loss(measurements), *differences, *recalls, *depths, entropy(measurements)]


def _loss(measurements: Sequence[Measurement]) -> Chart:
    buckets = position_buckets(measurements[0].losses.shape[1] + 1)
    series = []
    for each in measurements:
        means = [loss_within(each, first, last) for first, last in buckets]
        series.append(_series(each.label, [last for _, last in buckets], means))
    return Chart(
        "loss-by-position",
        "Next-token loss by how many tokens came before",
        "tokens before, up to",
        "loss, nats",
        series,
        x_log=2,
        note=BLOCKS,
    )


def _loss_change(after: Measurement, changes: Sequence[Change]) -> Chart:
    lines = {each.what: each for each in changes}
    buckets = position_buckets(after.losses.shape[1] + 1)
    found = [lines.get(f"{LOSS} {after_tokens(*bucket)}", lines[LOSS]) for bucket in buckets]  # one bucket is all
    x = [last for _, last in buckets]
    low, high = ([math.nan if end is None else end for end in ends] for ends in zip(*map(_ends, found), strict=True))
    series = [
        Series(f"{after.label}, less than 0 is better", x, [each.difference for each in found], low=low, high=high),
        Series("no difference", x, [0.0] * len(x), bound=True),
    ]
    return Chart(
        "loss-difference",
        "Next-token loss after treatment less that before, of the same tokens",
        "tokens before, up to",
        "difference in loss, nats",
        series,
        x_log=2,
        note="Shaded: 95 % intervals of the paired difference. Where they hold 0, there is no clear difference.",
    )


def _ends(change: Change) -> tuple[float | None, float | None]:
    return change.low, change.high


def _recall_by_length(measurements: Sequence[Measurement], task: str) -> Chart:
    lengths = measurements[0].lengths
    series = []
    for each in measurements:
        asked = [each.asked(task=task, length=length) for length in lengths]
        series.append(_series(each.label, lengths, list(map(recall, asked))))
    guessed = [chance(measurements[0].asked(task=task, length=length)) for length in lengths]
    series.append(Series("guessing", lengths, guessed, bound=True))
    return Chart(
        f"recall-{task}",
        f"Needle recall by length: {task}",
        "tokens of the haystack",
        "recall, %",
        series,
        x_log=2,
        note=HAYSTACKS,
    )


def _recall_by_depth(measurements: Sequence[Measurement]) -> Chart:
    middles = [100 * (low + high) / 2 for low, high in DEPTHS]
    series = [
        _series(
            each.label,
            middles,
            [recall(at_depth(each, low, high)) for low, high in DEPTHS],
        )
        for each in measurements
    ]
    return Chart(
        "recall-by-depth",
        "Needle recall by where the needle stands, all tasks and lengths",
        "depth in the haystack, %: 0 is its start",
        "recall, %",
        series,
        note=HAYSTACKS,
    )


def entropy(measurements: Sequence[Measurement]) -> Chart:
    """The heads' entropy by how many keys a row sees."""
    series = []
    for each in measurements:
        rows = entropies(each)
        n, median, low, high = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
        series.append(Series(each.label, n, median, low=low, high=high))
    return Chart(
        "entropy",
        "How widely the heads attend",
        "keys that the row sees",
        "entropy, nats",
        series,
        x_log=2,
        note="Median over all heads, treated or not; shaded: its quartiles. Rows of the first window.",
    )


def _series(name: str, x: Sequence[float], means: Sequence[Mean]) -> Series:
    values, low, high = ([getattr(each, part) for each in means] for part in ("value", "low", "high"))
    return Series(name, list(x), values, low=low, high=high)


# ---------------------------------------------------------------- many rules


def heat_maps(measurements: Sequence[Measurement]) -> list[HeatMap]:
    """Rule × length, rule × task and rule × position, coloured by the difference from the first measurement."""
    return [*recalls(measurements), _loss_differences(measurements), *costs(measurements)]


def recalls(measurements: Sequence[Measurement]) -> list[HeatMap]:
    """Recall by length and by task, if anything was asked."""
    lengths, tasks = measurements[0].lengths, measurements[0].tasks
    if not lengths:
        return []
    of_length = [[each.asked(length=length) for length in lengths] for each in measurements]
    of_task = [[each.asked(task=task) for task in tasks] for each in measurements]
    labels = [each.label for each in measurements]
    columns = [f"{length:,}" for length in lengths]
    by_length = "Needle recall by length, all tasks", "tokens of the haystack"
    return [
        _recall_map("recall-by-length", *by_length, columns, labels, of_length),
        _recall_map("recall-by-task", "Needle recall by task, all lengths", "task", tasks, labels, of_task),
    ]


def _recall_map(
    name: str,
    title: str,
    x_label: str,
    columns: Sequence[str],
    labels: Sequence[str],
    asked: Sequence[Sequence[Sequence[Answer]]],
) -> HeatMap:
    """Recall of each rule, a row of ``asked``, in each column."""
    guessed = (f"{column}: {chance(own):.0f} %" for column, own in zip(columns, asked[0], strict=True))
    return HeatMap(
        name,
        title,
        x_label,
        "rule",
        columns,
        labels,
        [[recall(own).value for own in row] for row in asked],
        "recall, %",
        better="higher",
        centre=labels[0],
        note=f"By guessing: {', '.join(guessed)}.",
    )


def _loss_differences(measurements: Sequence[Measurement]) -> HeatMap:
    buckets = position_buckets(measurements[0].losses.shape[1] + 1)
    losses = [[loss_within(each, *bucket).value for bucket in buckets] for each in measurements]
    baseline = measurements[0].label
    shown = ", ".join(f"{value:.3f}" for value in losses[0])
    return HeatMap(
        "loss-difference",
        f"Next-token loss by position, difference from {baseline}",
        "tokens before",
        "rule",
        [f"{first:,}–{last:,}" for first, last in buckets],
        [each.label for each in measurements],
        [[value - start for value, start in zip(row, losses[0], strict=True)] for row in losses],
        "difference in loss, nats",
        better="lower",
        centre=baseline,
        note=f"The loss of {baseline} itself, from left to right: {shown} nats.",
    )


def costs(measurements: Sequence[Measurement]) -> list[HeatMap]:
    """Time and memory, if they were measured."""
    return [_costs(measurements)] if all(each.cost is not None for each in measurements) else []


def _costs(measurements: Sequence[Measurement]) -> HeatMap:
    baseline = measurements[0].cost
    values = [
        [ratio(getattr(each.cost, part, None), getattr(baseline, part, None)) for part in COSTS.values()]
        for each in measurements
    ]
    return HeatMap(
        "cost",
        f"Time and memory, as ratios to {measurements[0].label}",
        "what is done",
        "rule",
        [name.rpartition(",")[0] for name in COSTS],
        [each.label for each in measurements],
        values,
        f"ratio to {measurements[0].label}",
        better="lower",
        centre=measurements[0].label,
        note="Measured in turns in one run, the best of several; other work on the machine moves it.",
    )
