"""Which colour does a cell of a heat map get, and what is said about it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.report.charts.samples import INF, NAN, NO_CELLS, RULES
from undilute.errors import InvalidValue
from undilute.report.charts.cells import BETTER, SAME, WORSE, colours, explained, shades, texts
from undilute.report.result import HeatMap


def column(*values: float | None, **more: object) -> HeatMap:
    """A heat map of one column, whose first row is the centre."""
    names = [f"rule {number}" for number in range(len(values))]
    made = HeatMap("h", "t", "x", "y", ["512"], names, [[value] for value in values], "loss", centre="rule 0")
    return replace(made, **more)  # type: ignore[arg-type]


def test_each_column_is_coloured_by_its_own_difference_to_the_centre() -> None:
    assert shades(RULES) == [[0.0, 0.0], [-0.5, 1.0], [None, None]]


def test_lower_is_blue_where_lower_is_better() -> None:
    assert shades(column(3.0, 2.0, 4.0, better="lower")) == [[0.0], [1.0], [-1.0]]
    assert shades(column(3.0, 2.0, 4.0, better="higher")) == [[0.0], [-1.0], [1.0]]


def test_colours_run_from_worse_over_the_same_to_better() -> None:
    assert colours(column(3.0, 2.0, 4.0, None, better="lower")) == [[SAME], [BETTER], [WORSE], [None]]
    half = int(colours(column(0.0, 4.0, 1.0, better="lower"))[2][0][1:3], 16)  # type: ignore[index]
    assert half == round((int(SAME[1:3], 16) + int(WORSE[1:3], 16)) / 2)


@pytest.mark.parametrize("missing", [NAN, None, INF, -INF])
def test_a_cell_without_a_value_has_no_colour_and_spoils_no_other(missing: float | None) -> None:
    assert shades(column(3.0, missing, 4.0)) == [[0.0], [None], [1.0]]
    assert texts(column(3.0, missing, 4.0)) == [["3"], ["–"], ["4"]]


def test_without_a_value_in_the_centre_a_column_has_no_colour() -> None:
    assert shades(column(None, 1.0, 2.0)) == [[None], [None], [None]]


def test_without_a_centre_the_highest_is_bluest() -> None:
    assert shades(column(1.0, 5.0, 2.0, centre=None)) == [[0.0], [1.0], [0.5]]


@pytest.mark.parametrize(
    ("heat_map", "says"),
    [
        (
            RULES,
            "recall, %, higher is better · blue: better than softmax · orange: worse · deepest: a difference of 20",
        ),
        (column(1.0, 1.0), "loss · no difference from rule 0"),
        (column(NAN, 1.0), "loss · no difference from rule 0"),
        (column(1.0, 3.0), "loss · blue: above rule 0 · orange: below · deepest: a difference of 2"),
        (column(1.0, 3.0, centre=None), "loss · bluer: higher"),
        (NO_CELLS, "recall, % · bluer: higher"),
    ],
)
def test_the_words_say_what_the_colours_are(heat_map: HeatMap, says: str) -> None:
    assert explained(heat_map) == says


@pytest.mark.parametrize("values", [[], [[1.0]], [[1.0, 2.0], [3.0]], [[1.0], [2.0]], [[1.0, 2.0]] * 3])
def test_values_that_do_not_fit_the_labels_are_refused(values: Sequence[Sequence[float]]) -> None:
    with pytest.raises(InvalidValue, match=r"'h' do not fit its labels: must be 2 rows of 2"):
        HeatMap("h", "t", "x", "y", ["a", "b"], ["c", "d"], values, "v")


def test_a_centre_that_is_no_row_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"centre = 'softmax' of the heat map 'h': must be one of its rows"):
        column(1.0, 2.0, centre="softmax")
