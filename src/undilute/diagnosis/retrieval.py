"""What does a head do when it is asked?  Figures of one head, or of several together, from the questions of a probe.

α*(n) is the attention on the fact that answers, from the question's last row, the mean over questions. If the fact has
s tokens and a token of it gets R times the attention of another, then α* = s·R / (s·R + n − s): the article's law, with
slope −1 of logit α* on ln n while R stays the same. Intervals are over haystacks: 95 % of the resampled ones, widened
as Student's t is for so few: of 6 haystacks, 92 % then cover what they should, in place of 82 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata, t

from undilute.diagnosis import fit
from undilute.diagnosis.kinds import Thresholds
from undilute.diagnosis.probe import ASKED, PARAPHRASED, Array, Asked, Probe

DRAWS = 400
FEWEST_PAIRS = 20  # of a right and a wrong answer, or the AUC says nothing


class Estimate(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class Score(NamedTuple):
    """The contrastive score, its standard error over haystacks, and what a head scores that looks anywhere."""

    value: float
    error: float
    chance: float


class Law(NamedTuple):
    """logit α* = gap + slope·ln n. The article's law has slope −1."""

    gap: float
    slope: Estimate


LABELS = {ASKED: "asked in the same words", PARAPHRASED: "asked in other words"}


class Recall(NamedTuple):
    """The share of questions of one task and length that were answered rightly, over some haystacks."""

    task: str
    length: int
    right: Estimate
    questions: int
    haystacks: int

    @property
    def label(self) -> str:
        """What is asked, in words."""
        return LABELS.get(self.task, self.task)


@dataclass(frozen=True)
class Retrieval:
    """What a head does when it is asked, or what several do on average.

    Attributes
    ----------
    score : how well it finds the chunk with the answer
    share : of the haystacks in which it is found to do so
    alpha : length → attention on the fact that answers
    without_sink : the same if the sink were not there
    ratio : length → R, the attention of a token of that fact as a multiple of another token's
    law : of alpha over length
    auc : how well its attention on the fact tells right answers from wrong ones: 1 perfectly, 0.5 not at all; None if
        there are too few of either
    when_right, when_wrong : length → alpha of the questions that were answered so; no entry where none was
    """

    score: Score
    share: float
    alpha: dict[int, Estimate]
    without_sink: dict[int, Estimate]
    ratio: dict[int, float]
    law: Law
    auc: float | None
    when_right: dict[int, float]
    when_wrong: dict[int, float]


FOUND_IN_ONE = Thresholds().found_in_one


def of_each(probe: Probe, *, factor: float = FOUND_IN_ONE, seed: int = 0) -> list[Retrieval]:
    """What each head does; ``factor`` times chance is what it must score to be found in one haystack."""
    return _described(probe.found, probe.judged, factor, seed)


def of_all(probe: Probe, heads: NDArray[np.int64], *, factor: float = FOUND_IN_ONE, seed: int = 0) -> Retrieval:
    """What some heads, given by their places in the probe, do on average."""

    def pooled(asked: Asked) -> Asked:
        names = ("alpha", "sharper", "sink", "score")
        return replace(asked, **{name: getattr(asked, name)[..., heads].mean(-1, keepdims=True) for name in names})

    return _described(pooled(probe.found), pooled(probe.judged), factor, seed)[0]


def recalls(asked: Asked, seed: int = 0) -> list[Recall]:
    """Recall of each task at each length."""
    found = []
    for task in dict.fromkeys(asked.tasks.tolist()):
        some = asked.of(asked.tasks == task)
        by_haystack = _by_haystack(some.right[..., None], some)  # (lengths, haystacks, 1)
        for length, right in zip(some.lengths, _estimates(by_haystack, seed)[0], strict=True):
            found.append(
                Recall(task, length, _never_certain(right, len(some.tasks)), len(some.tasks), by_haystack.shape[1])
            )
    return found


def _never_certain(share: Estimate, questions: int) -> Estimate:
    """All or none of the questions say nothing about their spread: 3 in so many could still be otherwise."""
    rest = min(3 / questions, 1.0)
    if share.value >= 1:
        return Estimate(share.value, 1 - rest, 1.0)
    return Estimate(share.value, 0.0, rest) if share.value <= 0 else share


def recall_fall(asked: Asked, seed: int = 0) -> Estimate:
    """By how much recall falls from the shortest length to the longest, in pairs: the same facts are asked at each."""
    some = asked.of(asked.tasks == ASKED)
    right = _by_haystack(some.right[..., None], some)
    lost = right[:1] - right[-1:]  # (1, haystacks, 1)
    low, high = _interval(lost.mean(1), resampled(lost, seed), lost.shape[1])
    return Estimate(float(lost.mean()), float(low[0, 0]), float(high[0, 0]))


def resampled(values: Array, seed: int, draws: int = DRAWS) -> Array:
    """(lengths, units, heads) → (draws, lengths, heads): the means of as many units, drawn again and again."""
    units = values.shape[1]
    counts = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), draws)
    return np.asarray(np.einsum("du,luh->dlh", counts, values) / units)


