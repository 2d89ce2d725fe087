"""What of a chart is drawn, and what tells its curves apart?

Curves can be told apart without colour: by marker and line style, and by kind. Printed values have hollow markers,
computed ones filled markers; bounds are dashed and have none; intervals are shaded; boxes stand side by side. A series
named "X, printed" takes the colour and the marker of "X" or "X, computed". Values that are not finite, and values that
a logarithmic axis cannot show, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from undilute.report.charts.writing import ticks
from undilute.report.result import Chart, Series

# Okabe–Ito without black and yellow, which vanish on a dark or a white ground, and a grey
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#848484")
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
DENSE = 60  # points of a curve from which on they have no markers
LINES: tuple[tuple[float, ...], ...] = (  # on and off, in line widths
    (),
    (1, 1.2),
    (6, 1.5, 1, 1.5),
    (6, 1.5, 1, 1.5, 1, 1.5),
    (2.5, 1, 1, 1),
    (10, 1.5, 1, 1.5),
    (1, 2.5),
)
DASHES: tuple[tuple[float, ...], ...] = ((4, 2), (8, 2.5), (2.5, 2.5), (6, 5), (11, 4), (3, 1.2), (5, 8))
WIDTH, PRINTED_WIDTH = 2.0, 1.2
NOTHING = "no finite value to draw"


@dataclass(frozen=True)
class Curve:
    """A series that is ready to draw: finite points, and what tells it apart.

    Attributes
    ----------
    name : as in the legend
    points : (x, y)
    band : (x, low, high), the shaded interval
    boxes : (x, lowest, first quartile, median, third quartile, highest)
    shift, width : of the boxes from their x, in the units of the axis (of its logarithm, where it has one)
    style : number of its colour, marker and line; beyond the seventh, colours come back with other markers and lines
    """

    name: str
    points: list[tuple[float, float]]
    band: list[tuple[float, float, float]]
    boxes: list[tuple[float, ...]]
    style: int
    printed: bool
    bound: bool
    shift: float = 0.0
    width: float = 0.0

    @property
    def colour(self) -> str:
        return COLOURS[self.style % len(COLOURS)]

    @property
    def marker(self) -> str | None:
        """None for a bound, and where points are too close for markers."""
        if self.bound or len(self.points) >= DENSE:
            return None
        return MARKERS[(self.style + self.style // len(COLOURS)) % len(MARKERS)]

    @property
    def dashes(self) -> tuple[float, ...]:
        patterns = DASHES if self.bound else LINES
        return patterns[(self.style + 2 * (self.style // len(COLOURS))) % len(patterns)]


def curves(chart: Chart) -> list[Curve]:
    """The series of a chart, ready to draw; without those that have no finite value.

    Examples
    --------
    >>> series = Series("top weight, printed", [16, 64, 256], [0.9, float("nan"), 0.5], printed=True)
    >>> curves(Chart("c", "t", "n", "weight", [series]))[0].points
    [(16.0, 0.9), (256.0, 0.5)]
    """
    kin = list(dict.fromkeys(_kin(series) for series in chart.series))
    lowest = min((value for value in _heights(chart) if value > 0), default=1.0)
    made = [_curve(series, kin.index(_kin(series)), chart, lowest) for series in chart.series]
    return _side_by_side([each for each in made if each.points or each.boxes], chart)


def _kin(series: Series) -> str:
    return series.name.removesuffix(", printed").removesuffix(", computed")


def _heights(chart: Chart) -> list[float]:
    """Every finite y of a chart, intervals and boxes included."""
    every: list[Any] = []
    for series in chart.series:
        every += [*series.y, *(series.low or ()), *(series.high or ())]
        every += [value for box in series.boxes or () for value in box]
    return [float(value) for value in every if _finite(value)]


def _finite(value: object) -> bool:
    return value is not None and math.isfinite(value)  # type: ignore[arg-type]


def _curve(series: Series, style: int, chart: Chart, lowest: float) -> Curve:
    def rows(*columns: Iterable[float]) -> list[tuple[float, ...]]:
        finite = [tuple(map(float, row)) for row in zip(*columns, strict=True) if all(map(_finite, row))]
        return [row for row in finite if not chart.x_log or row[0] > 0]

    def visible(row: tuple[float, ...]) -> bool:
        return not chart.y_log or min(row[1:]) > 0

    points = [(x, y) for x, y in rows(series.x, series.y) if visible((x, y))]
    band = [] if series.low is None or series.high is None else rows(series.x, series.low, series.high)
    if chart.y_log:  # an interval that reaches down to 0 is shaded down to the lowest value of the chart
        band = [(x, max(low, lowest), high) for x, low, high in band if high > 0]
    boxes = rows(series.x, *zip(*series.boxes, strict=True)) if series.boxes else []
    boxes = [row for row in boxes if visible(row)]
    name = series.name
    if series.printed and "printed" not in name.lower():
        name = f"{name}, printed"
    return Curve(name, points, [(x, a, b) for x, a, b in band], boxes, style, series.printed, series.bound)


def _side_by_side(found: list[Curve], chart: Chart) -> list[Curve]:
    """Give the boxes of several series room next to each other."""
    boxed = [each for each in found if each.boxes]
    if not boxed:
        return found
    across = {box[0] for each in boxed for box in each.boxes}
    places = sorted(math.log(x, chart.x_log) for x in across) if chart.x_log else sorted(across)
    apart = min((after - before for before, after in pairwise(places)), default=1.0)
    slot = min(0.84 * apart / len(boxed), 0.2 * (places[-1] - places[0] or 1.0))
    middle = (len(boxed) - 1) / 2
    for number, each in enumerate(boxed):
        found[found.index(each)] = replace(each, shift=(number - middle) * slot, width=0.82 * slot)
    return found


def axis_ticks(chart: Chart, drawn: Sequence[Curve]) -> tuple[list[float] | None, list[float] | None]:
    """Values to number on the x and the y axis; None where the library chooses."""
    marked = [x for each in drawn if not each.bound for x in _across(each)]
    every = [x for each in drawn for x in _across(each)]
    boxed = sorted({box[0] for each in drawn for box in each.boxes})
    across = None
    if every and chart.x_log:
        across = ticks(every, chart.x_log, marked)
    elif boxed:
        across = boxed[:: -(-len(boxed) // 9)]
    heights = [y for each in drawn for row in (*each.points, *each.band, *each.boxes) for y in row[1:]]
    return across, ticks(heights, chart.y_log) if heights and chart.y_log else None


def _across(curve: Curve) -> list[float]:
    return [row[0] for row in (*curve.points, *curve.boxes)]


def explained(drawn: Sequence[Curve]) -> str:
    """What markers and lines mean, as far as a chart has them."""
    parts = []
    if any(each.printed for each in drawn):
        parts.append("hollow: printed")
        if any(not each.printed and not each.bound for each in drawn):
            parts.append("filled: computed")
    if any(each.bound for each in drawn):
        parts.append("dashed: bound or theory")
    if any(each.band for each in drawn):
        parts.append("shaded: interval")
    if any(each.boxes for each in drawn):
        parts.append("box: quartiles, whiskers to the ends")
    return " · ".join(parts)
