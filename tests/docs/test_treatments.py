"""The README's table of treatments says what the results say."""

from __future__ import annotations

from docs.tables.treatments import table

from tests.report.evaluations import BARE, BEFORE, BETTER, SAME, WORSE
from undilute.evaluation.changes import changes
from undilute.evaluation.result import Evaluation

SETTINGS = {"model": "it", "length": 512}


def test_every_rule_has_a_line_with_its_figures_and_verdicts() -> None:
    found = {each.label: changes(BEFORE, each) for each in (BETTER, WORSE, SAME)}
    result = Evaluation("compare", [BEFORE, BETTER, WORSE, SAME], found, {}, [], SETTINGS).report()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table([result]).splitlines()]
    assert [line[0] for line in lines[2:]] == ["ssmax, 512 tokens", "top-k, 512 tokens", "adaptive, 512 tokens"]
    loss = found["ssmax"][0]
    assert lines[2][1] == f"{loss.before:.3f} → {loss.after:.3f} (−{abs(loss.difference):.3f}, better)"
    assert [line[1].split(", ")[1] for line in lines[2:]] == ["better)", "worse)", "unclear)"]
    assert [line[3].split(", ")[1] for line in lines[2:]] == ["better)", "worse)", "unclear)"]
    assert {line[4] for line in lines[2:]} == {"1.00 ×"}


def test_what_was_not_measured_is_a_dash() -> None:
    result = Evaluation("compare", [BARE, BARE], {"softmax": changes(BARE, BARE)}, {}, [], SETTINGS).report()
    assert table([result]).splitlines()[2].endswith("| – | – |")
