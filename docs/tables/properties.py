"""The tables of docs/focus.md: every rule against the three properties, and how steep focus can be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undilute.report.markdown import table
from undilute.theory import focus
from undilute_papers.audit.properties import Properties

ANSWER = {True: "**yes**", False: "no", None: "not known"}


def markdown(found: Sequence[Properties]) -> str:
    """The table, one line per rule, with the first and the last length of each measurement.

    Examples
    --------
    >>> from undilute_papers.audit.properties import properties
    >>> from undilute.rules import get
    >>> print(markdown(properties({"softmax": get("softmax")}, lengths=(50, 500), tries=1)).splitlines()[-1])
    | softmax | 0.022 → 0.0023 | no | 50 → 500 | no | 0.5 → 0.5 | 0.5 | **yes** | 0 % |
    """
    first, last = found[0].lengths[0], found[0].lengths[-1]
    span = f"n = {first:,} → {last:,}"
    head = ["rule", f"worst top weight, {span}", "length-adaptive", f"largest support, {span}", "sparse"]
    head += [f"steepest found, {span}", f"Lipschitz constant declared, n = {last:,}", "gradient-stable", "one-hot rows"]
    return table(head, [_cells(each) for each in found])


def _cells(found: Properties) -> list[str]:
    return [
        found.name,
        f"{found.top_weight[0]:.2g} → {found.top_weight[-1]:.2g}",
        ANSWER[found.length_adaptive],
        f"{found.support[0]:,} → {found.support[-1]:,}",
        ANSWER[found.sparse],
        f"{_number(found.steepest[0])} → {_number(found.steepest[-1])}",
        _number(found.declared),
        ANSWER[found.gradient_stable],
        f"{100 * found.one_hot:.0f} %",
    ]


def _number(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.0e}" if value >= 1e4 else f"{value:.3g}"


def summary(found: Sequence[Properties]) -> str:
    """Which rules have all three, in a sentence.

    Examples
    --------
    >>> from undilute_papers.audit.properties import properties
    >>> from undilute.rules import get
    >>> summary(properties({"softmax": get("softmax")}, lengths=(50, 500), tries=1))
    'None of the 1 rules has all three properties on these rows.'
    """
    have = [f"{each.name} ({100 * each.one_hot:.0f} % one-hot rows)" for each in found if each.all_three]
    if not have:
        return f"None of the {len(found)} rules has all three properties on these rows."
    return f"All three properties on these rows: {', '.join(have)}; none of the other {len(found) - len(have)} rules."


def steepness(alphas: Sequence[float], kept: Sequence[int]) -> str:
    """C(α, K), and in brackets the largest norm known to be reached, as a table.

    Examples
    --------
    >>> print(steepness([1.5, 2.0], [2, 16]))
    | α | K = 2 | K = 16 |
    | --- | --- | --- |
    | 1.5 | 0.758 (0.707) | 1.46 (1.36) |
    | 2 | 2 (2) | 16 (16) |
    """
    body = []
    for alpha in alphas:
        cells = (f"{focus.steepness(alpha, K):.3g} ({focus.steepest(alpha, K):.3g})" for K in kept)
        body.append([f"{alpha:g}", *cells])
    return table(["α", *(f"K = {K}" for K in kept)], body)
