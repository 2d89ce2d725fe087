"""What was selected, and ways to look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from undilute.errors import InvalidValue
from undilute.selection.passages import Passage

if TYPE_CHECKING:
    import pandas as pd

Order = Literal["document", "best last"]
ORDERS: tuple[Order, ...] = ("document", "best last")


@dataclass(frozen=True)
class Selected:
    """A passage that was kept.

    Attributes
    ----------
    passage : where it stands and what it says
    score : how much it matters; what that means is up to the scorer
    rank : 1 for the best
    """

    passage: Passage
    score: float
    rank: int

    @property
    def document(self) -> str:
        return self.passage.document

    @property
    def start(self) -> int:
        return self.passage.start

    @property
    def end(self) -> int:
        return self.passage.end

    @property
    def text(self) -> str:
        return self.passage.text

    @property
    def tokens(self) -> int:
        return self.passage.tokens


@dataclass(frozen=True)
class Selection:
    """The passages that matter for a question, within a budget of tokens.

    Attributes
    ----------
    question : that was asked
    passages : those kept, best first
    documents : name → text, of all documents
    among : how many passages there were
    tokens : of all documents
    read : tokens that a model read to choose
    scorer : who chose
    budget : tokens that the kept passages may have in all
    seconds : that it took
    """

    question: str
    passages: tuple[Selected, ...]
    documents: Mapping[str, str] = field(repr=False)
    among: int
    tokens: int
    read: int
    scorer: str
    budget: int
    seconds: float

    @property
    def text(self) -> str:
        """What was kept, as it stands in the documents and in their order; a blank line where something is left out."""
        return self.arranged()

    def arranged(self, order: Order = "document") -> str:
        """The same, in the order of the documents, or from the worst passage to the best: "best last"."""
        if order not in ORDERS:
            raise InvalidValue(f"order = {order!r}: must be {' or '.join(map(repr, ORDERS))}.")
        return joined(self.in_order if order == "document" else self.passages[::-1])

    @property
    def in_order(self) -> tuple[Selected, ...]:
        """The passages in the order of the documents."""
        return tuple(sorted(self.passages, key=lambda each: each.passage.number))

    @property
    def kept_tokens(self) -> int:
        """Tokens of what was kept."""
        return sum(each.tokens for each in self.passages)

    def frame(self) -> pd.DataFrame:
        """A row for each passage, best first."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """The same as plain data."""
        return [
            {
                "rank": each.rank,
                "score": each.score,
                "document": each.document,
                "start": each.start,
                "end": each.end,
                "tokens": each.tokens,
                "text": each.text,
            }
            for each in self.passages
        ]


def joined(passages: tuple[Selected, ...]) -> str:
    """Passages one after another: neighbours as they stand, others with a blank line between them."""
    text = ""
    before: Passage | None = None
    for each in passages:
        now = each.passage
        follows = before is not None and (before.document, before.end) == (now.document, now.start)
        text = text + now.text if follows else f"{text.rstrip()}\n\n{now.text.lstrip()}" if text else now.text.lstrip()
        before = now
    return text.rstrip()
