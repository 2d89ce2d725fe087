"""The audit's page, JSON and tables: complete, escaped, self-contained."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from undilute_papers import audit
from undilute_papers.audit import Curve, Finding, Result, statements
from undilute_papers.report import audit_page, audit_plots, audit_table


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [*audit.run("A4"), *audit.run("A3"), *audit.run("B13"), *audit.run("U2")]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))


def test_the_page_has_everything_and_loads_nothing(results: list[Result]) -> None:
    page = audit_page.page(results, seed=0)
    tags = Tags()
    tags.feed(page)
    kinds = [tag for tag, _ in tags.seen]
    assert {attributes.get("id") for tag, attributes in tags.seen if tag == "details"} == {
        result.statement.id for result in results
    }
    assert kinds.count("math") == sum(
        bool(each.statement.formula) + bool(each.statement.corrected_formula) for each in results
    )
    assert kinds.count("svg") == sum(each.statement.curve is not None for each in results)
    assert not {"script", "link", "img", "iframe"} & set(kinds)
    assert "0.03950614" in page  # the blog's table …
    assert "0.00164765" in page  # … and the recomputed one


def test_text_is_escaped(results: list[Result]) -> None:
    evil = "<script>alert('&')</script>"
    bad = replace(results[0], statement=replace(results[0].statement, title=evil, claim=evil, place=evil))
    bad = replace(bad, findings=(Finding(evil, evil, False),))
    page = audit_page.page([bad], seed=0)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "NOT reproduced" in page


@pytest.mark.parametrize("each", statements(), ids=lambda each: each.id)
def test_every_formula_becomes_mathml(each: audit.Statement) -> None:
    for latex in filter(None, (each.formula, each.corrected_formula)):
        made = audit_page.mathml(latex)
        ElementTree.fromstring(made)
        assert "\\" not in made, "a command that was not understood"


def test_json_says_all(results: list[Result]) -> None:
    loaded = json.loads(audit_page.to_json(results, seed=5))
    assert loaded["seed"] == 5
    assert loaded["reproduced"] is True
    first = loaded["statements"][0]
    assert first["id"] == "A4.1"
    assert first["verdict"] == "false"
    assert first["findings"][0].keys() == {"label", "outcome", "as_stated", "cases"}


def test_a_verdict_that_fails_is_shown(results: list[Result]) -> None:
    bad = replace(results[0], findings=(*results[0].findings, Finding("x", "y", False)))
    assert "NOT reproduced: A4.1" in audit_table.summary([bad, results[1]], seed=0)
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(audit_table.terminal([bad, results[1]]), audit_table.details(bad))
    text = console.export_text()
    assert "1 NOT as stated" in text
    assert "✗" in text


def test_plots_are_the_same_each_time() -> None:
    curve = Curve([1, 10, 100], {"a": [1, 2, 3], "b": [3, 2, 1]}, "x", "y", log_x=True)
    assert audit_plots.svg(curve) == audit_plots.svg(curve)
    assert audit_plots.png(curve) == audit_plots.png(curve)
    assert audit_plots.png(curve).startswith(b"\x89PNG")
    assert audit_plots.svg(curve) != audit_plots.svg(replace(curve, lines={"a": [1, 2, 3], "b": [3, 2, 2]}))
