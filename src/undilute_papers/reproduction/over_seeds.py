"""What do a few seeds say about the mean of all?  Student's interval, and Student's test of paired differences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from undilute.evaluation.changes import likelihood

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


def in_common(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Two figures by seed, as two lists over the seeds that both have.

    >>> in_common({0: 5.0, 1: 6.0}, {1: 3.0, 2: 4.0})
    ([6.0], [3.0])
    """
    both = [seed for seed in a if seed in b]
    return [a[seed] for seed in both], [b[seed] for seed in both]


def leads(own: Mapping[int, float], others: Mapping[str, Mapping[int, float]]) -> str:
    """How far one rule is ahead of others over the seeds it has in common with each; "" where these are too few.

    Parameters
    ----------
    own : its figure by seed
    others : those of the others, by name

    Examples
    --------
    >>> own = dict(enumerate([52.0, 53.0, 51.0, 52.0, 52.0]))
    >>> leads(own, {"softmax": dict.fromkeys(range(5), 20.0), "ssmax": dict.fromkeys(range(10), 52.5)})
    'softmax +32.0 (p < 0.001), ssmax -0.5 (p = 0.189)'
    """
    shown = []
    for name, other in others.items():
        first, second = in_common(own, other)
        if len(first) >= ENOUGH_SEEDS:
            p_value = paired_p_value(first, second)
            likely = f" ({likelihood(p_value)})" if p_value is not None else ""
            shown.append(f"{name} {statistics.fmean(first) - statistics.fmean(second):+.1f}{likely}")
    return ", ".join(shown)
