"""Charts of every kind, for the tests of both ways to draw them."""

from __future__ import annotations

import math
from typing import Any

from undilute.report.result import Chart, HeatMap, Series

NAN, INF = math.nan, math.inf
SIZES = [16.0, 64.0, 256.0, 1024.0]
BOX = (0.1, 0.3, 0.5, 0.6, 0.9)


def chart(*series: Series, **more: Any) -> Chart:
    return Chart("name", "A title", "items", "accuracy, %", series, **more)


LINES = chart(
    Series("softmax, printed", SIZES, [98.0, 94.0, 80.0, 50.0], printed=True),
    Series("softmax, computed", SIZES, [97.0, 93.0, 82.0, 52.0], low=[96, 90, 75, 40], high=[98, 95, 90, 60]),
    Series("ceiling", SIZES, [99.0, 98.0, 95.0, 90.0], bound=True),
    x_log=2,
    note="Ten seeds.",
)
BOXES = chart(
    Series("real", [1, 5, 10, 100], [0.5] * 4, boxes=[BOX] * 4),
    Series("sphere", [1, 5, 10, 100], [0.5] * 4, boxes=[BOX] * 4),
    Series("bound", [1, 100], [0.8, 0.2], bound=True),
    x_log=10,
)
EMPTY = chart(Series("nothing", [1.0, 2.0], [NAN, INF]), x_log=2, y_log=10)
RULES = HeatMap(
    "recall",
    "Recall by length",
    "tokens",
    "rule",
    ["512", "2,048"],
    ["softmax", "ssmax", "top-k"],
    [[80.0, 40.0], [75.0, 60.0], [NAN, None]],
    "recall, %",
    better="higher",
    centre="softmax",
    note="Ten haystacks.",
)
NO_CELLS = HeatMap("none", "No cells", "tokens", "rule", [], [], [], "recall, %")
EVERY = {"lines": LINES, "boxes": BOXES, "empty": EMPTY, "no series": chart(), "heat map": RULES, "no cells": NO_CELLS}
SOLE = Series("a", SIZES, [1.0, 2.0, 3.0, 4.0])
