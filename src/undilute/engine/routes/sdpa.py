"""Softmax-like rules by torch's public ``scaled_dot_product_attention``: any device, dropout, and compiled code.

A scale that depends on n alone is multiplied into the queries; the rest is torch's. Nothing here looks at a number, so
no device has to wait and ``torch.compile`` sees one graph.

- Sink: one more key before all others, whose value is 0 and whose logit is s. Its one feature more is 1 in that key, 0
  in the others, and s in the queries. Causal rows get one more row before all others, which is dropped again.
- Rows that see nothing are shown every key, and their output is 0 times that: no NaN, forward or backward.

As in torch, a hidden key that is not finite may spread, and logits that overflow give NaN. On the CPU, where it costs
nothing to look, `choose` sends such calls elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute.engine import masks, scaling
from undilute.engine.call import Attended, Call
from undilute.engine.kernels.flash import four_dimensional
from undilute.rules.base import softmax_form
from undilute.rules.masked import working_dtype
from undilute.rules.parameters import Number, per_head


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    if softmax_form(call.rule.map) is None:
        return f"the map {type(call.rule.map).__name__} is not softmax-like"
    if call.return_lse or call.return_entropy:
        return f"torch's function does not return the {'log-sum-exp' if call.return_lse else 'entropy'}"
    return scaling.unfoldable(call, takes_entropy=False)


def bytes_written(call: Call) -> int:
    """How much memory torch takes for what is written out: a mask, or all weights where it has no kernel."""
    size = working_dtype(call.query.dtype).itemsize
    if call.query.device.type == "cpu" and (call.dropout > 0 or _learns_bias(call)):
        return 4 * size * call.logits_shape.numel()
    if _is_plain(call):
        return 0
    lead = [t.shape[:-2].numel() for t in (call.mask, call.bias) if t is not None]
    return (1 + size) * max(lead, default=1) * call.queries * call.keys


def run(call: Call) -> Attended:
    """Output alone."""
    form = softmax_form(call.rule.map)
    assert form is not None
    seen = _seen(call)
    call = _folded(call, seen)
    bias = None if call.bias is None else _over_keys(call.bias, call)
    if form.sink is not None:
        out = _with_sink(call, seen, bias, form.sink)
    elif seen is None and _hides_ahead(call):
        out = _attend(call.query, call.key, call.value, call, None, is_causal=True)
    elif seen is None:
        out = _attend(call.query, call.key, call.value, call, bias)
    else:
        blind = ~seen.any(-1, keepdim=True)
        out = _attend(call.query, call.key, call.value, call, _merged(seen | blind, bias)).masked_fill(blind, 0.0)
    return Attended(out.to(call.value.dtype))


def _learns_bias(call: Call) -> bool:
    return call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled()


def _hides_ahead(call: Call) -> bool:
    """Does causality hide any key?  Not in a step of decoding, where the first query is the newest token."""
    return call.causal and call.offset < call.keys - 1


def _is_plain(call: Call) -> bool:
    """Can torch's own causal flag say who sees whom, so that no mask has to be written out?"""
    if call.mask is not None or call.window is not None:
        return False
    return not _hides_ahead(call) or (call.offset == 0 and call.bias is None)


def _seen(call: Call) -> Tensor | None:
    """Which keys each row sees, bool (..., L or 1, S); None if that need not be written out."""
    seen = None if _is_plain(call) else masks.visible(call, slice(0, call.queries), slice(0, call.keys))
    return None if seen is None else _over_keys(seen, call)


def _over_keys(t: Tensor, call: Call) -> Tensor:
    """A mask or bias with a dimension for rows and all keys written out: (..., L or 1, S)."""
    return (t if t.dim() > 1 else t[None]).expand(*(1,) * (2 - t.dim()), *t.shape[:-1], call.keys)


