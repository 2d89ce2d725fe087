"""Intervals and p-values are those of their definitions, and only clear differences are called better or worse."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests.evaluation.constructed import LENGTHS, TASKS, evaluation
from undilute.errors import InvalidValue
from undilute.evaluation.changes import (
    ENTROPY,
    FLIPS,
    LOG_PROBABILITY,
    LOSS,
    RECALL,
    RUN,
    Change,
    change,
    changes,
    groups,
    interval,
    sign_flip,
)
from undilute.models.text_loss import position_buckets


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_the_exact_p_value_counts_every_pattern_of_signs(sums: list[int]) -> None:
    patterns = list(product([-1, 1], repeat=len(sums)))
    as_large = [abs(sum(s * x for s, x in zip(signs, sums, strict=True))) >= abs(sum(sums)) for signs in patterns]
    assert sign_flip(np.array(sums, float)) == sum(as_large) / len(patterns)


def test_the_random_p_value_is_near_the_exact_one() -> None:
    """16 equal blocks and 4 of the other sign: the sum of 20 signs is at least 12 away from 0."""
    sums = np.array([1.0] * 16 + [-1.0] * 4)
    flips = np.array([bin(pattern).count("1") for pattern in range(2**20)])
    exact = float((np.abs(20 - 2 * flips) >= 12).mean())
    found = sign_flip(sums)
    assert abs(found - exact) < 4 * np.sqrt(exact / FLIPS)
    assert found == sign_flip(sums) != sign_flip(sums, seed=1)
    assert sign_flip(np.ones(40)) == 1 / (FLIPS + 1)


def test_the_interval_is_the_percentile_bootstraps() -> None:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 33, 30).astype(float)
    sums = generator.normal(0.4, 1.0, 30) * sizes
    means = []
    for _ in range(20_000):  # by drawing blocks, one resample after another
        drawn = generator.integers(0, 30, 30)
        means.append(sums[drawn].sum() / sizes[drawn].sum())
    assert_allclose(interval(sums, sizes), np.quantile(means, [0.025, 0.975]), atol=0.03)
    assert interval(sums, sizes) == interval(sums, sizes) != interval(sums, sizes, seed=1)


def test_a_mean_is_over_values_and_not_over_blocks() -> None:
    before, after = np.zeros(5), np.array([1.0, 1.0, 1.0, 1.0, 6.0])
    made = change("x", "", before, after, np.array([7, 7, 7, 7, 3]), better="higher")
    assert (made.before, made.after, made.difference, made.count) == (0.0, 2.0, 2.0, 2)
    assert (made.low, made.high) == (1.0, 6.0)  # either block twice
    assert made.p_value == 0.5


@pytest.mark.parametrize(
    ("difference", "low", "high", "p_value", "lower", "higher"),
    [
        (-0.2, -0.3, -0.1, 0.01, "better", "worse"),
        (0.2, 0.1, 0.3, 0.01, "worse", "better"),
        (0.2, 0.1, 0.3, 0.05, "no clear difference", "no clear difference"),
        (0.2, -0.1, 0.3, 0.01, "no clear difference", "no clear difference"),
        (0.0, 0.0, 0.0, 1.0, "no clear difference", "no clear difference"),
        (0.2, None, None, None, "no clear difference", "no clear difference"),
    ],
)
def test_verdicts(
    difference: float, low: float | None, high: float | None, p_value: float | None, lower: str, higher: str
) -> None:
    made = Change("x", "", 1.0, 1.0 + difference, difference, low, high, p_value, "lower", 9)
    assert (made.verdict, replace(made, better="higher").verdict) == (lower, higher)


def test_one_block_has_no_interval() -> None:
    made = change("x", "", np.zeros(5), np.ones(5), np.zeros(5, int), better="lower")
    assert (made.low, made.high, made.p_value, made.count, made.verdict) == (None, None, None, 1, "no clear difference")


def test_nothing_is_found_where_nothing_is() -> None:
    """About one in twenty comparisons without a difference may be called one, if blocks hold what hangs together."""
    generator = np.random.default_rng(0)
    called = 0
    for seed in range(300):
        blocks = np.repeat(np.arange(20), 8)
        together = np.repeat(generator.normal(size=20), 8)  # what the values of a block have in common
        after = together + 0.3 * generator.normal(size=160)
        called += (
            change("x", "", np.zeros(160), after, blocks, better="lower", seed=seed).verdict != "no clear difference"
        )
    assert called <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)


def test_every_line_is_there_once() -> None:
    lines = changes(evaluation(), evaluation("ssmax", seed=1))
    buckets = [f" after {first:,}–{last:,} tokens" for first, last in position_buckets(512)]
    parts = ["", *(f", {task}" for task in TASKS), *(f" at {length:,} tokens" for length in LENGTHS)]
    assert [line.what for line in lines] == [
        LOSS,
        *(LOSS + bucket for bucket in buckets),
        *(RECALL + part for part in parts),
        *(LOG_PROBABILITY + part for part in parts),
        ENTROPY,
    ]


def test_every_line_compares_what_it_says() -> None:
    before, after = evaluation(), evaluation("ssmax", loss=0.1, right=0.8, entropy=-0.5)
    lines = {line.what: line for line in changes(before, after)}
    assert lines[LOSS].before == pytest.approx(before.losses.mean())
    assert lines[LOSS].difference == pytest.approx(0.1)
    last = lines[f"{LOSS} after 256–511 tokens"]
    assert last.after == pytest.approx(after.losses[:, 255:511].mean())
    assert last.count == 3 * 256 / RUN
    for name, places in groups(before.answers).items():
        line = lines[RECALL + name]
        assert line.before == pytest.approx(100 * np.mean([before.answers[place].right for place in places]))
        assert line.after == pytest.approx(100 * np.mean([after.answers[place].right for place in places]))
        assert line.count == len({before.answers[place].haystack for place in places})
        log_p = [after.answers[place].log_probability for place in places]
        assert lines[LOG_PROBABILITY + name].after == pytest.approx(np.mean(log_p))
    assert lines[ENTROPY].difference == pytest.approx(-0.5)
    assert lines[LOSS].verdict == "worse"
    assert lines[RECALL].verdict == lines[ENTROPY].verdict == "better"


def test_the_same_is_no_clear_difference() -> None:
    for line in changes(evaluation(), evaluation("again")):
        assert (line.difference, line.low, line.high, line.p_value) == (0.0, 0.0, 0.0, 1.0)
        assert line.verdict == "no clear difference"


def test_the_seed_decides() -> None:
    before, after = evaluation(), evaluation("ssmax", seed=1)
    assert changes(before, after) == changes(before, after)
    assert changes(before, after) != changes(before, after, seed=1)


def test_one_task_is_not_said_twice() -> None:
    answers = tuple(answer for answer in evaluation().answers if answer.task == "single")
    assert list(groups(answers)) == ["", *(f" at {length:,} tokens" for length in LENGTHS)]


def test_no_questions_give_no_lines_about_them() -> None:
    before = replace(evaluation(), answers=())
    lines = changes(before, replace(before, label="ssmax"))
    assert {line.what.split(" after")[0] for line in lines} == {LOSS, ENTROPY}


def test_missing_heads_are_left_out() -> None:
    before, after = evaluation(), evaluation(entropy=-1.0)
    before.spread.entropy[1, 2] = np.nan
    assert changes(before, after)[-1].difference == pytest.approx(-1.0)


def test_only_pairs_are_compared() -> None:
    with pytest.raises(InvalidValue, match=r"'softmax' has losses of shape \(3, 511\) and 'ssmax' \(2, 511\)"):
        changes(evaluation(), evaluation("ssmax", windows=2))
    with pytest.raises(InvalidValue, match="answered different questions"):
        changes(evaluation(), evaluation("ssmax", haystacks=5))
