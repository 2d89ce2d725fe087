"""What is drawn, what is left out, and what tells curves apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.charts.samples import BOX, EMPTY, INF, LINES, NAN, SIZES, SOLE, chart
from undilute.report.charts import drawing, png
from undilute.report.charts.curve import curves, explained
from undilute.report.result import Series


def holes(value: float | None) -> tuple[Series, Series]:
    """A series with ``value`` among its points, and the same without that point."""
    full = Series("a", [1.0, 2.0, 4.0], [0.5, value, 0.7], low=[0.4, 0.5, 0.6], high=[0.6, 0.7, 0.8])  # type: ignore[list-item]
    return full, Series("a", [1.0, 4.0], [0.5, 0.7], low=[0.4, 0.5, 0.6], high=[0.6, 0.7, 0.8])


@pytest.mark.parametrize("value", [NAN, INF, -INF, None])
def test_values_that_are_not_finite_are_left_out(value: float | None) -> None:
    full, rest = holes(value)
    assert curves(chart(full))[0].points == [(1.0, 0.5), (4.0, 0.7)]
    at_x = Series("a", [1.0, value, 4.0], [0.5, 0.6, 0.7])  # type: ignore[list-item]
    short = Series("a", rest.x, rest.y)
    assert png(chart(at_x)) == png(chart(short))
    assert drawing(chart(at_x)) == drawing(chart(short))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_logarithmic_axis_leaves_out_what_it_cannot_show(value: float) -> None:
    with_it = Series("a", [1.0, 2.0, 4.0], [0.5, value, 0.7])
    assert png(chart(with_it, y_log=10)) == png(chart(Series("a", [1.0, 4.0], [0.5, 0.7]), y_log=10))
    assert len(curves(chart(with_it))[0].points) == 3
    left = Series("a", [value, 2.0, 4.0], [0.5, 0.6, 0.7])
    assert [x for x, _ in curves(chart(left, x_log=2))[0].points] == [2.0, 4.0]


def test_an_interval_down_to_zero_is_still_shaded_on_a_logarithmic_axis() -> None:
    series = Series("a", [1.0, 2.0], [0.5, 0.6], low=[0.0, 0.1], high=[0.9, NAN])
    assert curves(chart(series, y_log=10))[0].band == [(1.0, 0.1, 0.9)]
    assert curves(chart(series))[0].band == [(1.0, 0.0, 0.9)]


def test_a_box_with_a_missing_number_is_left_out_whole() -> None:
    series = Series("a", [1.0, 2.0], [0.5, 0.5], boxes=[BOX, (0.1, NAN, 0.5, 0.6, 0.9)])
    (curve,) = curves(chart(series))
    assert curve.boxes == [(1.0, *BOX)]


def test_a_series_with_nothing_left_is_not_in_the_legend() -> None:
    assert [each.name for each in curves(chart(EMPTY.series[0], SOLE))] == ["a"]
    assert drawing(EMPTY)["curves"] == []


def test_seven_curves_differ_in_colour_and_marker_and_line() -> None:
    drawn = curves(chart(*(Series(f"rule {number}", SIZES, SIZES) for number in range(7))))
    for telling in ("colour", "marker", "dashes"):
        assert len({getattr(each, telling) for each in drawn}) == 7
    bounds = curves(chart(*(Series(f"bound {number}", SIZES, SIZES, bound=True) for number in range(7))))
    assert len({each.dashes for each in bounds}) == 7
    assert all(each.dashes for each in bounds)


def test_curves_beyond_the_seventh_differ_from_every_other() -> None:
    drawn = curves(chart(*(Series(f"rule {number}", SIZES, SIZES) for number in range(28))))
    assert len({(each.colour, each.marker, each.dashes) for each in drawn}) == 28


def test_printed_and_computed_of_one_thing_share_colour_and_marker() -> None:
    printed, computed, ceiling = curves(LINES)
    assert (printed.colour, printed.marker) == (computed.colour, computed.marker)
    assert ceiling.colour != computed.colour
    assert printed.printed
    assert not computed.printed


def test_a_printed_series_says_so_in_the_legend() -> None:
    drawn = curves(chart(replace(SOLE, printed=True), SOLE))
    assert [each.name for each in drawn] == ["a, printed", "a"]
    assert explained(curves(LINES)) == (
        "hollow: printed · filled: computed · dashed: bound or theory · shaded: interval"
    )
