"""What of a heat map is drawn?  The value in each cell, and a shade between worse and better.

Orange is worse than the row that colours start from, blue is better, and the deepest shade is the largest difference;
shades grow with the root of the difference, so that one very bad rule does not make all others look alike. The two
colours are told apart with any colour vision, and black writing stands out from both.
"""

from __future__ import annotations

import math

from undilute.report.charts.writing import label, writable
from undilute.report.result import HeatMap

WORSE, SAME, BETTER = "#E8963C", "#F7F7F5", "#5BA7DB"  # at shades −1, 0 and 1
INK = "#16181c"
GAP = "–"
LONGEST_NAME = 28


def texts(heat_map: HeatMap) -> list[list[str]]:
    """What is written in the cells: (rows, columns).

    Examples
    --------
    >>> texts(HeatMap("r", "t", "tokens", "rule", ["512", "1,024"], ["softmax"], [[80.25, None]], "recall, %"))
    [['80.2', '–']]
    """
    return [[GAP if value is None else label(float(value), 3) for value in row] for row in heat_map.values]


def short(name: str) -> str:
    """The name of a row or column as there is room for it.

    Examples
    --------
    >>> short("ssmax, calibrated"), short("a rule whose name is far too long")
    ('ssmax, calibrated', 'a rule whose name is far to…')
    """
    name = writable(name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def shades(heat_map: HeatMap) -> list[list[float | None]]:
    """Between −1, the worst, and 1, the best: (rows, columns); None where there is nothing to colour.

    Examples
    --------
    >>> losses = [[3.0, 2.0], [3.0625, 1.0]]
    >>> shades(HeatMap("l", "t", "x", "y", ["a", "b"], ["softmax", "ssmax"], losses, "loss", "lower", "softmax"))
    [[0.0, 0.0], [-0.25, 1.0]]
    """
    found = _differences(heat_map)
    largest = _largest(found) or 1.0
    return [
        [None if each is None else math.copysign(math.sqrt(abs(each) / largest), each) for each in row] for row in found
    ]


def colours(heat_map: HeatMap) -> list[list[str | None]]:
    """The shades as colours: (rows, columns).

    Examples
    --------
    >>> colours(HeatMap("l", "t", "x", "y", ["a", "b"], ["softmax"], [[0.0, 2.0]], "loss"))
    [['#F7F7F5', '#5BA7DB']]
    """
    return [[None if shade is None else _colour(shade) for shade in row] for row in shades(heat_map)]


def _colour(shade: float) -> str:
    end, share = (BETTER, shade) if shade > 0 else (WORSE, -shade)
    pairs = [(int(SAME[at : at + 2], 16), int(end[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(same + share * (other - same)):02X}" for same, other in pairs)


def _differences(heat_map: HeatMap) -> list[list[float | None]]:
    """How much better than the centre a cell is; without a centre, how far above the lowest value."""
    values = [[_finite(value) for value in row] for row in heat_map.values]
    if heat_map.centre is None:
        lowest = min((value for row in values for value in row if value is not None), default=0.0)
        return [[None if value is None else value - lowest for value in row] for row in values]
    middle = values[list(heat_map.y).index(heat_map.centre)]

    def gain(value: float | None, start: float | None) -> float | None:
        if value is None or start is None:
            return None
        return start - value if heat_map.better == "lower" else value - start

    return [[gain(value, start) for value, start in zip(row, middle, strict=True)] for row in values]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _largest(rows: list[list[float | None]]) -> float:
    return max((abs(each) for row in rows for each in row if each is not None), default=0.0)


def explained(heat_map: HeatMap) -> str:
    """What values and colours mean.

    Examples
    --------
    >>> losses = [[3.0, 2.0], [3.5, 1.0]]
    >>> explained(HeatMap("l", "t", "x", "y", ["a", "b"], ["softmax", "ssmax"], losses, "loss", "lower", "softmax"))
    'loss, lower is better · blue: better than softmax · orange: worse · deepest: a difference of 1'
    """
    what = heat_map.value_label + (f", {heat_map.better} is better" if heat_map.better else "")
    if heat_map.centre is None:
        return f"{what} · bluer: higher"
    largest = _largest(_differences(heat_map))
    if largest == 0:
        return f"{what} · no difference from {heat_map.centre}"
    above, below = ("better", "worse") if heat_map.better else ("above", "below")
    than = f"{above} than" if heat_map.better else above
    return f"{what} · blue: {than} {heat_map.centre} · orange: {below} · deepest: a difference of {label(largest, 3)}"
