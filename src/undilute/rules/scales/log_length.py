"""Can softmax keep its focus as n grows?  Scalable-Softmax: softmax((s·log n + b)·z).

Nakanishi 2025, arXiv:2501.19399. The scale grows with log n, so a token whose (scaled) logit leads its n − 1
competitors by a gap g gets 1 / (1 + (n − 1)·n^(−s·g)): the top weight tends to 1 if s·g > 1, to 1/2 if s·g = 1 and
to 0 if s·g < 1. n is what the row sees; the widely used port takes the tensor's width instead, which is wrong under
causal masks and padding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from undilute.rules.base import Rule, Scale
from undilute.rules.parameters import Number, finite, largest_magnitude, number, per_head
from undilute.rules.registry import register


class LogLength(Scale):
    """s·log n + b, or max(floor, s·log n + b).

    Parameters
    ----------
    s : number, or one per head; 0.43 is the value of the paper's Figure 1
    b : number, or one per head
    floor : the factor is never less than this; 1 leaves rows alone that are too short for the scale to sharpen them.
        None, the default, sets no floor.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> ud.rules.LogLength(s=0.25, floor=1.0).at_length(torch.tensor([[8.0], [4096.0]])).T
    tensor([[1.0000, 2.0794]])
    """

    s: Number
    b: Number
    floor: float | None

    def __init__(self, s: Number = 0.43, b: Number = 0.0, floor: float | None = None) -> None:
        super().__init__()
        self.hold("s", finite("s", s))
        self.hold("b", finite("b", b))
        if floor is None:
            self.floor = None
        else:
            self.hold("floor", number("floor", floor, hint=", or None for no floor"))

    def at_length(self, n: Tensor) -> Tensor:
        factor = per_head("s", self.s, n) * n.log() + per_head("b", self.b, n)
        return factor if self.floor is None else factor.clamp(min=self.floor)

    def bound(self, n: int) -> float:
        factor = torch.as_tensor(self.s * math.log(n) + self.b, dtype=torch.float64)
        return largest_magnitude(factor if self.floor is None else factor.clamp(min=self.floor))


class LearnableLogLength(LogLength):
    """s·log n + b with one learned s and, if ``bias``, one learned b per head.

    s starts at 1 and b at 0, as implementations that train from scratch do. When replacing softmax in a model trained
    at length L, start at s ≈ 1 / mean(log n for n ≤ L) (0.168 for L = 1,024), which keeps its logits' scale on
    average. The paper finds that a learned b helps training and hurts length generalisation.
    """

    def __init__(self, num_heads: int, s: float = 1.0, bias: bool = False) -> None:
        super().__init__(
            s=nn.Parameter(torch.full((num_heads,), float(s))),
            b=nn.Parameter(torch.zeros(num_heads)) if bias else 0.0,
        )


@register(
    "ssmax",
    formula="softmax((s·log n + b)·z)",
    paper="arXiv:2501.19399",
    learnable=lambda embed_dim, num_heads: LearnableLogLength(num_heads),
)
def ssmax(s: Number = 0.43, b: Number = 0.0, floor: float | None = None) -> Rule:
    return Rule(scale=LogLength(s, b, floor))
