"""Measurements made by hand, of which it is known what changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from undilute.evaluation.cost import Cost
from undilute.evaluation.measure import Answer, Measurement, Spread

TASKS = ("single", "multi-key", "multi-value", "tracking")
LENGTHS = (512, 1024)


def evaluation(
    label: str = "softmax",
    *,
    loss: float = 0.0,
    right: float = 0.6,
    entropy: float = 0.0,
    windows: int = 3,
    tokens: int = 512,
    haystacks: int = 6,
    seed: int = 0,
    cost: Cost | None = None,
) -> Measurement:
    """``loss`` and ``entropy`` are added to the same random figures; ``right`` is the share of right answers.

    Another seed gives other figures with the same means: a change without a difference.
    """
    generator = np.random.default_rng(seed)
    losses = 3.0 + generator.normal(size=(windows, tokens - 1)) * 0.5 + loss
    spread = 2.0 + generator.normal(size=(2, 3, 16)) * 0.1 + entropy
    draws: Any = np.random.default_rng(1).random((len(LENGTHS), len(TASKS), haystacks, 4))
    answers = tuple(
        Answer(
            task=task,
            length=length,
            depth=question / 4,
            haystack=(i * len(TASKS) + j) * haystacks + number,
            question=question,
            right=float(draws[i, j, number, question] < right),
            log_probability=float(np.log(right) - draws[i, j, number, question]),
            chance=0.25,
        )
        for i, length in enumerate(LENGTHS)
        for j, task in enumerate(TASKS)
        for number in range(haystacks)
        for question in range(4)
    )
    return Measurement(label, losses, answers, Spread(np.arange(1, 17), spread, np.full((2, 3, 16), 0.5)), cost)
