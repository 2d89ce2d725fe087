"""What is said of printed values and claims: digits, verdicts, and how many count."""

from __future__ import annotations

import pytest

from undilute.report.result import Comparison
from undilute_papers.report import comparisons


@pytest.mark.parametrize(
    ("printed", "computed", "text"),
    [
        (12.56, 0.72133824, "0.721"),
        (1.59, 3.30094, "3.30"),
        (0.86224699, 0.291875134, "0.29187513"),
        (0.00040958, 1.6487e-5, "1.649·10⁻⁵"),
        (21619, 99999.81, "100,000"),
        (94.3, -95.12, "−95.1"),
        (None, 0.123456, "0.1235"),
        ("grows", 0.123456, "0.1235"),
        (1.5, float("nan"), "–"),
        (1.5, 0.0, "0"),
        (1.5, "words", "words"),
    ],
)
def test_computed_values_have_the_digits_of_the_printed_ones(
    printed: float | str | None, computed: float | str, text: str
) -> None:
    assert comparisons.computed(Comparison("w", printed, computed, "agrees")) == text


def test_printed_values_are_shown_as_printed() -> None:
    values = [0.86224699, 21619, 12.5, None, "0.06 L"]
    found = [comparisons.printed(Comparison("w", value, 1.0, "agrees")) for value in values]
    assert found == ["0.86224699", "21,619", "12.5", "–", "0.06 L"]


def test_what_was_not_printed_does_not_count() -> None:
    some = [Comparison("a", None, 1.0, "agrees"), Comparison("b", 1.0, 1.0, "agrees")]
    assert comparisons.counts(some) == {"agrees": 1, "differs": 0, "other set-up": 0}
    assert comparisons.outcome(some).startswith("Of 1 printed value or claim 1 agrees, 0 differ, 0 are")
