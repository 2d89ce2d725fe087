"""Any rule in linear memory: blocks of query rows, each run by the reference, each recomputed in the backward pass.

Pure torch, any device, any rule, a user's own included. A map with an in-place form (``Map.weigh_``) takes a short cut
forward: two matrix products per head and a few passes over the logits. The backward pass always differentiates the
reference, so it is exact for whatever the rule is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undilute.engine import masks, reference, scaling
from undilute.engine.budget import memory_budget
from undilute.engine.call import Call
from undilute.engine.threads import share
from undilute.measures.entropy import entropy
from undilute.rules.base import Map
from undilute.rules.rows import working_dtype

TEMPORARIES = 16  # tensors of a block's size that the reference and its gradient hold at once
FAST_LOGITS = 2**19  # per block in the in-place form: enough for the matrix product, few enough for the caches


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    return None


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Output and, if asked for, entropy."""
    held = [t for t in (*call.rule.parameters(), *call.rule.buffers()) if t.requires_grad]
    seed = int(torch.randint(2**62, ())) if call.dropout > 0 else None
    out, spread = _Rows.apply(call, seed, call.query, call.key, call.value, call.bias, *held)  # type: ignore[no-untyped-call]
    return out, spread


def block_slices(call: Call) -> list[slice]:
    """The rows of a call in blocks that fit the memory budget."""
    one_row = max(1, call.logits_shape.numel() // max(1, call.rows)) * working_dtype(call.query.dtype).itemsize
    step = max(1, min(call.rows, memory_budget() // (TEMPORARIES * one_row)))
    return [slice(start, min(start + step, call.rows)) for start in range(0, call.rows, step)]


def _reference(call: Call, rows: slice, seed: int | None) -> tuple[Tensor, Tensor | None]:
    """The reference on one block; its dropout, if any, is the same forward and backward."""
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed + rows.start)
        return reference.run(call)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, seed: int | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *held: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        ctx.call, ctx.seed, ctx.held = call, seed, held
        ctx.save_for_backward(q, k, v, bias)
        ctx.set_materialize_grads(False)
        if has_fast_form(call) and (found := _fast(scaling.fold(call))) is not None:
            return found
        parts = [_reference(call.block(rows.start, rows.stop), rows, seed) for rows in block_slices(call)]
        out = torch.cat([part for part, _ in parts], -2)
        return out, torch.cat([part for _, part in parts if part is not None], -1) if call.return_entropy else None

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_out is None and grad_entropy is None:
            return (None,) * (6 + len(ctx.held))
        q, k, v, bias = ctx.saved_tensors
        call = replace(ctx.call, query=q, key=k, value=v, bias=bias)
        grads = [None if t is None else torch.zeros_like(t, dtype=working_dtype(q.dtype)) for t in (q, k, v, bias)]
        held_grads = [torch.zeros_like(t) for t in ctx.held]
        for rows in block_slices(call):
            keys = masks.reach(call, rows.start, rows.stop)
            with torch.enable_grad():  # parameters given per row are cut to the block, with their gradient
                block = call.block(rows.start, rows.stop)
            leaves = [t if t is None else t.detach().requires_grad_() for t in _tensors(block)]
            with torch.enable_grad():
                query, key, value, part = leaves
                made = _reference(replace(block, query=query, key=key, value=value, bias=part), rows, ctx.seed)
            wanted = [
                (o, g[..., rows, :] if o is made[0] else g[..., rows])
                for o, g in zip(made, (grad_out, grad_entropy), strict=True)
                if o is not None and g is not None
            ]
            inputs = [t for t in leaves if t is not None] + list(ctx.held)
            found = torch.autograd.grad([o for o, _ in wanted], inputs, [g for _, g in wanted], allow_unused=True)
            _accumulate(grads, held_grads, list(found), rows, keys)
        totals = [g if g is None else g.to(q.dtype) for g in grads[:3]]
        bias_grad = None if bias is None or grads[3] is None else grads[3].to(bias.dtype)
        return None, None, *totals, bias_grad, *held_grads


def _tensors(call: Call) -> list[Tensor | None]:
    return [call.query, call.key, call.value, call.bias]


def _accumulate(
    grads: list[Tensor | None], held_grads: list[Tensor], found: list[Tensor | None], rows: slice, keys: slice
) -> None:
    """Add a block's gradients (query, key, value, bias if any, held) to where they belong."""
    for name, total in zip(("query", "key", "value", "bias"), grads, strict=True):
        if total is None:
            continue
        gradient = found.pop(0)
        if gradient is None:
            continue
        match name:
            case "query":
                total[..., rows, :] += gradient
            case "bias":
                masks.part(total, rows, keys).add_(gradient)
            case _:
                total[..., keys, :] += gradient
    for held, gradient in zip(held_grads, found, strict=True):
        if gradient is not None:
            held += gradient


def has_fast_form(call: Call) -> bool:
    """Does the map's in-place form apply?"""
    has_one = type(call.rule.map).weigh_ is not Map.weigh_
    plain = call.rule.scale.is_foldable and call.bias is None and call.dropout == 0
    return has_one and plain and (call.is_step or call.has_finite_products())


def _fast(call: Call) -> tuple[Tensor, Tensor | None] | None:
    """The in-place form over every head and block of rows; None if the map declines."""
    dtype, lead = working_dtype(call.query.dtype), call.logits_shape[:-2]
    q, k, v = (
        t.detach().to(dtype).expand(*own, *t.shape[-2:])
        for t, own in ((call.query, lead), (call.key, _kv_lead(call, lead)), (call.value, _kv_lead(call, lead)))
    )
    n = masks.row_counts(call).clamp(min=1).to(dtype).expand(*lead, call.rows, 1)
    out = q.new_zeros(*lead, call.rows, v.shape[-1])
    spread = q.new_zeros(*lead, call.rows) if call.return_entropy else None
    declined: list[object] = []

    def work(task: tuple[tuple[int, ...], slice], buffer: Tensor) -> None:
        index, rows = task
        keys = masks.reach(call, rows.start, rows.stop)
        if declined or keys.start == keys.stop:
            return
        kv = (*index[:-1], index[-1] // call.groups) if lead else ()
        logits = buffer[: (rows.stop - rows.start) * (keys.stop - keys.start)].view(rows.stop - rows.start, -1)
        torch.mm(q[index][rows] * call.scale, k[kv][keys].T, out=logits)
        if call.is_step and not math.isfinite(float(logits.sum())):
            declined.append(task)
            return
        found = call.rule.map.weigh_(logits, n[index][rows], _hider(call, logits, index, rows, keys))
        if found is None:
            declined.append(task)
            return
        torch.mm(found[0], v[kv][keys], out=out[index][rows])
        out[index][rows].div_(found[1])
        if spread is not None:
            spread[index][rows] = entropy(found[0])

    step = min(call.rows, max(64, min(128 if call.causal else 512, FAST_LOGITS // call.keys)))
    blocks = [slice(i, min(i + step, call.rows)) for i in range(0, call.rows, step)]
    tasks = [(index, rows) for rows in blocks for index in np.ndindex(*lead)]
    share(tasks, work, lambda: q.new_empty(step * call.keys))
    return None if declined else (out.to(call.query.dtype), spread)


def _kv_lead(call: Call, lead: torch.Size) -> tuple[int, ...]:
    return (*lead[:-1], lead[-1] // call.groups) if call.groups > 1 else tuple(lead)


def _hider(call: Call, logits: Tensor, index: tuple[int, ...], rows: slice, keys: slice) -> Callable[[float], object]:
    """A function that fills the hidden keys of one head's logits with a number."""
    first = keys.start
    if call.causal and call.mask is None and call.window is None:  # only the diagonal has any
        first = max(first, min(keys.stop, rows.start + call.offset + 1))
    seen = masks.visible(call, rows, slice(first, keys.stop))
    if seen is None:
        return lambda value: None
    hidden, part = ~masks.of_head(seen, index), logits[:, first - keys.start :]
    return lambda value: part.masked_fill_(hidden, value)
