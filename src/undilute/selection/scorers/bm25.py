"""bm25: passages that share rare words with the question.

For each word of the question, how often it stands in the passage (tf) and in how many of N passages it stands (df)
give  ln(1 + (N − df + ½) / (df + ½)) · tf / (tf + k₁ (1 − b + b · length / mean length)),  k₁ = 1.5, b = 0.75.

Robertson and Zaragoza (2009), The probabilistic relevance framework: BM25 and beyond; computed by bm25s
(arXiv:2407.03618) as Lucene does.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from undilute.errors import MissingExtra
from undilute.progress import Progress
from undilute.selection.keeping import Kept
from undilute.selection.passages import Passage
from undilute.selection.scorers import Scores, Subject, scorer

# Scripts that put no spaces between words: each of their characters counts as a word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"


@scorer("bm25")
def bm25(subject: Subject) -> BM25:
    return BM25()


class BM25:
    """BM25 as a scorer. Words are compared in lower case; English stop words do not count."""

    label = "bm25"

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        on_progress(0.0, "counting words")
        asked = [words(question) for question in questions]
        said = [words(passage.text) for passage in passages]
        if not any(said):
            return [Scores(np.zeros(len(passages))) for _ in questions]
        index = _library().BM25(dtype="float64")
        index.index(said, show_progress=False)
        return [Scores(_scores(index, each, len(passages)), floor=0.0) for each in asked]


def words(text: str) -> list[str]:
    """The words of a text in lower case, without English stop words.

    Examples
    --------
    >>> words("The ＨＥＲＯＮ of Zoë, Nº 7")
    ['heron', 'zoë', '7']
    """
    found = _pattern().findall(unicodedata.normalize("NFKC", text).lower())
    return [word for word in found if word not in _stop_words()]


def _scores(index: Any, asked: list[str], passages: int) -> Any:
    known = index.get_tokens_ids(asked)
    return index.get_scores_from_ids(known) if known else np.zeros(passages)


@cache
def _pattern() -> re.Pattern[str]:
    marks = "".join(each for each in map(chr, range(0x10000)) if unicodedata.category(each) in ("Mn", "Mc"))
    return re.compile(f"[{UNSPACED}]|(?:(?![{UNSPACED}_])[\\w{marks}])+")


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(_library().stopwords.STOPWORDS_EN)


def _library() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtra("bm25s", "models") from None
    return bm25s
