"""What is said of printed values and claims: whether they agree, in how many digits, and how many do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from undilute.report.charts import label
from undilute.report.result import Comparison, Verdict

SIGNS: dict[Verdict, str] = {"agrees": "✓", "differs": "✗", "other set-up": "○"}


def compared(what: str, printed: float, computed: float, within: float, **more: Any) -> Comparison:
    """A printed and a computed number: they agree if they differ by at most ``within``.

    Examples
    --------
    >>> compared("accuracy at 64 items, %", 94.3, 95.1, within=4).verdict
    'agrees'
    """
    verdict: Verdict = "agrees" if abs(printed - computed) <= within else "differs"
    return Comparison(what, printed, computed, verdict, **more)


def outcome(comparisons: Iterable[Comparison]) -> str:
    """How many printed values and claims agree, in one line.

    Examples
    --------
    >>> outcome([Comparison("weight", 0.5, 0.5, "agrees"), Comparison("entropy", 1.0, 2.0, "differs")])
    'Of 2 printed values and claims 1 agrees, 1 differs, 0 are of another set-up.'
    """
    found = counts(comparisons)
    agrees, differs, other = found.values()
    many = sum(found.values())
    return (
        f"Of {many:,} printed {'value or claim' if many == 1 else 'values and claims'} {agrees:,} "
        f"agree{'s' * (agrees == 1)}, {differs:,} differ{'s' * (differs == 1)}, {other:,} "
        f"{'is' if other == 1 else 'are'} of another set-up."
    )


def counts(comparisons: Iterable[Comparison]) -> dict[Verdict, int]:
    """How many printed values and claims have each verdict; what was not printed does not count."""
    found = Counter(each.verdict for each in comparisons if each.printed is not None)
    return {verdict: found[verdict] for verdict in SIGNS}


def printed(comparison: Comparison) -> str:
    """The printed value as printed; a dash where there is none."""
    value = comparison.printed
    if value is None:
        return "–"
    return value if isinstance(value, str) else label(value, 12)


def computed(comparison: Comparison) -> str:
    """The computed value with about as many digits as the printed one, and its interval.

    Examples
    --------
    >>> computed(Comparison("bits lost", 12.56, 0.72133824, "differs"))
    '0.721'
    >>> computed(Comparison("entropy, bits", 1.59, 3.30094, "differs"))
    '3.30'
    >>> computed(Comparison("accuracy, %", 53.8, 51.23456, "agrees", low=49.06, high=53.4))
    '51.2 [49.1, 53.4]'
    """
    if isinstance(comparison.computed, str):
        return comparison.computed
    value = _like(comparison.computed, comparison.printed)
    if comparison.low is None or comparison.high is None:
        return value
    return f"{value} [{_like(comparison.low, comparison.printed)}, {_like(comparison.high, comparison.printed)}]"


def _like(value: float, printed: float | str | None) -> str:
    """A number with as many decimals as the printed one, but never fewer than three digits."""
    if printed is None or isinstance(printed, str) or not 1e-4 <= abs(value) < 1e7 or not math.isfinite(printed):
        return label(value)
    decimals = len(f"{printed:.12f}".rstrip("0").partition(".")[2])
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, digits, 0)}f}".replace("-", "−")
