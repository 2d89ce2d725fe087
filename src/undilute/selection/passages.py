"""What is chosen among?  Passages: short pieces of the user's documents that end where a thought ends.

    passages = split({"notes.md": text}, tokenizer, size=96)
    "".join(each.text for each in passages) == text

Joined, the passages of a document are that document, to the character. Every passage knows its place.

A document is cut where its structure allows it: at headings, blank lines, list items and lines that are meant as
lines (``undilute.selection.structure``), else between sentences, clauses, words, and last between characters. What
fits into a passage is never cut, and neighbours are packed together. The package semantic-text-splitter was no fit: it
ranks every line break above sentences, which cuts them in wrapped prose, and must be told what is Markdown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from undilute.errors import InvalidValue
from undilute.models.texts import BOM, encoded
from undilute.rules.parameters import count
from undilute.selection.structure import CHARACTERS, SECTIONS, Structure

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SIZE = 96  # tokens of a passage, at most
CHUNK = 1 << 14  # characters that are tokenised at once to estimate
CHUNKS = 64  # chunks in a batch
LONG = 64  # characters for a token: a text with more of them is not counted by a slow tokenizer, but cut
Documents: TypeAlias = "str | Sequence[str] | Mapping[str, str]"


@dataclass(frozen=True)
class Passage:
    """A piece of a document.

    Attributes
    ----------
    number : its place among all passages, from 0
    document : the document's name
    start, end : where it stands in the document, in characters: ``document[start:end]``
    text : what it says, with the white space around it
    tokens : how many it has when it is tokenised by itself
    """

    number: int
    document: str
    start: int
    end: int
    text: str
    tokens: int


def named(documents: Documents) -> dict[str, str]:
    """Documents by name: their own, or "document 1" and so on. Those without text are refused."""
    if isinstance(documents, str):
        documents = [documents]
    if not isinstance(documents, Mapping):
        documents = {f"document {place}": each for place, each in enumerate(documents, start=1)}
    for name, text in documents.items():
        if not isinstance(text, str):
            raise InvalidValue(f"{name} is a {type(text).__name__}: documents must be text.")
        _check_unicode(name, text)
    found = {name: text.removeprefix(BOM) for name, text in documents.items()}
    if not any(text.strip() for text in found.values()):
        raise InvalidValue("the documents hold no text: give at least one with something to read.")
    return found


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(
            f"{name} holds half a character, {text[error.start]!r} at {error.start:,}: must be text in Unicode."
        ) from None


def split(documents: Documents, tokenizer: PreTrainedTokenizerBase, size: int = SIZE) -> list[Passage]:
    """The documents in passages of at most ``size`` tokens; a single character may have more.

    Parameters
    ----------
    documents : a text, several, or {name: text}
    tokenizer : which counts the tokens
    size : tokens of a passage, at most
    """
    count("size", size)
    made: list[Passage] = []
    for name, text in named(documents).items():
        for start, end, tokens in _Splitter(text, tokenizer, size):
            made.append(Passage(len(made), name, start, end, text[start:end], tokens))
    return made


# ---------------------------------------------------------------- how many tokens?


class _Counted:
    """How many tokens the parts of a text have.

    A fast tokenizer reads the text once, and says where each token begins; that is an estimate for a part of it, whose
    first and last tokens may be others when it stands alone. A slow one reads each part.
    """

    def __init__(self, text: str, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
        self.text, self.tokenizer, self.size = text, tokenizer, size
        self.begins = _begins(text, tokenizer) if tokenizer.is_fast else None
        self.known: dict[tuple[int, int], int] = {}

    def about(self, start: int, end: int) -> int:
        if (known := self.known.get((start, end))) is not None:
            return known
        if self.begins is not None:
            return bisect_left(self.begins, end) - bisect_left(self.begins, start)
        return self.exactly(start, end) if end - start <= LONG * self.size else self.size + 1

    def exactly(self, start: int, end: int) -> int:
        if (start, end) not in self.known:
            about = self.about(start, end) if self.begins is not None else None
            self.known[start, end] = len(encoded(self.tokenizer, self.text[start:end]))
            if about is not None and self.known[start, end] > 2 * about + self.size:
                self.begins = None  # this tokenizer does not know where its tokens begin
        return self.known[start, end]


def _begins(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Where tokens begin, in characters and in order."""
    found: list[int] = []
    chunks = list(_chunks(text))
    for first in range(0, len(chunks), CHUNKS):
        some = chunks[first : first + CHUNKS]
        read: Any = tokenizer(
            [text[start:end] for start, end in some],
            add_special_tokens=False,
            truncation=False,
            verbose=False,
            return_offsets_mapping=True,
        )
        for (start, _), offsets in zip(some, read["offset_mapping"], strict=True):
            found += np.sort(np.asarray(offsets, dtype=np.int64).reshape(-1, 2)[:, 0] + start).tolist()
    return found


