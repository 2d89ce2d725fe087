"""Which pictures show how readers compare?  Recall and kept gold over length, cost, and a map of tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from undilute.evaluation.result import Mean
from undilute.report.result import Chart, HeatMap, Result, Series
from undilute.selection.comparison import Comparison

ID = "readers"
TOKENS = "tokens of the haystack"
OVER_HAYSTACKS = "Shaded: 95 % intervals over haystacks; what counts is the paired difference in the table."
KEPT = "Whether all that the answer needs was in what the model read. Shaded: 95 % intervals over haystacks."


def result(found: Comparison) -> Result:
    """A comparison as pages and files show it."""
    return Result(
        ID,
        {name: tuple(each) if isinstance(each, list) else each for name, each in found.settings.items()},
        found.findings,
        [],
        found.tables,
        pictures(found),
        found.seconds,
        dict(found.made),
        found.command,
    )


def pictures(found: Comparison) -> list[Chart | HeatMap]:
    """Curves where there are several lengths, and a map where there are several tasks."""
    made: list[Chart | HeatMap] = []
    if len(found.lengths) > 1:
        tasks: Sequence[str | None] = [None, *found.tasks] if len(found.tasks) > 1 else [None]
        made += [_recall(found, task) for task in tasks]
        made += [_kept(found, task) for task in tasks if task is None or _lost(found, task)]
        made += [_tokens(found), _seconds(found)]
    if len(found.tasks) > 1:
        made.append(_map(found))
    return made


def _lost(found: Comparison, task: str) -> bool:
    return any(found.kept(reader, task).value < 100 for reader in found.readers)


def _words(found: Comparison, task: str | None) -> str:
    return task or (found.tasks[0] if len(found.tasks) == 1 else "all tasks")


def _recall(found: Comparison, task: str | None) -> Chart:
    guessed = [
        100 * statistics.fmean(each.chance for each in found.of(found.readers[0], task, length))
        for length in found.lengths
    ]
    series = [
        *_shares(found, lambda *which: found.recall(*which), task),
        Series("guessing", found.lengths, guessed, bound=True),
    ]
    title = f"Right answers by length: {_words(found, task)}"
    return Chart(f"recall-{task or 'all'}", title, TOKENS, "recall, %", series, x_log=2, note=OVER_HAYSTACKS)


def _kept(found: Comparison, task: str | None) -> Chart:
    title = f"Gold kept by length: {_words(found, task)}"
    series = _shares(found, lambda *which: found.kept(*which), task)
    return Chart(f"kept-{task or 'all'}", title, TOKENS, "gold kept, %", series, x_log=2, note=KEPT)


def _shares(found: Comparison, share: Callable[[str, str | None, int], Mean], task: str | None) -> list[Series]:
    made = []
    for reader in found.readers:
        means = [share(reader, task, length) for length in found.lengths]
        values, low, high = ([getattr(each, part) for each in means] for part in ("value", "low", "high"))
        made.append(Series(reader, found.lengths, values, low=low, high=high))
    return made


def _tokens(found: Comparison) -> Chart:
    note = "To choose and to answer. A text that was read to choose is counted for every question about it."
    return _cost(found, "tokens", "Tokens that a model reads for a question", "tokens", note, read)


def _seconds(found: Comparison) -> Chart:
    note = "The median question. Questions about one haystack share the time of reading it."
    return _cost(found, "seconds", "Time for a question", "seconds", note, seconds)


def _cost(
    found: Comparison, name: str, title: str, unit: str, note: str, value: Callable[[Comparison, str, int], float]
) -> Chart:
    series = [
        Series(reader, found.lengths, [value(found, reader, length) for length in found.lengths])
        for reader in found.readers
    ]
    return Chart(name, title, TOKENS, unit, series, x_log=2, y_log=10, note=note)


def read(found: Comparison, reader: str, length: int) -> float:
    """Tokens that a model reads to choose and to answer."""
    return statistics.fmean(each.chosen + each.answered for each in found.of(reader, length=length))


def seconds(found: Comparison, reader: str, length: int) -> float:
    """Of the median question."""
    return statistics.median(each.seconds for each in found.of(reader, length=length))


def _map(found: Comparison) -> HeatMap:
    rows = [[found.recall(reader, task).value for task in found.tasks] for reader in found.readers]
    guessed = (
        f"{task}: {100 * statistics.fmean(each.chance for each in found.of(found.readers[0], task)):.0f} %"
        for task in found.tasks
    )
    return HeatMap(
        "recall-by-task",
        "Right answers by task" + (", all lengths" if len(found.lengths) > 1 else ""),
        "task",
        "reader",
        found.tasks,
        found.readers,
        [[value if math.isfinite(value) else None for value in row] for row in rows],
        "recall, %",
        better="higher",
        centre=found.baseline,
        note=f"By guessing: {', '.join(guessed)}.",
    )
