"""How is attention usually shared out?  Softmax: e^z / Σ e^z, always positive, always summing to 1.

Its Jacobian diag(p) − ppᵀ has spectral norm at most 1/2, reached at p = (1/2, 1/2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.rules.base import Divisor, Hide, Map, Rule
from undilute.rules.forms import SoftmaxForm
from undilute.rules.masked import divide, masked_exp, masked_max
from undilute.rules.registry import register


def softmax_over(logits: Tensor, visible: Tensor) -> Tensor:
    """e^z / Σ e^z over the visible keys, 0 elsewhere; also what several other maps start from."""
    e = masked_exp(logits, visible, masked_max(logits.detach(), visible))
    return divide(e, e.sum(-1, keepdim=True))


class Softmax(Map):
    """e^z / Σ e^z over the visible keys."""

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return softmax_over(logits, visible)

    def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: Hide) -> Divisor | None:
        hide(-torch.inf)
        top = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
        e = logits.sub_(top).exp_()
        return e.sum(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).tiny)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm()

    def lipschitz(self, n: int) -> float:
        return 0.5 if n > 1 else 0.0


@register("softmax", formula="e^z / Σ e^z", paper="arXiv:1706.03762")
def softmax() -> Rule:
    return Rule(map=Softmax())
