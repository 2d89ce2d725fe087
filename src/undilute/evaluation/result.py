"""What is an evaluation?  Everything that was measured, what changed, the figures, and ways to read and keep them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from undilute import files
from undilute.errors import MissingExtra, UnknownName
from undilute.evaluation import sentences
from undilute.evaluation.changes import ENTROPY, RUN, Change, interval
from undilute.evaluation.measure import Answer, Measurement
from undilute.models.text_loss import position_buckets
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

    from undilute.report.result import Result

Kind = Literal["evaluate", "treat", "compare"]  # the model as it is, one treatment, several
Row = dict[str, Any]
PLAN = "plan.json"
COSTS = {  # by what it is called in tables and charts
    "reading, s": "prefill_seconds",
    "one more token, s": "decode_seconds",
    "memory for reading, MB": "extra_megabytes",
}
DEPTHS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of :func:`undilute.evaluate` and :func:`undilute.compare`.

    Attributes
    ----------
    id : "treat" for one treatment, "compare" for several, "evaluate" for none
    measurements : of the same text and questions; the untreated model first
    changes : label of a treatment → paired differences from the untreated model
    plans : name of a file → the plan that :meth:`save` writes to it
    notes : what the treatment is, and what to beware of
    settings : what the figures depend on
    seconds : how long it took
    command : what to type for these figures, if they came from the command line
    """

    id: Kind
    measurements: Sequence[Measurement]
    changes: Mapping[str, Sequence[Change]]
    plans: Mapping[str, Plan]
    notes: Sequence[str]
    settings: Mapping[str, Any]
    seconds: float = 0.0
    command: str = field(default="")

    @cached_property
    def findings(self) -> list[str]:
        """What came out, in sentences; the first is the answer."""
        first, *others = self.measurements
        match self.id:
            case "evaluate":
                answer, *more = sentences.as_it_is(first)
            case "treat":
                answer, *more = sentences.findings(first, others[0], self.changes[others[0].label])
            case _:
                answer, *more = sentences.compared(self.measurements, self.changes)
        return [answer, *self.notes, *more]

    def summary(self) -> str:
        """The answer, followed by the other findings, one per line."""
        answer, *others = self.findings
        return "\n".join([answer, *(f"• {each}" for each in others)])

    @cached_property
    def tables(self) -> Mapping[str, Sequence[Row]]:
        """Every figure, by the name of its table: changes, loss by position, recall, entropy, cost."""
        return tables(self.measurements, self.changes)

    def frame(self, table: str | None = None) -> pandas.DataFrame:
        """One of the tables; by default the paired changes, or the loss by position if nothing was changed."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra("pandas", "models") from None
        table = table or ("changes" if self.changes else "loss by position")
        if table not in self.tables:
            raise UnknownName("table", table, self.tables)
        return pandas.DataFrame(self.tables[table])

    def report(self) -> Result:
        """Findings, tables and charts, as pages and files show them."""
        from undilute.report import evaluation_charts

        return evaluation_charts.result(self)

    def save_html(self, path: str | Path) -> Path:
        """Write a page that needs no network, and return its path."""
        from undilute.report import result_page

        return files.write(Path(path), result_page.page([self.report()]))

    def save_json(self, path: str | Path) -> Path:
        """Write everything the page shows as JSON, and return its path."""
        from undilute.report import result_files

        return files.write(Path(path), result_files.to_json(self.report()))

    def save(self, folder: str | Path, also: Mapping[Path, str] | None = None) -> list[Path]:
        """Write everything: the page, results.json, a CSV file per table, a PNG file per chart, and plans.

        Parameters
        ----------
        folder : where to write; created if it does not exist
        also : other files to write together with these: all or none
        """
        from undilute.report import result_files

        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        return result_files.save(self.report(), Path(folder), plans, also)

    def __repr__(self) -> str:
        return f"Evaluation of {self.settings.get('model')!r}: {self.findings[0]}"

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        rows = self.tables["changes"] if self.changes else self.tables["loss by position"]
        return notebook.fragment(self.findings[0], rows, self.findings[1:])


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


# ---------------------------------------------------------------- tables


def tables(measurements: Sequence[Measurement], changes: Mapping[str, Sequence[Change]]) -> dict[str, list[Row]]:
    """Every figure, by the name of its table; none of what was not measured."""
    found = {
        "changes": [_change(label, each) for label, lines in changes.items() for each in lines],
        "loss by position": [row for each in measurements for row in _losses(each)],
        "recall": [row for each in measurements for row in _recalls(each)],
        "entropy": [row for each in measurements for row in _entropies(each)],
        "cost": [_cost(each, measurements[0]) for each in measurements if each.cost is not None],
    }
    return {name: rows for name, rows in found.items() if rows}


ATTENTION: dict[str, str] = {"better": "narrower", "worse": "wider"}  # whether that helps, loss and recall say


def _change(label: str, change: Change) -> Row:
    return {
        "rule": label,
        "what": change.what,
        "unit": change.unit,
        "before": change.before,
        "after": change.after,
        "difference": change.difference,
        "low": change.low,
        "high": change.high,
        "p": change.p_value,
        "verdict": ATTENTION.get(change.verdict, change.verdict) if change.what == ENTROPY else change.verdict,
        "blocks": change.count,
    }


def _losses(measured: Measurement) -> list[Row]:
    rows: list[Row] = []
    for first, last in position_buckets(measured.losses.shape[1] + 1):
        found = loss_within(measured, first, last)
        interval = {"low": found.low, "high": found.high, "tokens": found.count}
        rows.append({"rule": measured.label, "from": first, "to": last, "loss": found.value, **interval})
    return rows


def _recalls(measured: Measurement) -> list[Row]:
    rows: list[Row] = []
    for task in measured.tasks:
        for length in measured.lengths:
            asked = measured.asked(task=task, length=length)
            if not asked:
                continue
            found = recall(asked)
            rows.append(
                {
                    "rule": measured.label,
                    "task": task,
                    "length": length,
                    "recall, %": found.value,
                    "low": found.low,
                    "high": found.high,
                    "guessing, %": chance(asked),
                    "log-probability": log_probability(asked),
                    "questions": len(asked),
                    "haystacks": len({each.haystack for each in asked}),
                }
            )
    return rows


def _entropies(measured: Measurement) -> list[Row]:
    return [
        {"rule": measured.label, "n": n, "median, nats": median, "first quartile": first, "third quartile": third}
        for n, median, first, third in entropies(measured)
    ]


def _cost(measured: Measurement, baseline: Measurement) -> Row:
    row: dict[str, Any] = {"rule": measured.label, "tokens": getattr(measured.cost, "tokens", None)}
    for name, part in COSTS.items():
        own, other = (getattr(each.cost, part, None) for each in (measured, baseline))
        row |= {name: own, f"{name}, ratio": ratio(own, other)}
    return row
