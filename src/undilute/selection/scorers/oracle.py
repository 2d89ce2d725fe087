"""The best that any scorer could do: it was told where the answers stand. Only for evaluation, so it has no name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from undilute.errors import InvalidValue
from undilute.progress import Progress
from undilute.selection.keeping import Kept
from undilute.selection.passages import Passage
from undilute.selection.scorers import Scores

Place = tuple[str, int, int]


class Oracle:
    """1 for passages that overlap what answers the question, 0 for others.

    Parameters
    ----------
    answers : question → (document, start, end) of all that answers it, in characters
    """

    label = "oracle"

    def __init__(self, answers: Mapping[str, Sequence[Place]]) -> None:
        self.answers = answers

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        return [Scores(self._values(question, passages)) for question in questions]

    def _values(self, question: str, passages: Sequence[Passage]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        if question not in self.answers:
            raise InvalidValue(f"{question!r} is a question that the oracle was not told about: give its answers.")
        values = np.zeros(len(passages))
        for document, start, end in self.answers[question]:
            holds = [each.document == document and each.start < end and start < each.end for each in passages]
            if not any(holds):
                raise InvalidValue(
                    f"characters {start:,} to {end:,} of {document!r} stand in no passage: the oracle's answers must "
                    "be places in the documents that are chosen from."
                )
            values[holds] = 1.0
        return values
