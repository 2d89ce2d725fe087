"""Experiments on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from tests.report.results import dilution, hostile, temperature
from undilute.report import comparisons
from undilute.report.result import Comparison, Result
from undilute_papers.report import experiment_text
from undilute_papers.reproduction.experiment import every


def shown(*parts: RenderableType, width: int = 240) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_experiment_is_listed() -> None:
    text = shown(experiment_text.listing())
    for id, experiment in every().items():
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [id]]
        assert experiment.shows in line
        assert experiment.source in line


@pytest.mark.parametrize("result", [dilution(), temperature()], ids=["dilution", "temperature"])
def test_answer_comparisons_and_findings_in_this_order(result: Result) -> None:
    text = shown(*experiment_text.terminal(result), width=900)
    places = [text.index(part) for part in (*result.findings[:1], "verdict", "Of ", *result.findings[1:])]
    assert places == sorted(places)
    for each in result.comparisons:
        assert each.what in text
    assert text.count("✓ agrees") == sum(each.verdict == "agrees" for each in result.comparisons)


def test_marks_are_shown_and_not_obeyed() -> None:
    text = shown(*experiment_text.terminal(hostile()), width=3000)
    assert text.count("[red]") == 8  # two findings, six texts of comparisons
    assert "<script>" in text


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
    found = [Comparison("a", None, 1.0, "agrees"), Comparison("b", 1.0, 1.0, "agrees")]
    assert comparisons.counts(found) == {"agrees": 1, "differs": 0, "other set-up": 0}
    assert comparisons.outcome(found).startswith("Of 1 printed value or claim 1 agrees, 0 differ, 0 are")
