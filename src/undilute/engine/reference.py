"""Dense attention, as plain as it can be: the specification every faster route is tested against."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from undilute.engine import masks
from undilute.engine.call import Call
from undilute.measures.entropy import entropy
from undilute.rules import rows


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    return None


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Output (..., Hq, L, Ev) and, if asked for, the entropy of each row's weights (..., Hq, L) in nats."""
    dtype = rows.working_dtype(call.query.dtype)
    query, key, value = (t.to(dtype) for t in (call.query, call.key, call.value))
    logits = _by_key_head(query * call.scale, call.groups) @ key.transpose(-1, -2)
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
        weights = F.dropout(weights, call.dropout)
    out = _by_key_head(weights, call.groups) @ value
    return out.reshape(*call.logits_shape[:-1], value.shape[-1]).to(call.query.dtype), spread


def _by_key_head(t: Tensor, groups: int) -> Tensor:
    """(..., groups · H, L, ·) → (..., H, groups · L, ·): the queries that share a key head side by side."""
    return t if groups == 1 else t.reshape(*t.shape[:-3], t.shape[-3] // groups, groups * t.shape[-2], t.shape[-1])
