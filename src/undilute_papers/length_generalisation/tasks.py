"""Which answers must be fetched from far away in the context?  Associative recall and copying.

Both are about symbols that mean nothing by themselves, and in both the answer is the token that follows the earlier
occurrence of the token that asks. Strings and keys repeat nothing, so the context determines every answer at every
length; and since the copy begins anywhere in the string, no fixed distance leads to it.

    recall    k₁ v₁ k₂ v₂ … k_P v_P   k₇ k₂ k₇ …            every key of the second half asks for its value
    copying   s₁ s₂ … s_m   #   s_r s_(r+1) s_(r+2) …        every symbol after # asks for the next one of the string
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

VALUES = 64  # symbols that are values in recall; all others can be keys


class Batch(NamedTuple):
    """Sequences of equal length; the last ``answers.shape[1]`` tokens of each ask.

    Attributes
    ----------
    tokens : (sequences, length)
    answers : (sequences, asked) the symbol that is right
    sources : (sequences, asked) where in the sequence it stands
    """

    tokens: Tensor
    answers: Tensor
    sources: Tensor


Task = Callable[[int, int, int, torch.Generator], Batch]


def recall(sequences: int, length: int, symbols: int, generator: torch.Generator) -> Batch:
    """length/4 pairs of key and value, then keys drawn from them, each asking for its value.

    Parameters
    ----------
    sequences, length : of the batch; ``length`` is a multiple of 4
    symbols : the last 64 of them are values, the others keys
    generator : of the random numbers

    Examples
    --------
    >>> batch = recall(2, 16, 2048, torch.Generator().manual_seed(0))
    >>> batch.tokens.shape, bool((batch.tokens.gather(1, batch.sources) == batch.answers).all())
    (torch.Size([2, 16]), True)
    """
    pairs = length // 4
    keys = _distinct(sequences, pairs, symbols - VALUES, generator)
    values = torch.randint(symbols - VALUES, symbols, (sequences, pairs), generator=generator)
    asked = torch.randint(pairs, (sequences, length - 2 * pairs), generator=generator)
    told = torch.stack([keys, values], -1).flatten(1)
    return Batch(torch.cat([told, keys.gather(1, asked)], 1), values.gather(1, asked), 2 * asked + 1)


def copying(sequences: int, length: int, symbols: int, generator: torch.Generator) -> Batch:
    """A string of 5/8 of the length, a separator, and the string again from a random place on.

    Examples
    --------
    >>> batch = copying(2, 16, 100, torch.Generator().manual_seed(0))
    >>> batch.tokens.shape, batch.tokens[:, 10].tolist(), batch.answers.shape
    (torch.Size([2, 16]), [100, 100], torch.Size([2, 5]))
    """
    told = string_length(length)
    asked = length - told - 1
    string = _distinct(sequences, told, symbols, generator)
    at = torch.arange(asked) + torch.randint(told - asked, (sequences, 1), generator=generator)
    separator = torch.full((sequences, 1), symbols)
    tokens = torch.cat([string, separator, string.gather(1, at)], 1)
    return Batch(tokens, string.gather(1, at + 1), at + 1)


def string_length(length: int) -> int:
    """Symbols of the string in a copying sequence of so many tokens: as many different symbols must exist."""
    return 5 * length // 8


def _distinct(rows: int, count: int, symbols: int, generator: torch.Generator) -> Tensor:
    """(rows, count) symbols, no two in a row alike."""
    return torch.rand(rows, symbols, generator=generator).topk(count, -1).indices


TASKS: dict[str, Task] = {"recall": recall, "copying": copying}


def chance(task: str, length: int) -> float:
    """How often one of the possible answers, taken at random, is right: a value; or a symbol of the string."""
    return 1 / VALUES if task == "recall" else 1 / string_length(length)
