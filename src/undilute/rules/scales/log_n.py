"""What do Qwen models do past their training length?  LogN: logits · max(1, log n / log L).

Su 2021 and Qwen (arXiv:2309.16609): the query at position i is multiplied by log_L(i) once i > L. The position of a
causal row is the number of keys it sees, so n stands for i; under a window or padding n is what the row sees.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from undilute.rules.base import Rule, Scale
from undilute.rules.parameters import Number, above, largest, per_head
from undilute.rules.registry import register


class LogN(Scale):
    """max(1, log n / log L).

    Parameters
    ----------
    train_length : L > 1, one number or one per head

    Examples
    --------
    >>> import torch, undilute as ud
    >>> ud.rules.LogN(torch.tensor([16.0, 256.0])).at_length(torch.full((2, 1, 1), 4096.0)).flatten()
    tensor([3.0000, 1.5000])
    """

    train_length: Number

    def __init__(self, train_length: Number) -> None:
        super().__init__()
        self.hold("train_length", above("train_length", train_length, 1.0))

    def at_length(self, n: Tensor) -> Tensor:
        length = per_head("train_length", self.train_length, n)
        return (n.log() / (length.log() if isinstance(length, Tensor) else math.log(length))).clamp(min=1.0)

    def bound(self, n: int) -> float:
        length = torch.as_tensor(self.train_length, dtype=torch.float64)
        return max(1.0, largest(math.log(n) / length.log()))


@register("logn", formula="softmax(max(1, log n / log L)·z)", paper="arXiv:2309.16609")
def logn(train_length: Number = 2048) -> Rule:
    return Rule(scale=LogN(train_length))
