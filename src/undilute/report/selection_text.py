"""A selection and a reply on a terminal: the passages that matter, best first, with the question's words marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from undilute.errors import MissingExtra
from undilute.evaluation.words import standing_in
from undilute.selection.answering import FUNCTION_WORDS, Choice, Reply
from undilute.selection.result import Selected, Selection

if TYPE_CHECKING:
    from rich.text import Text

INDENT = "    "


def terminal(found: Selection) -> Iterator[Text]:
    """What to print, in order."""
    for number, each in enumerate(found.passages, start=1):
        yield from _passage(found, each, f"{number}")
    yield _text(found.summary(), "bold")


def reply(found: Reply) -> Iterator[Text]:
    """The same for a reply: what was read, then the answer."""
    for number, each in enumerate(found.selection.passages, start=1):
        yield from _passage(found.selection, each, f"[{number}]", strong=number in found.cited)
    yield from _choices("Answer", found.answer, found.choices)
    numbers = " ".join(f"[{number}]" for number in found.cited)
    yield _text(f"Its words stand in {numbers}." if numbers else "No passage that was read holds its words.", "dim")
    if found.full is not None:
        yield _text("")
        yield from _choices("With everything", found.full.answer, found.full.choices)
        yield _text(found.full.sentence, "dim")
    yield _text("")
    yield _text(found.selection.summary())


def show(found: Selection) -> None:
    """Print a selection."""
    try:
        from rich.console import Console
    except ImportError:
        raise MissingExtra("rich", "cli") from None
    console = Console()
    for part in terminal(found):
        console.print(part, soft_wrap=True)


def words_of(question: str) -> frozenset[str]:
    """The words of a question that say what it is about, in small letters.

    Examples
    --------
    >>> sorted(words_of("Who keeps a heron?"))
    ['heron', 'keeps']
    """
    words = standing_in(question)
    return frozenset(words - FUNCTION_WORDS or words)


def spans(text: str, words: frozenset[str]) -> list[tuple[int, int]]:
    """Where these words stand in a text.

    Examples
    --------
    >>> spans("A heron, Herons", frozenset({"heron"}))
    [(2, 7)]
    """
    return [each.span() for each in re.finditer(r"\w+", text) if each[0].lower() in words]


def printable(text: str) -> str:
    """A text without characters that would command a terminal or a page: blanks stand in their place.

    Examples
    --------
    >>> printable("a\\x1b[31mb\\n")
    'a [31mb\\n'
    """
    return "".join(mark if mark.isprintable() or mark in "\n\t" else " " for mark in text)


def _passage(found: Selection, each: Selected, number: str, strong: bool = False) -> Iterator[Text]:
    place = printable(f"{each.document}:{found.line(each.passage)}")
    line = _text(f"{number:>4}  ", "bold")
    line.append(f"{each.score:.4g}  ", style="dim")
    line.append(place, style="bold cyan")
    line.append(f" ({each.start:,}–{each.end:,}), {each.tokens:,} token{'s' * (each.tokens != 1)}", style="dim")
    yield line
    shown = _text(printable(each.text.strip("\n")).rstrip())
    for start, end in spans(shown.plain, words_of(found.question)):
        shown.stylize("bold yellow" if strong else "bold", start, end)
    for part in shown.split("\n", allow_blank=False):
        indented = _text(INDENT if part.plain.strip() else "")
        indented.append_text(part)
        yield indented
    yield _text("")


def _choices(name: str, answer: str, choices: Sequence[Choice]) -> Iterator[Text]:
    line = _text(f"{name}: ", "bold")
    line.append(printable(answer) or "(nothing)", style="bold green")
    yield line
    for each in choices:
        yield _text(
            f"{INDENT}{each.probability:6.1%}  {printable(each.text)}  "
            f"(log-probability {each.mean:.3f} per token, {each.total:.3f} in all)"
        )


def _text(plain: str, style: str = "") -> Any:
    from rich.text import Text

    return Text(plain, style=style)
