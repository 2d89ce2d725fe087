"""Measurements for tests of reports: made up, so that what is better, worse or neither is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from undilute.evaluation.cost import Cost
from undilute.evaluation.measure import Answer, Measurement, Spread

TASKS = ("single", "multi-key", "multi-value", "tracking")
LENGTHS = (512, 1024, 2048)
HAYSTACKS, QUESTIONS = 4, 5


def evaluation(
    label: str = "softmax", *, loss: float = 0.0, right: float = 0.5, entropy: float = 3.0, seed: int = 0
) -> Measurement:
    """A model that reads two windows of 512 tokens and answers 240 questions.

    Parameters
    ----------
    label : of the evaluation
    loss : by how much it is above that of the plain one, for every token
    right : the share of questions whose answer is right; every such question is right for larger shares too
    entropy : of the heads, about
    seed : of noise that two evaluations do not share
    """
    shared, own = np.random.default_rng(7), np.random.default_rng(seed)
    losses = 3 + shared.normal(size=(2, 511)) + loss + 0.01 * own.normal(size=(2, 511))
    luck = shared.random((len(TASKS), len(LENGTHS), HAYSTACKS, QUESTIONS))
    answers = tuple(
        Answer(
            task=task,
            length=length,
            depth=question / (QUESTIONS - 1),
            haystack=(of_task * len(LENGTHS) + of_length) * HAYSTACKS + haystack,
            question=question,
            right=float(luck[of_task, of_length, haystack, question] < right),
            log_probability=float(np.log(right)),
            chance=0.125,
        )
        for of_task, task in enumerate(TASKS)
        for of_length, length in enumerate(LENGTHS)
        for haystack in range(HAYSTACKS)
        for question in range(QUESTIONS)
    )
    n = np.array([16, 64, 256, 512])
    wide = entropy + 0.1 * np.log(n) + 0.01 * shared.random((2, 3, 4))
    return Measurement(label, losses, answers, Spread(n, wide, np.exp(-wide)), Cost(512, 2.0, 0.25, 100.0))


BEFORE = evaluation()
BETTER = evaluation("ssmax", loss=-0.2, right=0.9, entropy=2.5, seed=1)
WORSE = evaluation("top-k", loss=0.3, right=0.2, entropy=1.0, seed=2)
SAME = evaluation("adaptive", seed=3)
BARE = replace(BEFORE, answers=(), cost=None)  # nothing asked, nothing timed
