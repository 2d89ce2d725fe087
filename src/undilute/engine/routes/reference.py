"""Dense attention, as plain as it can be: the specification every faster route is tested against."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from undilute.engine import masks
from undilute.engine.call import Call
from undilute.rules import masked as rows
from undilute.rules.entropy import entropy


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    return None


def run(call: Call, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor | None]:
    """Output (..., Hq, L, Ev) and, if asked for, the entropy of each row's weights (..., Hq, L) in nats.

    ``draw`` is where dropout gets its random numbers from; torch's own by default.
    """
    dtype = rows.working_dtype(call.query.dtype)
    query, key, value = (t.to(dtype) for t in (call.query, call.key, call.value))
    logits: Tensor = _Products.apply(_by_key_head(query, call.groups), key) * call.scale  # type: ignore[no-untyped-call]
    logits = (
        logits.reshape(*logits.shape[:-3], *call.logits_shape[-3:]) if call.groups > 1 else logits
    )  # (..., Hq, L, S)
    if call.bias is not None:
        logits = logits + call.bias.to(dtype)
    logits = logits.expand(call.logits_shape)
    seen = masks.visible(call, slice(0, call.rows), slice(0, call.keys))
    weights: Tensor = call.rule(rows.bounded(logits), seen)
    spread = entropy(weights).expand(call.logits_shape[:-1]) if call.return_entropy else None
    if call.dropout > 0.0:
        keep = torch.empty_like(weights).bernoulli_(1.0 - call.dropout, generator=draw)
        weights = weights * keep.div_(max(1.0 - call.dropout, torch.finfo(dtype).tiny))
    out = _by_key_head(weights, call.groups) @ value
    return out.reshape(*call.logits_shape[:-1], value.shape[-1]).to(call.query.dtype), spread


class _Products(torch.autograd.Function):
    """q·kᵀ, (..., L, S), where a key that is not finite is so only to the rows that see it, in their gradients too.

    A row that does not see it has gradient 0 there, and a plain product would make NaN of 0 · NaN. Differentiable
    any number of times, forward and backward, and under ``torch.vmap``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        query, key = (t.nan_to_num(0.0, 0.0, 0.0) for t in ctx.saved_tensors)
        return (g @ key).sum_to_size(query.shape), (g.mT @ query).sum_to_size(key.shape)

    @staticmethod
    def jvp(ctx: Any, dquery: Tensor | None, dkey: Tensor | None) -> Tensor:
        query, key = (t.nan_to_num(0.0, 0.0, 0.0) for t in ctx.saved_tensors)
        change: Tensor = query.new_zeros(()) if dquery is None else dquery @ key.mT
        return change if dkey is None else change + query @ dkey.mT


def _by_key_head(t: Tensor, groups: int) -> Tensor:
    """(..., groups · H, L, ·) → (..., H, groups · L, ·): the queries that share a key head side by side."""
    return t if groups == 1 else t.reshape(*t.shape[:-3], t.shape[-3] // groups, groups * t.shape[-2], t.shape[-1])
