"""What does a page need to know to draw a chart?  Its curves, with what tells them apart; charts.js does the rest."""

from __future__ import annotations

from typing import Any

from undilute.report.charts.curve import NOTHING, PRINTED_WIDTH, WIDTH, Curve, axis_ticks, curves, explained
from undilute.report.charts.writing import label, writable
from undilute.report.result import Chart


def drawing(chart: Chart) -> dict[str, Any]:
    """The chart as charts.js describes it, ready for JSON.

    Examples
    --------
    >>> from undilute.report.result import Series
    >>> made = drawing(Chart("c", "t", "n", "weight", [Series("top", [16, 64], [0.9, 0.5])], x_log=2))
    >>> made["x"], made["curves"][0]["points"]
    ({'label': 'n', 'log': 2, 'ticks': [(16.0, '16'), (64.0, '64')]}, [(16.0, 0.9), (64.0, 0.5)])
    """
    drawn = curves(chart)
    across, up = axis_ticks(chart, drawn)
    return {
        "described": f"{writable(chart.title)}. Arrow keys read values.",
        "x": _axis(chart.x_label, chart.x_log, across),
        "y": _axis(chart.y_label, chart.y_log, up),
        "curves": [_curve(each) for each in drawn],
        "means": explained(drawn),
        "empty": NOTHING,
    }


def _axis(name: str, log: int, ticks: list[float] | None) -> dict[str, Any]:
    numbered = None if ticks is None else [(value, label(value)) for value in ticks]
    return {"label": writable(name), "log": log, "ticks": numbered}


def _curve(curve: Curve) -> dict[str, Any]:
    width = PRINTED_WIDTH if curve.printed else WIDTH
    return {
        "name": writable(curve.name),
        "colour": curve.colour,
        "width": width,
        "dashes": [round(width * each, 1) for each in curve.dashes],
        "marker": curve.marker,
        "hollow": curve.printed,
        "points": curve.points,
        "band": curve.band,
        "boxes": curve.boxes,
        "shift": curve.shift,
        "size": curve.width,
    }
