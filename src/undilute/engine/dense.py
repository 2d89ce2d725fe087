"""Dense attention, as plain as it can be: the specification, which every faster way is tested against.

The reference route runs it on a whole call, the rows route on one block of rows after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from undilute.engine import masks
from undilute.engine.call import Attended, Call
from undilute.rules import masked
from undilute.rules.base import Rule
from undilute.rules.entropy import entropy


def attend(call: Call, draw: torch.Generator | None = None) -> Attended:
    """Output, log-sum-exp and entropy of a call, the last two if it asks for them.

    ``draw`` is where dropout gets its random numbers from; torch's own by default.
    """
    dtype = masked.working_dtype(call.query.dtype)
    seen = masks.visible(call, slice(0, call.queries), slice(0, call.keys))
    rule, logits = _rule(call, dtype), _logits(call, seen, dtype)
    weights: Tensor = rule(logits, seen)
    lse = _log_sum_exp(rule, logits, seen).expand(call.logits_shape[:-1]) if call.return_lse else None
    spread = entropy(weights).expand(call.logits_shape[:-1]) if call.return_entropy else None
    if call.dropout > 0.0:
        keep = torch.empty_like(weights).bernoulli_(1.0 - call.dropout, generator=draw)
        weights = weights * keep.div_(max(1.0 - call.dropout, torch.finfo(dtype).tiny))
    out = _by_key_head(weights, call.groups) @ call.value.to(dtype)
    return Attended(out.reshape(*call.logits_shape[:-1], out.shape[-1]).to(call.query.dtype), lse, spread)


def _rule(call: Call, dtype: torch.dtype) -> Rule:
    """The rule of a call, told n if that was given."""
    if call.n is None:
        return call.rule
    return call.rule.at_length(torch.as_tensor(call.n, dtype=dtype, device=call.query.device).expand(_rows_shape(call)))


def _rows_shape(call: Call) -> tuple[int, ...]:
    return (*call.logits_shape[:-1], 1)


def _logits(call: Call, seen: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(..., Hq, L, S), finite where the inputs are."""
    query, key = call.query.to(dtype), call.key.to(dtype)
    logits: Tensor = _Products.apply(_by_key_head(query, call.groups), key) * call.scale  # type: ignore[no-untyped-call]
    if call.groups > 1:
        logits = logits.reshape(*logits.shape[:-3], *call.logits_shape[-3:])
    if call.softcap is not None:
        shown = logits if seen is None else logits.masked_fill(~seen, 0.0)  # tanh'(NaN) is NaN, even times 0
        logits = call.softcap * torch.tanh(shown / call.softcap)
    if call.bias is not None:
        logits = logits + call.bias.to(dtype)
    return masked.bounded(logits.expand(call.logits_shape))


def _log_sum_exp(rule: Rule, logits: Tensor, seen: Tensor | None) -> Tensor:
    """log Σe^z of the scaled logits z over each row's visible keys; −inf, without gradient, where there is none."""
    if logits.shape[-1] == 0:
        return logits.new_full(logits.shape[:-1], -torch.inf)
    z, visible = rule.scaled(logits, seen)
    top = masked.masked_max(z.detach(), visible)
    total = masked.masked_exp(z, visible, top).sum(-1)
    nothing = ~visible.any(-1)
    return (total.masked_fill(nothing, 1.0).log() + top[..., 0]).masked_fill(nothing, -torch.inf)


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
