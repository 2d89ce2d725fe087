"""The needle experiment against its closed forms."""

from __future__ import annotations

import math

import pytest

import undilute as ud
from undilute import rules
from undilute_papers.rule_curves.curves import needle_curves


def test_softmax_follows_the_dilution_law() -> None:
    """R / (R + n − 1), R = e^gap, when every competitor has logit 0."""
    for point in needle_curves({"softmax": rules.get("softmax")}, gap=4.0, noise=0.0, seeds=1):
        ratio = math.exp(4.0)
        assert point.needle_weight == pytest.approx(ratio / (ratio + point.n - 1))
        assert point.total_weight == pytest.approx(1.0)


def test_sparse_rules_do_not_dilute() -> None:
    points = needle_curves({"entmax15": rules.get("entmax15")}, gap=2.0, noise=0.0, seeds=1)
    assert all(point.needle_weight == 1.0 and point.entropy == 0.0 for point in points)


def test_same_seed_same_numbers_and_lengths_share_their_rows() -> None:
    softmax = {"softmax": rules.get("softmax")}
    assert needle_curves(softmax, seeds=2) == needle_curves(softmax, seeds=2)
    assert needle_curves(softmax, seeds=2, seed=1) != needle_curves(softmax, seeds=2)
    weights = [point.needle_weight for point in needle_curves(softmax, seeds=1)]
    assert weights == sorted(weights, reverse=True)


def test_bad_input() -> None:
    with pytest.raises(ud.InvalidValue, match="gap = nan"):
        needle_curves({}, gap=math.nan)
    with pytest.raises(ud.InvalidValue, match="length = 0"):
        needle_curves({}, lengths=[0])
    with pytest.raises(ud.InvalidValue, match="seeds = 0"):
        needle_curves({}, seeds=0)
    with pytest.raises(ud.InvalidValue, match="noise = -1: must be at least 0"):
        needle_curves({}, noise=-1)
