"""Fits, kinds and factors against exact laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undilute.diagnosis import fit
from undilute.diagnosis.factor import LARGEST, factor_to_hold
from undilute.diagnosis.kinds import Evidence, Thresholds, is_found, kind
from undilute.theory import dispersion

N = np.unique(np.geomspace(16, 4096, 128).round())


@given(st.floats(-2, 25), st.floats(0.0, 1.5))
def test_exact_laws_are_recovered(gap: float, slope: float) -> None:
    weight = fit.sigmoid(gap - slope * np.log(N - 1))
    inside = (weight > 2 * fit.CERTAIN) & (weight < 1 - 2 * fit.CERTAIN)
    if inside.all():
        line = fit.robust_lines(np.log(N - 1), fit.logit(weight[None]))
        assert float(line.slope[0]) == pytest.approx(-slope, abs=1e-6)
        assert float(line.intercept[0]) == pytest.approx(gap, abs=1e-5)


def test_a_tenth_of_wild_rows_does_not_tilt_the_line() -> None:
    rng = np.random.default_rng(0)
    y = 2.0 - 0.5 * np.log(N) + 0.1 * rng.standard_normal((4, len(N)))
    wild = y.copy()
    wild[:, rng.choice(len(N), len(N) // 10, replace=False)] += 10
    plain = np.polyfit(np.log(N), wild.T, 1)[0]
    robust = fit.robust_lines(np.log(N), wild).slope
    assert np.abs(robust + 0.5).max() < 0.05
    assert np.abs(robust + 0.5).max() < np.abs(plain + 0.5).max()


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    y = 1.0 - 0.3 * np.log(N) + 0.4 * rng.standard_normal((400, len(N)))
    low, high = fit.robust_lines(np.log(N), y).slope_interval
    covered = np.mean((low <= -0.3) & (high >= -0.3))
    assert 0.88 <= covered <= 0.99


def test_the_level_is_that_of_the_rows_it_is_taken_from() -> None:
    bent = np.where(N > 1000, 1.0, 0.0) - 0.5 * np.log(N)  # one law up to 1,000, one higher beyond
    plain, levelled = fit.robust_lines(np.log(N), bent[None]), fit.robust_lines(np.log(N), bent[None], level=N > 1000)
    x = np.log(2000.0)
    assert float(levelled.slope[0]) == float(plain.slope[0])
    assert abs(float(levelled.at(x)[0]) - (1 - 0.5 * x)) < abs(float(plain.at(x)[0]) - (1 - 0.5 * x)) / 3
    low, high = levelled.interval_at(x)
    assert float(low[0]) <= float(levelled.at(x)[0]) <= float(high[0])


def test_the_same_n_everywhere_gives_a_flat_line() -> None:
    line = fit.robust_lines(np.full(20, 3.0), np.arange(20.0)[None])
    assert float(line.slope[0]) == 0.0
    assert float(line.at(3.0)[0]) == pytest.approx(9.5)


def test_exponents_are_those_of_the_weight() -> None:
    gap, slope = np.array([4.6, 9.0, 20.0]), np.array([-1.0, -1.0, -1.0])
    near, far = dispersion.relevant_weight(2048, gap), dispersion.relevant_weight(131_072, gap)
    expected = (near / far).log().numpy() / math.log(131_071 / 2047)
    assert np.allclose(fit.exponents(gap, slope, 2047, 131_071), expected)
    local = fit.exponents(gap, slope, 2047, 2047)
    assert np.allclose(local, fit.exponents(gap, slope, 2047, 2048), atol=1e-3)


def test_each_threshold_decides() -> None:
    sharp = Evidence(0.2, 0.3, 16.0, 0.1, 0.05, gamma=0.1, gamma_low=0.0)
    assert kind(sharp) == "sharp"
    assert kind(replace(sharp, gamma=0.3, gamma_low=0.2)) == "diluting"
    assert kind(replace(sharp, gamma=0.3, gamma_low=0.05)) == "sharp"  # not sure enough
    assert kind(replace(sharp, effective_short=0.6, effective_long=0.3, gamma=1.0, gamma_low=0.9)) == "diffuse"
    assert kind(replace(sharp, effective_short=0.6, effective_long=0.1)) == "sharp"
    assert kind(replace(sharp, recent_share=0.8)) == "local"
    assert kind(replace(sharp, recent_share=0.8, room=2.0)) == "sharp"  # 64 of 128 keys are no neighbourhood
    assert kind(replace(sharp, recent_share=0.8, sink_share=0.6)) == "sink"
    assert kind(replace(sharp, sink_share=0.6), Thresholds(sink_share=0.7)) == "sharp"


def test_finding_takes_a_score_that_is_large_and_sure() -> None:
    assert is_found(0.31, 0.05, 0.1)
    assert not is_found(0.29, 0.0, 0.1)  # not three times chance
    assert not is_found(0.31, 0.11, 0.1)  # two standard errors reach chance
    assert is_found(0.29, 0.05, 0.1, Thresholds(found=2.5))
    assert not is_found(0.3, 0.05, 0.1, Thresholds(errors=5.0))
    assert not is_found(0.9, math.nan, 0.1)  # one haystack has no standard error


@given(st.floats(3.0, 12.0), st.integers(64, 4096), st.floats(2.0, 256.0))
def test_the_factor_that_holds_is_exact_for_equal_competitors(gap: float, length: int, times: float) -> None:
    target = int(length * times)
    fall = math.log((target - 1) / (length - 1))
    factor = factor_to_hold(fall, gap, 3 * gap)
    assert factor is not None
    held, now = dispersion.relevant_weight(target, gap, 1 / factor), dispersion.relevant_weight(length, gap)
    assert float(held) == pytest.approx(float(now), rel=1e-6)


def test_the_factor_is_one_where_nothing_falls_and_none_where_nothing_helps() -> None:
    assert factor_to_hold(0.0, 6.0, 18.0) == 1.0
    assert factor_to_hold(-1.0, 6.0, 18.0) == 1.0
    assert factor_to_hold(4.16, 0.5, 0.6) is None  # keys too close to tell apart
    assert factor_to_hold(1.0, 0.0, 0.0) is None
    assert factor_to_hold(1.0, -0.5, -0.6) is None  # sharper logits favour another key


@given(st.floats(0.01, 6.0), st.floats(0.05, 6.0), st.floats(0.05, 12.0))
def test_a_factor_raises_the_logit_by_the_fall(fall: float, doubled: float, more: float) -> None:
    """Straight lines through what was measured at 1, 2 and 4, and on beyond."""
    factor = factor_to_hold(fall, doubled, doubled + more)
    slope = more / 2
    if factor is None:
        assert 2 + (fall - doubled) / slope > LARGEST
    else:
        rise = (factor - 1) * doubled if factor <= 2 else doubled + (factor - 2) * slope
        assert rise == pytest.approx(fall, rel=1e-6)


def test_resampled_lines_are_least_squares_of_the_drawn_rows() -> None:
    rng = np.random.default_rng(2)
    x, y, weights = rng.standard_normal(30), rng.standard_normal((3, 30)), rng.uniform(0.1, 1.0, (3, 30))
    counts = fit._resampled(30, seed=0)[:5]
    intercepts, slopes = fit._weighted(x, y, weights, counts)
    for draw, head in np.ndindex(5, 3):
        slope, intercept = np.polyfit(x, y[head], 1, w=np.sqrt(weights[head] * counts[draw]))
        assert (slopes[draw, head], intercepts[draw, head]) == pytest.approx((slope, intercept))
