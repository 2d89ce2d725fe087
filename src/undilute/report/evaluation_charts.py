"""Which pictures show what a rule does to a model?  Curves for one rule, heat maps for many; softmax is the first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undilute.evaluation.changes import LOSS, RUN, Change, after_tokens
from undilute.evaluation.outcome import Answer, Evaluation, Task
from undilute.models.text_loss import position_buckets
from undilute.report import evaluation_figures as figures
from undilute.report.result import Chart, HeatMap, Series

BLOCKS = f"Shaded: 95 % intervals over runs of {RUN} tokens; what counts is the paired difference in the table."
HAYSTACKS = "Shaded: 95 % intervals over haystacks; what counts is the paired difference in the table."


# ---------------------------------------------------------------- one rule beside softmax


def curves(evaluations: Sequence[Evaluation], changes: Sequence[Change]) -> list[Chart]:
    """Everything by what it depends on: loss by position, recall by length and depth, entropy by visible keys.

    Parameters
    ----------
    evaluations : the model as it was, and as it is
    changes : from the first of them to the second
    """
    tasks = figures.tasks(evaluations[0])
    recalls = [_recall_by_length(evaluations, task) for task in tasks]
    depths = [_recall_by_depth(evaluations)] if tasks else []
    return [_loss(evaluations), _loss_change(evaluations[1], changes), *recalls, *depths, entropy(evaluations)]


def _loss(evaluations: Sequence[Evaluation]) -> Chart:
    buckets = position_buckets(evaluations[0].losses.shape[1] + 1)
    series = []
    for each in evaluations:
        means = [figures.loss_within(each, first, last) for first, last in buckets]
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


def _loss_change(after: Evaluation, changes: Sequence[Change]) -> Chart:
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


def _recall_by_length(evaluations: Sequence[Evaluation], task: Task) -> Chart:
    lengths = figures.lengths(evaluations[0])
    series = []
    for each in evaluations:
        asked = [figures.answers(each, task=task, length=length) for length in lengths]
        series.append(_series(each.label, lengths, list(map(figures.recall, asked))))
    guessed = [figures.chance(figures.answers(evaluations[0], task=task, length=length)) for length in lengths]
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


def _recall_by_depth(evaluations: Sequence[Evaluation]) -> Chart:
    middles = [100 * (low + high) / 2 for low, high in figures.DEPTHS]
    series = [
        _series(
            each.label,
            middles,
            [figures.recall(figures.at_depth(each, low, high)) for low, high in figures.DEPTHS],
        )
        for each in evaluations
    ]
    return Chart(
        "recall-by-depth",
        "Needle recall by where the needle stands, all tasks and lengths",
        "depth in the haystack, %: 0 is its start",
        "recall, %",
        series,
        note=HAYSTACKS,
    )


def entropy(evaluations: Sequence[Evaluation]) -> Chart:
    """The heads' entropy by how many keys a row sees."""
    series = []
    for each in evaluations:
        rows = figures.entropies(each)
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


def _series(name: str, x: Sequence[float], means: Sequence[figures.Mean]) -> Series:
    values, low, high = ([getattr(each, part) for each in means] for part in ("value", "low", "high"))
    return Series(name, list(x), values, low=low, high=high)


# ---------------------------------------------------------------- many rules


def heat_maps(evaluations: Sequence[Evaluation]) -> list[HeatMap]:
    """Rule × length, rule × task and rule × position, coloured by the difference from the first evaluation."""
    return [*recalls(evaluations), _loss_differences(evaluations), *costs(evaluations)]


def recalls(evaluations: Sequence[Evaluation]) -> list[HeatMap]:
    """Recall by length and by task, if anything was asked."""
    lengths, tasks = figures.lengths(evaluations[0]), figures.tasks(evaluations[0])
    if not lengths:
        return []
    of_length = [[figures.answers(each, length=length) for length in lengths] for each in evaluations]
    of_task = [[figures.answers(each, task=task) for task in tasks] for each in evaluations]
    labels = [each.label for each in evaluations]
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
    guessed = (f"{column}: {figures.chance(own):.0f} %" for column, own in zip(columns, asked[0], strict=True))
    return HeatMap(
        name,
        title,
        x_label,
        "rule",
        columns,
        labels,
        [[figures.recall(own).value for own in row] for row in asked],
        "recall, %",
        better="higher",
        centre=labels[0],
        note=f"By guessing: {', '.join(guessed)}.",
    )


def _loss_differences(evaluations: Sequence[Evaluation]) -> HeatMap:
    buckets = position_buckets(evaluations[0].losses.shape[1] + 1)
    losses = [[figures.loss_within(each, *bucket).value for bucket in buckets] for each in evaluations]
    baseline = evaluations[0].label
    shown = ", ".join(f"{value:.3f}" for value in losses[0])
    return HeatMap(
        "loss-difference",
        f"Next-token loss by position, difference from {baseline}",
        "tokens before",
        "rule",
        [f"{first:,}–{last:,}" for first, last in buckets],
        [each.label for each in evaluations],
        [[value - start for value, start in zip(row, losses[0], strict=True)] for row in losses],
        "difference in loss, nats",
        better="lower",
        centre=baseline,
        note=f"The loss of {baseline} itself, from left to right: {shown} nats.",
    )


def costs(evaluations: Sequence[Evaluation]) -> list[HeatMap]:
    """Time and memory, if they were measured."""
    return [_costs(evaluations)] if all(each.cost is not None for each in evaluations) else []


def _costs(evaluations: Sequence[Evaluation]) -> HeatMap:
    baseline = evaluations[0].cost
    values = [
        [
            figures.ratio(getattr(each.cost, part, None), getattr(baseline, part, None))
            for part in figures.COSTS.values()
        ]
        for each in evaluations
    ]
    return HeatMap(
        "cost",
        f"Time and memory, as ratios to {evaluations[0].label}",
        "what is done",
        "rule",
        [name.rpartition(",")[0] for name in figures.COSTS],
        [each.label for each in evaluations],
        values,
        f"ratio to {evaluations[0].label}",
        better="lower",
        centre=evaluations[0].label,
        note="Measured in turns in one run, the best of several; other work on the machine moves it.",
    )
