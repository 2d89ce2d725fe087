"""Several scorers together: reciprocal rank fusion, Σ 1 / (60 + rank), in which scales do not matter.

Cormack, Clarke and Büttcher (2009), Reciprocal rank fusion outperforms Condorcet and individual rank learning methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undilute.errors import InvalidValue
from undilute.progress import Progress
from undilute.selection.keeping import Kept
from undilute.selection.passages import Passage
from undilute.selection.scorers import Scorer, Scores

CONSTANT = 60


class Fusion:
    """Scorers that are fused.

    Parameters
    ----------
    parts : at least two
    """

    def __init__(self, parts: Sequence[Scorer]) -> None:
        if len(parts) < 2:
            raise InvalidValue(f"{len(parts)} scorers: must be at least two to be fused.")
        self.parts = parts
        self.label = "+".join(each.label for each in parts)

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        number = len(self.parts)

        def progress(place: int) -> Progress:
            return lambda share, doing: on_progress((place + share) / number, doing)

        every = [each.scores(questions, passages, kept, progress(place)) for place, each in enumerate(self.parts)]
        return [_fused([scores[place] for scores in every]) for place in range(len(questions))]


def _fused(scores: Sequence[Scores]) -> Scores:
    total = np.zeros(len(scores[0].values))
    for each in scores:
        total[each.order] += 1 / (CONSTANT + 1 + np.arange(len(total)))
    return Scores(total, read=sum(each.read for each in scores))
