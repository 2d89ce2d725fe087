"""PyTorch's own flash kernel for the CPU, with its log-sum-exp, for every kind of mask; and what follows from that.

Entropy: H = lse − scale·q·k̄, where k̄ is attention with the keys as values.

The gradient of lse comes from the same backward kernel. It forms dS = P ∘ (dP − D) with D = Σ dO·O; a gradient g of
lse adds P·g, that is D − g. One more column does that: value 0 (so dP is unchanged), output −g, output gradient 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute.engine import masks
from undilute.engine.call import Call
from undilute.engine.once import once
from undilute.rules.masked import working_dtype

MASKED_ROWS = 256  # rows per kernel call when a mask has to be written out


def entropy(call: Call) -> Tensor:
    """Entropy of softmax(logits) per row, (..., Hq, L); in float32 at least, since it is a difference."""
    dtype = working_dtype(call.query.dtype)
    query, key = call.query.to(dtype), call.key.to(dtype)
    mean_key, lse = attend(call, key, query, key)
    product = query * mean_key if call.needs_gradient() else mean_key.mul_(query)
    return (lse - call.scale * product.sum(-1)).clamp(min=0.0)


def attend(call: Call, value: Tensor, query: Tensor | None = None, key: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """softmax(scale·q·kᵀ)·value and log-sum-exp, (..., Hq, L, Ev) and (..., Hq, L)."""
    query = call.query if query is None else query
    key, value = (t.to(query.dtype) for t in (call.key if key is None else key, value))
    *batch, heads, _, _ = (1, *call.logits_shape) if len(call.logits_shape) < 3 else call.logits_shape
    width = max(query.shape[-1], value.shape[-1])
    kv_heads = heads // call.groups
    q, k, v = (
        four_dimensional(t if t.shape[-1] == width else F.pad(t, (0, width - t.shape[-1])), batch, h)
        for t, h in ((query, heads), (key, kv_heads), (value, kv_heads))
    )
    out, lse = _Flash.apply(q, k, v, call)  # type: ignore[no-untyped-call]
    shape = call.logits_shape[:-1]
    return out.reshape(*shape, width)[..., : value.shape[-1]], lse.reshape(shape)


def four_dimensional(t: Tensor, batch: list[int], heads: int) -> Tensor:
    """(..., H, L, E) with its leading dimensions expanded and flattened to (B, H, L, E), as the kernel can read it."""
    return readable(t.expand(*batch, heads, *t.shape[-2:]).reshape(math.prod(batch), heads, *t.shape[-2:]))


def readable(t: Tensor) -> Tensor:
    """The same numbers where the kernel looks for them: features side by side, rows that do not overlap.

    It never asks for the stride of the last dimension, and takes any other for granted that a matrix product does.
    """
    if t.stride(-1) == 1 and t.stride(-2) >= t.shape[-1]:
        return t
    return t.clone(memory_format=torch.contiguous_format)


class Piece(NamedTuple):
    """One call of the kernel: some rows against some keys."""

    rows: slice
    keys: slice
    causal: bool
    mask: Tensor | None  # additive, 4-dimensional


def _pieces(call: Call, batch: int) -> Iterator[Piece]:
    """The kernel calls that make up a call: one if its masks allow it, else blocks of rows with masks written out."""
    everything = Piece(slice(0, call.queries), slice(0, call.keys), call.causal, None)
    plain = call.window is None and (not call.causal or call.offset == 0)
    written = call.bias if call.bias is not None else call.mask
    if plain and written is None:
        yield everything
        return
    if plain and call.bias is None and call.mask is not None and (call.mask.dim() < 2 or call.mask.shape[-2] == 1):
        yield everything._replace(mask=_additive(call.mask, None, call, batch))
        return
    for start in range(0, call.queries, MASKED_ROWS):
        rows = slice(start, min(start + MASKED_ROWS, call.queries))
        keys = masks.reach(call, rows.start, rows.stop)
        if keys.stop == keys.start:
            continue
        seen = masks.visible(call, rows, keys)
        bias = None if call.bias is None else masks.part(call.bias, rows, keys)
        if seen is not None and bias is None and call.mask is None and bool(seen.all()):
            seen = None
        yield Piece(rows, keys, False, None if seen is bias is None else _additive(seen, bias, call, batch))


def _additive(seen: Tensor | None, bias: Tensor | None, call: Call, batch: int) -> Tensor:
    """The kernel's mask: bias where visible, −inf elsewhere, as (1 or B, 1 or H, 1 or rows, keys)."""
    dtype = call.query.dtype
    if bias is None:
        assert seen is not None
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -torch.inf)
    else:
        mask = bias.to(dtype) if seen is None else bias.to(dtype).masked_fill(~seen, -torch.inf)
    lead = mask.shape[:-2]
    mask = mask.reshape(*(1,) * (2 - mask.dim()), *mask.shape)
    if len(lead) > 2:
        mask = mask.expand(*call.logits_shape[:-3], *mask.shape[-3:])
        mask = mask.reshape(batch, *mask.shape[-3:])
    return mask.reshape(*(1,) * (4 - mask.dim()), *mask.shape)