def _folded(call: Call, seen: Tensor | None) -> Call:
    """The same call with its rule's scale in the queries and a ``scale`` above 0, without a look at any number."""
    if not scaling.is_trivial(call.rule):
        by = None if torch.compiler.is_compiling() else scaling.constant_factor(call)
        call = scaling.multiply(call, _factor(call, seen) if by is None else by)
    if call.bias is not None:  # all in one dtype: none is rounded
        dtype = torch.promote_types(call.query.dtype, call.bias.dtype)
        call = replace(call, query=call.query.to(dtype), bias=call.bias.to(dtype))
    return scaling.with_positive_scale(call)


def _factor(call: Call, seen: Tensor | None) -> Tensor | float:
    """What multiplies each row's logits."""
    if call.n is not None or seen is None:
        low, high = masks.limits(call)
        n = (high - low)[:, None] if call.n is None else scaling.row_lengths(call)
    else:
        n = seen.sum(-1, keepdim=True)
    n = n.clamp(min=1).to(working_dtype(call.query.dtype))
    return call.rule.scale.at_length(n.expand(*call.logits_shape[:-1], 1))


def _attend(
    query: Tensor, key: Tensor, value: Tensor, call: Call, mask: Tensor | None, is_causal: bool = False
) -> Tensor:
    """torch's attention with the mask, dropout and scale of a call, (..., Hq, L, Ev)."""
    *batch, heads, _, _ = (1, *call.logits_shape) if len(call.logits_shape) < 3 else call.logits_shape
    kv_heads = heads // call.groups
    q, k, v = (
        four_dimensional(t.to(query.dtype), batch, h) for t, h in ((query, heads), (key, kv_heads), (value, kv_heads))
    )
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        None if mask is None else _mask_of_four(mask, q, batch),
        dropout_p=call.dropout,
        is_causal=is_causal,
        scale=call.scale,
        enable_gqa=call.groups > 1,
    )
    return out.reshape(*call.logits_shape[:-2], *out.shape[-2:])


def _mask_of_four(mask: Tensor, query: Tensor, batch: list[int]) -> Tensor:
    """A mask that broadcasts to (..., Hq, L, S) as (1 or B, 1 or Hq, L, S), of a dtype that torch takes."""
    mask = mask if mask.dtype == torch.bool else mask.to(query.dtype)
    if mask.dim() > 4:
        mask = mask.expand(*batch, *mask.shape[-3:]).reshape(query.shape[0], *mask.shape[-3:])
    return mask.reshape(*(1,) * (4 - mask.dim()), *mask.shape)


def _merged(seen: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """One mask for torch: boolean, or to be added if there is a bias."""
    if bias is None or seen is None:
        return seen if bias is None else bias
    return bias.masked_fill(~seen, -torch.inf)


def _with_sink(call: Call, seen: Tensor | None, bias: Tensor | None, sink: Number) -> Tensor:
    """Attention with a key before all others that has value 0 and the sink's logit in every row."""
    dtype = working_dtype(call.query.dtype)
    query = (call.query.to(dtype) * call.scale).expand(*call.logits_shape[:-1], call.query.shape[-1])
    logit = torch.as_tensor(per_head("s", sink, query), dtype=dtype, device=query.device)
    query = torch.cat([query, logit.expand(*query.shape[:-1], 1)], -1)
    key = F.pad(call.key.to(dtype), (0, 1, 1, 0))
    is_sink = F.pad(key.new_ones(1, 1), (key.shape[-1] - 1, 0, 0, key.shape[-2] - 1))  # 1 in its one feature
    value = F.pad(call.value.to(dtype), (0, 0, 1, 0))
    call = replace(call, scale=1.0)
    if seen is None and _hides_ahead(call):
        return _attend(F.pad(query, (0, 0, 1, 0)), key + is_sink, value, call, None, is_causal=True)[..., 1:, :]
    seen, bias = (None if t is None else F.pad(t, (1, 0), value=shown) for t, shown in ((seen, True), (bias, 0.0)))
    return _attend(query, key + is_sink, value, call, _merged(seen, bias))
