"""What does Llama 4 do on long contexts?  logits · (1 + β·log(1 + ⌊n / L₀⌋)), in its layers without rotary positions.

As in the released model (β = 0.1, L₀ = 8,192), whose 1-based query position is the number of keys a causal row sees.
"""

from __future__ import annotations

import math

from torch import Tensor

from undilute.rules.base import Rule, Scale
from undilute.rules.parameters import Number, finite, largest_magnitude, number, per_head
from undilute.rules.registry import register


class Llama4(Scale):
    """1 + β·log(1 + ⌊n / L₀⌋).

    Parameters
    ----------
    beta : number, or one per head
    floor_length : L₀ > 0
    """

    beta: Number
    floor_length: float

    def __init__(self, beta: Number = 0.1, floor_length: float = 8192) -> None:
        super().__init__()
        self.hold("beta", finite("beta", beta))
        self.hold("floor_length", number("floor_length", floor_length, 0.0))

    def at_length(self, n: Tensor) -> Tensor:
        return 1.0 + per_head("beta", self.beta, n) * (n / self.floor_length).floor().log1p()

    def bound(self, n: int) -> float:
        return largest_magnitude(1.0 + self.beta * math.log1p(n // self.floor_length))


@register("llama4", formula="softmax((1 + β·log(1 + ⌊n/L₀⌋))·z)", paper="Llama 4 code")
def llama4(beta: Number = 0.1, floor_length: float = 8192) -> Rule:
    return Rule(scale=Llama4(beta, floor_length))
