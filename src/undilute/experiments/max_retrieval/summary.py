"""Many runs as a few figures: means over seeds with their intervals, and the paired test."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undilute.experiments.max_retrieval.training import ARGMAX, MEASURED
from undilute.experiments.result import Row


@dataclass(frozen=True)
class Group:
    """What the seeds of one set-up have in common."""

    trained_with: str
    set_size: str
    schedule: str
    evaluated_with: str


class Outcomes:
    """Every test of every run.

    Parameters
    ----------
    found : what ``carry_out`` returned, for any number of runs
    """

    def __init__(self, found: Sequence[Mapping[str, Any]]) -> None:
        self.values: dict[Group, dict[int, dict[int, Mapping[str, Any]]]] = {}  # group → items → seed → test
        for outcome in sorted(found, key=lambda each: list(each["run"]["seeds"])):
            run = outcome["run"]
            for test in outcome["tests"]:
                group = Group(run["rule"], run["set_size"], run["schedule"], test["evaluated_with"])
                self.values.setdefault(group, {}).setdefault(test["items"], {})[test["seed"]] = test

    def of(self, group: Group, items: int, what: str = "accuracy") -> list[float]:
        """One measure of one size, a value per seed."""
        return [float(test[what]) for test in self.values[group][items].values()]

    def mean(self, group: Group, items: int, what: str = "accuracy") -> float:
        """Its mean over seeds."""
        return statistics.fmean(self.of(group, items, what))

    def sizes(self, group: Group) -> list[int]:
        """The sizes that were tested."""
        return sorted(self.values[group])

    def lines(self) -> list[Row]:
        """A line per set-up and size: means over seeds, with interval, spread and the argmax of the same logits."""
        return [self._line(group, items) for group in self.values for items in self.sizes(group)]

    def _line(self, group: Group, items: int) -> Row:
        accuracies = self.of(group, items)
        low, high = interval(accuracies)
        ceiling = Group(group.trained_with, group.set_size, group.schedule, ARGMAX)
        return {
            **vars(group),
            "items": items,
            "seeds": len(accuracies),
            **{what: self.mean(group, items, what) for what in MEASURED},
            "low": low,
            "high": high,
            "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "worst_seed": min(accuracies),
            "best_seed": max(accuracies),
            "argmax_of_the_same_logits": self.mean(ceiling, items),
        }

    def paired(self, set_size: str, schedule: str) -> list[Row]:
        """Adaptive temperature against softmax on the same weights: gain and paired t-test at every size."""
        softmax, adaptive = (Group("softmax", set_size, schedule, name) for name in ("softmax", "adaptive"))
        if softmax not in self.values:
            return []
        return [
            {
                "set_size": set_size,
                "schedule": schedule,
                "items": items,
                "gain": self.mean(adaptive, items) - self.mean(softmax, items),
                "p_value": paired_p_value(self.of(adaptive, items), self.of(softmax, items)),
            }
            for items in self.sizes(softmax)
        ]


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


def paired_p_value(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided paired t-test; None where there is nothing to test: one pair, or no difference at all."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2 or statistics.pstdev(differences) == 0:
        return None
    from scipy import stats

    return float(stats.ttest_rel(a, b).pvalue)
