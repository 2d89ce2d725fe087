"""A selection as one HTML file: the documents with the kept passages marked, and all that was left out folded.

Every text is escaped, wherever it comes from. There is no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from undilute.report import pages
from undilute.report.selection_text import printable
from undilute.selection.result import Selected, Selection

AROUND = 160  # characters that are shown on either side of what was kept
LONG = 480  # characters that are left out, at least, where some are
NAMED = 20  # documents without a kept passage that are named


@dataclass(frozen=True)
class Piece:
    """A piece of a document.

    Attributes
    ----------
    text : what it says; of a stretch that is left out, how long it is
    kind : "kept", "around" or "left out"
    number : of the passage, from 1; 0 if it was not kept
    strength : of the mark, in percent
    hover : more about it
    """

    text: str
    kind: str
    number: int = 0
    strength: int = 0
    hover: str = ""


def page(found: Selection) -> str:
    """A self-contained HTML page; the same selection gives the same text."""
    by_document = pieces(found)
    others = [printable(name) for name in found.documents if name not in by_document]
    return pages.rendered(
        "selection.html",
        styles=("page.css", "selection.css"),
        scripts=(),
        question=printable(found.question),
        summary=found.summary(),
        scorer=found.scorer,
        budget=found.budget,
        documents={printable(name): own for name, own in by_document.items()},
        others=others[:NAMED],
        more=max(len(others) - NAMED, 0),
    )


def pieces(found: Selection) -> dict[str, list[Piece]]:
    """Name → pieces, of every document that something was kept of; the one with the best passage first."""
    best_first = dict.fromkeys(each.document for each in found.passages)
    return {name: list(_pieces(found, name)) for name in best_first}


def _pieces(found: Selection, name: str) -> Iterator[Piece]:
    text, strength = found.documents[name], strengths(found)
    numbers = {each.passage.number: number for number, each in enumerate(found.passages, start=1)}
    at = 0
    for each in sorted((one for one in found.passages if one.document == name), key=lambda one: one.start):
        said = each.text.lstrip()  # the number stands where the words begin
        yield from _between(found, text, at, each.end - len(said))
        number = numbers[each.passage.number]
        yield Piece(printable(said), "kept", number, strength[number], hover(found, each))
        at = each.end
    yield from _between(found, text, at, len(text))


def _between(found: Selection, text: str, start: int, end: int) -> Iterator[Piece]:
    """What was not kept: its ends, and how much is between them if that is long."""
    before = max(text.rfind(" ", start, start + AROUND) - start, 0) if start else 0
    place = text.find(" ", end - AROUND, end) if end < len(text) else end
    after = end - place if place >= start else AROUND
    if end - start - before - after < LONG:
        if end > start:
            yield Piece(printable(text[start:end]), "around")
        return
    if before:
        yield Piece(printable(text[start : start + before]), "around")
    yield Piece(f"… about {_tokens(found, end - start - before - after):,} tokens …", "left out")
    if after:
        yield Piece(printable(text[end - after : end]), "around")


def _tokens(found: Selection, characters: int) -> int:
    """So many characters in tokens, as the documents have them on average."""
    return max(1, round(characters * found.tokens / max(1, sum(map(len, found.documents.values())))))


def strengths(found: Selection) -> Mapping[int, int]:
    """Number → how strong its mark is, from 25 to 100 percent between the lowest and the highest score."""
    scores = [each.score if math.isfinite(each.score) else -math.inf for each in found.passages]
    real = [each for each in scores if math.isfinite(each)]
    low, high = min(real, default=0.0), max(real, default=0.0)
    made = {}
    for number, score in enumerate(scores, start=1):
        share = 1.0 if high == low else (max(score, low) - low) / (high - low)
        made[number] = round(25 + 75 * share)
    return made


def hover(found: Selection, each: Selected) -> str:
    """What is known of a passage."""
    return (
        f"score {each.score:.4g}, rank {each.rank:,} of {found.among:,}; {each.tokens:,} tokens; line "
        f"{found.line(each.passage):,}, characters {each.start:,} to {each.end:,}"
    )
