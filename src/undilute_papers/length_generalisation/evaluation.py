"""How many answers are right at each length, and what does the head that fetches them attend to?

The head that fetches the answers is the one whose asking tokens give most weight to the token that holds the answer, at
the training length. Every rule is tested on the same sequences, and so is the argmax of the same logits in every
head, which can do better or worse: a head that is diluted can gain by it, and a head that needs to average can lose.

The answers of one sequence are not independent of each other, so the standard error of an accuracy is taken over
sequences, of which there are at least 16 at every length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from undilute import rules
from undilute.measures import entropy
from undilute.rules.base import Rule
from undilute_papers.length_generalisation.tasks import TASKS, Batch, chance
from undilute_papers.length_generalisation.transformer import Transformer, last_weights
from undilute_papers.reproduction.evaluated import ARGMAX, evaluated_with

SEQUENCES = 16  # at every length, at least
ROWS = 16  # asking tokens of a sequence whose weights are looked at: its last ones, which see nearly all of it
SHORTEST = 16
AT_ONCE = 2**13  # tokens


def lengths(longest: int) -> list[int]:
    """The lengths that are tested: powers of two.

    >>> lengths(128)
    [16, 32, 64, 128]
    """
    return [2**k for k in range(SHORTEST.bit_length() - 1, longest.bit_length()) if 2**k <= longest]


Unit = tuple[str, str, int]  # task, evaluated with, length
Lines = tuple[dict[str, Any], dict[str, Any]]  # accuracy, attention
OneByOne = Callable[[Sequence[Unit], Callable[[Unit], Lines]], list[Lines]]


@torch.no_grad()
def evaluate(
    model: Transformer,
    rule: str,
    tasks: Sequence[str],
    train_length: int,
    asked: int,
    seed: int,
    one_by_one: OneByOne = lambda units, test: [test(unit) for unit in units],
) -> dict[str, list[dict[str, Any]]]:
    """Accuracy and attention at every length.

    Parameters
    ----------
    model : trained with ``rule``
    tasks : that it was trained on
    train_length : where the head that fetches is looked for
    asked : answers per length, at least, in at least 16 sequences
    seed : of the test sequences
    one_by_one : tests every unit, as ``[test(unit) for unit in units]`` would

    Returns
    -------
    "accuracy": a line per task, rule and length, in %, with its standard error over sequences; "attention": the same
    for the head that fetches the answers
    """
    heads = {task: fetching_head(model, task, train_length, seed) for task in tasks}

    def test(unit: Unit) -> Lines:
        task, name, length = unit
        layer, head = heads[task]
        with _ruled_by(model, name if name != rule else ""):
            accuracy, attention = _test(model, task, length, asked, seed, layer, head)
        key = {"task": task, "evaluated_with": name, "length": length}
        chances = {"chance": 100 * chance(task, length)}
        return {**key, **accuracy, **chances}, {**key, "layer": layer, "head": head, **attention}

    units = [(task, name, n) for task in tasks for name in evaluated_with(rule) for n in lengths(model.longest)]
    found = one_by_one(units, test)
    return {"accuracy": [accuracy for accuracy, _ in found], "attention": [attention for _, attention in found]}


def fetching_head(model: Transformer, task: str, length: int, seed: int) -> tuple[int, int]:
    """Layer and head whose asking tokens give most weight to the token that holds the answer."""
    batch = next(batches(model, task, length, 1, seed))
    with _inputs(model) as inputs:
        model(batch.tokens, 1)
    at_source = torch.stack(
        [
            _at(last_weights(layer, x, min(ROWS, batch.answers.shape[1])), batch.sources).mean((0, 2))
            for layer, x in zip(model.layers(), inputs, strict=True)
        ]
    )  # (layers, heads)
    best = int(at_source.argmax())
    return best // at_source.shape[1], best % at_source.shape[1]


def batches(model: Transformer, task: str, length: int, asked: int, seed: int) -> Iterator[Batch]:
    """At least 16 test sequences with at least ``asked`` answers, the same for every model and rule; none is seen in
    training, since there are far more sequences than a training can show."""
    generator = torch.Generator().manual_seed(2_000_003 + 64 * seed + length.bit_length())
    sequences = SEQUENCES
    while sequences > 0 or asked > 0:
        at_once = max(1, min(AT_ONCE // length, max(sequences, -(-asked // (length // 2)))))
        batch = TASKS[task](at_once, length, model.embedding.num_embeddings - 1, generator)
        model.place(length, generator)
        sequences -= at_once
        asked -= batch.answers.numel()
        yield batch


def _test(
    model: Transformer, task: str, length: int, asked: int, seed: int, layer: int, head: int
) -> tuple[dict[str, float | int], dict[str, float]]:
    """Accuracy at one length, and the means of what one head does there."""
    right, seen = [], []
    for batch in batches(model, task, length, asked, seed):
        with _inputs(model) as inputs:
            logits = model(batch.tokens, batch.answers.shape[1])
        right.append(logits.argmax(-1) == batch.answers)
        weights = last_weights(model.layers()[layer], inputs[layer], min(ROWS, batch.answers.shape[1]))[
            :, head : head + 1
        ]
        at_source, top = _at(weights, batch.sources), weights.amax(-1)
        measured = (entropy(weights), top, at_source, (at_source == top).float())
        seen.append(torch.stack(measured, -1).flatten(0, -2).double())
    answers = torch.cat(right).double()  # (sequences, asked)
    means = torch.cat(seen).mean(0).tolist()
    return (
        {
            "accuracy": 100 * float(answers.mean()),
            "accuracy_error": 100 * float(answers.mean(1).std()) / len(answers) ** 0.5,
            "exact": 100 * float(answers.amin(1).mean()),
            "answers": answers.numel(),
            "sequences": len(answers),
        },
        dict(zip(("entropy", "top_weight", "weight_of_answer", "answer_on_top"), means, strict=True)),
    )


def _at(weights: Tensor, sources: Tensor) -> Tensor:
    """The weight of the token that holds the answer.

    Parameters
    ----------
    weights : (sequences, heads, rows, length), of the last rows
    sources : (sequences, asked)

    Returns
    -------
    (sequences, heads, rows)
    """
    index = sources[:, None, -weights.shape[2] :, None].expand(-1, weights.shape[1], -1, -1)
    return weights.gather(-1, index).squeeze(-1)


@contextmanager
def _inputs(model: Transformer) -> Iterator[list[Tensor]]:
    """The inputs of the attention layers in the next pass."""
    inputs: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0])) for layer in model.layers()
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _ruled_by(model: Transformer, name: str) -> Iterator[None]:
    """The same weights under another rule; "" leaves them under their own."""
    own = [layer.rule for layer in model.layers()]
    try:
        for layer in model.layers():
            if name == ARGMAX:
                layer.rule = Rule(layer.rule.scale, rules.Hard())
            elif name:
                layer.rule = rules.get(name)
        yield
    finally:
        for layer, rule in zip(model.layers(), own, strict=True):
            layer.rule = rule
