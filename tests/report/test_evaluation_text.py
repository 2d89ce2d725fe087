"""A treatment on a terminal."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.papers.report.test_experiment_text import shown
from tests.report.evaluations import BARE, BEFORE, BETTER, SAME, WORSE, evaluation
from tests.report.results import EVIL
from tests.report.test_evaluation_result import compare, treat
from undilute.evaluation.measure import Measurement, Spread
from undilute.report.evaluation_text import terminal
from undilute.report.result import Result


def line(text: str, start: str) -> str:
    (found,) = [each for each in text.splitlines() if each.strip().startswith(start)]
    return found


@pytest.mark.parametrize("result", [treat(WORSE), compare(WORSE, BETTER)], ids=["treat", "compare"])
def test_the_verdict_comes_first_and_no_finding_is_missing(result: Result) -> None:
    text = shown(*terminal(result), width=900)
    places = [text.index(finding) for finding in result.findings]
    assert places == sorted(places)
    assert places[0] == 0


@pytest.mark.parametrize(("after", "sign"), [(BETTER, "✓"), (WORSE, "✗"), (SAME, "○")])
def test_every_change_of_one_rule_has_a_line_with_its_verdict(after: Measurement, sign: str) -> None:
    text = shown(*terminal(treat(after)))
    assert line(text, "next-token loss, nats").rstrip().endswith(sign)
    assert line(text, "needle recall at 2,048 tokens, %").rstrip().endswith(sign)
    assert text.count("log-probability of right answers, nats") == 1
    assert "log-probability of right answers at" not in text


def test_narrower_attention_is_not_called_better() -> None:
    rows = 12
    many = [
        replace(each, spread=Spread(np.arange(rows) + 8, np.full((1, 2, rows), wide), np.full((1, 2, rows), 0.5)))
        for each, wide in ((BEFORE, 3.0), (SAME, 2.0))
    ]
    assert line(shown(*terminal(treat(many[1], many[0]))), "entropy of the heads").rstrip().endswith("narrower")
    assert line(shown(*terminal(treat(many[0], many[1]))), "entropy of the heads").rstrip().endswith("wider")


def test_figures_are_those_of_the_change_in_a_terminal_of_80_columns() -> None:
    text = shown(*terminal(treat(WORSE)), width=80)
    assert re.search(r"2\.927 +3\.227 +\+0\.300 +\+0\.300 to \+0\.301 +< 0\.001 +✗", text)
    assert re.search(r"47\.9 +20\.4 +−27\.5 +−33\.3 to −22\.1 +< 0\.001 +✗", text)


def test_without_an_interval_there_is_a_dash() -> None:
    short = [replace(each, losses=each.losses[:1, :20]) for each in (BARE, replace(BARE, label="ssmax"))]
    cells = line(shown(*terminal(treat(short[1], short[0]))), "next-token loss, nats").split()
    assert cells[-3:] == ["–", "–", "○"]


def test_many_rules_have_a_line_each_after_softmax() -> None:
    text = shown(*terminal(compare(BETTER, WORSE, SAME)))
    rows = [text.index(f"\n {each}") for each in ("softmax", "ssmax", "top-k", "adaptive")]
    assert rows == sorted(rows)
    assert line(text, "ssmax  ").count("✓") == 2
    assert line(text, "top-k  ").count("✗") == 2
    assert line(text, "adaptive  ").count("○") == 2
    assert line(text, "softmax  ").split()[-3:] == ["1.00", "1.00", "1.00"]


def test_rules_without_questions_and_times_are_compared_by_loss_alone() -> None:
    text = shown(*terminal(compare(replace(BARE, label="ssmax"), before=BARE)))
    assert "needle recall" not in text
    assert line(text, "ssmax  ").split()[-1] == "○"
    assert len(line(text, "softmax  ").split()) == 2


def test_marks_in_names_are_shown_and_not_obeyed() -> None:
    text = shown(*terminal(compare(evaluation(EVIL, loss=0.1))), width=3000)
    assert "[red]" in text
    assert EVIL[:40] in shown(*terminal(treat(replace(BETTER, label=EVIL))), width=3000)
