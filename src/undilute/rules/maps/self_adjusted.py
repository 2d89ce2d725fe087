"""Can softmax's gradient be kept alive?  Self-adjusted softmax: a function of z times softmax(z).

arXiv:2502.18277, variants
    V0: z · softmax(z)
    V1: (z − z_min) · softmax(z)
    V2: (z − z_min) / (z_max − z_min) · softmax(z)
    V3: (z − min(z_min, 0)) / (max(z_max, 0) − min(z_min, 0)) · softmax(z)          (default)
Where V2's or V3's fraction is 0/0 (equal logits; all logits 0) it counts as 1: nothing to tell apart, plain softmax.
Rows need not sum to 1. None is Lipschitz: V0 and V1 grow with the logits, V2 and V3 jump where the fraction is 0/0.
"""

from __future__ import annotations

import math
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.rules.base import LOWEST, Divisor, Hide, Map
from undilute.rules.maps.softmax import softmax_over
from undilute.rules.masked import masked_max, masked_min
from undilute.rules.registry import register

Variant = Literal["V0", "V1", "V2", "V3"]


class SelfAdjusted(Map):
    """A function of z times softmax(z).

    Parameters
    ----------
    variant : "V0", "V1", "V2" or "V3"
    """

    sums_to_one = False

    def __init__(self, variant: Variant = "V3") -> None:
        super().__init__()
        if variant not in get_args(Variant):
            raise InvalidValue(f"variant = {variant!r}: must be one of {', '.join(get_args(Variant))}.")
        self.variant = variant
        self.is_shift_invariant = variant in ("V1", "V2")
        self.is_monotone = variant != "V0"
        self.is_continuous = variant in ("V0", "V1")

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return self._factor(logits, visible) * softmax_over(logits, visible)

    def _factor(self, z: Tensor, visible: Tensor) -> Tensor:
        if self.variant == "V0":
            return z
        low, high = masked_min(z, visible), masked_max(z, visible)
        if self.variant == "V1":
            return z - low
        if self.variant == "V3":
            low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        width = high - low
        none = width < torch.finfo(z.dtype).tiny  # 0, or so small that 1/width would overflow
        return ((z - low) / width.masked_fill(none, 1.0)).masked_fill(none, 1.0)

    def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: Hide) -> Divisor | None:
        if self.variant != "V3":
            return None
        hide(0.0)  # between min(z, 0) and max(z, 0)
        low, high = logits.amin(-1, keepdim=True).clamp_(max=0.0), logits.amax(-1, keepdim=True).clamp_(min=0.0)
        width = high - low
        if not bool((width >= torch.finfo(logits.dtype).tiny).all()):
            return None
        hide(LOWEST)
        p = torch.softmax(logits, -1, out=spare)
        logits.sub_(low).mul_(p)
        hide(0.0)  # in rows that see nothing
        return width

    def at_length(self, n: Tensor) -> Self:
        return self

    def lipschitz(self, n: int) -> float:
        return 0.0 if n == 1 and self.variant in ("V1", "V2") else math.inf

    def extra_repr(self) -> str:
        return f"variant={self.variant!r}"


@register("sa-softmax", formula="(z − l)/(h − l) · softmax(z), l = min(z, 0), h = max(z, 0)", paper="arXiv:2502.18277")
def sa_softmax(variant: Variant = "V3") -> Map:
    return SelfAdjusted(variant)
