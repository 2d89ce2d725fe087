"""random: what is it worth to choose at all?  Passages in an order that only the question's text decides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from undilute.progress import Progress
from undilute.selection.keeping import Kept
from undilute.selection.passages import Passage
from undilute.selection.scorers import Scores, Subject, scorer


@scorer("random")
def chance(subject: Subject) -> Chance:
    return Chance()


class Chance:
    """Random scores, the same each time that a question is asked."""

    label = "random"

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        return [Scores(_generator(question).random(len(passages))) for question in questions]


def _generator(question: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(question.encode()).digest()))
