"""Figures of heads that were asked, against plain counts and laws that are known."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from undilute.diagnosis import retrieval
from undilute.diagnosis.probe import Asked, Probe
from undilute.diagnosis.retrieval import Retrieval

LENGTHS = (256, 512, 1024)
SPAN = 8


def asked(
    heads: int = 3,
    haystacks: int = 8,
    *,
    each: int = 8,
    tasks: tuple[str, ...] = ("other-facts", "other-facts", "other-facts", "other-facts-paraphrased"),
    lengths: tuple[int, ...] = LENGTHS,
    right: NDArray[np.float64] | float | None = None,
    gap: float = 4.0,
    noise: float = 0.3,
    seed: int = 0,
) -> Asked:
    """Questions to heads that follow the law, with a gap of their own for each haystack."""
    generator = np.random.default_rng(seed)
    questions = haystacks * each
    number = np.repeat(np.arange(haystacks), each)
    n = np.broadcast_to(np.array(lengths)[:, None], (len(lengths), questions))
    gaps = gap - np.arange(heads) + noise * generator.standard_normal((haystacks, heads))[number]
    ratio = SPAN * np.exp(gaps)  # (questions, heads)
    alpha = ratio / (ratio + n[..., None] - SPAN)
    answered = generator.random((len(lengths), questions)) < 0.6 if right is None else np.full_like(n, right, float)
    return Asked(
        lengths=lengths,
        tasks=np.array([tasks[stack % len(tasks)] for stack in number]),
        texts=number % 3,
        haystack=number,
        right=np.asarray(answered, dtype=float),
        log_probability=np.zeros(n.shape),
        span=np.full(questions, SPAN),
        n=n,
        alpha=alpha,
        sharper=alpha,
        sink=np.full(alpha.shape, 0.2),
        score=np.broadcast_to(np.linspace(0.9, 0.1, heads), alpha.shape) + 0.01 * generator.random(alpha.shape),
        chance=0.1,
    )


def probe(judged: Asked, **options: Any) -> Probe:
    heads = judged.alpha.shape[-1]
    found = asked(heads, lengths=(1024,), tasks=("facts",), **options)
    return Probe(("layer",) * heads, np.arange(heads), found, judged, (), ())


# ---------------------------------------------------------------- AUC


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_auc_is_a_count_of_pairs(seed: int, questions: int, strata: int, levels: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.integers(0, levels, (questions, 2)).astype(float)  # many ties
    right, of = generator.random(questions) < 0.5, generator.integers(0, strata, questions)
    found = retrieval.auc(values, right, of)
    for head in range(2):
        won = [
            (values[one, head] > values[other, head]) + 0.5 * (values[one, head] == values[other, head])
            for one, other in itertools.product(range(questions), repeat=2)
            if right[one] and not right[other] and of[one] == of[other]
        ]
        assert found[head] == pytest.approx(np.mean(won)) if won else math.isnan(found[head])


def test_answers_of_other_lengths_and_tasks_are_not_compared() -> None:
    """Long haystacks have smaller weights and fewer right answers: that alone makes no AUC."""
    judged = asked(1, noise=0.0, right=1.0)
    judged.right[1:] = 0.0  # right if and only if the haystack is short
    assert retrieval.of_each(probe(judged))[0].auc is None
    both = asked(1, noise=0.0)
    assert retrieval.of_each(probe(both))[0].auc == pytest.approx(0.5)  # within a stratum all weights are the same
    places, right = retrieval.strata(both)
    assert len(set(places.tolist())) == len(LENGTHS) * 2
    assert np.array_equal(right, both.right.ravel() > 0)
    for place in set(places.tolist()):
        of = np.flatnonzero(places == place)
        assert len(set((of // both.right.shape[1]).tolist())) == 1
        assert len(set(both.tasks[of % both.right.shape[1]].tolist())) == 1


def test_auc_of_a_head_that_decides_is_one() -> None:
    judged = asked(2)
    judged.right[:] = judged.alpha[..., 0] > np.median(judged.alpha[..., 0], 1, keepdims=True)
    found = retrieval.of_each(probe(judged))
    assert found[0].auc == 1.0
    assert found[1].auc is not None
    assert found[1].auc < 1.0


# ---------------------------------------------------------------- weights, laws and their intervals


def test_figures_lie_within_their_intervals_and_are_plain_means() -> None:
    judged = asked()
    own = judged.of(judged.tasks == "other-facts")
    for place, found in enumerate(retrieval.of_each(probe(judged))):
        for at, length in enumerate(LENGTHS):
            for estimate, values in ((found.alpha, own.alpha), (found.without_sink, own.alpha / 0.8)):
                assert estimate[length].value == pytest.approx(values[at, :, place].mean())
                assert estimate[length].low < estimate[length].value < estimate[length].high
            alpha = found.alpha[length].value
            assert found.ratio[length] == pytest.approx(alpha / (1 - alpha) * (length - SPAN) / SPAN)
        assert found.law.slope.low <= found.law.slope.value <= found.law.slope.high
        assert found.law.slope.value == pytest.approx(-1.0, abs=0.05)


@pytest.mark.parametrize("haystacks", [6, 24])
def test_intervals_over_haystacks_cover_the_truth_about_as_often_as_they_say(haystacks: int) -> None:
    truth = [_law_mean(4.0 - head, 0.5, 512) for head in range(5)]  # over haystacks without end
    inside = []
    for seed in range(60):
        judged = asked(5, haystacks, noise=0.5, seed=seed, tasks=("other-facts",))
        found = retrieval.of_each(probe(judged), seed=seed)
        inside += [own.alpha[512].low <= mean <= own.alpha[512].high for own, mean in zip(found, truth, strict=True)]
    assert 0.9 <= np.mean(inside) <= 0.99


def _law_mean(gap: float, noise: float, n: int) -> float:
    ratio = SPAN * np.exp(gap + noise * np.random.default_rng(1).standard_normal(100_000))
    return float((ratio / (ratio + n - SPAN)).mean())


def test_of_all_of_one_head_is_of_each() -> None:
    made = probe(asked())
    for place, own in enumerate(retrieval.of_each(made)):
        assert _numbers(retrieval.of_all(made, np.array([place]))) == pytest.approx(_numbers(own))
    together = retrieval.of_all(made, np.array([0, 1]))
    one, other = retrieval.of_each(made)[:2]
    assert together.alpha[512].value == pytest.approx((one.alpha[512].value + other.alpha[512].value) / 2)
    assert together.score.value == pytest.approx((one.score.value + other.score.value) / 2)


def _numbers(found: Retrieval) -> list[float]:
    """All of its figures."""
    estimates = [*found.alpha.values(), *found.without_sink.values(), found.score, found.law.slope]
    single = [found.share, found.law.gap, found.auc or 0.0]
    split = [*found.ratio.values(), *found.when_right.values(), *found.when_wrong.values()]
    return [*itertools.chain(*estimates), *single, *split]


def test_the_share_of_haystacks_takes_the_factor() -> None:
    made = probe(asked(9))
    shares = {factor: [own.share for own in retrieval.of_each(made, factor=factor)] for factor in (2.0, 20.0)}
    assert shares[2.0] == [1.0] * 8 + [0.0]  # scores from 0.9 down to 0.1; chance is 0.1
    assert shares[20.0] == [0.0] * 9


def test_right_and_wrong_are_split() -> None:
    judged = asked(1)
    judged.right[0] = 1.0
    found = retrieval.of_each(probe(judged))[0]
    own = judged.of(judged.tasks == "other-facts")
    assert 256 not in found.when_wrong
    assert found.when_right[256] == pytest.approx(found.alpha[256].value)
    assert found.when_wrong[1024] == pytest.approx(own.alpha[2, own.right[2] == 0, 0].mean())


# ---------------------------------------------------------------- recall


def test_recall_is_a_mean_with_an_interval_over_haystacks() -> None:
    judged = asked()
    found = retrieval.recalls(judged)
    assert [(each.task, each.length) for each in found] == [
        (task, length) for task in ("other-facts", "other-facts-paraphrased") for length in LENGTHS
    ]
    for each in found:
        own = judged.of(judged.tasks == each.task)
        assert each.right.value == pytest.approx(own.right[LENGTHS.index(each.length)].mean())
        assert each.right.low <= each.right.value <= each.right.high
        assert (each.questions, each.haystacks) == ((48, 6) if each.task == "other-facts" else (16, 2))


def test_questions_of_one_haystack_are_not_independent() -> None:
    """Haystacks that are all right or all wrong give a far wider interval than as many coins."""
    judged = asked(1, 16, tasks=("other-facts",))
    judged.right[:] = judged.haystack % 2
    clustered = retrieval.recalls(judged)[0].right
    assert clustered.value == 0.5
    coins = 1.96 * math.sqrt(0.25 / 128)
    assert clustered.high - clustered.low > 2 * 2 * coins


def test_a_fall_is_one_of_the_same_questions() -> None:
    """Haystacks that differ a lot and all lose a little: their intervals overlap, and the fall is certain."""
    judged = asked(1, tasks=("other-facts",))
    judged.right[:] = (np.arange(64) % 8 < judged.haystack).astype(float)
    judged.right[-1] = np.where(np.arange(64) % 8 == np.maximum(judged.haystack - 1, 0), 0.0, judged.right[-1])
    first, _, last = retrieval.recalls(judged)
    assert last.right.high > first.right.value
    fall = retrieval.recall_fall(judged)
    assert fall.value == pytest.approx(first.right.value - last.right.value)
    assert 0 < fall.low <= fall.value <= fall.high
    rising = asked(1, tasks=("other-facts",), right=0.0)
    rising.right[-1] = 1.0
    assert retrieval.recall_fall(rising) == (-1.0, -1.0, -1.0)


# ---------------------------------------------------------------- degenerate


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_all_right_or_all_wrong(right: float) -> None:
    judged = asked(right=right)
    for each in retrieval.recalls(judged):
        least = 3 / each.questions  # of which nothing was seen, and which may still be
        assert each.right == pytest.approx((right, 1 - least, 1.0) if right else (right, 0.0, least))
    for found in retrieval.of_each(probe(judged)):
        assert found.auc is None
        assert set(found.when_right) == (set(LENGTHS) if right else set())
        assert set(found.when_wrong) == (set() if right else set(LENGTHS))


def test_too_few_pairs_say_nothing() -> None:
    judged = asked(right=1.0)
    judged.right[0, 0] = 0.0  # 47 pairs with it
    assert retrieval.of_each(probe(judged))[0].auc is not None
    few = asked(haystacks=1, right=1.0)
    few.right[0, 0] = 0.0  # 7 pairs
    assert retrieval.of_each(probe(few))[0].auc is None


def test_one_haystack_has_no_standard_error() -> None:
    found = retrieval.of_each(probe(asked(haystacks=1), haystacks=1))[0]
    assert math.isnan(found.score.error)
    assert found.alpha[512].low == found.alpha[512].value == found.alpha[512].high
    assert found.share in (0.0, 1.0)


def test_one_task() -> None:
    judged = asked(tasks=("other-facts",))
    assert {each.task for each in retrieval.recalls(judged)} == {"other-facts"}
    assert len(retrieval.of_each(probe(judged))) == 3


def test_weights_of_zero_and_one_are_finite() -> None:
    judged = asked(2, noise=0.0)
    judged.alpha[..., 0], judged.alpha[..., 1] = 0.0, 1.0
    for found in retrieval.of_each(probe(judged)):
        assert math.isfinite(found.law.gap)
        assert found.law.slope.value == pytest.approx(0.0, abs=1e-9)
        assert all(math.isfinite(ratio) for ratio in found.ratio.values())


def test_a_fall_of_recall_is_taken_in_pairs() -> None:
    """Haystacks differ by much; each loses one of its eight questions. The intervals of the levels overlap."""
    judged = asked(tasks=("other-facts",))
    right = np.arange(64) % 8 < np.repeat([1, 2, 4, 5, 6, 7, 8, 8], 8)
    short = right.astype(float)
    long = (np.arange(64) % 8 < np.repeat([0, 1, 3, 4, 5, 6, 7, 7], 8)).astype(float)
    fallen = retrieval.recall_fall(replace(judged, right=np.stack([short, short, long])))
    assert fallen == pytest.approx((1 / 8, 1 / 8, 1 / 8))
    assert retrieval.recall_fall(replace(judged, right=np.stack([long, short, long]))) == pytest.approx((0, 0, 0))
