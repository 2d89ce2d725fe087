"""What keeps one head from finding the largest of 16,384 items: training noise, encoding, rule or steps?

The published max retrieval ends at 14 % at 16,384 items, and the argmax of the learned logits does hardly better: the
logits themselves cannot order the top items, so no rule can. Each arm changes one thing about another: a learning rate
that decays, an encoding that starts linear, another rule, more steps. All of them train on sets of at most 16 items.

Every network is tested with its own rule, with the argmax of its logits, and with focus at inference for a few K on the
same logits, which tells K apart without new trainings. Beside accuracy stands the resolution of the logits: how far two
items of different class must be apart in priority before their logits order them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from undilute.report.result import Result, Row
from undilute_papers.reproduction.experiment import option
from undilute_papers.reproduction.training_experiment import Found, TrainingExperiment, check_known, in_turn
from undilute_papers.sharpness.ceiling import ceiling_findings as findings
from undilute_papers.sharpness.ceiling import charts
from undilute_papers.sharpness.ceiling.set_ups import BY_NAME, Arm
from undilute_papers.sharpness.ceiling.summary import Outcomes
from undilute_papers.sharpness.ceiling.training import Run
from undilute_papers.sharpness.max_retrieval.max_retrieval import SIZES
from undilute_papers.sharpness.max_retrieval.training import together

ALL = ("all",)


@dataclass(frozen=True)
class Ceiling(TrainingExperiment):
    """Max retrieval beyond its published ceiling, one change at a time.

    Examples
    --------
    >>> tiny = Ceiling(arms=("decay", "skip"), seeds=1, steps=3, sizes=(16, 32), sets=8, workers=1)
    >>> [row["arm"] for row in tiny.run().tables["training"]]
    ['decay', 'skip']
    """

    id = "ceiling"
    source = "our own; cf. arXiv:2410.01104"
    shows = "what keeps one head from finding the largest of 16,384 items: training noise, encoding, rule or steps"
    quick_minutes = 1
    full_minutes = 220
    quick: ClassVar[Mapping[str, Any]] = {
        "arms": ("published", "decay", "skip", "ssmax", "focus-4"),
        "seeds": 2,
        "steps": 1000,
        "sizes": SIZES[:9],
        "sets": 128,
        "test_items": 2**18,
    }

    arms: tuple[str, ...] = option(ALL, f"What to train, by name: {', '.join(BY_NAME)}; or all.")
    seeds: int = option(10, "Trainings of each arm, with seeds that follow --seed.")
    steps: int = option(20_000, "Steps of training; an arm may take a multiple of them.")
    sizes: tuple[int, ...] = option(SIZES, "Items of the test sets.")
    sets: int = option(1024, "Test sets of each size.")
    test_items: int = option(2**22, "At most this many items in all test sets of one size.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arms != ALL:
            check_known("arms", self.arms, BY_NAME)

    def trained(self) -> list[Arm]:
        """The arms that are trained, in the order of their table."""
        return [arm for name, arm in BY_NAME.items() if self.arms == ALL or name in self.arms]

    def planned(self) -> list[Run]:
        """Every training, a few seeds at once; the first seeds of every arm come first."""
        return [run for _, run in self._plan()]

    def _plan(self) -> list[tuple[Arm, Run]]:
        tested = (self.sizes, self.sets, self.test_items)
        groups = together(self.seed, self.seeds)
        return in_turn(
            [(arm, Run(arm.set_up, self.steps, group, *tested)) for group in groups] for arm in self.trained()
        )

    def concluded(self, found: Found, seconds: float) -> Result:
        named = [(arm.name, each) for (arm, _), each in zip(self._plan(), found, strict=True)]
        outcomes = Outcomes(self.trained(), named)
        sizes = findings.shown(self)
        tables: dict[str, Sequence[Row]] = {
            "arms": outcomes.by_arm(sizes),
            "paired": [change.line() for change in outcomes.changes(sizes)],
            "accuracy": outcomes.lines(),
            "runs": [{"arm": arm, **line} for arm, each in named for line in each["tests"]],
            "training": [{"arm": arm, **line} for arm, each in named for line in each["training"]],
        }
        return self.result(
            findings.sentences(outcomes, self),
            findings.comparisons(outcomes, self),
            {name: table for name, table in tables.items() if table},
            charts.charts(outcomes),
            seconds,
        )
