"""What is the critical N at every length, by every test and with fewer heads?  All that was searched, as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from undilute.report.result import Row
from undilute_papers.limitations.critical_n.search import (
    EXPECTATIONS,
    LEVELS,
    Critical,
    Curves,
    equivalent_n,
    paired_n,
    published_n,
)
from undilute_papers.limitations.critical_n.significance import kolmogorov_smirnov, paired, ratio


class Found:
    """The critical N in every way.

    Parameters
    ----------
    curves : by length
    sizes : numbers of heads to repeat the published test with, where there are more
    subsets : how often so many heads are drawn
    seed : of the drawn heads

    Attributes
    ----------
    lengths : in order
    heads : how many there are
    published : expectation and level → length → critical N, by the published procedure
    paired, equivalent : length → critical N by the other tests, with the expectation itself
    fewer : lines on the published procedure, at the level of the text, with fewer heads
    """

    def __init__(self, curves: Mapping[int, Curves], sizes: Sequence[int], subsets: int, seed: int) -> None:
        self.curves, self.lengths = curves, list(curves)
        self.heads = curves[self.lengths[-1]].distance.shape[1]
        self.published = {
            (name, alpha): self._over_lengths(lambda each, name=name, alpha=alpha: published_n(each, name, alpha))
            for name in EXPECTATIONS
            for alpha in LEVELS
        }
        self.paired = self._over_lengths(lambda each: paired_n(each, "expected", LEVELS[0]))
        self.equivalent = self._over_lengths(lambda each: equivalent_n(each, "expected"))
        self.fewer = [
            self._drawn(name, length, size, subsets, seed)
            for name in EXPECTATIONS
            for size in sizes
            if size < self.heads
            for length in self.lengths
        ]

    def _over_lengths(self, search: Callable[..., Critical]) -> dict[int, Critical]:
        return {length: search(each) for length, each in self.curves.items()}

    def _drawn(self, name: str, length: int, size: int, subsets: int, seed: int) -> dict[str, Any]:
        """The published procedure on heads drawn at random."""
        generator = np.random.default_rng([seed, size, length])
        drawn = [generator.permutation(self.heads)[:size] for _ in range(subsets)]
        found = [published_n(self.curves[length], name, LEVELS[0], each).top for each in drawn]
        reached = sorted(top for top in found if top is not None)
        middle = statistics.median(math.inf if top is None else top for top in found)
        return {
            "expectation": name,
            "L": length,
            "heads": size,
            "subsets": len(found),
            "reached": len(reached),
            "median N / L": middle / length if math.isfinite(middle) else None,
            "lowest N / L": reached[0] / length if reached else None,
            "highest N / L": reached[-1] / length if reached else None,
        }

    def tables(self) -> dict[str, list[Row]]:
        """The critical N, every test, and the test with fewer heads."""
        critical: list[Row] = []
        for (name, alpha), found in self.published.items():
            critical += [_line("KS", name, alpha, length, each) for length, each in found.items()]
        for test, found in (("Wilcoxon, paired", self.paired), ("equivalence within 10 %", self.equivalent)):
            alpha = LEVELS[0] if test.startswith("Wilcoxon") else 0.05
            critical += [_line(test, "expected", alpha, length, each) for length, each in found.items()]
        return {"critical": critical, "tests": self._tests(), "fewer_heads": list(self.fewer)}

    def _tests(self) -> list[Row]:
        lines: list[Row] = []
        for length, curves in self.curves.items():
            for name, expectation in curves.expectations.items():
                for top, d, e in zip(curves.tops, curves.distance, expectation, strict=True):
                    statistic, p = kolmogorov_smirnov(d, e)
                    middle, low, high = ratio(d, e)
                    lines.append(
                        {
                            "L": length,
                            "N": top,
                            "expectation": name,
                            "mean distance": float(d.mean()),
                            "mean expectation": float(e.mean()),
                            "KS statistic": statistic,
                            "KS p": p,
                            "Wilcoxon p": paired(d, e),
                            "ratio": middle,
                            "ratio low": low,
                            "ratio high": high,
                        }
                    )
        return lines


def _line(test: str, expectation: str, alpha: float, length: int, found: Critical) -> Row:
    return {
        "test": test,
        "expectation": expectation,
        "alpha": alpha,
        "L": length,
        "critical N": found.top,
        "N before": found.before,
        "N / L": None if found.top is None else found.top / length,
        "larger N not passing": found.again,
    }
