"""Can attention be rectified without a sink?  Softpick: relu(e^z − 1) / (Σ|e^z − 1| + ε).

Zuhri et al. 2025, arXiv:2504.20966. Keys with z ≤ 0 get exactly 0, and a row of them attends to nothing.

Lipschitz bound. With y = e^z − 1 and D = Σ|y| + ε the Jacobian is diag(1[y>0]·e^z)/D − w·(sign(y)·e^z)ᵀ/D. Since
e^z ≤ |y| + 1, the first term is at most 1 + 1/ε and the second at most 1 + √n/ε. The bound is finite only through ε:
near z = 0 the slope really is of order 1/ε.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from undilute.rules.base import Divisor, Hide, Map
from undilute.rules.masked import masked_max
from undilute.rules.parameters import number
from undilute.rules.registry import register

MANY = 64  # keys, among which the rounding of a few e^z − 1 near 0 is lost; exp takes half as long as expm1


class Softpick(Map):
    """relu(e^z − 1) / (Σ|e^z − 1| + ε)."""

    sums_to_one = False
    is_sparse = True
    is_shift_invariant = False

    epsilon: float

    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.hold("epsilon", number("epsilon", epsilon, 0.0))

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        top = masked_max(logits.detach(), visible).clamp(min=0.0)
        shrink = (-top).exp()  # everything is multiplied by e^−top, which cancels
        near = logits.clamp(max=1.0).expm1() * shrink
        far = (logits.masked_fill(~visible, 0.0) - top).exp() - shrink
        y = torch.where(logits < 1.0, near, far).masked_fill(~visible, 0.0)
        return y.clamp(min=0.0) / (y.abs().sum(-1, keepdim=True) + self.epsilon * shrink)

    def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: Hide) -> Divisor | None:
        hide(0.0)  # e^0 − 1 = 0: counts nowhere
        if few := bool(n.min() < MANY):
            total = logits.expm1_().sum(-1, keepdim=True)
            logits.clamp_(min=0.0)
        else:
            total = logits.exp_().sum(-1, keepdim=True) - logits.shape[-1]
            logits.sub_(1.0).clamp_(min=0.0)
        size = 2 * logits.sum(-1, keepdim=True) - total  # Σ|y| = 2·Σ y₊ − Σ y
        if not bool(size.isfinite().all()) or (not few and bool((size < 0.05 * n).any())):
            return None  # e^z has overflown, or e^z − 1 cancelled
        return size + self.epsilon

    def at_length(self, n: Tensor) -> Self:
        return self

    def lipschitz(self, n: int) -> float:
        return 2.0 + (1.0 + math.sqrt(n)) / self.epsilon


@register("softpick", formula="relu(e^z − 1) / (Σ|e^z − 1| + ε)", paper="arXiv:2504.20966")
def softpick(epsilon: float = 1e-6) -> Map:
    return Softpick(epsilon)
