"""What is each change worth?  Means over the seeds of every arm, and paired differences with their test."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from undilute.report.result import Row
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.over_seeds import (
    ENOUGH_SEEDS,
    SIGNIFICANT,
    in_common,
    interval,
    paired_p_value,
    percents,
)
from undilute_papers.reproduction.seeds_that_train import columns
from undilute_papers.sharpness.ceiling.set_ups import Arm
from undilute_papers.sharpness.ceiling.training import OWN
from undilute_papers.sharpness.max_retrieval.summary import Tested

Verdict = Literal["better", "worse", "no clear difference", "too few seeds to tell"]


@dataclass(frozen=True)
class Group:
    """The weights of an arm's seeds under one rule."""

    arm: str
    evaluated_with: str

    @property
    def own(self) -> Group:
        """The same weights under the rule they were trained with."""
        return replace(self, evaluated_with=OWN)

    @property
    def argmax(self) -> Group:
        """The same weights under the argmax of their logits."""
        return replace(self, evaluated_with=ARGMAX)


@dataclass(frozen=True)
class Change:
    """One group beside another at one size, over the seeds that both have.

    Attributes
    ----------
    group, against : what is compared
    items : of the test sets
    before, after : mean accuracy of ``against`` and of ``group``, in %
    low, high : 95 % interval of the mean difference by Student's t; None of a single seed
    p_value : of the paired t-test; None where there is nothing to test
    seeds : how many both have
    """

    group: Group
    against: Group
    items: int
    before: float
    after: float
    low: float | None
    high: float | None
    p_value: float | None
    seeds: int

    @property
    def verdict(self) -> Verdict:
        """Which of the two is better, as far as the test tells."""
        if self.seeds < ENOUGH_SEEDS:
            return "too few seeds to tell"
        if self.p_value is None or self.p_value >= SIGNIFICANT:
            return "no clear difference"
        return "better" if self.after > self.before else "worse"

    def line(self) -> Row:
        """For a table."""
        return {
            "arm": self.group.arm,
            "evaluated_with": self.group.evaluated_with,
            "against_arm": self.against.arm,
            "against_evaluated_with": self.against.evaluated_with,
            "items": self.items,
            "seeds": self.seeds,
            "before": self.before,
            "after": self.after,
            "gain": self.after - self.before,
            "low": self.low,
            "high": self.high,
            "p_value": self.p_value,
            "verdict": self.verdict,
        }


class Outcomes(Tested[Group]):
    """Every test of every run.

    Parameters
    ----------
    arms : that were trained, in their order
    found : what ``carry_out`` returned, for any number of runs, each with the name of its arm
    """

    def __init__(self, arms: Sequence[Arm], found: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        super().__init__((Group(arm, test["evaluated_with"]), test) for arm, each in found for test in each["tests"])
        self.arms = list(arms)
        self.training: dict[str, dict[int, Mapping[str, Any]]] = {}  # arm → seed → line
        for arm, each in found:
            self.training.setdefault(arm, {}).update({line["seed"]: line for line in each["training"]})

    @property
    def largest(self) -> int:
        """Items of the largest sets that were tested."""
        return max(items for sizes in self.values.values() for items in sizes)

    def groups(self, arm: str) -> list[Group]:
        """The weights of an arm under every rule that it was tested with."""
        return [group for group in self.values if group.arm == arm]

    def pairs(self) -> list[tuple[Arm, Arm]]:
        """Every arm with the one it stands beside, where both were trained."""
        trained = {arm.name: arm for arm in self.arms}
        return [(arm, trained[arm.beside]) for arm in self.arms if arm.beside in trained]

    def rivals(self) -> list[tuple[Arm, Arm]]:
        """Every arm with focus, with each that has another rule in the same training."""
        return [
            (arm, other)
            for arm in self.arms
            for other in self.arms
            if arm.set_up.rule == "focus" != other.set_up.rule and arm.set_up.training == other.set_up.training
        ]

    def best_arm(self) -> Arm:
        """The arm that is best at the largest size with its own rule; of equals the first."""
        return max(self.arms, key=lambda arm: self.mean(Group(arm.name, OWN), self.largest))

    def way_to(self, arm: Arm) -> list[Arm]:
        """The arms from the first to this one, each beside the one before, as far as they were trained."""
        before = [other for one, other in self.pairs() if one == arm]
        return [*self.way_to(before[0]), arm] if before else [arm]

    def change(self, group: Group, against: Group, items: int) -> Change:
        """One group beside another at one size."""
        after, before = in_common(self.by_seed(group, items), self.by_seed(against, items))
        low, high = interval([x - y for x, y in zip(after, before, strict=True)])
        return Change(
            group,
            against,
            items,
            statistics.fmean(before),
            statistics.fmean(after),
            low if len(after) > 1 else None,
            high if len(after) > 1 else None,
            paired_p_value(after, before),
            len(after),
        )

    def changes(self, sizes: Sequence[int]) -> list[Change]:
        """Every arm beside its other and its rivals, under own rules and the argmax; every rule beside an arm's own."""
        made = []
        pairs = self.pairs()
        pairs += [rivals for rivals in self.rivals() if rivals not in pairs]
        for items in sizes:
            for arm, other in pairs:
                made += [self.change(Group(arm.name, name), Group(other.name, name), items) for name in (OWN, ARGMAX)]
            for group in self.values:
                if group != group.own:
                    made.append(self.change(group, group.own, items))
        return made

    def by_arm(self, sizes: Sequence[int]) -> list[Row]:
        """A line per arm and rule: mean, interval, worst and best seed at each of some sizes; the seeds that train."""
        rows: list[Row] = []
        for arm in self.arms:
            told = {"arm": arm.name, "changes": arm.changes, "beside": arm.beside}
            for group in self.groups(arm.name):
                trained = {"seeds": len(self.of(group, sizes[0])), **columns(self.trained(group))}
                reached = {name: value for items in sizes for name, value in self._at(group, items).items()}
                rows.append({**told, "evaluated_with": group.evaluated_with, **trained, **reached})
        return rows

    def _at(self, group: Group, items: int) -> dict[str, float]:
        accuracies = self.of(group, items)
        low, high = percents(accuracies)
        return {
            f"mean_at_{items}": statistics.fmean(accuracies),
            f"low_at_{items}": low,
            f"high_at_{items}": high,
            f"worst_seed_at_{items}": min(accuracies),
            f"best_seed_at_{items}": max(accuracies),
        }

    def resolutions(self, arm: str) -> list[float]:
        """The resolution of each seed whose logits rise, in units of priority."""
        known = [line["resolution"] for line in self.training[arm].values()]
        return [float(value) for value in known if value is not None]
