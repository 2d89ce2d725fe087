"""Who sees whom, a block at a time: visible keys and their number, without ever building rows × keys at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from undilute.engine.call import Call

COUNT_ROWS = 512


def part(t: Tensor, rows: slice, keys: slice) -> Tensor:
    """The block of a mask or bias that broadcasts to (..., L, S); dimensions of size 1 stay."""
    if t.dim() >= 2 and t.shape[-2] > 1:
        t = t[..., rows, :]
    return t[..., keys] if t.shape[-1] > 1 else t


def of_head(t: Tensor, index: Sequence[int]) -> Tensor:
    """What one head, given by its leading indices, has of a mask or bias that broadcasts to (..., H, L, S)."""
    lead = t.shape[:-2]
    own = index[len(index) - len(lead) :]
    return t[tuple(i if size > 1 else 0 for i, size in zip(own, lead, strict=True))]


def reach(call: Call, start: int, stop: int) -> slice:
    """The keys that rows start … stop − 1 can see at all, by causality and window."""
    low, high = 0, call.keys
    if call.causal:
        high = min(high, stop + call.offset)
    if call.window is not None:
        low = max(low, start + call.offset - call.window + 1)
        high = min(high, stop - 1 + call.offset + call.window)
    return slice(low, max(low, high))


def limits(call: Call) -> tuple[Tensor, Tensor]:
    """First and one-past-last key of each row by causality and window, two int64 tensors (L,)."""
    position = torch.arange(call.queries, device=call.query.device) + call.offset
    low, high = torch.zeros_like(position), torch.full_like(position, call.keys)
    if call.window is not None:
        low, high = position - call.window + 1, position + call.window
    if call.causal:
        high = position + 1
    low = low.clamp(0, call.keys)
    return low, torch.maximum(high.clamp(0, call.keys), low)


def visible(call: Call, rows: slice, keys: slice) -> Tensor | None:
    """Which of ``keys`` each of ``rows`` sees: bool, broadcastable to (..., rows, keys); None if all see all."""
    mask = None if call.mask is None else part(call.mask, rows, keys)
    if call.causal or call.window is not None:
        device = call.query.device
        position = torch.arange(rows.start, rows.stop, device=device)[:, None] + call.offset
        ahead = torch.arange(keys.start, keys.stop, device=device) - position
        near = ahead <= 0 if call.causal else torch.ones_like(ahead, dtype=torch.bool)
        if call.window is not None:
            near = near & (ahead.abs() < call.window)
        mask = near if mask is None else mask & near
    return mask


def row_counts(call: Call) -> Tensor:
    """n, the number of keys each row sees: (..., L, 1), broadcastable to all rows."""
    low, high = limits(call)
    if call.mask is None:
        return (high - low)[:, None]
    mask = call.mask.expand(*call.mask.shape[:-1], call.keys)
    if mask.dim() < 2 or mask.shape[-2] == 1:  # one mask for all rows: differences of running sums
        sums = torch.nn.functional.pad(mask.long().cumsum(-1), (1, 0))
        sums = sums if mask.dim() < 2 else sums[..., 0, :]
        return (sums[..., high] - sums[..., low])[..., None]
    blocks = [slice(i, min(i + COUNT_ROWS, call.queries)) for i in range(0, call.queries, COUNT_ROWS)]
    everything = slice(0, call.keys)
    seen = [visible(call, rows, everything) for rows in blocks]
    return torch.cat([block.sum(-1, keepdim=True) for block in seen if block is not None], -2)
