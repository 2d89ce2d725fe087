"""What do a few seeds say about the mean of all?  Student's interval, and Student's test of paired differences."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

SIGNIFICANT = 0.05  # a p-value below it
ENOUGH_SEEDS = 5  # for a paired test to mean anything


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The t-interval of a mean; the value itself where there is only one.

    Examples
    --------
    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    centre = statistics.fmean(values)
    if len(values) < 2:
        return centre, centre
    from scipy import stats

    half = float(stats.t.ppf(0.5 + level / 2, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return centre - half, centre + half


def percents(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The interval of a mean of percentages, cut to what a percentage can be."""
    low, high = interval(values, level)
    return max(low, 0.0), min(high, 100.0)


def paired_p_value(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided paired t-test; None where there is nothing to test: one pair, or no difference at all."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2 or not any(differences):
        return None
    if len(set(differences)) == 1:
        return 0.0  # always the same difference, which SciPy warns about
    from scipy import stats

    return float(stats.ttest_rel(a, b).pvalue)
