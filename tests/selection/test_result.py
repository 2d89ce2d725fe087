"""Ways to look at a selection: sentences, pages, JSON; whatever a document, a name or a question holds."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import undilute as ud
from tests.report.results import EVIL
from tests.selection.material import DOCUMENTS, FACT, QUESTION, chain, letters
from undilute.errors import InvalidValue
from undilute.report import selection_html, selection_text
from undilute.selection import Passage, Selected, Selection

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def found() -> Selection:
    return ud.select(chain({}), letters(), QUESTION, DOCUMENTS, budget=200, scorer="words")


@pytest.fixture(scope="module")
def hostile() -> Selection:
    """Documents, names and a question that try to break out."""
    documents = {f"{SCRIPT}.md": f'{FACT} {SCRIPT}{EVIL} \x1b[31m "quoted" </mark></div>', "b": "x"}
    asked = f"{SCRIPT} heron {EVIL}?"
    return ud.select(chain({}), letters(), asked, documents, budget=400, size=200, scorer="words")


def test_the_summary_counts_what_was_kept(found: Selection) -> None:
    kept = sum(each.tokens for each in found.passages)
    assert found.summary().startswith(
        f"kept {len(found.passages)} of {found.among:,} passages: {kept} of {found.tokens:,} tokens; the model read 0"
    )


def test_lines_are_those_of_an_editor(found: Selection) -> None:
    best = found.passages[0]
    assert FACT in best.text
    lines = DOCUMENTS["notes.md"].split("\n")
    first = best.text.strip().split("\n")[0]
    assert first in lines[found.line(best.passage) - 1]


def test_json_has_everything_and_a_schema(found: Selection, tmp_path: Path) -> None:
    path = found.save_json(tmp_path / "x.json")
    content = json.loads(path.read_text())
    assert content["schema"] == "undilute.selection/1"
    assert content["text"] == found.text
    assert [each["text"] for each in content["passages"]] == [each.text for each in found.passages]
    for each in content["passages"]:
        assert DOCUMENTS[each["document"]][each["start"] : each["end"]] == each["text"]
    assert content["documents"] == [{"name": name, "characters": len(text)} for name, text in DOCUMENTS.items()]
    endless = replace(found, passages=(replace(found.passages[0], score=float("-inf")),))
    assert endless.data()["passages"][0]["score"] is None


def test_an_unknown_order_is_refused(found: Selection) -> None:
    with pytest.raises(InvalidValue, match="order = 'first'"):
        found.arranged("first")  # type: ignore[arg-type]


# ---------------------------------------------------------------- the page


class Tags(HTMLParser):
    """The tags of a page, and the text in its marks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.marked: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        if tag == "mark":
            self.marked.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "mark"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.marked[-1] += data


def test_the_page_marks_what_was_kept_and_folds_the_rest(found: Selection, tmp_path: Path) -> None:
    page = found.save_html(tmp_path / "x.html").read_text()
    seen = Tags(page)
    kept = {f"{number}{each.text.lstrip()}" for number, each in enumerate(found.passages, start=1)}
    assert set(seen.marked) == kept
    assert "script" not in seen.tags
    assert re.search(r"… about [\d,]+ tokens …", page)
    assert DOCUMENTS["notes.md"][-400:] not in page
    around = [each.text for own in selection_html.pieces(found).values() for each in own if each.kind == "around"]
    assert max(map(len, around)) < 500
    assert "default-src 'none'" in page
    assert "light-dark" in page
    assert len(page) < 20_000
    hovers = [each["title"] for each in seen.attributes if "title" in each]
    assert any(f"score {found.passages[0].score:.4g}, rank 1 of {found.among}" in str(each) for each in hovers)
    assert page == selection_html.page(found)


def test_what_is_folded_and_shown_is_the_whole_document(found: Selection) -> None:
    """Nothing is shown twice, and tokens that are left out are about as many as there are."""
    for name, own in selection_html.pieces(found).items():
        text, at = DOCUMENTS[name], 0
        for piece in own:
            if piece.kind == "left out":
                left = int(re.sub(r"\D", "", piece.text))
                at += left  # one token is one letter here
            else:
                assert text[at : at + len(piece.text)] == piece.text
                at += len(piece.text)
        assert at == len(text)


