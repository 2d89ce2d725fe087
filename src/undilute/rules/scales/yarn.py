"""What does YaRN do to the logits?  It multiplies them by (0.1·ln s + 1)², s the factor the context was extended by.

Peng et al. 2023, arXiv:2309.00071. Only this attention factor is a rule; YaRN's change of rotary frequencies belongs
to the positions.
"""

from __future__ import annotations

import math

from torch import Tensor

from undilute.rules.base import Rule, Scale
from undilute.rules.parameters import number
from undilute.rules.registry import register


class YaRN(Scale):
    """(0.1·ln s + 1)², s = ``factor``; 1 for s ≤ 1."""

    factor: float

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.hold("factor", number("factor", factor, 0.0))

    def at_length(self, n: Tensor) -> float:
        return self.bound(1)

    def bound(self, n: int) -> float:
        return (0.1 * math.log(max(self.factor, 1.0)) + 1.0) ** 2


@register("yarn", formula="softmax((0.1·ln s + 1)²·z)", paper="arXiv:2309.00071")
def yarn(factor: float = 4.0) -> Rule:
    return Rule(scale=YaRN(factor))
