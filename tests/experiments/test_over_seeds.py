"""Intervals and tests over seeds, against SciPy and by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from undilute.experiments.over_seeds import interval, paired_p_value, percents


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
