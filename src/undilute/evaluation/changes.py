"""Did it get better or worse, or is that unclear?  Paired comparisons of two measurements of the same model.

Every token and every question is compared with itself. Neighbouring tokens and the questions of one haystack are not
independent of each other, so they are taken together in blocks: runs of 32 tokens of a window, whole haystacks, rows of
attention. The interval of a mean difference is the bootstrap's over blocks; its p-value says how often differences as
large come about when the sign of each block is up to chance.

Runs of 32 are a compromise. Measured on SmolLM2 with four windows of 2,048 tokens: under a small change (temperature
0.9) neighbouring runs are correlated by −0.1, and longer runs give the same standard error; under the published
adaptive temperature, a very large change, by 0.4, and runs of 256 give 1.7 times the standard error of runs of 32. So
the interval of a small difference stands, and that of a very large one is too narrow.

The lines are not corrected for multiple testing: of twenty lines without any real difference, about one has p < 0.05.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from undilute.errors import InvalidValue
from undilute.evaluation.measure import Answer, Measurement
from undilute.models.text_loss import position_buckets

Better = Literal["lower", "higher"]
Verdict = Literal["better", "worse", "no clear difference"]
Values = NDArray[np.float64]
Blocks = NDArray[np.int64]

LOSS = "next-token loss"
RECALL = "needle recall"
LOG_PROBABILITY = "log-probability of right answers"
ENTROPY = "entropy of the heads"

RUN = 32  # neighbouring tokens that are taken together
RESAMPLES = 2_000
FLIPS = 10_000
AT_A_TIME = 500  # patterns of signs that exist at a time: blocks may be thousands
MOST_EXACT = 13  # blocks whose every pattern of signs is tried: 2 ** 13 is fewer than FLIPS
SIGNIFICANT = 0.05
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Change:
    """One figure before and after.

    Attributes
    ----------
    what, unit : what is compared
    before, after, difference : means; the difference is after − before
    low, high : ends of the difference's 95 % interval; None with fewer than 2 blocks
    p_value : of no difference, two-sided; None with fewer than 2 blocks
    better : which way is better. For entropy, lower is what a treatment aims at; whether that helps, loss and recall
        say
    count : independent blocks behind it
    """

    what: str
    unit: str
    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    p_value: float | None
    better: Better
    count: int

    @property
    def verdict(self) -> Verdict:
        """ "better" or "worse" only where p < 0.05 and the interval excludes 0."""
        if self.p_value is None or self.low is None or self.high is None:
            return "no clear difference"
        if self.p_value >= SIGNIFICANT or self.low <= 0 <= self.high:
            return "no clear difference"
        return "better" if (self.difference < 0) == (self.better == "lower") else "worse"


def changes(before: Measurement, after: Measurement, *, seed: int = 0) -> list[Change]:
    """Everything that both measured, compared in pairs.

    Parameters
    ----------
    before, after : of the same model, with the same text and the same questions
    seed : of the bootstrap and of random signs

    Returns
    -------
    list of Change
        Next-token loss overall and by position; recall and log-probability of the right answers overall, by task and
        by length; entropy. Not corrected for being many.
    """
    _check_pairs(before, after)
    return [
        *changes_of_loss(before.losses, after.losses, seed),
        *_of_answers(before, after, seed),
        *_of_entropy(before, after, seed),
    ]


def change(
    what: str, unit: str, before: Values, after: Values, blocks: Blocks, *, better: Better, seed: int = 0
) -> Change:
    """One paired comparison.

    Parameters
    ----------
    what, unit : in words
    before, after : (values,), in pairs
    blocks : (values,), which block each pair is of; blocks are taken as independent
    better : which way is better
    seed : of the bootstrap and of random signs

    Examples
    --------
    >>> losses = np.linspace(2.0, 3.0, 60)
    >>> made = change("loss", "nats", losses, losses - 0.1, np.arange(60) // 6, better="lower")
    >>> made.verdict, round(made.difference, 3), made.count, made.p_value
    ('better', -0.1, 10, 0.001953125)
    """
    differences = after - before
    names, where = np.unique(blocks, return_inverse=True)
    sums, sizes = np.zeros(len(names)), np.bincount(where).astype(float)
    np.add.at(sums, where, differences)
    low = high = p_value = None
    if len(names) >= 2:
        low, high = interval(sums, sizes, seed)
        p_value = sign_flip(sums, seed)
    means = float(before.mean()), float(after.mean()), float(differences.mean())
    return Change(what, unit, *means, low, high, p_value, better, len(names))


def interval(sums: Values, sizes: Values, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of Σ sums / Σ sizes over blocks, by bootstrap.

    Parameters
    ----------
    sums, sizes : (blocks,): of the values in each block, and how many these are

    Examples
    --------
    >>> interval(np.array([2.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0]))
    (2.0, 2.0)
    """
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES)
    means = (drawn @ sums) / (drawn @ sizes)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return low, high


