"""Many runs as a few figures: means over seeds with their intervals, the seeds that train, and the paired test."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from undilute.report.result import Row
from undilute_papers.reproduction import seeds_that_train
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.over_seeds import paired_p_value, percents
from undilute_papers.sharpness.max_retrieval.training import MEASURED

TRAINED_ON = 16  # items: who cannot do these has not trained


class Kind(Protocol):
    """What the seeds of one set-up have in common, and with which rule they are tested."""

    @property
    def own(self) -> Self:
        """The same weights under the rule they were trained with."""

    @property
    def argmax(self) -> Self:
        """The same weights under the argmax of their logits."""


AnyKind = TypeVar("AnyKind", bound=Kind)


class Tested(Generic[AnyKind]):
    """The tests of many runs.

    Parameters
    ----------
    tests : of every size and seed, each with its kind
    """

    def __init__(self, tests: Iterable[tuple[AnyKind, Mapping[str, Any]]]) -> None:
        self.values: dict[AnyKind, dict[int, dict[int, Mapping[str, Any]]]] = {}  # kind → items → seed → test
        for kind, test in sorted(tests, key=lambda each: int(each[1]["seed"])):
            self.values.setdefault(kind, {}).setdefault(test["items"], {})[test["seed"]] = test

    def of(self, kind: AnyKind, items: int, what: str = "accuracy") -> list[float]:
        """One measure of one size, a value per seed."""
        return list(self.by_seed(kind, items, what).values())

    def by_seed(self, kind: AnyKind, items: int, what: str = "accuracy") -> dict[int, float]:
        """One measure of one size, by seed."""
        return {seed: float(test[what]) for seed, test in self.values[kind][items].items()}

    def mean(self, kind: AnyKind, items: int, what: str = "accuracy") -> float:
        """Its mean over seeds."""
        return statistics.fmean(self.of(kind, items, what))

    def sizes(self, kind: AnyKind) -> list[int]:
        """The sizes that were tested."""
        return sorted(self.values[kind])

    def gap_to_argmax(self, kind: AnyKind, items: int) -> float:
        """How much more the argmax of the same logits gets right, in points: what is lost to spreading."""
        return self.mean(kind.argmax, items) - self.mean(kind, items)

    def trained(self, kind: AnyKind) -> dict[int, float]:
        """Accuracy by seed on sets of 16 with the rule of training; empty where these were not tested."""
        return self.by_seed(kind.own, TRAINED_ON) if TRAINED_ON in self.values[kind.own] else {}

    def lines(self) -> list[Row]:
        """A line per kind and size: means over seeds, with interval, spread and the argmax of the same logits."""
        return [self._line(kind, items) for kind in self.values for items in self.sizes(kind)]

    def _line(self, kind: AnyKind, items: int) -> Row:
        accuracies = self.of(kind, items)
        low, high = percents(accuracies)
        return {
            **vars(kind),
            "items": items,
            "seeds": len(accuracies),
            **{what: self.mean(kind, items, what) for what in MEASURED},
            "low": low,
            "high": high,
            "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "worst_seed": min(accuracies),
            "best_seed": max(accuracies),
            "argmax_of_the_same_logits": self.mean(kind.argmax, items),
            "gap_to_argmax": self.gap_to_argmax(kind, items),
            **seeds_that_train.columns(self.trained(kind)),
        }


@dataclass(frozen=True)
class Group:
    """What the seeds of one set-up have in common."""

    trained_with: str
    set_size: str
    schedule: str
    evaluated_with: str

    @property
    def own(self) -> Group:
        """The same weights under the rule they were trained with."""
        return replace(self, evaluated_with=self.trained_with)

    @property
    def argmax(self) -> Group:
        """The same weights under the argmax of their logits."""
        return replace(self, evaluated_with=ARGMAX)


class Outcomes(Tested[Group]):
    """Every test of every run.

    Parameters
    ----------
    found : what ``carry_out`` returned, for any number of runs
    """

    def __init__(self, found: Sequence[Mapping[str, Any]]) -> None:
        super().__init__((_group(each["run"], test), test) for each in found for test in each["tests"])

    def trainings(self) -> dict[str, dict[int, float]]:
        """Accuracy on sets of 16 by seed, by name of the training."""
        own = [group for group in self.values if group == group.own and self.trained(group)]
        return {
            f"{group.trained_with} ({group.schedule} rate, sets of {group.set_size})": self.trained(group)
            for group in own
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


def _group(run: Mapping[str, Any], test: Mapping[str, Any]) -> Group:
    return Group(run["rule"], run["set_size"], run["schedule"], test["evaluated_with"])
