"""Things in a notebook: well-formed, escaped, without scripts, and with the figures that they have."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from tests.report.results import EVIL
from tests.report.test_diagnosis_page import gpt2
from undilute.diagnosis.heads import Heads
from undilute.diagnosis.result import Diagnosis
from undilute.report import notebook

ALLOWED = {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    """Of a small random model, whose names try to break out."""
    found = gpt2()
    found.subject = replace(found.subject, model=EVIL)
    for layer in found.layers:
        layer.name = f"{EVIL}{layer.index}"
    found.why_no_probe = EVIL
    return found


def parsed(text: str) -> ElementTree.Element:
    """The elements of a well-formed text, which may only be of the kinds that show something."""
    root = ElementTree.fromstring(text)
    assert {each.tag for each in root.iter()} <= ALLOWED
    assert {name for each in root.iter() for name in each.attrib} <= {"style"}
    return root


def table_of(root: ElementTree.Element, number: int = 0) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in root.findall(".//table")[number].iter("tr")]


def test_a_diagnosis_shows_its_headline_its_kinds_and_its_worst_heads(diagnosis: Diagnosis) -> None:
    root = parsed(diagnosis._repr_html_())
    words = "".join(root.itertext())
    assert diagnosis.summary in words
    assert f"of {diagnosis.question.length:,} tokens of " in words
    assert diagnosis.forecast().summary in words
    assert diagnosis.advice in words
    kinds = table_of(root)
    assert {row[2]: (int(row[0]), int(row[1])) for row in kinds[1:]} == {
        kind: (number, diagnosis.steady_counts[kind]) for kind, number in diagnosis.counts.items()
    }
    worst = table_of(root, 1)[1:]
    assert [(int(row[0]), int(row[1])) for row in worst] == [
        (head.layer, head.head) for head in diagnosis.heads.diluting[:10]
    ]


def test_hostile_names_are_text_and_nothing_else(diagnosis: Diagnosis) -> None:
    for shown in (diagnosis._repr_html_(),):
        words = "".join(parsed(shown).itertext())
        assert EVIL.rstrip("\u2028") in words
        assert "<script" not in shown
        assert "<img" not in shown
    evil = ["<b>", "&amp;", '"', "\x00\ud83e", "]]>"]
    root = parsed(notebook.block(notebook.sentence(evil[0], strong=evil[1]), notebook.table(evil, [evil, evil])))
    assert table_of(root)[1] == ["<b>", "&amp;", '"', "  ", "]]>"]


def test_heads_show_a_line_each_and_say_how_many_are_left_out(diagnosis: Diagnosis) -> None:
    few = parsed(diagnosis.heads[:3]._repr_html_())
    assert len(table_of(few)) == 4
    many = Heads([*diagnosis.heads] * 10)
    root = parsed(many._repr_html_())
    assert len(table_of(root)) == 21
    assert f"and {len(many) - 20} more" in "".join(root.itertext())
    assert len(table_of(parsed(Heads([])._repr_html_()))) == 1


def test_columns_of_figures_are_aligned_on_the_right() -> None:
    root = parsed(notebook.table(["a", "b"], [["1,024", "x"], ["−0.5", "2"]]))
    sides = [("text-align: right" in str(cell.get("style"))) for cell in root.iter("td")]
    assert sides == [True, False, True, False]


def test_showing_needs_nothing_that_a_plain_install_lacks() -> None:
    """Neither rich nor jinja2 nor any other extra."""
    program = (
        "import sys\n"
        "for name in ('rich', 'jinja2', 'markupsafe', 'matplotlib', 'pydantic', 'typer'): sys.modules[name] = None\n"
        "from undilute.diagnosis.heads import Heads\n"
        "assert Heads([])._repr_html_().startswith('<div>')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
