"""Many runs as a few figures: means over seeds with their intervals, and the paired test."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undilute.experiments.evaluated import ARGMAX
from undilute.experiments.max_retrieval.training import MEASURED
from undilute.experiments.over_seeds import paired_p_value, percents
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
        return list(self.by_seed(group, items, what).values())

    def by_seed(self, group: Group, items: int, what: str = "accuracy") -> dict[int, float]:
        """One measure of one size, by seed."""
        return {seed: float(test[what]) for seed, test in self.values[group][items].items()}

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
        low, high = percents(accuracies)
        argmax = Group(group.trained_with, group.set_size, group.schedule, ARGMAX)
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
            "argmax_of_the_same_logits": self.mean(argmax, items),
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
