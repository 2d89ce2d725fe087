"""What was selected, and ways to look at it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from undilute.errors import InvalidValue
from undilute.selection.passages import Passage

if TYPE_CHECKING:
    import pandas as pd

Order = Literal["document", "best last"]
ORDERS: tuple[Order, ...] = ("document", "best last")
SCHEMA = "undilute.selection/1"


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
        check_order(order)
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

    # ---------------------------------------------------------------- to look at

    def line(self, passage: Passage) -> int:
        """The line of its document where a passage's first word stands, from 1."""
        blank = len(passage.text) - len(passage.text.lstrip())
        return self.documents[passage.document].count("\n", 0, passage.start + blank) + 1

    def summary(self) -> str:
        """How much was kept, and what that cost, in a sentence."""
        return (
            f"kept {len(self.passages):,} of {self.among:,} passages: {self.kept_tokens:,} of {self.tokens:,} tokens; "
            f"the model read {self.read:,} tokens in {self.seconds:.1f} s"
        )

    def show(self) -> None:
        """Print the passages, best first."""
        from undilute.report import selection_text

        selection_text.show(self)

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.selection(self)

    def data(self) -> dict[str, Any]:
        """Everything as plain data, with a schema version; of the documents only what was kept."""
        passages = [
            {**row, "score": finite(row["score"]), "line": self.line(each.passage)}
            for row, each in zip(self.rows(), self.passages, strict=True)
        ]
        return {
            "schema": SCHEMA,
            "question": self.question,
            "scorer": self.scorer,
            "budget": self.budget,
            "among": self.among,
            "tokens": self.tokens,
            "kept_tokens": self.kept_tokens,
            "read": self.read,
            "seconds": self.seconds,
            "documents": [{"name": name, "characters": len(text)} for name, text in self.documents.items()],
            "passages": passages,
            "text": self.text,
        }

    def save_json(self, path: str | Path) -> Path:
        """Write it as JSON, with a schema version, and return the path."""
        from undilute import files

        return files.write(Path(path), to_json(self.data()))

    def save_html(self, path: str | Path) -> Path:
        """Write a page that needs no network, and return its path."""
        from undilute import files
        from undilute.report import selection_html

        return files.write(Path(path), selection_html.page(self))


def check_order(order: str) -> None:
    """Refuse an order of passages that is none."""
    if order not in ORDERS:
        raise InvalidValue(f"order = {order!r}: must be {' or '.join(map(repr, ORDERS))}.")


def finite(value: float) -> float | None:
    """A number as JSON can hold it: None if it is not finite."""
    return value if math.isfinite(value) else None


def to_json(data: Mapping[str, Any]) -> str:
    """Plain data as a file's text."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


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
