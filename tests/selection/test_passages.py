"""Passages: nothing is lost, nothing is too long, and cuts stand where a reader would put them."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from tests.evaluation.tokenizers import KINDS_OF_TOKENIZERS, PROSE, tokenizer
from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import sentences
from undilute.models.texts import BOM, encoded, shipped_texts
from undilute.selection import passages as module
from undilute.selection.passages import Passage, split
from undilute.selection.structure import Structure, _fences

ALL = (*KINDS_OF_TOKENIZERS, "slow")
WORDS = "words"  # one token for each word: sizes are easy to see
NASTY = [
    *("\r\n", "\r", "\n", "\n\n", " ", "\t", "\u2028", "\x0b", "\x85", "\x00"),
    *("a", "Zoe keeps a heron.", "Is it? ", "“Yes!” ", "Dr. No", "e.g. this", "...", "。", "鹭", "ไทย", "हिन्दी"),
    *("# One\n", "## Two\n", "Title\n=====\n", "- item\n", "1. one\n", "```\n", "```python\n", "~~~\n", "    x = 1\n"),
    *(
        "\u200b",
        "\u200d",
        "\u0301",
        "\ufe0f",
        "👩\u200d👩\u200d👧",
        "🇩🇪",
        "👍🏽",
        "\ufeff",
        "\U0010ffff",
        "<s>",
        "<unk>",
    ),
]
TEXTS = st.one_of(st.text(max_size=300), st.lists(st.sampled_from(NASTY), max_size=60).map("".join))


@cache
def made(kind: str) -> Any:
    return ByT5Tokenizer() if kind == "slow" else tokenizer(kind)


def checked(text: str, by: Any, size: int) -> list[Passage]:
    """The passages of a text, which are that text, know their place and their tokens, and are not too long."""
    found = split({"a": text}, by, size)
    text = text.removeprefix(BOM)
    assert "".join(each.text for each in found) == text
    assert [each.number for each in found] == list(range(len(found)))
    for each in found:
        assert each.text == text[each.start : each.end] != ""
        assert each.tokens == len(encoded(by, each.text))
        assert each.tokens <= size or len(each.text) == 1
    return found


def said(text: str, size: int) -> list[str]:
    """What passages of so many words say, without the white space around it."""
    return [each.text.strip() for each in checked(textwrap.dedent(text).lstrip("\n"), made(WORDS), size)]


# ---------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, size=st.sampled_from([1, 2, 3, 7, 24, 96]))
@example(text="\u0301" * 50, size=3)
@example(text="a\r\nb\rc\n\r\nd", size=1)
@example(text="\ufeff\ufeffa", size=1)
@example(text="```\n\n# no\n```", size=2)
def test_joined_they_are_the_document(kind: str, text: str, size: int) -> None:
    if text.removeprefix(BOM).strip():
        checked(text, made(kind), size)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", ["manual", "source", "docstrings"])
def test_real_texts(kind: str, name: str) -> None:
    found = checked(shipped_texts()[name][:40_000], made(kind), 96)
    filled = sum(each.tokens for each in found) / (96 * len(found))
    assert 0.6 < filled < 1


@pytest.mark.parametrize(
    "line",
    ["a", " ", "heron ", "(", ".", ". ", "```x\n", "\u0301", "👍🏽", "鹭。", "#\n", "\r", "1. \n\n", "=\n"],
    ids=repr,
)
def test_much_of_the_same(line: str) -> None:
    """Time is linear, or this would not end; seconds for a megabyte."""
    text = "Begin. " + line * ((1_000_000 if line == "a" else 200_000) // len(line.encode()))
    found = split(text, made("byte-level"), 512)
    assert "".join(each.text for each in found) == text
    assert max(each.tokens for each in found) <= 512


def test_a_tokenizer_that_does_not_know_where_its_tokens_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_begins", lambda text, tokenizer: [])
    found = checked(PROSE[:20_000], made("byte-level"), 96)
    assert sum(each.tokens for each in found) / (96 * len(found)) > 0.6


def test_several_documents_are_numbered_through() -> None:
    found = split(["One. Two.", "", "Three."], made(WORDS), 2)
    assert [(each.number, each.document, each.start, each.text) for each in found] == [
        (0, "document 1", 0, "One."),
        (1, "document 1", 4, " Two."),
        (2, "document 3", 0, "Three."),
    ]


# ---------------------------------------------------------------- what is refused


def test_half_a_character_is_refused() -> None:
    with pytest.raises(
        InvalidValue, match=r"notes.md holds half a character, '\\ud800' at 3: must be text in Unicode."
    ):
        split({"notes.md": "One\ud800"}, made(WORDS))


@pytest.mark.parametrize("documents", ["", " \n", [], {}, ["", " "]])
def test_documents_without_text_are_refused(documents: Any) -> None:
    with pytest.raises(InvalidValue, match="hold no text"):
        split(documents, made(WORDS))


@pytest.mark.parametrize("size", [0, -1, 1.5, "96"])
def test_a_size_that_is_no_number_of_tokens_is_refused(size: Any) -> None:
    with pytest.raises(InvalidValue, match="size"):
        split("One.", made(WORDS), size)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidValue, match="document 2 is a bytes"):
        split(["One.", b"Two."], made(WORDS))  # type: ignore[list-item]


# ---------------------------------------------------------------- where a reader would cut


@pytest.mark.parametrize("name", ["manual", "docstrings", "source"])
@pytest.mark.parametrize("kind", ["byte-level", "sentence-piece", "words", "slow"])
def test_a_sentence_between_sentences_is_never_cut(kind: str, name: str) -> None:
    needle = " The special word of Zoe is heron."
    size = len(encoded(made(kind), needle)) + 1
    pieces = sentences(shipped_texts()[name][:15_000])
    ends = tuple(".!?…")
    borders = [place for place, piece in enumerate(pieces) if piece.rstrip("\"'”’)").endswith(ends)]
    assert len(borders) > 20
    text = "".join(piece + needle * (place in borders) for place, piece in enumerate(pieces))
    for wanted in (size, 3 * size, 96):
        if wanted >= size:
            found = checked(text, made(kind), wanted)
            assert sum(each.text.count(needle.strip()) for each in found) == len(borders)


def test_a_section_begins_a_passage_that_is_not_half_empty() -> None:
    text = """
    # One
    a b c d e

    # Two
    f g h

    # Three
    i j
    """
    assert said(text, 12) == ["# One\na b c d e", "# Two\nf g h\n\n# Three\ni j"]


def test_a_heading_stays_with_what_it_is_about() -> None:
    text = """
    a b

    ## Two

    c d e f g h i

    j k l m n o p
    """
    assert said(text, 10) == ["a b", "## Two\n\nc d e f g h i", "j k l m n o p"]


def test_titles_may_be_underlined() -> None:
    text = """
    a b c d e f

    Two
    ===

    g h

    ***
    Six
    ***

    i j k l m n
    """
    assert said(text, 10) == ["a b c d e f", "Two\n===\n\ng h", "***\nSix\n***\n\ni j k l m n"]


def test_paragraphs_that_fit_are_not_cut() -> None:
    text = """
    One is here. Two is here.

    Three is here. Four is here.

    Five.
    """
    assert said(text, 10) == ["One is here. Two is here.", "Three is here. Four is here.\n\nFive."]


def test_lists_are_cut_between_items() -> None:
    items = [f"- {name} stand in cold water from dawn to dusk. They wait for fish" for name in ("Herons", "Egrets")]
    wrapped = [textwrap.fill(item, 44, subsequent_indent="  ") for item in items]
    assert said("\n".join(wrapped), 20) == wrapped


def test_fenced_code_is_cut_at_lines_and_has_no_headings() -> None:
    text = """
    Before.

    ```
    # no heading
    one two. Three
    four five. Six
    ```
    After. More.
    """
    found = said(text, 8)
    assert found == ["Before.\n\n```\n# no heading", "one two. Three\nfour five. Six", "```\nAfter. More."]


def test_a_comment_in_fenced_code_is_no_heading() -> None:
    text = "# One\n\n```\na\n\n# no\nb\n```\n# Two\n\nc"
    assert Structure(text).headings == {0: 7, text.index("# Two"): len(text) - 1}


def test_a_fence_that_never_closes_is_none() -> None:
    assert _fences("```\na\n") == {}
    assert _fences("```py\na\n```\n~~~\nb") == {0: 11}
    assert _fences("~~~\n```\n~~~\n```") == {0: 11}


def test_wrapped_prose_is_cut_between_sentences_and_not_at_lines() -> None:
    prose = "The heron stands in cold water from dawn to dusk. It waits for a fish all day. Nothing comes of it."
    wrapped = textwrap.fill(prose, 42)
    assert wrapped.count("\n") == 2
    assert [" ".join(each.split()) for each in said(wrapped, 11)] == [
        "The heron stands in cold water from dawn to dusk.",
        "It waits for a fish all day.",
        "Nothing comes of it.",
    ]


def test_short_lines_are_not_parted() -> None:
    text = """
    heron, bird. It wades
    kestrel, bird. It flies
    otter, beast. It swims
    """
    assert said(text, 9) == ["heron, bird. It wades", "kestrel, bird. It flies", "otter, beast. It swims"]


def test_no_sentence_ends_after_an_abbreviation() -> None:
    text = "Alas, says Dr. Smith. It was J. Jones. He went e.g. by train."
    assert said(text, 11) == ["Alas, says Dr. Smith.", "It was J. Jones.", "He went e.g. by train."]


def test_sentences_of_scripts_without_spaces() -> None:
    found = checked("鹭站在水里。它等鱼！什么也没有来？", made("bytes"), 24)
    assert [each.text for each in found] == ["鹭站在水里。", "它等鱼！", "什么也没有来？"]


def test_a_character_is_not_parted_from_its_marks() -> None:
    found = checked("e\u0301" * 40, made("bytes"), 10)
    assert all(each.text.startswith("e") for each in found)
    assert [each.text for each in checked("👍🏽" * 4, made("bytes"), 8)] == ["👍🏽"] * 4


def source(lines: Sequence[int]) -> str:
    """A module with a function of so many lines each, whose bodies have a blank line."""
    bodies = [
        f"def function_{place}(x):\n"
        + "".join(f"    y = x + {line}\n" for line in range(number // 2))
        + "\n"
        + "".join(f"    z = y * {line}. \n" for line in range(number - number // 2))
        + "    return z\n"
        for place, number in enumerate(lines)
    ]
    return "\n\n".join(bodies)


def test_code_is_cut_between_functions() -> None:
    found = checked(source([2, 3, 4, 2, 3]), made(WORDS), 50)
    assert [each.text.count("def ") for each in found] == [each.text.count("return") for each in found]


def test_code_that_is_too_long_is_cut_at_blank_lines_then_at_lines() -> None:
    found = checked(source([2, 12, 2]), made(WORDS), 50)
    assert [each.text.split("\n")[0].strip() for each in found] == [
        *("def function_0(x):", "def function_1(x):", "z = y * 0.", "def function_2(x):"),
    ]
    assert all(each.text.endswith("\n") for each in checked(source([40]), made(WORDS), 20))


def test_real_code_is_cut_at_lines() -> None:
    found = checked(inspect.getsource(textwrap), made("byte-level"), 96)
    assert sum(each.text.endswith("\n") for each in found) > 0.85 * len(found)
