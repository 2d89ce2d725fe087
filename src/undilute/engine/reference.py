"""Dense attention, as plain as it can be: the specification every faster route is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.engine import masks
from undilute.engine.call import Call
from undilute.measures.entropy import entropy
from undilute.rules import rows


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    return None


def run(call: Call, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor | None]:
    """Output (..., Hq, L, Ev) and, if asked for, the entropy of each row's weights (..., Hq, L) in nats.

    ``draw`` is where dropout gets its random numbers from; torch's own by default.
    """
    dtype = rows.working_dtype(call.query.dtype)
    query, key, value = (t.to(dtype) for t in (call.query, call.key, call.value))
    logits = _products(_by_key_head(query * call.scale, call.groups), key)
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


def _products(query: Tensor, key: Tensor) -> Tensor:
    """q·k, (..., L, S). A key that is not finite is so only to the rows that see it, in their gradients too.

    In the product itself it would meet the gradient 0 of a row that does not see it, and 0 · NaN is NaN.
    """
    products = query @ key.nan_to_num().transpose(-1, -2)
    return products.masked_fill(key.isnan().any(-1)[..., None, :], torch.nan)


def _by_key_head(t: Tensor, groups: int) -> Tensor:
    """(..., groups · H, L, ·) → (..., H, groups · L, ·): the queries that share a key head side by side."""
    return t if groups == 1 else t.reshape(*t.shape[:-3], t.shape[-3] // groups, groups * t.shape[-2], t.shape[-1])
