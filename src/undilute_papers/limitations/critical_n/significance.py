"""Can the distances of the heads be told from their expectations?  The tests, as published and as they should be.

As published, a two-sample Kolmogorov–Smirnov test; also, for the same heads, a paired test and the ratio with its
interval.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Heads = NDArray[np.float64]  # (heads,)


def kolmogorov_smirnov(distance: Heads, expectation: Heads) -> tuple[float, float]:
    """The two-sample statistic and its p-value.

    Examples
    --------
    >>> statistic, p = kolmogorov_smirnov(np.arange(5.0), np.arange(5.0) + 10)
    >>> statistic, round(p, 4)
    (1.0, 0.0079)
    """
    from scipy.stats import ks_2samp

    with warnings.catch_warnings():
        # Where rounding takes the exact p-value above 1, scipy says so and takes the large-sample one, next to 1.
        warnings.filterwarnings("ignore", message="ks_2samp: Exact calculation unsuccessful", category=RuntimeWarning)
        test = ks_2samp(distance, expectation)
    return float(test.statistic), float(test.pvalue)


def rejects(distance: Heads, expectation: Heads, alpha: float) -> bool:
    """Whether the test's p-value is below ``alpha``, for two samples of equal size; without computing it each time."""
    a, b = np.sort(distance), np.sort(expectation)
    both = np.concatenate([a, b])
    steps = np.abs(np.searchsorted(a, both, side="right") - np.searchsorted(b, both, side="right")).max()
    return int(steps) > largest_accepted(len(a), alpha)


@lru_cache(maxsize=64)
def largest_accepted(size: int, alpha: float) -> int:
    """The largest k for which the statistic k/size of two samples of ``size`` is not rejected, by bisection.

    Examples
    --------
    >>> largest_accepted(144, 0.01)
    27
    """
    ranks = np.arange(float(size))
    accepted, rejected = 0, size + 1
    while rejected - accepted > 1:
        middle = (accepted + rejected) // 2
        apart = ranks + middle - 0.5  # ahead by exactly ``middle`` ranks
        accepted, rejected = (middle, rejected) if kolmogorov_smirnov(ranks, apart)[1] >= alpha else (accepted, middle)
    return accepted


def paired(distance: Heads, expectation: Heads) -> float:
    """The p-value of a Wilcoxon signed-rank test between paired heads; 1 if no head differs."""
    from scipy.stats import wilcoxon

    if np.array_equal(distance, expectation):
        return 1.0
    return float(wilcoxon(distance, expectation).pvalue)


def ratio(distance: Heads, expectation: Heads, level: float = 0.9) -> tuple[float, float, float]:
    """The geometric mean over heads of d̃/E, and the ends of its interval (Student's t of the log ratios).

    Heads for which one of the two is 0 have no ratio and are left out.

    Examples
    --------
    >>> ratio(np.array([2.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0]))
    (2.0, 2.0, 2.0)
    """
    from scipy.stats import t

    some = (distance > 0) & (expectation > 0)
    if some.sum() < 2:
        return math.nan, math.nan, math.nan
    logs = np.log(distance[some] / expectation[some])
    half = float(t.ppf((1 + level) / 2, len(logs) - 1)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    middle = float(logs.mean())
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
