"""Which pictures show what a treatment does to a model?  Curves for one, heat maps for many.

Loss by position, recall by length, task and depth, entropy and cost, each with its interval; the first measurement is
that of the untreated model. An evaluation, with its findings and tables, uses the same page as all other results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from undilute.evaluation.changes import LOSS, RUN, Change, after_tokens
from undilute.evaluation.measure import Answer, Measurement
from undilute.evaluation.result import (
    COSTS,
    DEPTHS,
    Evaluation,
    Mean,
    at_depth,
    chance,
    entropies,
    loss_within,
    ratio,
    recall,
)
from undilute.models.text_loss import position_buckets
from undilute.report.result import Chart, HeatMap, Result, Series

BLOCKS = f"Shaded: 95 % intervals over runs of {RUN} tokens; what counts is the paired difference in the table."
HAYSTACKS = "Shaded: 95 % intervals over haystacks; what counts is the paired difference in the table."


def result(evaluation: Evaluation) -> Result:
    """What ``undilute.evaluate`` or ``undilute.compare`` found."""
    measured = evaluation.measurements
    pictures: list[Chart | HeatMap]
    if evaluation.id == "compare":
        pictures = [*heat_maps(measured), entropy(measured)]
    else:
        lines = [each for own in evaluation.changes.values() for each in own]
        pictures = [*curves(measured, lines), *recalls(measured), *costs(measured)]
    return Result(
        evaluation.id,
        evaluation.settings,
        evaluation.findings,
        [],
        evaluation.tables,
        pictures,
        evaluation.seconds,
        command=evaluation.command,
    )


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
        "Change in next-token loss on the same tokens, after minus before",
        "tokens before, up to",
        "difference in loss, nats",
        series,
        x_log=2,
        note="Shaded: 95 % intervals of the paired difference. Where they include 0, no difference is clear.",
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
        note="Measured in turns in one run, the best of several; other work on the machine affects it.",
    )