def auc(values: Array, right: NDArray[np.bool_], strata: NDArray[np.int64]) -> Array:
    """(heads,): the share of pairs of a right and a wrong answer of one stratum in which the right one has more.

    Parameters
    ----------
    values : (questions, heads)
    right : (questions,)
    strata : (questions,), only answers of the same one are compared

    Examples
    --------
    >>> auc(np.array([[3.0], [1.0], [2.0], [0.0]]), np.array([True, True, False, False]), np.zeros(4, int))
    array([0.75])
    """
    won, pairs = np.zeros(values.shape[1]), 0
    for stratum in np.unique(strata):
        inside = strata == stratum
        good, bad = values[inside & right], values[inside & ~right]
        if len(good) and len(bad):
            ranks = rankdata(np.concatenate([good, bad]), axis=0)[: len(good)]
            won += ranks.sum(0) - len(good) * (len(good) + 1) / 2
            pairs += len(good) * len(bad)
    return np.asarray(won / pairs) if pairs else np.full(values.shape[1], np.nan)


def strata(asked: Asked) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(lengths × questions,) twice: length and task as one number, and whether the answer was right."""
    _, task = np.unique(asked.tasks, return_inverse=True)
    places = np.arange(len(asked.lengths))[:, None] * (task.max() + 1) + task
    return places.ravel(), asked.right.ravel() > 0


def _described(found: Asked, judged: Asked, factor: float, seed: int) -> list[Retrieval]:
    heads = judged.alpha.shape[-1]
    asked = judged.of(judged.tasks == ASKED)
    by_haystack = _by_haystack(asked.alpha, asked)
    alpha, without = _estimates(by_haystack, seed), _estimates(_by_haystack(asked.without_sink, asked), seed)
    laws = _laws(asked, by_haystack, seed)
    scores = _by_haystack(found.score, found)[0]  # (haystacks, heads)
    errors = scores.std(0, ddof=1) / len(scores) ** 0.5 if len(scores) > 1 else np.full(heads, np.nan)
    shares = (scores >= factor * found.chance).mean(0)
    places, right = strata(judged)
    pairs = sum(int((right & (places == each)).sum() * (~right & (places == each)).sum()) for each in set(places))
    areas = auc(judged.alpha.reshape(-1, heads), right, places)
    ratios = _ratio(asked)
    return [
        Retrieval(
            Score(float(scores[:, head].mean()), float(errors[head]), found.chance),
            float(shares[head]),
            dict(zip(asked.lengths, alpha[head], strict=True)),
            dict(zip(asked.lengths, without[head], strict=True)),
            dict(zip(asked.lengths, ratios[:, head].tolist(), strict=True)),
            laws[head],
            float(areas[head]) if pairs >= FEWEST_PAIRS else None,
            _split(asked, head, 1.0),
            _split(asked, head, 0.0),
        )
        for head in range(heads)
    ]


def _split(asked: Asked, head: int, right: float) -> dict[int, float]:
    return {
        length: float(asked.alpha[place, asked.right[place] == right, head].mean())
        for place, length in enumerate(asked.lengths)
        if (asked.right[place] == right).any()
    }


def _by_haystack(values: Array, asked: Asked) -> Array:
    """(lengths, questions, heads) → (lengths, haystacks, heads): means."""
    return np.stack([values[:, asked.haystack == each].mean(1) for each in np.unique(asked.haystack)], 1)


def _estimates(values: Array, seed: int) -> list[list[Estimate]]:
    """(lengths, haystacks, heads) → for each head, an estimate for each length."""
    middle = values.mean(1)
    low, high = (np.clip(end, 0.0, 1.0) for end in _interval(middle, resampled(values, seed), values.shape[1]))
    return [
        [Estimate(*map(float, each)) for each in zip(middle[:, head], low[:, head], high[:, head], strict=True)]
        for head in range(values.shape[-1])
    ]


def _interval(value: Array, draws: Array, units: int) -> tuple[Array, Array]:
    """Where 95 % of the draws lie, as far wider as Student's t is for so few units: a resampling knows no more."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    if units < 2:
        return low, high
    wider = float((units / (units - 1)) ** 0.5 * t.ppf(0.975, units - 1) / norm.ppf(0.975))
    return np.asarray(value - wider * (value - low)), np.asarray(value + wider * (high - value))


def _laws(asked: Asked, by_haystack: Array, seed: int) -> list[Law]:
    """A straight line through logit α* over ln n, for each head."""
    x = np.log(asked.n.mean(1))
    every = np.concatenate([by_haystack.mean(1)[None], resampled(by_haystack, seed)])  # (1 + draws, lengths, heads)
    y = fit.logit(every)
    u = x - x.mean()
    slopes = np.einsum("l,dlh->dh", u, y) / (u @ u)
    gaps = y.mean(1) - slopes * x.mean()
    low, high = _interval(slopes[0], slopes[1:], by_haystack.shape[1])
    return [
        Law(float(gaps[0, head]), Estimate(float(slopes[0, head]), float(low[head]), float(high[head])))
        for head in range(slopes.shape[1])
    ]


def _ratio(asked: Asked) -> Array:
    """(lengths, heads): R of the mean attention."""
    alpha = np.clip(asked.alpha.mean(1), fit.CERTAIN, 1 - fit.CERTAIN)
    span, n = asked.span.mean(), asked.n.mean(1)
    return np.asarray(alpha / (1 - alpha) * ((n - span) / span)[:, None])
