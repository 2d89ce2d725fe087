"""What do Qwen models do past their training length?  LogN: logits · max(1, log n / log L).

Su 2021 and Qwen (arXiv:2309.16609): the query at position i is multiplied by log_L(i) once i > L. The position of a
causal row is the number of keys it sees, so n stands for i; under a window or padding n is what the row sees.
"""

from __future__ import annotations

import math

from torch import Tensor

from undilute.rules.base import Rule, Scale
from undilute.rules.parameters import number
from undilute.rules.registry import register


class LogN(Scale):
    """max(1, log n / log L), L = ``train_length``."""

    train_length: float

    def __init__(self, train_length: float) -> None:
        super().__init__()
        self.hold("train_length", number("train_length", train_length, 1.0))

    def at_length(self, n: Tensor) -> Tensor:
        return (n.log() / math.log(self.train_length)).clamp(min=1.0)

    def bound(self, n: int) -> float:
        return max(1.0, math.log(n) / math.log(self.train_length))


@register("logn", formula="softmax(max(1, log n / log L)·z)", paper="arXiv:2309.16609")
def logn(train_length: float = 2048) -> Rule:
    return Rule(scale=LogN(train_length))
