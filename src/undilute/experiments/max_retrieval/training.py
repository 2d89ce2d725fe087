"""Trainings of the max-retrieval network, a few seeds at once, and what becomes of them on larger sets.

As published: AdamW, learning rate and weight decay 1e-3, batches of 128 sets of up to 16 items. The state is saved
every minute; a run that is killed and resumed gives the same numbers as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute import rules
from undilute.experiments import training
from undilute.experiments.checkpoint import Checkpoint
from undilute.experiments.evaluated import ARGMAX, evaluated_with
from undilute.experiments.max_retrieval.network import Attended, Network
from undilute.experiments.max_retrieval.task import Sets, draw
from undilute.experiments.workers import Report
from undilute.measures import entropy

BATCH = 128
LEARNING_RATE = WEIGHT_DECAY = 1e-3
LAST_RATE = 1e-6
MEASURED = ("accuracy", "entropy", "top_weight", "weight_of_largest", "spread")


@dataclass(frozen=True)
class Run(training.Run):
    """The trainings of a few seeds, side by side.

    Attributes
    ----------
    rule : trained with it
    set_size : items of a training set: "16", or "5-16" for a size drawn anew in every step
    schedule : of the learning rate: "constant", or "cosine" down to 1e-6
    seeds : of the weights; the sets of each training step are drawn from the first
    steps : of training
    scaled : whether logits are divided by √128
    sizes : items of the sets it is tested on
    sets : test sets of each size
    test_items : but so few that a size has at most this many items in all
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

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if self.schedule == "constant":
            return LEARNING_RATE
        return LAST_RATE + (LEARNING_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def found(self, checkpoint: Checkpoint, report: Report) -> dict[str, Any]:
        """{"training": [a line per seed], "tests": [a line per seed, size and rule]}"""
        network, losses = train(self, checkpoint, training.part_of(report, 0.0, 0.9))
        report = training.part_of(report, 0.9, 1.0)
        tests = training.one_by_one(self, self.sizes, lambda items: evaluate(network, self, items), checkpoint, report)
        learned = zip(self.seeds, losses, map(_learned, network.rules), strict=True)
        return {
            "training": [{"seed": seed, "loss": loss, "learned": numbers} for seed, loss, numbers in learned],
            "tests": [line for lines in tests for line in lines],
        }


def train(run: Run, checkpoint: Checkpoint, report: Report) -> tuple[Network, list[float]]:
    """The trained networks, and the mean loss of the last steps of each."""
    network = Network(run.rule, run.seeds, run.scaled)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    generator = torch.Generator().manual_seed(run.seeds[0] + 1_000_003)
    parts: training.Parts = {"network": network, "optimizer": optimizer, "generator": generator}

    def step(number: int) -> Tensor:
        return _step(run, number, network, optimizer, generator)

    return network, training.train(run, run.steps, step, parts, checkpoint, report).tolist()


def _step(run: Run, step: int, network: Network, optimizer: torch.optim.Optimizer, random: torch.Generator) -> Tensor:
    least, _, most = run.set_size.partition("-")
    items = int(torch.randint(int(least), int(most) + 1, (), generator=random)) if most else int(least)
    sets = draw(len(run.seeds), BATCH, items, random)
    scores = network(sets.x, sets.query)
    each = F.cross_entropy(scores.flatten(0, 1), sets.answer.flatten(), reduction="none").view(len(run.seeds), BATCH)
    losses = each.mean(-1)
    optimizer.param_groups[0]["lr"] = run.rate(step)
    optimizer.zero_grad()
    losses.sum().backward()  # no seed knows of another
    optimizer.step()
    return losses.detach()


@torch.no_grad()
def evaluate(network: Network, run: Run, items: int) -> list[dict[str, Any]]:
    """Accuracy, entropy and weights on test sets of one size, for every rule on the same logits.

    Returns
    -------
    a line per seed and rule: accuracy in %, the means of entropy (nats), of the top weight, of the weight on the item
    that matters, and of the spread of the logits
    """
    nothing = torch.zeros(len(run.seeds), len(MEASURED), dtype=torch.float64)
    sums = {name: nothing.clone() for name in evaluated_with(run.rule)}
    count = max(1, min(run.sets, run.test_items // items))
    for sets in _test_sets(run.seeds, items, count):
        seen = network.attend(sets.x, sets.query)
        for name, total in sums.items():
            rule = None if name == run.rule else rules.get("hard" if name == ARGMAX else name)
            total += _measured(network, seen, sets, network.weigh(seen, rule))
    lines = []
    for name, total in sums.items():
        for seed, means in zip(run.seeds, (total / count).tolist(), strict=True):
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


def _learned(rule: torch.nn.Module) -> str:
    """The numbers that a rule learned, where it learns plain numbers: "scale.s = 0.61"."""
    plain = [(name, value.item()) for name, value in rule.named_parameters() if value.numel() == 1]
    return ", ".join(f"{name} = {value:.4g}" for name, value in plain)
