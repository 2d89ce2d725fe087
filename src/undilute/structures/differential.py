"""Does noise cancel between two attention maps?  Differential attention: (A(q₁,k₁) − λ·A(q₂,k₂))·V.

Ye et al. 2024, arXiv:2410.05258. `undilute.nn.DifferentialAttention` is the layer around it: version 1 with the
learned λ and the norm, version 2 with λ = σ(W_λ x) and none.
"""

from __future__ import annotations

import math

from torch import Tensor

from undilute.engine.api import attention
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.parameters import per_head


def differential(
    query1: Tensor,
    key1: Tensor,
    query2: Tensor,
    key2: Tensor,
    value: Tensor,
    lam: float | Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
) -> Tensor:
    """attention(query1, key1, value) − λ · attention(query2, key2, value).

    Parameters
    ----------
    query1, query2 : (..., Hq, L, E)
    key1, key2 : (..., H, S, E)
    value : (..., H, S, Ev)
    lam : λ: a number, one per query head, or broadcastable to (..., Hq, L, 1)
    rule : of both attentions
    attn_mask, dropout_p, is_causal, scale, enable_gqa, sliding_window : as in ``undilute.attention``, for both

    Examples
    --------
    >>> import torch, undilute as ud
    >>> q1, q2, k1, k2, v = torch.randn(5, 1, 4, 10, 16).unbind()
    >>> ud.structures.differential(q1, k1, q2, k2, v, lam=0.5, is_causal=True).shape
    torch.Size([1, 4, 10, 16])
    """
    first, second = (
        attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
            rule=rule,
            sliding_window=sliding_window,
        )
        for query, key in ((query1, key1), (query2, key2))
    )
    return first - per_head("lam", lam, first) * second


def initial_lambda(depth: int) -> float:
    """λ_init = 0.8 − 0.6·e^(−0.3·depth), depth = the layer's index from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * depth)
