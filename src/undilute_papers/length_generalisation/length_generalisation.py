"""Do the rules help beyond one attention head?  A transformer trained at 64 tokens and tested at up to 4,096.

One small causal transformer per rule learns associative recall and copying in turn, on sequences of at most 64 tokens;
then each is tested on the same longer sequences. Softmax's weights are also tested under adaptive temperature, as its
paper does: the rule changes at inference only. Beside each stands the argmax of the same logits in every head.

Nothing was printed for this set-up. What can be held against the papers are their claims: that SSMax
(arXiv:2501.19399), ASEntmax (arXiv:2506.16640) and adaptive temperature (arXiv:2410.01104) carry over to longer
contexts than softmax does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from undilute.errors import InvalidValue
from undilute.report.result import Result, Row
from undilute_papers.length_generalisation import length_generalisation_findings as findings
from undilute_papers.length_generalisation.evaluation import SHORTEST
from undilute_papers.length_generalisation.summary import Outcomes
from undilute_papers.length_generalisation.tasks import TASKS, VALUES
from undilute_papers.length_generalisation.training import Run
from undilute_papers.length_generalisation.transformer import POSITIONS
from undilute_papers.reproduction.experiment import option
from undilute_papers.reproduction.training_experiment import Found, TrainingExperiment, check_known, rules_named


@dataclass(frozen=True)
class LengthGeneralisation(TrainingExperiment):
    """Recall and copying at lengths far beyond training, one small transformer per rule.

    Examples
    --------
    >>> shape = {"width": 16, "heads": 2, "layers": 1, "longest": 256}
    >>> tiny = LengthGeneralisation(rules=("softmax",), seeds=1, steps=2, asked=64, **shape)
    >>> [row["length"] for row in tiny.run().tables["accuracy"]][:5]
    [16, 32, 64, 128, 256]
    """

    id = "length-generalisation"
    source = "our own; cf. arXiv:2501.19399 and arXiv:2506.16640"
    shows = "how a small transformer does on sequences far longer than those it was trained on"
    quick_minutes = 1.5
    full_minutes = 150
    quick: ClassVar[Mapping[str, Any]] = {
        "rules": ("softmax", "ssmax", "entmax15"),
        "seeds": 1,
        "steps": 400,
        "width": 64,
        "heads": 2,
        "layers": 2,
        "train_length": 32,
        "longest": 512,
        "asked": 1024,
    }

    rules: tuple[str, ...] = option(
        ("softmax", "ssmax", "entmax15", "sparsemax", "as-entmax", "focus"), "Rules to train with; all for every rule."
    )
    tasks: tuple[str, ...] = option(("recall", "copying"), "What every model learns, in turn.")
    positions: str = option("alternating", f"How positions enter: {', '.join(POSITIONS)}.")
    seeds: int = option(10, "Trainings of each rule, with seeds that follow --seed.")
    steps: int = option(1500, "Steps of training, of 1,024 tokens each.")
    train_length: int = option(64, "Tokens of the longest training sequence.")
    longest: int = option(4096, "Tokens of the longest test sequence.")
    width: int = option(128, "Features of a token.")
    heads: int = option(4, "Heads of a layer.")
    layers: int = option(4, "Layers.")
    asked: int = option(4096, "Answers to test at each length, in at least 16 sequences.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trained()
        check_known("tasks", self.tasks, TASKS)
        if self.positions not in POSITIONS:
            raise InvalidValue(f"--positions = {self.positions!r}: must be one of {', '.join(POSITIONS)}.")
        for name in ("train_length", "longest"):
            _power_of_two(f"--{name.replace('_', '-')}", getattr(self, name))
        if self.longest < max(2 * self.train_length, 4 * VALUES):
            least = max(2 * self.train_length, 4 * VALUES)
            raise InvalidValue(
                f"--longest = {self.longest}: must be at least {least}, twice --train-length and enough for the keys."
            )
        if self.width % (8 * self.heads):
            raise InvalidValue(f"--width = {self.width}: must be a multiple of 8 · --heads = {8 * self.heads}.")

    def trained(self) -> tuple[str, ...]:
        """The rules that are trained with, by name."""
        return rules_named(self.rules)

    def planned(self) -> list[Run]:
        """Every training, seed by seed, so that what is there first covers every rule."""
        shape = (self.width, self.heads, self.layers, self.positions, self.asked)
        return [
            Run(rule, self.tasks, seed, self.steps, self.train_length, self.longest, *shape)
            for seed in range(self.seed, self.seed + self.seeds)
            for rule in self.trained()
        ]

    def concluded(self, found: Found, seconds: float) -> Result:
        outcomes = Outcomes(found, self.train_length)
        tables: dict[str, Sequence[Row]] = {
            "means": outcomes.lines(),
            "accuracy": _lines(found, "accuracy"),
            "attention": _lines(found, "attention"),
            "training": [
                {
                    "trained_with": each["run"]["rule"],
                    "seed": each["run"]["seed"],
                    **{name: each[name] for name in ("parameters", "trained_parameters", "loss", "learned")},
                    "steps": each["run"]["steps"],
                }
                for each in found
            ],
        }
        return self.result(
            findings.sentences(outcomes, self),
            findings.comparisons(outcomes, self),
            tables,
            findings.charts(outcomes, self),
            seconds,
        )


def _power_of_two(name: str, value: int) -> None:
    if value < SHORTEST or value & (value - 1):
        raise InvalidValue(f"{name} = {value}: must be a power of two of at least {SHORTEST}.")


def _lines(found: Found, table: str) -> list[Row]:
    return [
        {"trained_with": each["run"]["rule"], "seed": each["run"]["seed"], **line}
        for each in found
        for line in each[table]
    ]