def _chunks(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of parts that end with a line, or else with a word."""
    start = 0
    while start < len(text):
        end = start + CHUNK
        if end < len(text):
            border = text.rfind("\n", start, end) + 1 or text.rfind(" ", start + 1, end)
            end = border if border > start else end
        yield start, min(end, len(text))
        start = end


# ---------------------------------------------------------------- cut and packed


@dataclass(frozen=True)
class _Piece:
    """A part of a text that need not be cut.

    Attributes
    ----------
    start, end : in characters
    level : what it was cut by
    tokens : about as many
    is_new : it begins something: a section, or what is too long for one passage
    """

    start: int
    end: int
    level: int
    tokens: int
    is_new: bool


class _Splitter:
    """The passages of a text: (start, end, tokens).

    Parameters
    ----------
    text : of any length
    tokenizer : which counts the tokens
    size : tokens of a passage, at most
    """

    def __init__(self, text: str, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
        self.text, self.size = text, size
        self.structure = Structure(text)
        self.counted = _Counted(text, tokenizer, size)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        pieces = self._pieces(0, len(self.text), SECTIONS, False) if self.text else iter(())
        again: list[_Piece] = []  # pieces to look at before the next ones, the first of them last
        held: list[_Piece] = []
        tokens = 0
        while True:
            piece = again.pop() if again else next(pieces, None)
            if piece is not None and (not held or self._goes_on(tokens, piece)):
                held.append(piece)
                tokens += piece.tokens
                continue
            if not held:
                return
            if piece is not None:
                again.append(piece)
            yield from self._closed(held, again)
            held, tokens = [], 0

    def _goes_on(self, tokens: int, piece: _Piece) -> bool:
        """Does the piece belong into the passage that has so many tokens already?"""
        return tokens + piece.tokens <= self.size and not (piece.is_new and 2 * tokens >= self.size)

    def _closed(self, held: list[_Piece], again: list[_Piece]) -> Iterator[tuple[int, int, int]]:
        """The passage of these pieces; those at its end that do not fit, or that belong to the next, go back."""
        if len(held) > 1 and again and self._is_heading(held[-1]) and held[-1].tokens + again[-1].tokens <= self.size:
            again.append(held.pop())
        start = held[0].start
        while (tokens := self.counted.exactly(start, held[-1].end)) > self.size and len(held) > 1:
            again.append(held.pop())
        [last] = held[-1:]
        if tokens > self.size and last.end - start > 1:
            again += reversed(list(self._pieces(start, last.end, last.level, last.is_new)))
        else:
            yield start, last.end, tokens

    def _is_heading(self, piece: _Piece) -> bool:
        return self.structure.headings.get(piece.start, -1) >= piece.end

    def _pieces(self, start: int, end: int, level: int, is_new: bool) -> Iterator[_Piece]:
        """A part of the text in pieces of about ``size`` tokens at most, cut at the highest levels that do."""
        is_new = is_new or start in self.structure.headings
        tokens = self.counted.about(start, end)
        if tokens <= self.size or end - start == 1:
            yield _Piece(start, end, level, tokens, is_new)
            return
        cuts: Sequence[int] = ()
        while not cuts:
            cuts = self.structure.cuts(start, end, level)
            level = min(level + 1, CHARACTERS)
        for before, after in zip([start, *cuts], [*cuts, end], strict=True):
            yield from self._pieces(before, after, level, before == start)