def sign_flip(sums: Values, seed: int = 0) -> float:
    """The two-sided p-value of Σ sums when every block's sign is up to chance.

    Exact, over all patterns of signs, up to 13 blocks; with more, 10,000 random patterns and the one that was seen.

    Parameters
    ----------
    sums : (blocks,), of the differences in each block

    Examples
    --------
    >>> sign_flip(np.array([1.0, 2.0, 3.0]))
    0.25
    """
    blocks = len(sums)
    seen = abs(sums.sum())
    hair = 1e-9 * float(np.abs(sums).sum())  # sums in another order are the same sums
    if blocks <= MOST_EXACT:
        patterns = 1 - 2 * (np.arange(2**blocks)[:, None] >> np.arange(blocks) & 1)
        return float((np.abs(patterns @ sums) >= seen - hair).mean())
    generator = np.random.default_rng(seed)
    as_large = 0
    for _ in range(FLIPS // AT_A_TIME):
        patterns = generator.integers(0, 2, (AT_A_TIME, blocks), dtype=np.int8) * 2 - 1
        as_large += int((np.abs(patterns @ sums) >= seen - hair).sum())
    return (1 + as_large) / (1 + FLIPS)


# ---------------------------------------------------------------- what is compared


def changes_of_loss(before: Values, after: Values, seed: int = 0) -> list[Change]:
    """Next-token loss overall and by position; before and after, (windows, tokens − 1)."""
    windows, tokens = before.shape
    runs = (np.arange(tokens) + 1) // RUN  # buckets begin with a run
    blocks = np.arange(windows)[:, None] * (runs[-1] + 1) + runs

    def within(what: str, first: int, last: int) -> Change:
        columns = slice(first - 1, last)
        pairs = before[:, columns].ravel(), after[:, columns].ravel(), blocks[:, columns].ravel()
        return change(what, "nats", *pairs, better="lower", seed=seed)

    buckets = position_buckets(tokens + 1)
    parts = [within(f"{LOSS} {after_tokens(*bucket)}", *bucket) for bucket in buckets]
    return [within(LOSS, 1, tokens), *(parts if len(parts) > 1 else [])]


def after_tokens(first: int, last: int) -> str:
    """A bucket of positions in words.

    >>> after_tokens(1024, 2047)
    'after 1,024–2,047 tokens'
    """
    return f"after {first:,}–{last:,} tokens"


def groups(answers: Sequence[Answer]) -> dict[str, list[int]]:
    """All answers, those of each task and those of each length: words for them → their places.

    A single task or length is not repeated: "" already stands for all of them.
    """
    places: dict[str, list[int]] = {"": list(range(len(answers)))}
    for task in dict.fromkeys(answer.task for answer in answers):
        places[f", {task}"] = [place for place, answer in enumerate(answers) if answer.task == task]
    for length in sorted({answer.length for answer in answers}):
        places[f" at {length:,} tokens"] = [place for place, answer in enumerate(answers) if answer.length == length]
    return {name: own for name, own in places.items() if not name or 0 < len(own) < len(answers)}


def _of_answers(before: Measurement, after: Measurement, seed: int) -> list[Change]:
    if not before.answers:
        return []
    blocks = np.array([answer.haystack for answer in before.answers])

    def compared(what: str, unit: str, value: Callable[[Answer], float]) -> list[Change]:
        old, new = (np.array([value(answer) for answer in each.answers]) for each in (before, after))
        return [
            change(what + name, unit, old[places], new[places], blocks[places], better="higher", seed=seed)
            for name, places in groups(before.answers).items()
        ]

    return [
        *compared(RECALL, "%", lambda answer: 100 * answer.right),
        *compared(LOG_PROBABILITY, "nats", lambda answer: answer.log_probability),
    ]


def _of_entropy(before: Measurement, after: Measurement, seed: int) -> list[Change]:
    old, new = before.spread.entropy, after.spread.entropy
    known = np.isfinite(old) & np.isfinite(new)
    if not known.any():
        return []
    rows = np.broadcast_to(np.arange(old.shape[-1]), old.shape)
    return [change(ENTROPY, "nats", old[known], new[known], rows[known], better="lower", seed=seed)]


def _check_pairs(before: Measurement, after: Measurement) -> None:
    def asked(measured: Measurement) -> list[tuple[object, ...]]:
        return [(each.task, each.length, each.haystack, each.question) for each in measured.answers]

    for what, old, new in (
        ("losses of shape", before.losses.shape, after.losses.shape),
        ("rows of attention of shape", before.spread.entropy.shape, after.spread.entropy.shape),
    ):
        if old != new:
            raise InvalidValue(
                f"{before.label!r} has {what} {old} and {after.label!r} {new}: only measurements of the same text can "
                "be compared in pairs."
            )
    if asked(before) != asked(after):
        raise InvalidValue(
            f"{before.label!r} and {after.label!r} answered different questions: measure both with the same material."
        )


def likelihood(p_value: float) -> str:
    """A p-value in a sentence.

    >>> likelihood(0.0004), likelihood(0.0123)
    ('p < 0.001', 'p = 0.012')
    """
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
