"""What if a row could point at B keys fully, not just at one?  Budget: min(1, [z − τ]₊), τ such that the row sums to B.

The k-subsets of Santos et al. 2024, arXiv:2402.13725; ``budget_bisect`` of the entmax package. The weights are the
nearest point to z with 0 ≤ p ≤ 1 and Σp = B; B = 1 is sparsemax. A row of n ≤ B visible keys gives each of them 1.

Where τ is. Let z₍ₖ₎ be the k-th largest logit, k = ⌈B⌉. At τ = z₍ₖ₎ at most k − 1 keys have weight, which sums to less
than B; at τ = z₍ₖ₎ − 1 the top k have weight 1. So a solution lies within 1 below z₍ₖ₎, and with y = z − z₍ₖ₎ keys of
y ≥ 1 have weight 1 and those of y ≤ −1 have 0, however far out they are. In between Σ min(1, [y − τ]₊) is piecewise
linear, with corners at y and y − 1: sorted and summed up they give τ exactly. If B is whole and z₍B₎ leads the next key
by 1 or more, τ = z₍B₎ − 1: the top B keys have weight 1, and the gradient is 0.

Gradient. Let a be 1 on the m keys with 0 < p < 1. Then ∂p/∂z = diag(a) − aaᵀ/m and ∂p/∂B = a/m.
The first is an orthogonal projector, as p is a projection onto a convex set: L = 1 if 0 < B < n and n ≥ 2 (n equal
logits reach it), and the weights are constant otherwise. If B is whole, a row may have m = 0. There p has a corner in
B, and ∂p/∂B is taken as 0: start a learned budget off the whole numbers.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute.rules.base import Map
from undilute.rules.masked import divide
from undilute.rules.parameters import Number, at_least, per_head
from undilute.rules.registry import register


class Budget(Map):
    """Weights from 0 to 1 that sum to a budget.

    Parameters
    ----------
    budget : B ≥ 0, one number or one per head, whole or not; gradients flow into it, best from where it is not whole

    Examples
    --------
    >>> import torch, undilute as ud
    >>> ud.rules.Rule(map=ud.rules.Budget(3.0))(torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0]))
    tensor([1.0000, 1.0000, 0.7500, 0.2500, 0.0000])
    """

    sums_to_one = False
    is_sparse = True

    budget: Number

    def __init__(self, budget: Number = 2.0) -> None:
        super().__init__()
        self.hold("budget", at_least("budget", budget, 0.0))

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        budget = torch.as_tensor(per_head("budget", self.budget, logits), dtype=logits.dtype, device=logits.device)
        p: Tensor = _Budget.apply(logits, visible, budget.clamp(min=0.0))  # type: ignore[no-untyped-call]
        return p

    def at_length(self, n: Tensor) -> Self:
        return self

    def lipschitz(self, n: int) -> float:
        budget = torch.as_tensor(self.budget).detach()
        return 1.0 if n > 1 and bool(((budget > 0) & (budget < n)).any()) else 0.0


class _Budget(torch.autograd.Function):
    """p from z, with the exact gradients of the module's docstring; differentiable twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, visible: Tensor, budget: Tensor) -> Tensor:
        return _solve(z, visible, budget)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.shape = inputs[2].shape
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, Tensor]:
        active = _active(*ctx.saved_tensors)
        mean = divide((active * g).sum(-1, keepdim=True), active.sum(-1, keepdim=True))
        return active * (g - mean), None, mean.sum_to_size(ctx.shape)

    @staticmethod
    def jvp(ctx: Any, dz: Tensor, _: None, dbudget: Tensor | None) -> Tensor:
        active = _active(*ctx.saved_tensors)
        gain = 0.0 if dbudget is None else dbudget
        return active * (dz - divide((active * dz).sum(-1, keepdim=True) - gain, active.sum(-1, keepdim=True)))


def _active(p: Tensor) -> Tensor:
    """1 where the weight can move either way, else 0; the second derivative is 0, not absent."""
    return ((p > 0) & (p < 1)) + 0.0 * p


def _solve(z: Tensor, visible: Tensor, budget: Tensor) -> Tensor:
    room = torch.minimum(budget, visible.sum(-1, keepdim=True).to(z.dtype))  # what the row can hold
    hidden = z.masked_fill(~visible, -torch.inf)
    ranked = F.pad(hidden.sort(-1, descending=True).values, (0, 1), value=-torch.inf)
    level = ranked.gather(-1, (room.ceil().long() - 1).clamp(min=0))
    level = level.masked_fill(level == -torch.inf, 0.0)  # of a row that sees nothing
    is_whole = (room > 0) & (ranked.gather(-1, room.floor().long()) - level <= -1.0)
    y = (hidden - level).clamp(-1.0, 1.0)
    sure = y >= 1.0
    left = room - sure.sum(-1, keepdim=True)
    tau = _threshold(y.masked_fill(sure, -1.0), left).masked_fill(is_whole, -1.0)
    return (y - tau).clamp(0.0, 1.0).masked_fill(~visible, 0.0)


def _threshold(y: Tensor, left: Tensor) -> Tensor:
    """τ in [−1, 0] with Σ min(1, [y − τ]₊) = ``left`` (..., 1), for −1 ≤ y < 1 (..., keys)."""
    corners, order = torch.cat([y, y - 1], -1).sort(-1, descending=True)
    slope = torch.where(order < y.shape[-1], 1, -1).cumsum(-1)[..., :-1]  # between one corner and the next, downwards
    sums = F.pad((slope * -corners.diff(dim=-1)).cumsum(-1), (1, 0))
    last = ((sums < left).sum(-1, keepdim=True) - 1).clamp(0, slope.shape[-1] - 1)
    tau = corners.gather(-1, last) - (left - sums.gather(-1, last)) / slope.gather(-1, last).clamp(min=1)
    for _ in range(2):  # Newton steps: rounding of sums
        p = (y - tau).clamp(0.0, 1.0)
        tau = tau + divide(p.sum(-1, keepdim=True) - left, _active(p).sum(-1, keepdim=True))
    return tau.clamp(-1.0, 0.0)


@register("budget", formula="min(1, [z − τ]₊), sums to B", paper="arXiv:2402.13725")
def budget(budget: Number = 2.0) -> Map:
    return Budget(budget)
