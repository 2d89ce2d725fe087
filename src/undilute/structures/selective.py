"""Can a token tell the others what to forget?  Selective attention: weights(z − F), F the sum of past "forget" votes.

Leviathan et al. 2024, arXiv:2410.02703. With S = relu(logits of head 0), zero on the diagonal and for the first token,
F_{i,j} = Σ_{m<i} S_{m,j}: how much tokens before i voted to mask token j. All heads share F. Causal by nature.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from undilute.engine.api import attention
from undilute.errors import InvalidTensor
from undilute.rules.base import Map, Rule, Scale


def selective(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
) -> Tensor:
    """Causal selective self-attention.

    Parameters
    ----------
    query : (..., Hq, L, E); head 0 casts the votes
    key, value : (..., H, L, E) and (..., H, L, Ev)
    scale, enable_gqa, rule, sliding_window : as in ``undilute.attention``

    Returns
    -------
    (..., Hq, L, Ev)

    Examples
    --------
    >>> import torch, undilute as ud
    >>> q, k, v = torch.randn(3, 1, 4, 10, 16).unbind()
    >>> ud.structures.selective(q, k, v).shape
    torch.Size([1, 4, 10, 16])
    """
    if query.dim() < 3 or query.shape[-2] != key.shape[-2]:
        raise InvalidTensor(
            f"query {tuple(query.shape)} and key {tuple(key.shape)}: selective attention is causal self-attention and "
            "needs shapes (..., heads, length, features) of one length."
        )
    penalty = forget_penalty(query[..., 0, :, :], key[..., 0, :, :], scale)[..., None, :, :]
    length = query.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    bias = (-penalty).masked_fill(future, -torch.inf)  # (..., 1, L, L)
    return attention(
        query, key, value, bias, scale=scale, enable_gqa=enable_gqa, rule=rule, sliding_window=sliding_window
    )


def forget_penalty(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """F (..., L, L) from the voting head's query and key (..., L, E); 0 above the diagonal."""
    votes = query @ key.transpose(-1, -2) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    votes = votes.relu().tril(-1)
    votes = votes * (torch.arange(votes.shape[-1], device=votes.device) > 0)
    return (votes.cumsum(-2) - votes).tril()
