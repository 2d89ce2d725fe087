"""What counts as evidence; and every statement of the papers has its entry."""

from __future__ import annotations

import re

import pytest
import torch

from undilute.errors import UnknownName
from undilute_papers import audit
from undilute_papers.audit import Evidence, Verdict, statement, statements
from undilute_papers.audit.sources import UNDILUTE


def collected() -> Evidence:
    return Evidence(torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("value", "printed", "right"),
    [
        (4.5951, "4.595", True),
        (4.5956, "4.595", False),
        (4.5944, "4.595", False),
        (0.0165, ".02", True),
        (7.44e-42, "7.4e-42", True),
        (7.46e-42, "7.4e-42", False),
        (99_999.82, "99,999.8", True),
        (5.0, "5", True),
        (5.6, "5", False),
        (float("nan"), "5", False),
    ],
)
def test_a_quoted_number_must_agree_to_every_digit(value: float, printed: str, right: bool) -> None:
    evidence = collected()
    evidence.quoted("x", value, printed)
    assert evidence.findings[0].as_stated is right


def test_inequalities() -> None:
    evidence = collected()
    evidence.holds("all", torch.tensor([0.0, 1.0, -1e-12]))
    evidence.holds("not all", torch.tensor([0.0, -1e-3]))
    evidence.holds("not a number", torch.tensor([0.0, torch.nan]))
    evidence.breaks("one is enough", torch.tensor([5.0, -1e-3]))
    evidence.breaks("rounding is not", torch.tensor([5.0, -1e-12]))
    evidence.near("close", 1.01, 1.0, within=0.02)
    evidence.near("not close", float("nan"), 1.0, within=0.02)
    evidence.true("no", torch.tensor(False), "seen")
    assert [finding.as_stated for finding in evidence.findings] == [True, False, False, True, False, True, False, False]
    assert [finding.cases for finding in evidence.findings] == [3, 2, 2, 2, 2, 1, 1, 1]


def test_no_evidence_is_no_verdict() -> None:
    each = audit.Statement("X1", UNDILUTE, "here", Verdict.TRUE, "t", "c", "", "", "", "p", check=lambda evidence: None)
    assert not each.run().reproduces


def test_two_statements_cannot_share_an_id() -> None:
    with pytest.raises(AssertionError, match="A1"):
        statement("A1", UNDILUTE, place="", verdict=Verdict.TRUE, title="", claim="", proof="")(lambda evidence: None)


def test_seeds_differ_and_repeat() -> None:
    [each] = statements("B4")
    assert each.run(1).findings == each.run(1).findings
    assert each.run(1).findings != each.run(2).findings


def test_every_statement_of_the_sources_is_there_in_order() -> None:
    items = [each.id.partition(".")[0] for each in statements()]
    wanted = [f"{letter}{i}" for letter, last in (("A", 12), ("B", 16), ("C", 8), ("U", 8)) for i in range(1, last + 1)]
    assert list(dict.fromkeys(items)) == wanted


def test_parts_are_found_by_their_item() -> None:
    assert [each.id for each in statements("b6")] == ["B6.1", "B6.2", "B6.3"]
    assert [each.id for each in statements("B1")] == ["B1"]
    with pytest.raises(UnknownName, match="B99"):
        statements("B99")


@pytest.mark.parametrize("each", statements(), ids=lambda each: each.id)
def test_records_are_complete(each: audit.Statement) -> None:
    assert each.forms, "a check without a formula to replace cannot be seen to fail"
    assert all(text.strip() for text in (each.place, each.title, each.claim, each.proof))
    if each.verdict in (Verdict.FALSE, Verdict.CONDITIONAL):
        assert each.correction
    for formula in (each.formula, each.corrected_formula):
        assert "$" not in formula
        assert formula.count("{") == formula.count("}")
    for text in (each.claim, each.correction, each.proof):
        assert not re.search(r"\\[a-z]", text), "plain text, not LaTeX"