class _Flash(torch.autograd.Function):
    """(out, lse) of the CPU flash kernel, differentiable in q, k and v through both."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        out, lse = None, None
        for piece in _pieces(call, q.shape[0]):
            o, l = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q[:, :, piece.rows],
                k[:, :, piece.keys],
                v[:, :, piece.keys],
                0.0,
                piece.causal,
                attn_mask=_cast(piece.mask, q),
                scale=call.scale,
            )
            if piece.rows == slice(0, call.queries):
                out, lse = o, l
                break
            if out is None or lse is None:
                out, lse = torch.zeros_like(q), q.new_zeros(q.shape[:-1], dtype=l.dtype)
            out[:, :, piece.rows], lse[:, :, piece.rows] = o, l
        if out is None or lse is None:  # no row sees anything
            out, lse = torch.zeros_like(q), q.new_zeros(q.shape[:-1], dtype=working_dtype(q.dtype))
        ctx.save_for_backward(q, k, v, out, lse, call.mask)  # torch notices if the mask is changed in place
        return out, lse

    @staticmethod
    @once
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, _ = ctx.saved_tensors
        if grad_out is None and grad_lse is None:
            return None, None, None, None
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        width = q.shape[-1]
        if grad_lse is not None:
            column = grad_lse[..., None].to(out.dtype)
            out, grad_out = torch.cat([out, -column], -1), torch.cat([grad_out, torch.ones_like(column)], -1)
            q, k, v = (F.pad(t, (0, 1)) for t in (q, k, v))
        grad_q, grad_k, grad_v = _backward(ctx.call, q, k, v, out, lse, grad_out)
        return grad_q[..., :width], grad_k[..., :width], grad_v[..., :width], None


def _backward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    total: tuple[Tensor, Tensor, Tensor] | None = None
    for piece in _pieces(call, q.shape[0]):
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out[:, :, piece.rows].contiguous(),
            q[:, :, piece.rows],
            k[:, :, piece.keys],
            v[:, :, piece.keys],
            out[:, :, piece.rows],
            lse[:, :, piece.rows],
            0.0,
            piece.causal,
            attn_mask=_cast(piece.mask, q),
            scale=call.scale,
        )
        if (piece.rows, piece.keys) == (slice(0, call.queries), slice(0, call.keys)):
            return gradients  # type: ignore[no-any-return]
        total = (torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)) if total is None else total
        total[0][:, :, piece.rows] = gradients[0]
        total[1][:, :, piece.keys] += gradients[1]
        total[2][:, :, piece.keys] += gradients[2]
    return total if total is not None else (torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v))


def _cast(mask: Tensor | None, q: Tensor) -> Tensor | None:
    return None if mask is None else mask.to(q.dtype, memory_format=torch.contiguous_format)
