"""PNG: what differs is seen, and text is only shown."""

from __future__ import annotations

import io
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.report.charts.samples import EVERY, LINES, RULES, SOLE, chart
from undilute.errors import MissingExtra
from undilute.report.charts import multiples, png, svg
from undilute.report.charts.cells import BETTER, WORSE
from undilute.report.charts.curve import COLOURS
from undilute.report.result import Chart, HeatMap, Series


def pixels(image: bytes) -> NDArray[np.uint8]:
    """(height, width, 3)"""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


def colour(name: str) -> NDArray[np.uint8]:
    return np.array([int(name[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.uint8)


@pytest.mark.parametrize("name", EVERY)
def test_pictures_decode_and_are_the_same_for_the_same_chart(name: str) -> None:
    image = png(EVERY[name])
    assert pixels(image).shape[1] == 1216
    assert pixels(image).std() > 5
    assert png(EVERY[name]) == image


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
    assert png(chart(SOLE)) != png(chart(OTHERS[what]))


@pytest.mark.parametrize("more", [{"x_log": 2}, {"y_log": 10}, {"note": "n"}, {"x_label": "z"}, {"title": "t"}])
def test_pictures_differ_when_the_axes_and_texts_do(more: dict[str, Any]) -> None:
    assert png(chart(SOLE)) != png(replace(chart(SOLE), **more))


def marked(series: Series) -> tuple[int, NDArray[np.uint8]]:
    """Of a chart of one point: pixels of its colour above the legend, and the pixel in their middle."""
    image = pixels(png(chart(series)))[:600]
    rows, columns = np.nonzero((image == colour(COLOURS[0])).all(-1))
    return len(rows), image[round((rows.min() + rows.max()) / 2), round((columns.min() + columns.max()) / 2)]


def test_printed_markers_are_hollow_and_computed_ones_filled() -> None:
    filled, middle = marked(Series("a", [3.0], [2.0]))
    hollow, inside = marked(Series("a", [3.0], [2.0], printed=True))
    assert (middle == colour(COLOURS[0])).all()
    assert (inside == 255).all()
    assert 0 < hollow < 0.8 * filled


def cells(heat_map: HeatMap) -> tuple[list[float], list[float]]:
    """Heights of the pixels in the deepest orange, and of those in the deepest blue, as shares of the picture."""
    image = pixels(png(heat_map)).astype(int)
    found = [np.nonzero((abs(image - colour(name).astype(int)) <= 1).all(-1))[0] for name in (WORSE, BETTER)]
    return ([*(found[0] / len(image))], [*(found[1] / len(image))])


def test_what_is_better_than_the_centre_is_blue_and_what_is_worse_orange() -> None:
    values = [[50.0, 50.0], [90.0, 90.0], [10.0, 10.0]]
    worse, better = cells(replace(RULES, values=values))
    assert len(worse) > 20_000 < len(better)
    assert max(better) < min(worse)  # ssmax stands above top-k
    worse, better = cells(replace(RULES, values=values, better="lower"))
    assert max(worse) < min(better)


@pytest.mark.parametrize(
    "more",
    [{"y": ["softmax", "ssmax", "k"]}, {"x": ["1", "2"]}, {"centre": "ssmax"}, {"better": "lower"}, {"note": "n"}],
)
def test_heat_maps_differ_when_anything_of_them_does(more: dict[str, Any]) -> None:
    assert png(RULES) != png(replace(RULES, **more))


def test_a_value_is_written_in_its_cell() -> None:
    """Another value of the same shade: the largest difference of a heat map is always the deepest."""
    low, high = (replace(RULES, x=["512"], values=[[0.0], [top], [0.0]]) for top in (1.0, 2.0))
    assert png(low) != png(high)


def test_texts_that_mean_something_to_matplotlib_are_only_shown() -> None:
    texts = [r"$\frac{$", "_hidden", "🦉 שלום", "a\x00b\n\t", "\ud83e", "<b>", "%s {x}", "x" * 400, ""]
    series = [Series(text, [1.0, 2.0], [number, number + 1.0]) for number, text in enumerate(texts)]
    text = " ".join(texts)
    assert pixels(png(Chart(text, text, text, text, series, note=text))).std() > 5
    heat_map = HeatMap(text, text, text, text, texts, [text], [[1.0] * len(texts)], text, centre=text, note=text)
    assert pixels(png(heat_map)).std() > 5
    assert png(chart(Series("$x$", [1.0], [1.0]))) != png(chart(Series("x", [1.0], [1.0])))


def test_an_svg_is_well_formed_and_holds_its_texts() -> None:
    made = ElementTree.fromstring(svg(chart(SOLE, Series("<b>&", [1.0, 2.0], [1.0, 2.0]))))
    texts = "".join(made.itertext())
    for text in ("A title", "items", "accuracy, %", "<b>&"):
        assert text in texts
    assert svg(LINES) == svg(LINES)
    assert svg(LINES) != svg(replace(LINES, y_label="else"))


def test_panels_stand_in_one_picture_with_common_axes() -> None:
    far = Series("a", [16.0, 1024.0], [1.0, 400.0])
    one, two = chart(SOLE, x_log=2), chart(far, x_log=2)
    both = multiples([one, two], "t", "n", 2, (3.0, 2.0))
    assert pixels(both).shape[1] == 160 * 6
    assert both != multiples([one, one], "t", "n", 2, (3.0, 2.0))
    assert both == multiples([one, two], "t", "n", 2, (3.0, 2.0))
    above = multiples([one, two], "t", "n", 1, (3.0, 2.0))
    assert pixels(above).shape[0] > pixels(both).shape[0]


def test_without_its_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"'matplotlib'.*undilute\[plot\]"):
        png(LINES)
