"""Can a token tell the others what to forget?  Selective attention: weights(z − F), F the sum of past "forget" votes.

Leviathan et al. 2024, arXiv:2410.02703. With S = relu(logits of head 0), zero on the diagonal and for the first token,
F_{i,j} = Σ_{m<i} S_{m,j}: how much tokens before i voted to mask token j. All heads share F. Causal by nature.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from undilute.engine.call import prepare
from undilute.engine.routing import run
from undilute.errors import InvalidTensor
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.registry import get
from undilute.rules.rows import working_dtype


def selective(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
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
    attn_mask : as in ``undilute.attention``, on top of the causal mask; a hidden key gets no votes and casts none
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
    call = prepare(
        query,
        key,
        value,
        attn_mask,
        scale=scale,
        enable_gqa=enable_gqa,
        rule=get(rule),
        sliding_window=sliding_window,
        past=0,
    )
    if query.dim() < 3 or query.shape[-2] != key.shape[-2]:
        raise InvalidTensor(
            f"query {tuple(query.shape)} and key {tuple(key.shape)}: selective attention is causal self-attention and "
            "needs shapes (..., heads, length, features) of one length."
        )
    dtype = working_dtype(call.query.dtype)
    votes = call.query[..., 0, :, :].to(dtype) @ call.key[..., 0, :, :].to(dtype).transpose(-1, -2) * call.scale
    bias = -forget_penalty(votes, _of_head_0(call.mask))[..., None, :, :]
    bias = bias if call.bias is None else bias + call.bias
    output, _ = run(replace(call, bias=bias))
    return output


def forget_penalty(votes: Tensor, seen: Tensor | None = None) -> Tensor:
    """F_{i,j} = Σ_{m<i} relu(votes_{m,j}) from the voting head's logits (..., L, L); 0 above the diagonal.

    Nobody votes on itself, on what comes later, on what it cannot see (``seen``), or on the first token; a token that
    padding hides from everyone casts no vote either, and the first token is the first one that is not hidden.
    """
    length = votes.shape[-1]
    first = torch.zeros((), dtype=torch.long, device=votes.device)
    if seen is not None:
        seen = seen.expand(*seen.shape[:-1], length)
        votes = votes.masked_fill(~seen, 0.0)
        if seen.dim() < 2 or seen.shape[-2] == 1:
            present = seen if seen.dim() < 2 else seen[..., 0, :]
            votes = votes.masked_fill(~present[..., :, None], 0.0)
            first = present.int().argmax(-1, keepdim=True)[..., None]
    votes = votes.relu().tril(-1) * (torch.arange(length, device=votes.device) != first)
    return (votes.cumsum(-2) - votes).tril()


def _of_head_0(mask: Tensor | None) -> Tensor | None:
    """The mask (..., 1 or H, 1 or L, S) as head 0 has it, (..., 1 or L, S)."""
    return mask[..., 0, :, :] if mask is not None and mask.dim() > 2 else mask
