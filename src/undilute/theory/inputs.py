"""What the theory is computed in: float64, from torch tensors, NumPy arrays, lists or numbers, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue

Array = Tensor | Sequence[Any] | float | Any  # anything torch.as_tensor takes


def numbers(name: str, value: Array, *, above: float | None = None, at_least: float | None = None) -> Tensor:
    """``value`` as float64, finite, and inside the stated bound."""
    tensor = torch.as_tensor(value, dtype=torch.float64).detach()
    wrong = ~tensor.isfinite()
    if above is not None:
        wrong |= tensor <= above
    if at_least is not None:
        wrong |= tensor < at_least
    if wrong.any():
        bound = (
            f" above {above:g}" if above is not None else f" of at least {at_least:g}" if at_least is not None else ""
        )
        raise InvalidValue(f"{name} = {float(tensor[wrong].flatten()[0]):g}: must be finite numbers{bound}.")
    return tensor


def distribution(name: str, value: Array, visible: Tensor | None = None, tolerance: float = 1e-3) -> Tensor:
    """Rows (..., n) of weights that are not negative and sum to 1 over what they see; rescaled to do so exactly."""
    p = numbers(name, value, at_least=0.0)
    if p.ndim == 0:
        raise InvalidTensor(f"{name} is a single number: must be rows of weights, (..., n).")
    if visible is not None:
        p = p.masked_fill(~visible, 0.0)
    total = p.sum(-1, keepdim=True)
    if ((total - 1).abs() > tolerance).any():
        worst = float(total.flatten()[(total - 1).abs().argmax()])
        raise InvalidValue(f"{name} has a row that sums to {worst:g}: must be weights that sum to 1.")
    return p / total
