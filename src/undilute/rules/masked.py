"""The rows a rule works on: which keys a row can see, and sums and maxima over just those.

A key is visible when the mask says so (True) and its logit is not -inf. A row's n is the number of its visible keys,
never the width of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undilute.errors import InvalidTensor


def visible_keys(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Which keys each row sees: a boolean tensor of the shape of ``logits``."""
    visible = logits != -torch.inf
    return visible if mask is None else visible & mask


def count_visible(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """n per row, shape (..., 1); a row that sees nothing counts as 1, so that log n stays finite."""
    return visible.sum(-1, keepdim=True).clamp(min=1).to(dtype)


def check(logits: Tensor, mask: Tensor | None) -> None:
    """Refuse logits and masks that no rule can take."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidTensor(f"logits are {got}: must be a floating-point tensor of shape (..., keys).")
    if logits.dim() == 0:
        raise InvalidTensor("logits have no dimension: must have shape (..., keys).")
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = f"has dtype {mask.dtype}" if isinstance(mask, Tensor) else f"is {type(mask).__name__}"
        raise InvalidTensor(f"mask {kind}: must be a torch.bool tensor, True where a key is visible.")
    if mask.device != logits.device:
        raise InvalidTensor(f"mask is on {mask.device}, logits on {logits.device}: must be on one device.")
    if not broadcasts_to(mask.shape, logits.shape):
        raise InvalidTensor(
            f"mask of shape {tuple(mask.shape)} does not broadcast to the logits' shape {tuple(logits.shape)}."
        )


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Does a tensor of this shape expand to ``target`` without changing it?"""
    aligned = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size == 1 or size == wanted for size, wanted in aligned)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Rules compute in float32 at least: half precision is only how numbers come in and go out."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def bounded(logits: Tensor) -> Tensor:
    """``logits`` with +inf and overflow replaced by a huge finite number, whose differences stay finite too."""
    huge = torch.finfo(logits.dtype).max / 4
    return logits.clamp(-huge, huge)


def masked_max(logits: Tensor, visible: Tensor) -> Tensor:
    """Largest visible logit per row, shape (..., 1); 0 for a row that sees nothing."""
    top = logits.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
    return top.masked_fill(top == -torch.inf, 0.0)


def masked_min(logits: Tensor, visible: Tensor) -> Tensor:
    """Smallest visible logit per row, shape (..., 1); 0 for a row that sees nothing."""
    low = logits.masked_fill(~visible, torch.inf).amin(-1, keepdim=True)
    return low.masked_fill(low == torch.inf, 0.0)


def masked_exp(logits: Tensor, visible: Tensor, top: Tensor) -> Tensor:
    """e^(logit - top) where visible, exactly 0 elsewhere; finite in value and gradient for any ``top`` ≥ max."""
    return (logits - top).masked_fill(~visible, 0.0).exp().masked_fill(~visible, 0.0)


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0 (a row that sees nothing)."""
    return numerator / denominator.masked_fill(denominator == 0, 1.0)
