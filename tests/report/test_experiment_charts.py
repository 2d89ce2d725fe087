"""Charts: what is drawn, what is left out, and what tells curves apart."""

from __future__ import annotations

import html
import io
import json
import math
import re
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from numpy.typing import NDArray

from undilute.errors import MissingExtra
from undilute.experiments.result import Chart, Series
from undilute.report import experiment_charts as charts

NAN, INF = math.nan, math.inf
SIZES = [16.0, 64.0, 256.0, 1024.0]
BOX = (0.1, 0.3, 0.5, 0.6, 0.9)


def chart(*series: Series, **more: Any) -> Chart:
    return Chart("name", "A title", "items", "accuracy, %", series, **more)


def pixels(image: bytes) -> NDArray[np.uint8]:
    """(height, width, 3)"""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


def colour(name: str) -> NDArray[np.uint8]:
    return np.array([int(name[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.uint8)


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
EVERY = {"lines": LINES, "boxes": BOXES, "empty": EMPTY, "no series": chart()}


# ---------------------------------------------------------------- PNG


@pytest.mark.parametrize("name", EVERY)
def test_pictures_decode_and_are_the_same_for_the_same_chart(name: str) -> None:
    image = charts.png(EVERY[name])
    assert pixels(image).shape[1] == 1216
    assert pixels(image).std() > 5
    assert charts.png(EVERY[name]) == image


SOLE = Series("a", SIZES, [1.0, 2.0, 3.0, 4.0])
OTHERS = {
    "another value": replace(SOLE, y=[1.0, 2.0, 3.0, 4.2]),
    "hollow": replace(SOLE, printed=True),
    "dashed": replace(SOLE, bound=True),
    "an interval": replace(SOLE, low=[0.5] * 4, high=[4.5] * 4),
    "boxes": replace(SOLE, boxes=[(0, 1, 2, 3, 4)] * 4),
    "another name": replace(SOLE, name="b"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_pictures_differ_when_the_data_do(what: str) -> None:
    assert charts.png(chart(SOLE)) != charts.png(chart(OTHERS[what]))


@pytest.mark.parametrize("more", [{"x_log": 2}, {"y_log": 10}, {"note": "n"}, {"x_label": "z"}, {"title": "t"}])
def test_pictures_differ_when_the_axes_and_texts_do(more: dict[str, Any]) -> None:
    assert charts.png(chart(SOLE)) != charts.png(replace(chart(SOLE), **more))


def marked(series: Series) -> tuple[int, NDArray[np.uint8]]:
    """Of a chart of one point: pixels of its colour above the legend, and the pixel in their middle."""
    image = pixels(charts.png(chart(series)))[:600]
    rows, columns = np.nonzero((image == colour(charts.COLOURS[0])).all(-1))
    return len(rows), image[round((rows.min() + rows.max()) / 2), round((columns.min() + columns.max()) / 2)]


def test_printed_markers_are_hollow_and_computed_ones_filled() -> None:
    filled, middle = marked(Series("a", [3.0], [2.0]))
    hollow, inside = marked(Series("a", [3.0], [2.0], printed=True))
    assert (middle == colour(charts.COLOURS[0])).all()
    assert (inside == 255).all()
    assert 0 < hollow < 0.8 * filled


def test_texts_that_mean_something_to_matplotlib_are_only_shown() -> None:
    texts = [r"$\frac{$", "_hidden", "🦉 שלום", "a\x00b\n\t", "\ud83e", "<b>", "%s {x}", "x" * 400, ""]
    series = [Series(text, [1.0, 2.0], [number, number + 1.0]) for number, text in enumerate(texts)]
    text = " ".join(texts)
    assert pixels(charts.png(Chart(text, text, text, text, series, note=text))).std() > 5
    assert charts.png(chart(Series("$x$", [1.0], [1.0]))) != charts.png(chart(Series("x", [1.0], [1.0])))


@pytest.mark.parametrize(("package", "draw"), [("matplotlib", charts.png), ("plotly", None)])
def test_without_its_library_the_error_names_the_extra(
    package: str, draw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"'{package}'.*undilute\[plot\]"):
        charts.png(LINES) if draw else charts.interactive(LINES, with_library=True)


# ---------------------------------------------------------------- what is left out


def holes(value: float | None) -> tuple[Series, Series]:
    """A series with ``value`` among its points, and the same without that point."""
    full = Series("a", [1.0, 2.0, 4.0], [0.5, value, 0.7], low=[0.4, 0.5, 0.6], high=[0.6, 0.7, 0.8])  # type: ignore[list-item]
    return full, Series("a", [1.0, 4.0], [0.5, 0.7], low=[0.4, 0.5, 0.6], high=[0.6, 0.7, 0.8])


@pytest.mark.parametrize("value", [NAN, INF, -INF, None])
def test_values_that_are_not_finite_are_left_out(value: float | None) -> None:
    full, rest = holes(value)
    assert charts.curves(chart(full))[0].points == [(1.0, 0.5), (4.0, 0.7)]
    at_x = Series("a", [1.0, value, 4.0], [0.5, 0.6, 0.7])  # type: ignore[list-item]
    short = Series("a", rest.x, rest.y)
    assert charts.png(chart(at_x)) == charts.png(chart(short))
    assert charts.figure(chart(at_x)) == charts.figure(chart(short))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_logarithmic_axis_leaves_out_what_it_cannot_show(value: float) -> None:
    with_it = Series("a", [1.0, 2.0, 4.0], [0.5, value, 0.7])
    assert charts.png(chart(with_it, y_log=10)) == charts.png(chart(Series("a", [1.0, 4.0], [0.5, 0.7]), y_log=10))
    assert len(charts.curves(chart(with_it))[0].points) == 3
    left = Series("a", [value, 2.0, 4.0], [0.5, 0.6, 0.7])
    assert [x for x, _ in charts.curves(chart(left, x_log=2))[0].points] == [2.0, 4.0]


def test_an_interval_down_to_zero_is_still_shaded_on_a_logarithmic_axis() -> None:
    series = Series("a", [1.0, 2.0], [0.5, 0.6], low=[0.0, 0.1], high=[0.9, NAN])
    assert charts.curves(chart(series, y_log=10))[0].band == [(1.0, 0.1, 0.9)]
    assert charts.curves(chart(series))[0].band == [(1.0, 0.0, 0.9)]


def test_a_box_with_a_missing_number_is_left_out_whole() -> None:
    series = Series("a", [1.0, 2.0], [0.5, 0.5], boxes=[BOX, (0.1, NAN, 0.5, 0.6, 0.9)])
    (curve,) = charts.curves(chart(series))
    assert curve.boxes == [(1.0, *BOX)]


def test_a_series_with_nothing_left_is_not_in_the_legend() -> None:
    assert [each.name for each in charts.curves(chart(EMPTY.series[0], SOLE))] == ["a"]
    assert charts.NOTHING in json.dumps(charts.figure(EMPTY))


# ---------------------------------------------------------------- what tells curves apart


def test_seven_curves_differ_in_colour_and_marker_and_line() -> None:
    drawn = charts.curves(chart(*(Series(f"rule {number}", SIZES, SIZES) for number in range(7))))
    for telling in ("colour", "marker", "dashes"):
        assert len({getattr(each, telling) for each in drawn}) == 7
    bounds = charts.curves(chart(*(Series(f"bound {number}", SIZES, SIZES, bound=True) for number in range(7))))
    assert len({each.dashes for each in bounds}) == 7
    assert all(each.dashes for each in bounds)


def test_printed_and_computed_of_one_thing_share_colour_and_marker() -> None:
    printed, computed, ceiling = charts.curves(LINES)
    assert (printed.colour, printed.marker) == (computed.colour, computed.marker)
    assert ceiling.colour != computed.colour
    assert printed.printed
    assert not computed.printed


def test_a_printed_series_says_so_in_the_legend() -> None:
    drawn = charts.curves(chart(replace(SOLE, printed=True), SOLE))
    assert [each.name for each in drawn] == ["a, printed", "a"]
    assert charts.explained(charts.curves(LINES)) == (
        "hollow: printed · filled: computed · dashed: bound or theory · shaded: interval"
    )


@pytest.mark.parametrize("many", [1, 2, 3, 5])
@pytest.mark.parametrize("x", [[1, 5, 10, 20, 100], [32, 64, 128, 256, 512, 1024], [7]])
def test_boxes_stand_side_by_side_around_their_x(many: int, x: list[float]) -> None:
    rows = [Series(f"s{number}", x, [0.5] * len(x), boxes=[BOX] * len(x)) for number in range(many)]
    made = chart(*rows, x_log=10)
    boxes = [trace for trace in charts.figure(made)["data"] if trace["type"] == "box"]
    assert len(boxes) == many
    sides = sorted((at - trace["width"] / 2, at + trace["width"] / 2) for trace in boxes for at in trace["x"])
    assert all(right < left for (_, right), (left, _) in pairwise(sides))
    middles = np.mean([trace["x"] for trace in boxes], axis=0)
    assert middles == pytest.approx(np.log10(x), abs=1e-12)


@pytest.mark.parametrize("x_log", [0, 2, 10])
@pytest.mark.parametrize("x", [[32, 64, 128, 256, 512, 1024], [100, 1100], [7]])
def test_boxes_are_neither_slivers_nor_all_of_the_width(x: list[float], x_log: int) -> None:
    made = chart(Series("s", x, [0.5] * len(x), boxes=[BOX] * len(x)), x_log=x_log)
    (box,) = [trace for trace in charts.figure(made)["data"] if trace["type"] == "box"]
    span = max(box["x"]) - min(box["x"]) or 1.0
    assert 0.02 < box["width"] / span < 0.25


def test_a_box_has_the_quantiles_that_were_given() -> None:
    box = next(trace for trace in charts.figure(BOXES)["data"] if trace["type"] == "box")
    names = ("lowerfence", "q1", "median", "q3", "upperfence")
    assert [[box[name][at] for name in names] for at in range(4)] == [list(BOX)] * 4


# ---------------------------------------------------------------- numbers and ticks


@pytest.mark.parametrize(
    ("values", "base", "measured", "expected"),
    [
        ([16, 16384], 2, [], [16, 64, 256, 1024, 4096, 16384]),
        ([32, 1024], 2, [32, 64, 128, 256, 512, 1024], [32, 64, 128, 256, 512, 1024]),
        ([1, 100], 10, [1, 5, 10, 20, 100], [1, 5, 10, 20, 100]),
        ([1, 1000], 10, [1, 999, 1000], [1, 10, 100, 1000]),  # 999 would touch 1,000
        ([1e-3, 10], 10, [], [1e-3, 1e-2, 1e-1, 1, 10]),
        ([30, 400], 10, [], [50, 100, 200]),
        ([3.0, 3.1], 10, [], [3.0, 3.1]),
        ([5.0, 5.0], 2, [5.0], [5.0]),
    ],
)
def test_logarithmic_ticks(values: list[float], base: int, measured: list[float], expected: list[float]) -> None:
    assert charts.ticks(values, base, measured) == pytest.approx(expected)


def test_ticks_never_crowd_the_axis() -> None:
    for decades in range(1, 40):
        assert len(charts.ticks([1.0, 10.0**decades], 10)) <= 9


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16384, "16,384"),
        (1_048_576, "1,048,576"),
        (0.001, "0.001"),
        (0.0001, "0.0001"),
        (1e-5, "10⁻⁵"),
        (-2.5e-7, "−2.5·10⁻⁷"),
        (0, "0"),
        (-0.0, "0"),
        (NAN, "–"),
        (99.996, "100"),
        (999_999.7, "1,000,000"),
        (9_999_999.7, "10⁷"),
        (10_000_000, "10,000,000"),
        (5e-324, "4.941·10⁻³²⁴"),
    ],
)
def test_numbers_are_written_as_people_write_them(value: float, text: str) -> None:
    assert charts.label(value) == text


# ---------------------------------------------------------------- interactive


@pytest.mark.parametrize("name", EVERY)
def test_plotly_accepts_every_figure_and_its_json_is_strict(name: str) -> None:
    element = charts.interactive(EVERY[name], with_library=False)
    (text,) = re.findall(r'data-figure="([^"]*)"', element)
    content = json.loads(html.unescape(text), parse_constant=pytest.fail)
    go.Figure(content)  # raises for what plotly does not know
    assert content == charts.figure(EVERY[name])


def test_the_library_comes_only_when_asked_for_and_elements_have_no_ids() -> None:
    alone, brought = (charts.interactive(LINES, with_library=each) for each in (False, True))
    assert "<script" not in alone
    assert brought.startswith(alone)
    assert len(brought) > 1_000_000
    assert not re.search(r"\bid=", alone)


def test_printed_and_bound_traces_look_like_it() -> None:
    traces = {trace["name"]: trace for trace in charts.figure(LINES)["data"] if trace.get("showlegend", True)}
    assert traces["softmax, printed"]["marker"]["color"] == charts.HOLLOW
    assert traces["softmax, computed"]["marker"]["color"] == charts.COLOURS[0]
    assert traces["ceiling"]["mode"] == "lines"
    assert "px" in traces["ceiling"]["line"]["dash"]


def test_the_interval_is_drawn_up_and_back() -> None:
    (band,) = [trace for trace in charts.figure(LINES)["data"] if trace.get("fill") == "toself"]
    assert band["x"] == [*SIZES, *SIZES[::-1]]
    assert band["y"] == [98, 95, 90, 60, 40, 75, 90, 96]
