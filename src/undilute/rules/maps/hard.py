"""What is the limit of ever lower temperature?  Hard attention: all weight on the largest logit, shared among ties.

The weights are piecewise constant, so their true gradient is 0; the backward pass uses softmax's gradient instead
(straight-through, Bengio et al. 2013, arXiv:1308.3432).
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from undilute.rules.base import Divisor, Hide, Map
from undilute.rules.maps.softmax import softmax_over
from undilute.rules.masked import divide, masked_max
from undilute.rules.registry import register


class Hard(Map):
    """1 on the largest logit (1/m on each of m equal ones), 0 elsewhere; gradient of softmax."""

    is_sparse = True
    is_continuous = False

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        top = ((logits == masked_max(logits, visible)) & visible).to(logits.dtype)
        soft = softmax_over(logits, visible)
        return divide(top, top.sum(-1, keepdim=True)) + (soft - soft.detach())

    def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: Hide) -> Divisor | None:
        hide(-torch.inf)
        top = logits.amax(-1, keepdim=True)
        if bool(top.isnan().any()):
            return None
        weights = logits.eq_(top.masked_fill_(top == -torch.inf, torch.inf))
        return weights.sum(-1, keepdim=True).clamp_(min=1.0)

    def at_length(self, n: Tensor) -> Self:
        return self

    def lipschitz(self, n: int) -> float:
        return math.inf if n > 1 else 0.0


@register("hard", formula="1 at argmax z, else 0", paper="arXiv:1308.3432")
def hard() -> Map:
    return Hard()
