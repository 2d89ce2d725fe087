"""Interactive charts: plotly accepts them, and they show what the data say."""

from __future__ import annotations

import html
import json
import re
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.report.charts.samples import BOX, BOXES, EVERY, LINES, RULES, SIZES, chart
from undilute.errors import MissingExtra
from undilute.report.charts import figure, interactive
from undilute.report.charts.curve import COLOURS
from undilute.report.charts.with_plotly import HOLLOW
from undilute.report.result import Series


@pytest.mark.parametrize("name", EVERY)
def test_plotly_accepts_every_figure_and_its_json_is_strict(name: str) -> None:
    element = interactive(EVERY[name], with_library=False)
    (text,) = re.findall(r'data-figure="([^"]*)"', element)
    content = json.loads(html.unescape(text), parse_constant=pytest.fail)
    go.Figure(content)  # raises for what plotly does not know
    assert content == figure(EVERY[name])


def test_the_library_comes_only_when_asked_for_and_elements_have_no_ids() -> None:
    alone, brought = (interactive(LINES, with_library=each) for each in (False, True))
    assert "<script" not in alone
    assert brought.startswith(alone)
    assert len(brought) > 1_000_000
    assert not re.search(r"\bid=", alone)


def test_printed_and_bound_traces_look_like_it() -> None:
    traces = {trace["name"]: trace for trace in figure(LINES)["data"] if trace.get("showlegend", True)}
    assert traces["softmax, printed"]["marker"]["color"] == HOLLOW
    assert traces["softmax, computed"]["marker"]["color"] == COLOURS[0]
    assert traces["ceiling"]["mode"] == "lines"
    assert "px" in traces["ceiling"]["line"]["dash"]


def test_the_interval_is_drawn_up_and_back() -> None:
    (band,) = [trace for trace in figure(LINES)["data"] if trace.get("fill") == "toself"]
    assert band["x"] == [*SIZES, *SIZES[::-1]]
    assert band["y"] == [98, 95, 90, 60, 40, 75, 90, 96]


@pytest.mark.parametrize("many", [1, 2, 3, 5])
@pytest.mark.parametrize("x", [[1, 5, 10, 20, 100], [32, 64, 128, 256, 512, 1024], [7]])
def test_boxes_stand_side_by_side_around_their_x(many: int, x: list[float]) -> None:
    rows = [Series(f"s{number}", x, [0.5] * len(x), boxes=[BOX] * len(x)) for number in range(many)]
    made = chart(*rows, x_log=10)
    boxes = [trace for trace in figure(made)["data"] if trace["type"] == "box"]
    assert len(boxes) == many
    sides = sorted((at - trace["width"] / 2, at + trace["width"] / 2) for trace in boxes for at in trace["x"])
    assert all(right < left for (_, right), (left, _) in pairwise(sides))
    middles = np.mean([trace["x"] for trace in boxes], axis=0)
    assert middles == pytest.approx(np.log10(x), abs=1e-12)


@pytest.mark.parametrize("x_log", [0, 2, 10])
@pytest.mark.parametrize("x", [[32, 64, 128, 256, 512, 1024], [100, 1100], [7]])
def test_boxes_are_neither_slivers_nor_all_of_the_width(x: list[float], x_log: int) -> None:
    made = chart(Series("s", x, [0.5] * len(x), boxes=[BOX] * len(x)), x_log=x_log)
    (box,) = [trace for trace in figure(made)["data"] if trace["type"] == "box"]
    span = max(box["x"]) - min(box["x"]) or 1.0
    assert 0.02 < box["width"] / span < 0.25


def test_a_box_has_the_quantiles_that_were_given() -> None:
    box = next(trace for trace in figure(BOXES)["data"] if trace["type"] == "box")
    names = ("lowerfence", "q1", "median", "q3", "upperfence")
    assert [[box[name][at] for name in names] for at in range(4)] == [list(BOX)] * 4


def test_cells_show_their_values_and_rows_start_from_the_top() -> None:
    made = figure(RULES)
    (trace,) = made["data"]
    assert trace["text"] == [["80", "40"], ["75", "60"], ["–", "–"]]
    assert trace["z"] == [[0.0, 0.0], [-0.5, 1.0], [None, None]]
    assert made["layout"]["yaxis"]["autorange"] == "reversed"
    assert made["layout"]["yaxis"]["ticktext"] == ["softmax", "ssmax", "top-k"]
    assert "blue: better than softmax" in made["layout"]["title"]["text"]


def test_rows_of_the_same_name_stay_two() -> None:
    twice = replace(RULES, y=["a", "a", "b"], centre=None)
    (trace,) = figure(twice)["data"]
    assert len(set(trace["y"])) == 3


def test_without_its_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtra, match=r"'plotly'.*undilute\[plot\]"):
        interactive(LINES, with_library=True)
