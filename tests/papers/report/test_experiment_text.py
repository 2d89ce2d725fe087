"""Experiments on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from tests.report.results import dilution, hostile, temperature
from undilute.report.result import Result
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
