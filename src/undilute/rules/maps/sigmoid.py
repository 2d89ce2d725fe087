"""What if no key had to compete?  Sigmoid attention: σ(z + b), b = −log n by default.

Ramapuram et al. 2024, arXiv:2409.04431. Each weight depends on its own logit alone, so the slope is at most 1/4.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from undilute.rules.base import Divisor, Hide, Map
from undilute.rules.masked import count_visible
from undilute.rules.parameters import Number, as_it_is, finite, per_head
from undilute.rules.registry import register


class Sigmoid(Map):
    """σ(z + b).

    Parameters
    ----------
    bias : None for −log n, or a number, or one per head
    """

    sums_to_one = False
    is_shift_invariant = False

    bias: Number

    def __init__(self, bias: Number | None = None) -> None:
        super().__init__()
        self.follows_length = bias is None
        if bias is not None:
            self.hold("bias", finite("bias", bias))

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        if self.follows_length:
            bias: Number = -count_visible(visible, logits.dtype).log()
        else:
            bias = per_head("bias", self.bias, logits)
        return torch.sigmoid(logits + bias).masked_fill(~visible, 0.0)

    def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: Hide) -> Divisor | None:
        if not self.follows_length and isinstance(self.bias, Tensor):
            return None
        logits.sub_(n.log()) if self.follows_length else logits.add_(self.bias)
        hide(-torch.inf)
        logits.sigmoid_()
        return 1.0

    def at_length(self, n: Tensor) -> Self:
        if not self.follows_length:
            return self
        told = as_it_is(self)
        told.follows_length, told.bias = False, -n.log()
        return told

    def lipschitz(self, n: int) -> float:
        return 0.25


@register("sigmoid", formula="σ(z − log n)", paper="arXiv:2409.04431")
def sigmoid(bias: Number | None = None) -> Map:
    return Sigmoid(bias)
