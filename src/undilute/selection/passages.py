"""What is chosen among?  Passages: short pieces of the user's documents that end where a thought ends.

    passages = split({"notes.md": text}, tokenizer, size=96)
    "".join(each.text for each in passages) == text

Joined, the passages of a document are that document, to the character. Every passage knows its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import sentences
from undilute.models.texts import BOM, encoded
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SIZE = 96  # tokens of a passage, at most
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
    found = {name: text.removeprefix(BOM) for name, text in documents.items()}
    if not any(text.strip() for text in found.values()):
        raise InvalidValue("the documents hold no text: give at least one with something to read.")
    return found


def split(documents: Documents, tokenizer: PreTrainedTokenizerBase, size: int = SIZE) -> list[Passage]:
    """The documents in passages of at most ``size`` tokens.

    Parameters
    ----------
    documents : a text, several, or {name: text}
    tokenizer : which counts the tokens
    size : tokens of a passage, at most
    """
    count("size", size)
    made: list[Passage] = []
    for name, text in named(documents).items():
        start = 0
        held, tokens = "", 0
        for piece in [*sentences(text), ""]:
            own = len(encoded(tokenizer, piece)) if piece else 0
            if held and (tokens + own > size or not piece):
                made.append(Passage(len(made), name, start, start + len(held), held, tokens))
                start, held, tokens = start + len(held), "", 0
            held, tokens = held + piece, tokens + own
    return made
