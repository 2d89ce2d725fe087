"""One training run at short lengths, and what becomes of it at long ones.

AdamW with warm-up and cosine decay; every step takes one of the tasks in turn and one length up to the training length,
which grows during the first part of the training. The state is saved every minute; a run that is killed and resumed
gives the same numbers as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undilute_papers.length_generalisation.evaluation import Lines, Unit, evaluate
from undilute_papers.length_generalisation.tasks import TASKS, string_length
from undilute_papers.length_generalisation.transformer import Transformer
from undilute_papers.reproduction import training
from undilute_papers.reproduction.checkpoint import Checkpoint
from undilute_papers.reproduction.workers import Report

TOKENS = 1024  # of a batch
SHORTEST = 8
RATE, LAST_RATE = 3e-3, 3e-5
WARM_UP = 0.05  # share of the steps
GROWING = 0.5  # share of the steps in which the longest sequences of training grow to the training length
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.98)
CLIP = 1.0


@dataclass(frozen=True)
class Run(training.Run):
    """One training.

    Attributes
    ----------
    rule : trained with it
    tasks : trained on them in turn
    seed : of weights and sequences
    steps : of training
    train_length : tokens of the longest training sequence
    longest : tokens of the longest test sequence, for which there are symbols enough
    width, heads, layers, positions : of the transformer
    asked : answers that each length is tested on
    """

    rule: str
    tasks: tuple[str, ...]
    seed: int
    steps: int
    train_length: int
    longest: int
    width: int
    heads: int
    layers: int
    positions: str
    asked: int

    @property
    def name(self) -> str:
        """A name for its files."""
        return f"{self.rule}_{'+'.join(self.tasks)}_{self.positions}_{self.steps}_seed{self.seed}"

    @property
    def symbols(self) -> int:
        """How many symbols there are: enough for a string without repetition at the longest length."""
        return string_length(self.longest)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        warm_up = max(1, round(WARM_UP * self.steps))
        if step < warm_up:
            return RATE * (step + 1) / warm_up
        decayed = 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, self.steps - warm_up)))
        return LAST_RATE + (RATE - LAST_RATE) * decayed

    def length_limit(self, step: int) -> int:
        """Tokens that the sequences of a step have at most: a multiple of 4."""
        share = min(1.0, step / (GROWING * self.steps))
        return 4 * round((SHORTEST + share * (self.train_length - SHORTEST)) / 4)

    def transformer(self) -> Transformer:
        """The untrained model."""
        shape = (self.width, self.heads, self.layers)
        lengths = {"train_length": self.train_length, "longest": self.longest}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Transformer(self.rule, self.symbols, *shape, positions=self.positions, **lengths)

    def found(self, checkpoint: Checkpoint, report: Report) -> dict[str, Any]:
        """{"loss": …, "parameters": …, "learned": …, "accuracy": [a line per task, rule and length], "attention": …}"""
        model, loss = train(self, checkpoint, training.part_of(report, 0.0, 0.5))
        asked = (self.tasks, self.train_length, self.asked, self.seed)
        report = training.part_of(report, 0.5, 1.0)

        def one_by_one(units: Sequence[Unit], test: Callable[[Unit], Lines]) -> list[Lines]:
            return training.one_by_one(self, units, test, checkpoint, report)

        return {
            "loss": loss,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "trained_parameters": sum(each.numel() for each in model.parameters() if each.requires_grad),
            "learned": learned_scales(model),
            **evaluate(model, self.rule, *asked, one_by_one),
        }


def train(run: Run, checkpoint: Checkpoint, report: Report) -> tuple[Transformer, float]:
    """The trained model, and the running mean of the loss at the end."""
    model = run.transformer()
    optimizer = _optimizer(model)
    generator = torch.Generator().manual_seed(run.seed + 1_000_003)
    parts: training.Parts = {"model": model, "optimizer": optimizer, "generator": generator}

    def step(number: int) -> Tensor:
        return _step(run, number, model, optimizer, generator)

    return model, float(training.train(run, run.steps, step, parts, checkpoint, report))


def _optimizer(model: Transformer) -> torch.optim.AdamW:
    """Weight decay for matrices only."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in learned if parameter.dim() > 1]
    others = [parameter for parameter in learned if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, RATE, BETAS, fused=True)


def _step(
    run: Run, step: int, model: Transformer, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> Tensor:
    task = TASKS[run.tasks[step % len(run.tasks)]]
    length = 4 * int(torch.randint(SHORTEST // 4, run.length_limit(step) // 4 + 1, (), generator=generator))
    batch = task(max(1, TOKENS // length), length, run.symbols, generator)
    model.place(length, generator)
    logits = model(batch.tokens, batch.answers.shape[1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch.answers.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    for group in optimizer.param_groups:
        group["lr"] = run.rate(step)
    optimizer.step()
    return loss.detach()


def learned_scales(model: Transformer) -> str:
    """What the rules learned, where they learn a number per head: "layer 0 scale.s = 0.61, 0.9, …"."""
    said = []
    for index, layer in enumerate(model.layers()):
        for name, value in layer.rule.named_parameters():
            if value.dim() == 1:
                said.append(f"layer {index} {name} = {', '.join(f'{each:.3g}' for each in value.tolist())}")
    return "; ".join(said)
