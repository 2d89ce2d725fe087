"""Many runs as a few figures: means over seeds with their intervals, the gap to the argmax, the seeds that train."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from undilute.report.result import Row
from undilute_papers.reproduction import seeds_that_train
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.over_seeds import interval
from undilute_papers.reproduction.seeds_that_train import TRAINED

ERRORS = 1.96  # standard errors on either side, of a single seed
Model = tuple[str, str]  # trained with, evaluated with


class Outcomes:
    """Every test of every run.

    Parameters
    ----------
    found : what ``carry_out`` returned, for any number of runs
    train_length : what counts as beyond it
    """

    def __init__(self, found: Sequence[Mapping[str, Any]], train_length: int) -> None:
        self.train_length = train_length
        self.tests: dict[tuple[str, Model, int], dict[int, dict[str, Any]]] = {}  # (task, model, length) → seed → test
        for outcome in sorted(found, key=lambda each: each["run"]["seed"]):
            trained, seed = outcome["run"]["rule"], outcome["run"]["seed"]
            for accuracy, attention in zip(outcome["accuracy"], outcome["attention"], strict=True):
                key = (accuracy["task"], (trained, accuracy["evaluated_with"]), accuracy["length"])
                self.tests.setdefault(key, {})[seed] = {**accuracy, **attention}

    def models(self) -> list[Model]:
        """Every pair of rules: trained with, evaluated with."""
        return list(dict.fromkeys(model for _, model, _ in self.tests))

    def lengths(self, task: str, model: Model) -> list[int]:
        """The lengths it was tested at."""
        return [length for t, m, length in self.tests if (t, m) == (task, model)]

    def of(self, task: str, model: Model, length: int, what: str = "accuracy") -> list[float]:
        """One measure, a value per seed."""
        return list(self.by_seed(task, model, length, what).values())

    def by_seed(self, task: str, model: Model, length: int, what: str = "accuracy") -> dict[int, float]:
        """One measure, by seed."""
        return {seed: float(test[what]) for seed, test in self.tests[task, model, length].items()}

    def mean(self, task: str, model: Model, length: int, what: str = "accuracy") -> float:
        """Its mean over seeds."""
        return statistics.fmean(self.of(task, model, length, what))

    def beyond(self, task: str, model: Model) -> list[float]:
        """Mean accuracy over all lengths beyond the training length, a value per seed."""
        seeds = zip(*(self.of(task, model, n) for n in self.lengths(task, model) if n > self.train_length), strict=True)
        return [statistics.fmean(accuracies) for accuracies in seeds]

    def learned(self, task: str, model: Model) -> bool:
        """Is the task solved at the training length, with the rule of training?  If not, the model says nothing about
        longer ones."""
        trained = model[0]
        return self.mean(task, (trained, trained), self.train_length) >= TRAINED

    def trained(self, trained_with: str) -> dict[int, float]:
        """Accuracy at the training length on the task that is worst there, by seed, with the rule of training."""
        tasks = dict.fromkeys(task for task, _, _ in self.tests)
        of_tasks = [self.tests[task, (trained_with, trained_with), self.train_length] for task in tasks]
        return {seed: min(float(tests[seed]["accuracy"]) for tests in of_tasks) for seed in of_tasks[0]}

    def gap_to_argmax(self, task: str, model: Model, length: int) -> float:
        """How much more the argmax of the same logits in every head gets right, in points."""
        return self.mean(task, (model[0], ARGMAX), length) - self.mean(task, model, length)

    def lines(self) -> list[Row]:
        """A line per task, model and length: means over seeds, the argmax of the same logits, the seeds that train."""
        return [self._line(task, model, length) for task, model, length in self.tests]

    def _line(self, task: str, model: Model, length: int) -> Row:
        accuracies, (low, high) = self.of(task, model, length), self.interval(task, model, length)
        return {
            "task": task,
            "trained_with": model[0],
            "evaluated_with": model[1],
            "length": length,
            "seeds": len(accuracies),
            "accuracy": statistics.fmean(accuracies),
            "low": low,
            "high": high,
            "worst_seed": min(accuracies),
            "best_seed": max(accuracies),
            "argmax_of_the_same_logits": self.mean(task, (model[0], ARGMAX), length),
            "gap_to_argmax": self.gap_to_argmax(task, model, length),
            **seeds_that_train.columns(self.trained(model[0])),
        }

    def interval(self, task: str, model: Model, length: int) -> tuple[float, float]:
        """Around the mean accuracy, within 0 … 100: the 95 % t-interval over seeds, or of a single seed 1.96 standard
        errors over its test sequences."""
        accuracies = self.of(task, model, length)
        low, high = interval(accuracies)
        if len(accuracies) == 1:
            half = ERRORS * self.mean(task, model, length, "accuracy_error")
            low, high = low - half, high + half
        return max(0.0, low), min(100.0, high)

    def uncertainty(self, task: str, model: Model) -> float:
        """Of the mean accuracy beyond the training length, in points: half of such an interval."""
        accuracies = self.beyond(task, model)
        if len(accuracies) > 1:
            return _half(accuracies)
        tested = [n for n in self.lengths(task, model) if n > self.train_length]
        return ERRORS * math.hypot(*(self.mean(task, model, n, "accuracy_error") for n in tested)) / len(tested)

    def uncertainty_of_difference(self, task: str, a: Model, b: Model) -> float:
        """Of the difference of two such means: over seeds that of the paired differences; of a single seed as if the
        two had been tested on different sequences. They share them, which makes it rather too large."""
        differences = [x - y for x, y in zip(self.beyond(task, a), self.beyond(task, b), strict=True)]
        if len(differences) > 1:
            return _half(differences)
        return math.hypot(self.uncertainty(task, a), self.uncertainty(task, b))


def _half(values: Sequence[float]) -> float:
    low, high = interval(values)
    return (high - low) / 2
