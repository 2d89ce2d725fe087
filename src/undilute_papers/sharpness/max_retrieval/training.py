"""Trainings of the max-retrieval network, a few seeds at once, and what becomes of them on larger sets.

As published: AdamW, learning rate and weight decay 1e-3, batches of 128 sets of up to 16 items. The state is saved
every minute; a run that is killed and resumed gives the same numbers as one that was not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undilute import rules
from undilute.measures import entropy
from undilute_papers.reproduction import training
from undilute_papers.reproduction.checkpoint import Checkpoint
from undilute_papers.reproduction.evaluated import ARGMAX, evaluated_with
from undilute_papers.reproduction.workers import Report
from undilute_papers.sharpness.max_retrieval.network import Attended, Network
from undilute_papers.sharpness.max_retrieval.task import Sets, draw

TOGETHER = 5  # seeds that one process trains at once
MEASURED = ("accuracy", "entropy", "top_weight", "weight_of_largest", "spread")


def constant(first: float, last: float, step: int, steps: int) -> float:
    """As published: the same learning rate in every step."""
    return first


def cosine(first: float, last: float, step: int, steps: int) -> float:
    """Half a wave from the first learning rate down to the last."""
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * step / steps))


def exponential(first: float, last: float, step: int, steps: int) -> float:
    """By the same factor in every step, from the first learning rate down to the last."""
    return float(first * (last / first) ** (step / steps))


SCHEDULES = {"constant": constant, "cosine": cosine, "exponential": exponential}


@dataclass(frozen=True)
class Recipe:
    """How a network is trained; as published where nothing else is said.

    Attributes
    ----------
    steps : how many
    set_size : items of a training set: "16", or "5-16" for a size drawn anew in every step
    schedule : of the learning rate: "constant", "cosine" or "exponential"
    batch : sets of a step
    learning_rate, weight_decay : of AdamW
    last_rate : where the learning rate ends, if it falls
    hold : share of the steps before it begins to fall
    rule_rate : a learning rate of its own for what the rule learns, constant and without weight decay; None for the
        same as everything else. The logits can then sharpen as fast as the noise of training dies down.
    """

    steps: int
    set_size: str
    schedule: str
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    last_rate: float = 1e-6
    hold: float = 0.0
    rule_rate: float | None = None

    def rate(self, step: int) -> float:
        """The learning rate of a step.

        >>> [round(Recipe(100, "16", "cosine", hold=0.2).rate(step), 6) for step in (0, 20, 60, 100)]
        [0.001, 0.001, 0.000501, 1e-06]
        """
        held = round(self.hold * self.steps)
        falling = SCHEDULES[self.schedule]
        return falling(self.learning_rate, self.last_rate, max(0, step - held), max(1, self.steps - held))

    def optimizer(self, network: Network) -> torch.optim.AdamW:
        """AdamW for these networks; its first group follows ``rate``."""
        apart = {id(each) for each in network.rules.parameters()} if self.rule_rate is not None else set()
        groups: list[dict[str, Any]] = [{"params": [each for each in network.parameters() if id(each) not in apart]}]
        if apart:
            groups.append({"params": list(network.rules.parameters()), "lr": self.rule_rate, "weight_decay": 0.0})
        return torch.optim.AdamW(groups, self.learning_rate, weight_decay=self.weight_decay, fused=True)

    def items(self, random: torch.Generator) -> int:
        """How many items the sets of the next step have."""
        least, _, most = self.set_size.partition("-")
        return int(torch.randint(int(least), int(most) + 1, (), generator=random)) if most else int(least)


@dataclass(frozen=True)
class Exam:
    """What a trained network is tested on.

    Attributes
    ----------
    sizes : items of the test sets
    sets : test sets of each size
    test_items : but so few that a size has at most this many items in all
    rules : by name, what weighs the same logits; None is the network's own rule
    """

    sizes: Sequence[int]
    sets: int
    test_items: int
    rules: Mapping[str, nn.Module | None]

    def count(self, items: int) -> int:
        """Test sets of one size."""
        return max(1, min(self.sets, self.test_items // items))


@dataclass(frozen=True)
class RetrievalRun(training.Run):
    """The trainings of a few seeds on the task, side by side. Subclasses say of what, how, and what is tested."""

    @abstractmethod
    def network(self) -> Network:
        """The untrained networks."""

    @property
    @abstractmethod
    def recipe(self) -> Recipe:
        """How they are trained."""

    @property
    @abstractmethod
    def exam(self) -> Exam:
        """What they are tested on."""

    def found(self, checkpoint: Checkpoint, report: Report) -> dict[str, Any]:
        """{"training": [a line per seed], "tests": [a line per seed, size and rule]}"""
        exam = self.exam
        network, losses = train(self, checkpoint, training.part_of(report, 0.0, 0.9))
        report = training.part_of(report, 0.9, 1.0)
        tests = training.one_by_one(self, exam.sizes, lambda items: evaluate(network, exam, items), checkpoint, report)
        lines = zip(network.seeds, losses, map(_learned, network.rules), self.described(network), strict=True)
        return {
            "training": [
                {"seed": seed, "loss": loss, "learned": numbers, **more} for seed, loss, numbers, more in lines
            ],
            "tests": [line for lines in tests for line in lines],
        }

    def described(self, network: Network) -> list[dict[str, float | None]]:
        """What else is to be told of the trained networks, one by one."""
        return [{} for _ in network.seeds]


@dataclass(frozen=True)
class Run(RetrievalRun):
    """The published training, or one with another rule, schedule or set size.

    Attributes
    ----------
    rule : trained with it
    set_size, schedule, steps : as in ``Recipe``
    seeds : of the weights; the sets of each training step are drawn from the first
    scaled : whether logits are divided by √128
    sizes, sets, test_items : as in ``Exam``
    """

    rule: str
    set_size: str
    schedule: str
    seeds: tuple[int, ...]
    steps: int
    scaled: bool
    sizes: tuple[int, ...]
    sets: int
    test_items: int

    @property
    def name(self) -> str:
        """A name for its files."""
        return f"{self.rule}_{self.set_size}_{self.schedule}_{self.steps}_seeds-{'-'.join(map(str, self.seeds))}"

    def network(self) -> Network:
        return Network(self.rule, self.seeds, self.scaled)

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.steps, self.set_size, self.schedule)

    @property
    def exam(self) -> Exam:
        rules = {name: None if name == self.rule else at_inference(name) for name in evaluated_with(self.rule)}
        return Exam(self.sizes, self.sets, self.test_items, rules)


def at_inference(name: str) -> rules.Rule:
    """A rule that weighs the logits of weights trained with another."""
    return rules.get("hard" if name == ARGMAX else name)


def together(first: int, seeds: int) -> list[tuple[int, ...]]:
    """So many seeds from the first on, by the process that trains them.

    >>> together(3, 7)
    [(3, 4, 5, 6, 7), (8, 9)]
    """
    every = range(first, first + seeds)
    return [tuple(every[start : start + TOGETHER]) for start in range(0, seeds, TOGETHER)]


def train(run: RetrievalRun, checkpoint: Checkpoint, report: Report) -> tuple[Network, list[float]]:
    """The trained networks, and the mean loss of the last steps of each."""
    network, recipe = run.network(), run.recipe
    optimizer = recipe.optimizer(network)
    generator = torch.Generator().manual_seed(network.seeds[0] + 1_000_003)
    parts: training.Parts = {"network": network, "optimizer": optimizer, "generator": generator}

    def step(number: int) -> Tensor:
        optimizer.param_groups[0]["lr"] = recipe.rate(number)
        return _step(network, optimizer, draw(len(network.seeds), recipe.batch, recipe.items(generator), generator))

    return network, training.train(run, recipe.steps, step, parts, checkpoint, report).tolist()


def _step(network: Network, optimizer: torch.optim.Optimizer, sets: Sets) -> Tensor:
    scores = network(sets.x, sets.query)
    each = F.cross_entropy(scores.flatten(0, 1), sets.answer.flatten(), reduction="none")
    losses = each.view(sets.answer.shape).mean(-1)
    optimizer.zero_grad()
    losses.sum().backward()  # no seed knows of another
    optimizer.step()
    return losses.detach()


@torch.no_grad()
def evaluate(network: Network, exam: Exam, items: int) -> list[dict[str, Any]]:
    """Accuracy, entropy and weights on test sets of one size, for every rule on the same logits.

    Returns
    -------
    a line per seed and rule: accuracy in %, the means of entropy (nats), of the top weight, of the weight on the item
    that matters, and of the spread of the logits
    """
    nothing = torch.zeros(len(network.seeds), len(MEASURED), dtype=torch.float64)
    sums = {name: nothing.clone() for name in exam.rules}
    count = exam.count(items)
    for sets in _test_sets(network.seeds, items, count):
        seen = network.attend(sets.x, sets.query)
        for name, total in sums.items():
            total += _measured(network, seen, sets, network.weigh(seen, exam.rules[name]))
    lines = []
    for name, total in sums.items():
        for seed, means in zip(network.seeds, (total / count).tolist(), strict=True):
            of_sets = {"items": items, "evaluated_with": name, "sets": count}
            lines.append({"seed": seed, **of_sets, **dict(zip(MEASURED, means, strict=True))})
    return lines


def _measured(network: Network, seen: Attended, sets: Sets, weights: Tensor) -> Tensor:
    """Sums over the sets, (seeds, measures), in the order of ``MEASURED``."""
    right = network.read(seen, weights).argmax(-1) == sets.answer
    of_largest = weights.gather(-1, sets.largest.unsqueeze(-1)).squeeze(-1)
    spread = seen.logits.amax(-1) - seen.logits.amin(-1)
    found = (100.0 * right, entropy(weights), weights.amax(-1), of_largest, spread)
    return torch.stack([each.double().sum(-1) for each in found], -1)


def _test_sets(seeds: Sequence[int], items: int, count: int) -> Iterator[Sets]:
    """Test sets of one size, a cache-sized batch at a time: others for every seed, the same for every rule."""
    drawn = [torch.Generator().manual_seed(2_000_003 + 64 * seed + items.bit_length()) for seed in seeds]
    batch = max(1, 2**13 // (items * len(seeds)))
    while count > 0:
        each = [draw(1, min(batch, count), items, generator) for generator in drawn]
        yield Sets(*(torch.cat(parts) for parts in zip(*each, strict=True)))
        count -= batch


def _learned(rule: nn.Module) -> str:
    """The numbers that a rule learned, where it learns plain numbers: "scale.s = 0.61"."""
    plain = [(name, value.item()) for name, value in rule.named_parameters() if value.numel() == 1]
    return ", ".join(f"{name} = {value:.4g}" for name, value in plain)
