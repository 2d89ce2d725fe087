"""Which item has the highest priority, and what is its class?  The sets of the max-retrieval task.

An item is x = [ρ ‖ onehot(κ)] ∈ R¹¹ with priority ρ ~ U(0, 1) and class κ of ten; the query q ~ U(0, 1) says nothing.
The answer is the class of the item with the largest ρ (arXiv:2410.01104, Section 4.1 and its appendix).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CLASSES = 10
ITEM = 1 + CLASSES


class Sets(NamedTuple):
    """Sets for several networks.

    Attributes
    ----------
    x : (seeds, sets, items, 11)
    query : (seeds, sets, 1)
    largest : (seeds, sets) index of the item with the largest priority
    answer : (seeds, sets) its class
    """

    x: Tensor
    query: Tensor
    largest: Tensor
    answer: Tensor


def draw(seeds: int, sets: int, items: int, generator: torch.Generator) -> Sets:
    """Random sets.

    Examples
    --------
    >>> sets = draw(2, 4, 16, torch.Generator().manual_seed(0))
    >>> sets.x.shape, sets.answer.shape
    (torch.Size([2, 4, 16, 11]), torch.Size([2, 4]))
    """
    priority = torch.rand(seeds, sets, items, generator=generator)
    classes = torch.randint(CLASSES, (seeds, sets, items), generator=generator)
    x = torch.cat([priority.unsqueeze(-1), F.one_hot(classes, CLASSES).to(priority.dtype)], -1)
    largest = priority.argmax(-1)
    answer = classes.gather(-1, largest.unsqueeze(-1)).squeeze(-1)
    return Sets(x, torch.rand(seeds, sets, 1, generator=generator), largest, answer)
