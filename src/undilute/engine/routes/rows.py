"""Any rule in linear memory: blocks of query rows, each in dense code, each recomputed in the backward pass.

Pure torch, any device, any rule, a user's own included. A map with an in-place form (``Map.weigh_``) takes a short cut
forward: two matrix products per block and a few passes over the logits. The backward pass always differentiates the
dense code, so it is exact for whatever the rule is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from undilute.engine import dense, masks, scaling
from undilute.engine.budget import memory_budget
from undilute.engine.call import Attended, Call
from undilute.engine.once import once
from undilute.rules.base import Hide, Map, Rule, Scale, fits_forward, forward_of
from undilute.rules.entropy import entropy
from undilute.rules.masked import working_dtype
from undilute.rules.parameters import as_it_is, tensors_of

TEMPORARIES = 16  # tensors of a block's size that dense code and its gradient hold at once
FAST_LOGITS, FAST_ROWS = 2**21, 128  # of a block in the in-place form: enough for the matrix products


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    return None


def run(call: Call) -> Attended:
    """Output and, if asked for, log-sum-exp and entropy.

    With gradients, the rule is kept as it is now, since the backward pass runs it again.
    """
    call = replace(call, rule=as_it_is(call.rule)) if call.needs_gradient() else call
    held = [t for t in tensors_of(call.rule) if t.requires_grad]
    seed = int(torch.randint(2**62, ())) if call.dropout > 0 else None
    return Attended(*_Rows.apply(call, seed, call.query, call.key, call.value, call.bias, *held))  # type: ignore[no-untyped-call]


def block_slices(call: Call) -> list[slice]:
    """The rows of a call in blocks that fit the memory budget."""
    one_row = max(1, call.logits_shape.numel() // max(1, call.queries)) * working_dtype(call.query.dtype).itemsize
    step = max(1, min(call.queries, memory_budget() // (TEMPORARIES * one_row)))
    return [slice(start, min(start + step, call.queries)) for start in range(0, call.queries, step)]


def _dense(block: Call, rows: slice, seed: int | None) -> Attended:
    """One block in dense code; its dropout, if any, is the same forward and backward."""
    draw = None if seed is None else torch.Generator(block.query.device).manual_seed(seed + rows.start)
    return dense.attend(block, draw)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, seed: int | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *held: Tensor
    ) -> tuple[Tensor | None, ...]:
        ctx.call, ctx.seed, ctx.held, ctx.blocks = call, seed, held, block_slices(call)
        ctx.save_for_backward(q, k, v, bias, call.mask, *held)  # torch notices if one is changed in place
        ctx.set_materialize_grads(False)
        if has_fast_form(call) and (found := _fast(_folded(call))) is not None:
            return tuple(found)
        parts = [_dense(call.block(rows.start, rows.stop), rows, seed) for rows in ctx.blocks]
        lse, spread = ([each for part in parts if (each := part[i]) is not None] for i in (1, 2))
        out = torch.cat([part.output for part in parts], -2)
        return out, torch.cat(lse, -1) if lse else None, torch.cat(spread, -1) if spread else None

    @staticmethod
    @once
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(each is None for each in incoming):
            return (None,) * (6 + len(ctx.held))
        q, k, v, bias, *_ = ctx.saved_tensors
        call = replace(ctx.call, query=q, key=k, value=v, bias=bias)
        grads = [None if t is None else torch.zeros_like(t, dtype=working_dtype(q.dtype)) for t in (q, k, v, bias)]
        held_grads = [torch.zeros_like(t) for t in ctx.held]
        for rows in ctx.blocks:
            keys = masks.reach(call, rows.start, rows.stop)
            with torch.enable_grad():  # parameters given per row are cut to the block, with their gradient
                block = call.block(rows.start, rows.stop)
            leaves = [t if t is None else t.detach().requires_grad_() for t in _tensors(block)]
            with torch.enable_grad():
                query, key, value, part = leaves
                made = _dense(replace(block, query=query, key=key, value=value, bias=part), rows, ctx.seed)
            wanted = [
                (o, g[..., rows, :] if o is made.output else g[..., rows])
                for o, g in zip(made, incoming, strict=True)
                if o is not None and g is not None and o.requires_grad
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
    """Do the in-place forms of map and scale apply?"""
    has_one = forward_of(call.rule) is Rule and fits_forward(call.rule.map, "weigh_", Map)
    scale_fits = call.rule.scale.is_foldable or _scales_in_place(call)
    plain = call.bias is None and call.dropout == 0 and call.softcap is None and not call.return_lse
    return has_one and plain and scale_fits and scaling.keeps_ties(call) and (call.is_step or scaling.has_room(call))


def _scales_in_place(call: Call) -> bool:
    """Has the scale an in-place form, and is it the same for every head?  A block does not say which heads it holds."""
    scale, heads = call.rule.scale, call.logits_shape[-3] if len(call.logits_shape) > 2 else 1
    return fits_forward(scale, "multiply_", Scale) and scale.for_heads(slice(0, 1), heads) is scale


def _folded(call: Call) -> Call:
    return scaling.fold(call) if call.rule.scale.is_foldable else call


def _fast(call: Call) -> Attended | None:
    """The in-place form over blocks of heads and rows; None if the map declines.

    Heads that share keys stand below each other, so that one product serves a group: (key heads, group · rows, keys).
    """
    dtype, lead, groups = working_dtype(call.query.dtype), call.logits_shape[:-2], call.groups
    kv_lead = (*lead[:-1], lead[-1] // groups) if groups > 1 else tuple(lead)
    k, v = (
        t.detach().to(dtype).expand(*kv_lead, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (call.key, call.value)
    )
    q, n = (
        t.detach().to(dtype).expand(*lead, call.queries, t.shape[-1]).reshape(len(k), groups, call.queries, -1)
        for t in (call.query, scaling.row_lengths(call))
    )
    out = q.new_zeros(len(k), groups, call.queries, v.shape[-1])
    spread = q.new_zeros(out.shape[:-1]) if call.return_entropy else None
    blocks = _fast_blocks(call, len(k))
    memory = q.new_empty(2, max((shape.numel() for *_, shape in blocks), default=0))
    for heads, rows, keys, shape in blocks:
        size = rows.stop - rows.start
        products, spare = (part[: shape.numel()].view(shape) for part in memory)
        own, late = q[heads, :, rows], not call.rule.map.is_continuous  # scaled before the product, ties are lost
        torch.bmm((own if late else own * call.scale).reshape(*shape[:2], -1), k[heads, keys].mT, out=products)
        if late:
            products.mul_(call.scale)
        if call.is_step and not _have_room(products):
            return None
        logits, spare = products.view(-1, size, shape[-1]), spare.view(-1, size, shape[-1])
        hide = _hider(call, logits, heads, rows, keys)
        if not call.rule.scale.is_foldable:
            call.rule.scale.multiply_(logits, spare, hide)
        divisor = call.rule.map.weigh_(logits, spare, n[heads, :, rows].flatten(0, 1), hide)
        if divisor is None:
            return None
        result = torch.bmm(products, v[heads, keys]).view(-1, size, v.shape[-1])
        out[heads, :, rows] = result.div_(divisor).unflatten(0, (-1, groups))
        if spread is not None:
            spread[heads, :, rows] = entropy(products).view(-1, groups, size)
    out = out.view(*lead, call.queries, v.shape[-1]).to(call.value.dtype)
    return Attended(out, None, None if spread is None else spread.view(*lead, call.queries))


def _have_room(products: Tensor) -> bool:
    """Are all products finite, with room to spare?  For longer calls ``scaling.has_room`` makes sure of it."""
    smallest, largest = torch.aminmax(products)
    return max(float(largest), -float(smallest)) < math.sqrt(torch.finfo(products.dtype).max)


def _fast_blocks(call: Call, kv_heads: int) -> list[tuple[slice, slice, slice, torch.Size]]:
    """Key heads, rows, the keys they reach and the products' shape, of about FAST_LOGITS; none is empty."""
    step = min(call.queries, max(1, FAST_ROWS // call.groups))
    together = max(2, FAST_LOGITS // (step * call.groups * call.keys))  # one head alone shares out badly among cores
    blocks = []
    for start in range(0, call.queries, step):
        rows = slice(start, min(start + step, call.queries))
        keys = masks.reach(call, rows.start, rows.stop)
        for head in range(0, kv_heads, together):
            heads = slice(head, min(head + together, kv_heads))
            sizes = (heads.stop - head, call.groups * (rows.stop - start), keys.stop - keys.start)
            blocks.append((heads, rows, keys, torch.Size(sizes)))
    return [block for block in blocks if block[-1].numel() > 0]


def _hider(call: Call, logits: Tensor, heads: slice, rows: slice, keys: slice) -> Hide:
    """A function that puts a number in the hidden keys of a block's logits (query heads, rows, keys).

    By arithmetic on what is finite: ``masked_fill_`` takes longer than the exponentials.
    """
    first = keys.start
    if call.causal and call.mask is None and call.window is None:  # only the diagonal has any
        first = max(first, min(keys.stop, rows.start + call.offset + 1))
    seen = masks.visible(call, rows, slice(first, keys.stop)) if first < keys.stop else None
    if seen is None:
        return lambda value: None
    part = logits[..., first - keys.start :]
    if seen.dim() > 2:
        lead, own = call.logits_shape[:-2], torch.arange(heads.start * call.groups, heads.stop * call.groups)
        seen = seen.expand(*lead, *seen.shape[-2:])[torch.unravel_index(own.to(seen.device), lead)]

    def hide(value: float) -> None:
        part.mul_(seen) if value == 0.0 else part.add_(torch.where(seen, 0.0, value).to(part.dtype))

    return hide
