"""How sharp is softmax at a fixed temperature?  softmax(z / T): T < 1 sharpens, T > 1 flattens, at every length."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from undilute.rules.base import Rule, Scale
from undilute.rules.parameters import Number, above, largest_magnitude, per_head
from undilute.rules.registry import register

COLDEST = 1e-37


class Temperature(Scale):
    """1 / T.

    Parameters
    ----------
    T : number > 0, or one per head
    """

    T: Number

    def __init__(self, T: Number) -> None:
        super().__init__()
        self.hold("T", above("T", T, COLDEST, ", so that 1/T is finite (T → 0 is Hard)"))

    def at_length(self, n: Tensor) -> Tensor | float:
        return 1.0 / per_head("T", self.T, n)

    def bound(self, n: int) -> float:
        return largest_magnitude(1.0 / self.T)


class LearnableTemperature(Temperature):
    """1 / T with one learned T per head, T = exp(log_T) so that it stays positive; starts at 1."""

    def __init__(self, num_heads: int, T: float = 1.0) -> None:
        nn.Module.__init__(self)
        self.hold("log_T", nn.Parameter(torch.full((num_heads,), float(above("T", T, 0.0))).log()))

    @property
    def T(self) -> Tensor:  # type: ignore[override]
        log_T = self.log_T
        assert isinstance(log_T, Tensor)
        return log_T.exp()


@register(
    "temperature",
    formula="softmax(z / T)",
    paper="arXiv:1503.02531",
    learnable=lambda embed_dim, num_heads: LearnableTemperature(num_heads),
)
def temperature(T: Number = 1.0) -> Rule:
    return Rule(scale=Temperature(T))
