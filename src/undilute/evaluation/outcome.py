"""What was measured of one model, treated or not: everything that a comparison is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Task = Literal["single", "multi-key", "multi-value", "tracking"]
TASKS: tuple[Task, ...] = ("single", "multi-key", "multi-value", "tracking")


@dataclass(frozen=True)
class Answer:
    """One question about one haystack.

    Attributes
    ----------
    task : which kind of question
    length : tokens of the haystack with its longest question
    depth : where what is asked for stands: 0 at the start of the haystack, 1 at its end
    haystack, question : numbers, so that the same question of two evaluations can be paired; each haystack of an
        evaluation has its own
    right : 1 or 0 where one candidate is right; with k right ones, the share of them among the k that are ranked first
    log_probability : of the right candidates among all candidates, in nats: their mean log of a softmax over the
        candidates' log-likelihoods
    chance : what ``right`` is by guessing
    """

    task: Task
    length: int
    depth: float
    haystack: int
    question: int
    right: float
    log_probability: float
    chance: float


@dataclass(frozen=True)
class Cost:
    """What it takes to run.

    Attributes
    ----------
    tokens : read at once for these figures
    prefill_seconds : for reading ``tokens``, the best of several
    decode_seconds : for one more token after them, from the cache; the best of several
    extra_megabytes : by which reading raises the process's memory at its peak; None where that cannot be read
    """

    tokens: int
    prefill_seconds: float
    decode_seconds: float
    extra_megabytes: float | None


@dataclass(frozen=True, eq=False)
class Spread:
    """How wide the heads attend: sampled rows of the same text.

    Attributes
    ----------
    n : (rows,), keys that a row sees
    entropy : (layers, heads, rows), in nats, of the weights that the model uses; NaN where a layer has fewer heads
    top_weight : (layers, heads, rows), the largest weight of a key that is no sink
    """

    n: NDArray[np.int64]
    entropy: NDArray[np.float64]
    top_weight: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One model, treated or not, on one text and one set of questions.

    Attributes
    ----------
    label : what was evaluated: "softmax", "ssmax", "plan.json", …
    losses : (windows, tokens − 1), next-token loss in nats: entry t is that of token t + 1, given t + 1 tokens
    answers : to every question, in the same order in every evaluation with the same settings
    spread : entropy of the heads on the first window
    cost : speed and memory
    """

    label: str
    losses: NDArray[np.float64]
    answers: tuple[Answer, ...]
    spread: Spread
    cost: Cost | None = field(default=None)
