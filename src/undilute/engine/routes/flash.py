"""Softmax-like rules at flash speed: PyTorch's own kernel, with everything else folded around it.

- A scale that depends on n alone, or on the row's entropy, is multiplied into the queries (`scaling`).
- Sink: out · σ(lse − s), where lse is the kernel's log-sum-exp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.engine import masks, scaling
from undilute.engine.call import Attended, Call
from undilute.engine.kernels import flash as kernel
from undilute.rules.base import softmax_form
from undilute.rules.parameters import per_head

PART = 2**22  # bytes of queries that are worth a kernel call of their own


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    if softmax_form(call.rule.map) is None:
        return f"the map {type(call.rule.map).__name__} is not softmax-like"
    if call.bias is not None and call.bias.dtype.itemsize > call.query.dtype.itemsize:
        return "the kernel would round the additive mask to the queries' dtype"
    if call.bias is not None and call.return_entropy:
        return "an additive mask changes the entropy"
    return scaling.obstacle(call)


def run(call: Call) -> Attended:
    """Output and, if asked for, log-sum-exp and entropy.

    Without gradients, a few heads at a time: scaled queries and other copies stay small compared with the output.
    """
    parts = [] if call.needs_gradient() or scaling.is_trivial(call.rule) else _head_slices(call)
    if len(parts) < 2:
        return _run(call)
    whole: Attended | None = None
    for kv in parts:
        own = slice(kv.start * call.groups, kv.stop * call.groups)
        part = _run(call.for_heads(kv))
        whole = _empty(call, part) if whole is None else whole
        whole.output[..., own, :, :] = part.output
        for into, each in ((whole.lse, part.lse), (whole.entropy, part.entropy)):
            if into is not None and each is not None:
                into[..., own, :] = each
    assert whole is not None
    return whole


def _empty(call: Call, part: Attended) -> Attended:
    """Memory for the whole of what ``part`` is some heads of."""
    shape = call.logits_shape[:-1]
    lse, entropy = (None if each is None else each.new_empty(shape) for each in (part.lse, part.entropy))
    return Attended(call.query.new_empty(*shape, call.value.shape[-1]), lse, entropy)


def _head_slices(call: Call) -> list[slice]:
    """Key heads in as many slices as it takes for PART bytes each, but with work for all cores in each."""
    if len(call.logits_shape) < 3:
        return []
    heads = call.logits_shape[-3] // call.groups
    size = call.logits_shape[:-1].numel() * call.query.shape[-1] * call.query.dtype.itemsize
    step = max(heads * PART // max(1, size), -(-torch.get_num_threads() // call.groups))
    return [slice(i, min(i + step, heads)) for i in range(0, heads, step)]


def _run(call: Call) -> Attended:
    call = scaling.with_positive_scale(scaling.fold(call))
    form = softmax_form(call.rule.map)
    assert form is not None
    out, lse = kernel.attend(call, call.value)
    if form.sink is not None:
        share = torch.sigmoid(lse[..., None] - per_head("s", form.sink, lse[..., None]))
        out = out * share if call.needs_gradient() else out.mul_(share)
    spread = kernel.entropy(call) if call.return_entropy else None
    return Attended(out.to(call.value.dtype), _of_seeing_rows(call, lse) if call.return_lse else None, spread)


def _of_seeing_rows(call: Call, lse: Tensor) -> Tensor:
    """The kernel's log-sum-exp, and −inf for rows that see nothing, where the kernel leaves anything."""
    return lse.masked_fill((masks.row_counts(call) == 0)[..., 0], -torch.inf)