def test_documents_without_a_kept_passage_are_named(found: Selection) -> None:
    some = replace(found, passages=found.passages[:1])
    page = selection_html.page(some)
    assert "Nothing was kept of: other.md." in page
    many = replace(some, documents={**DOCUMENTS, **{f"d{number}": "x" for number in range(50)}})
    assert "and 31 more" in selection_html.page(many)


def test_marks_are_as_strong_as_scores() -> None:
    def one(number: int, score: float) -> Selected:
        return Selected(Passage(number, "a", number, number + 1, "x", 1), score, number + 1)

    made = Selection("Q?", (one(0, 2.0), one(1, 1.5), one(2, 1.0)), {"a": "xxx"}, 3, 3, 0, "s", 3, 0.0)
    assert selection_html.strengths(made) == {1: 100, 2: 62, 3: 25}
    equal = replace(made, passages=(one(0, 1.0), one(1, float("-inf"))))
    assert selection_html.strengths(equal)[1] == 100


def test_a_hostile_page_is_text_and_nothing_else(hostile: Selection) -> None:
    page = selection_html.page(hostile)
    seen = Tags(page)
    assert "<script" not in page
    assert not {"script", "img", "svg", "iframe"} & set(seen.tags)
    assert SCRIPT in "".join(seen.marked)
    assert "\x1b" not in page
    assert seen.tags.count("mark") == len(hostile.passages)


def test_a_notebook_shows_it_well_formed_and_escaped(hostile: Selection, found: Selection) -> None:
    for each in (hostile, found):
        shown = each._repr_html_()
        root = ElementTree.fromstring(shown)
        assert {tag.tag for tag in root.iter()} <= {"div", "p", "strong", "span", "mark"}
        assert {name for tag in root.iter() for name in tag.attrib} <= {"style", "title"}
        assert "<script" not in shown
        marked = ["".join(tag.itertext()) for tag in root.iter("mark")]
        assert len(marked) == len(each.passages)
    assert any(FACT in text for text in marked)


def test_a_reply_shows_itself_in_a_notebook() -> None:
    says = {":": " ", " ": "Z", "Z": "o", "o": "e", "e": "\n"}
    documents = {SCRIPT: f"{FACT} {SCRIPT}"}
    reply = ud.ask(
        chain(says), letters(), QUESTION, documents, scorer="words", full=True, choices=["Zoe", SCRIPT, "Adam"]
    )
    shown = reply._repr_html_()
    root = ElementTree.fromstring(shown)
    words = "".join(root.itertext())
    assert "<script" not in shown
    assert SCRIPT in words
    assert "With everything: Zoe" in words
    assert "Its words stand in [1]." in words
    assert reply.answer == "Zoe"
    assert "Answer: Zoe" in reply.summary()
    content = json.loads(json.dumps(reply.data(), allow_nan=False))
    assert content["schema"] == "undilute.reply/1"
    assert content["selection"]["schema"] == "undilute.selection/1"
    assert [each["text"] for each in content["choices"]] == [each.text for each in reply.choices]


# ---------------------------------------------------------------- on a terminal


def test_the_terminal_marks_the_words_of_the_question(found: Selection) -> None:
    lines = list(selection_text.terminal(found))
    assert str(lines[0]).split()[:3] == ["1", "3", f"notes.md:{found.line(found.passages[0].passage)}"]
    marked = {str(line)[span.start : span.end] for line in lines for span in line.spans if span.style == "bold"}
    assert {"keeps", "heron"} <= marked
    assert "a" not in marked
    assert str(lines[-1]) == found.summary()


def test_a_document_cannot_command_the_terminal(hostile: Selection, capsys: pytest.CaptureFixture[str]) -> None:
    hostile.show()
    shown = capsys.readouterr().out
    assert SCRIPT in shown
    assert "\x1b[31m" not in shown
    assert shown.rstrip().endswith(hostile.summary())
