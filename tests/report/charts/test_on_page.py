"""Charts on a page: what charts.js is told is what the data say."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from tests.report.charts.samples import BOX, BOXES, EVERY, LINES, chart
from undilute.report.charts import drawing
from undilute.report.charts.curve import COLOURS, NOTHING
from undilute.report.result import Chart, Series


@pytest.mark.parametrize("name", [name for name, each in EVERY.items() if isinstance(each, Chart)])
def test_every_chart_is_strict_json(name: str) -> None:
    made = drawing(EVERY[name])  # type: ignore[arg-type]
    text = json.dumps(made, allow_nan=False)
    assert made["empty"] == NOTHING
    assert [each["name"] for each in json.loads(text)["curves"]] == [each["name"] for each in made["curves"]]


def test_printed_and_bound_curves_look_like_it() -> None:
    printed, computed, ceiling = drawing(LINES)["curves"]
    assert [each["hollow"] for each in (printed, computed, ceiling)] == [True, False, False]
    assert computed["colour"] == printed["colour"] == COLOURS[0]
    assert printed["marker"] == computed["marker"] == "circle"
    assert ceiling["marker"] is None
    assert len(ceiling["dashes"]) > 1


def test_the_interval_goes_with_its_curve() -> None:
    printed, computed, _ = drawing(LINES)["curves"]
    assert printed["band"] == []
    assert computed["band"] == [(16, 96, 98), (64, 90, 95), (256, 75, 90), (1024, 40, 60)]


@pytest.mark.parametrize("many", [1, 2, 3, 5])
@pytest.mark.parametrize("x", [[1, 5, 10, 20, 100], [32, 64, 128, 256, 512, 1024], [7]])
def test_boxes_stand_side_by_side_around_their_x(many: int, x: list[float]) -> None:
    rows = [Series(f"s{number}", x, [0.5] * len(x), boxes=[BOX] * len(x)) for number in range(many)]
    boxes = drawing(chart(*rows, x_log=10))["curves"]
    assert len(boxes) == many
    middles = [[np.log10(box[0]) + each["shift"] for box in each["boxes"]] for each in boxes]
    sides = sorted(
        (at - each["size"] / 2, at + each["size"] / 2) for each, row in zip(boxes, middles, strict=True) for at in row
    )
    assert all(right < left for (_, right), (left, _) in pairwise(sides))
    assert np.mean(middles, axis=0) == pytest.approx(np.log10(x), abs=1e-12)


@pytest.mark.parametrize("x_log", [0, 2, 10])
@pytest.mark.parametrize("x", [[32, 64, 128, 256, 512, 1024], [100, 1100], [7]])
def test_boxes_are_neither_slivers_nor_all_of_the_width(x: list[float], x_log: int) -> None:
    (box,) = drawing(chart(Series("s", x, [0.5] * len(x), boxes=[BOX] * len(x)), x_log=x_log))["curves"]
    places = [np.log(at) / np.log(x_log) if x_log else at for at in x]
    assert 0.02 < box["size"] / (max(places) - min(places) or 1.0) < 0.25


def test_a_box_has_the_quantiles_that_were_given() -> None:
    assert drawing(BOXES)["curves"][0]["boxes"] == [(x, *BOX) for x in (1, 5, 10, 100)]


def test_logarithmic_axes_have_numbers_and_linear_ones_are_left_to_the_page() -> None:
    made = drawing(LINES)
    assert made["x"] == {"label": "items", "log": 2, "ticks": [(16, "16"), (64, "64"), (256, "256"), (1024, "1,024")]}
    assert made["y"] == {"label": "accuracy, %", "log": 0, "ticks": None}


def test_a_curve_of_very_many_points_has_no_markers() -> None:
    many = [float(n) for n in range(200)]
    (curve,) = drawing(chart(Series("dense", many, many)))["curves"]
    assert curve["marker"] is None
