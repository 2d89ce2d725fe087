"""Which is the smallest N that a test lets pass?  Searched along the curves of one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from undilute_papers.limitations.critical_n.significance import paired, ratio, rejects

EXPECTATIONS = {"printed": "formula as printed", "main": "main term, corrected", "expected": "expectation, corrected"}
LEVELS = (0.01, 0.05)  # of the text, and of Algorithm 3
EQUIVALENT = 0.1  # d̃/E within 10 % of 1
NEAR = (0.7, 0.8, 0.85, 0.9, 0.95, 0.98)  # shares of L where a log-spaced grid would be coarse


class Curves(NamedTuple):
    """d̃ and its expectations at one length.

    Attributes
    ----------
    tops : every N
    distance : (N, heads), means over tokens
    expectations : name → (N, heads)
    """

    tops: tuple[int, ...]
    distance: NDArray[np.float64]
    expectations: Mapping[str, NDArray[np.float64]]


class Critical(NamedTuple):
    """The smallest N that a test lets pass.

    Attributes
    ----------
    top : it, None if no N on the grid does
    before : the largest N below it on the grid, 0 if there is none: the true one lies above it
    again : how many larger N the test does not let pass
    """

    top: int | None
    before: int
    again: int


def grid(length: int, longest: int, points: int) -> list[int]:
    """Every N below ``length`` of one log-spaced grid for all lengths, finer towards ``length`` − 1.

    Examples
    --------
    >>> grid(16, 64, 8)
    [1, 2, 3, 6, 11, 13, 14, 15]
    """
    spaced = np.geomspace(1, longest - 1, points).round().astype(int).tolist()
    near = [round(share * length) for share in NEAR]
    return sorted({top for top in [*spaced, *near, length - 1] if top < length})


def first_passing(tops: Sequence[int], passes: Sequence[bool]) -> Critical:
    """The smallest N that passes.

    Examples
    --------
    >>> first_passing([1, 2, 4, 8], [False, False, True, False])
    Critical(top=4, before=2, again=1)
    """
    places = [place for place, each in enumerate(passes) if each]
    if not places:
        return Critical(None, tops[-1], 0)
    at = places[0]
    return Critical(tops[at], tops[at - 1] if at else 0, sum(not each for each in passes[at:]))


def published_n(curves: Curves, expectation: str, alpha: float, heads: NDArray[np.int64] | None = None) -> Critical:
    """The procedure as published: the smallest N at which the Kolmogorov–Smirnov test does not reject.

    Parameters
    ----------
    curves : of one length
    expectation : "printed", "main" or "expected"
    alpha : level of the test
    heads : indices of the heads to use; all by default
    """
    chosen = slice(None) if heads is None else heads
    pairs = zip(curves.distance[:, chosen], curves.expectations[expectation][:, chosen], strict=True)
    return first_passing(curves.tops, [not rejects(d, e, alpha) for d, e in pairs])


def equivalent_n(curves: Curves, expectation: str) -> Critical:
    """The smallest N at which d̃/E is shown to be within 10 % of 1: two one-sided tests at 5 %."""
    passes = []
    for d, e in zip(curves.distance, curves.expectations[expectation], strict=True):
        _, low, high = ratio(d, e)
        passes.append(low >= 1 / (1 + EQUIVALENT) and high <= 1 + EQUIVALENT)
    return first_passing(curves.tops, passes)


def paired_n(curves: Curves, expectation: str, alpha: float) -> Critical:
    """The smallest N at which the paired test does not reject."""
    pairs = zip(curves.distance, curves.expectations[expectation], strict=True)
    return first_passing(curves.tops, [paired(d, e) >= alpha for d, e in pairs])
