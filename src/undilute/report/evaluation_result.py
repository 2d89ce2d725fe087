"""How is an evaluation shown?  As a result with findings, tables and charts, on the same page as all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from undilute.evaluation.changes import ENTROPY, Change
from undilute.evaluation.measure import Measurement
from undilute.evaluation.result import Evaluation
from undilute.models.text_loss import position_buckets
from undilute.report import evaluation_charts as charts
from undilute.report.result import Chart, HeatMap, Result, Row


def result(evaluation: Evaluation) -> Result:
    """What ``undilute.evaluate`` or ``undilute.compare`` found."""
    measured = evaluation.measurements
    pictures: list[Chart | HeatMap]
    if evaluation.id == "compare":
        pictures = [*charts.heat_maps(measured), charts.entropy(measured)]
    else:
        lines = [each for own in evaluation.changes.values() for each in own]
        pictures = [*charts.curves(measured, lines), *charts.recalls(measured), *charts.costs(measured)]
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
        found = charts.loss_within(measured, first, last)
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
            found = charts.recall(asked)
            rows.append(
                {
                    "rule": measured.label,
                    "task": task,
                    "length": length,
                    "recall, %": found.value,
                    "low": found.low,
                    "high": found.high,
                    "guessing, %": charts.chance(asked),
                    "log-probability": charts.log_probability(asked),
                    "questions": len(asked),
                    "haystacks": len({each.haystack for each in asked}),
                }
            )
    return rows


def _entropies(measured: Measurement) -> list[Row]:
    return [
        {"rule": measured.label, "n": n, "median, nats": median, "first quartile": first, "third quartile": third}
        for n, median, first, third in charts.entropies(measured)
    ]


def _cost(measured: Measurement, baseline: Measurement) -> Row:
    row: dict[str, Any] = {"rule": measured.label, "tokens": getattr(measured.cost, "tokens", None)}
    for name, part in charts.COSTS.items():
        own, other = (getattr(each.cost, part, None) for each in (measured, baseline))
        row |= {name: own, f"{name}, ratio": charts.ratio(own, other)}
    return row
