"""Intervals and tests over seeds, against SciPy and by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from undilute_papers.reproduction.over_seeds import in_common, interval, leads, paired_p_value, percents


def test_the_interval_is_students() -> None:
    values = [3.0, 4.5, 8.0, 1.0]
    deviation = stats.tstd(values) / math.sqrt(4)
    assert interval(values) == pytest.approx(stats.t.interval(0.95, 3, loc=4.125, scale=deviation))
    assert interval([7.0]) == (7.0, 7.0)
    assert percents(values) == (0.0, interval(values)[1])
    assert percents([1.0, 99.0]) == (0.0, 100.0)


def test_the_paired_test_is_students() -> None:
    a, b = [1.0, 2.0, 4.0, 3.0], [0.5, 2.5, 3.0, 1.0]
    differences = [x - y for x, y in zip(a, b, strict=True)]
    t = sum(differences) / 4 / (stats.tstd(differences) / 2)
    assert paired_p_value(a, b) == pytest.approx(2 * stats.t.sf(abs(t), 3))
    assert paired_p_value([1.0], [2.0]) is None
    assert paired_p_value([1.0, 2.0], [1.0, 2.0]) is None
    assert paired_p_value([1.5, 2.5], [1.0, 2.0]) == 0.0


def test_leads_pair_the_seeds_in_common_whatever_their_order() -> None:
    own = {0: 1.0, 1: 2.0, 2: 4.0, 3: 3.0, 4: 5.0}
    other = {9: 99.0, 4: 1.0, 3: 1.5, 2: 3.0, 1: 2.5, 0: 0.5}
    a, b = in_common(own, other)
    assert (a, b) == ([1.0, 2.0, 4.0, 3.0, 5.0], [0.5, 2.5, 3.0, 1.5, 1.0])
    assert leads(own, {"other": other}) == f"other +1.3 (p = {stats.ttest_rel(a, b).pvalue:.3f})"
    assert leads(own, {"the same": own}) == "the same +0.0"
    assert leads(own, {"other": {seed: other[seed] for seed in range(4)}}) == ""
