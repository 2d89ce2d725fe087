"""Can a sparse rule adapt to length and content?  ASEntmax: entmax((δ + β·(log n)^γ)·z).

Vasylenko et al. 2025, arXiv:2506.16640. The paper computes β = softplus(w_β·x) and γ = r·tanh(w_γ·x) from the token
x, one pair per head, with δ = 1 and r = 2: `LearnablePowLogLength`. As a fixed scale, β and γ are parameters.

A row with n = 1 uses log 2, because (log 1)^γ is undefined for γ < 0; a rule that sums to 1 gives weight 1 there
whatever the scale.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.base import Rule, Scale
from undilute.rules.maps.entmax import Entmax
from undilute.rules.parameters import Number, finite, largest_magnitude, number, per_head
from undilute.rules.registry import register

LN2 = math.log(2)  # softplus(0): β of a token on which w_β says nothing


class PowLogLength(Scale):
    """δ + β·(log n)^γ.

    Parameters
    ----------
    beta, gamma, delta : numbers, one per head, or tensors that broadcast to (..., heads, queries, 1)
    """

    beta: Number
    gamma: Number
    delta: Number

    def __init__(self, beta: Number, gamma: Number, delta: Number = 1.0) -> None:
        super().__init__()
        self.hold("beta", finite("beta", beta))
        self.hold("gamma", finite("gamma", gamma))
        self.hold("delta", finite("delta", delta))

    @classmethod
    def of_rows(cls, beta: Tensor, gamma: Tensor, delta: float) -> PowLogLength:
        """From computed values, as in a forward pass: not checked, so that NaN shows where it came from."""
        scale = cls(0.0, 0.0, delta)
        del scale.beta, scale.gamma
        scale.register_buffer("beta", beta, persistent=False)
        scale.register_buffer("gamma", gamma, persistent=False)
        return scale

    def at_length(self, n: Tensor) -> Tensor:
        power = n.clamp(min=2).log() ** per_head("gamma", self.gamma, n)
        return per_head("delta", self.delta, n) + per_head("beta", self.beta, n) * power

    def bound(self, n: int) -> float:
        log_n = math.log(max(n, 2))
        return largest_magnitude(self.delta) + largest_magnitude(self.beta * log_n**self.gamma)


class LearnablePowLogLength(Scale):
    """The paper's content-dependent scale: β = softplus(w_β·x), γ = r·tanh(w_γ·x) per token and head.

    Parameters
    ----------
    embed_dim, num_heads : of the layer that owns it
    delta : the constant δ
    gamma_range : r, so that −r < γ < r

    Call ``on(x)`` with the layer's input x (batch, queries, embed_dim) to get the scale of those queries;
    ``undilute.nn.Attention`` does.
    """

    delta: float
    gamma_range: float

    def __init__(self, embed_dim: int, num_heads: int, delta: float = 1.0, gamma_range: float = 2.0) -> None:
        super().__init__()
        self.beta_projection = nn.Linear(embed_dim, num_heads, bias=False)
        self.gamma_projection = nn.Linear(embed_dim, num_heads, bias=False)
        self.hold("delta", number("delta", delta))
        self.hold("gamma_range", number("gamma_range", gamma_range))

    def on(self, x: Tensor) -> PowLogLength:
        if x.shape[-1] != self.beta_projection.in_features:
            raise InvalidTensor(
                f"x has {x.shape[-1]} features: this scale was made for embed_dim = {self.beta_projection.in_features}."
            )
        beta = F.softplus(self.beta_projection(x))  # (batch, queries, heads)
        gamma = self.gamma_range * torch.tanh(self.gamma_projection(x))
        return PowLogLength.of_rows(beta.transpose(-1, -2)[..., None], gamma.transpose(-1, -2)[..., None], self.delta)

    def at_length(self, n: Tensor) -> Tensor:
        raise InvalidValue("this scale depends on the layer's input: call rule.on(x) first, or use it in nn.Attention.")

    def bound(self, n: int) -> float:
        return math.inf


@register(
    "as-entmax",
    formula="entmax₁.₅((δ + β·(log n)^γ)·z)",
    paper="arXiv:2506.16640",
    learnable=lambda embed_dim, num_heads: Rule(LearnablePowLogLength(embed_dim, num_heads), Entmax(1.5)),
)
def as_entmax(beta: Number = LN2, gamma: Number = 1.0, delta: Number = 1.0, alpha: Number = 1.5) -> Rule:
    return Rule(scale=PowLogLength(beta, gamma, delta), map=Entmax(alpha))
