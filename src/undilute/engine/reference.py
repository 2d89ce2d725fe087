"""Dense attention, as plain as it can be: the specification every faster route is tested against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute.engine.call import Call
from undilute.measures.entropy import entropy
from undilute.rules import rows


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Output (..., Hq, L, Ev) and, if asked for, the entropy of each row's weights (..., Hq, L) in nats."""
    dtype = rows.working_dtype(call.query.dtype)
    query, key, value = (t.to(dtype) for t in (call.query, call.key, call.value))
    if call.groups > 1:
        key, value = (t.repeat_interleave(call.groups, dim=-3) for t in (key, value))
    logits = (query * call.scale) @ key.transpose(-1, -2)  # (..., Hq, L, S)
    if call.bias is not None:
        logits = logits + call.bias.to(dtype)
    weights: Tensor = call.rule(rows.bounded(logits), visible(call))
    spread = entropy(weights).expand(call.logits_shape[:-1]) if call.return_entropy else None
    if call.dropout > 0.0:
        weights = F.dropout(weights, call.dropout)
    return (weights @ value).to(call.query.dtype), spread


def visible(call: Call) -> Tensor | None:
    """Which keys each row sees, boolean and broadcastable to (..., Hq, L, S); None if every row sees every key."""
    mask = call.mask
    if call.causal or call.window is not None:
        position = torch.arange(call.logits_shape[-2], device=call.query.device)[:, None] + call.offset
        ahead = torch.arange(call.logits_shape[-1], device=call.query.device) - position  # (L, S)
        near = ahead <= 0 if call.causal else torch.ones_like(ahead, dtype=torch.bool)
        if call.window is not None:
            near = near & (ahead.abs() < call.window)
        mask = near if mask is None else mask & near
    return mask
