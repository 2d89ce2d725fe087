"""Small real models, scorers made by hand, and comparisons of which it is known what they show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from tests.diagnosis.finder import filler
from tests.evaluation.tokenizers import tokenizer
from tests.models.attending import SIZES
from undilute.progress import Progress
from undilute.selection import Comparison, Passage, Scores
from undilute.selection.judging import Example, Read
from undilute.selection.keeping import Kept

WINDOW = 1024
TEXTS = {"a": filler(0, 600), "b": filler(1, 600)}  # for the model that finds facts
LETTERS = re.compile(r"\w+")


class Shared:
    """How many words a passage shares with the question."""

    def __init__(self, label: str = "shared") -> None:
        self.label, self.asked = label, 0

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        self.asked += 1
        words = [set(LETTERS.findall(each.text.lower())) for each in passages]
        return [
            Scores(np.array([float(len(own & set(LETTERS.findall(question.lower())))) for own in words]))
            for question in questions
        ]


class Containing(Shared):
    """Passages that contain a text come first."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        return [Scores(np.array([float(self.text in each.text) for each in passages])) for _ in questions]


@cache
def random_reader(kind: str, window: int = WINDOW) -> Any:
    """A random model for a tokenizer of ``tests.evaluation.tokenizers``."""
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(tokenizer(kind)), "max_position_embeddings": window}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()


def without_seconds(rows: Sequence[Read]) -> list[dict[str, Any]]:
    return [{name: value for name, value in vars(each).items() if name != "seconds"} for each in rows]


def constructed(
    right: Mapping[tuple[str, str], float],
    *,
    lengths: Sequence[int] = (1024, 8192),
    haystacks: int = 8,
    questions: int = 4,
    kept: Mapping[tuple[str, str], float] | None = None,
    window: int | None = None,
    **settings: Any,
) -> Comparison:
    """(reader, task) → its share of right answers: the first questions of every haystack are right, at every length."""
    rows = [
        Read(
            reader=reader,
            task=task,
            length=length,
            text="book",
            haystack=haystack,
            question=question,
            right=float(question < share * questions),
            log_probability=-1.0 - haystack,
            chance=0.125,
            kept=question < (kept or {}).get((reader, task), 1.0) * questions,
            chosen=0 if reader in ("none", "bm25") else length,
            answered=min(length, window or length) if reader == "none" else 256,
            seconds=0.5 + haystack,
        )
        for (reader, task), share in right.items()
        for length in lengths
        for haystack in range(haystacks)
        for question in range(questions)
    ]
    shown = [Example("emblem", ("The emblem of Zoe is the kite.",), "The emblem of Zoe is the", "kite", 8)]
    made = {"model": "small", "window": window, "budget": 256, "seed": 0, **settings}
    return Comparison(rows, made, shown, 75.0, "undilute compare --select none,bm25", {"undilute": "0"})
