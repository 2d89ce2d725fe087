"""What must a map say about itself so that a fast route can run it?  One of these forms: no route knows a map by class.

A map declares a form by ``Map.as_softmax`` or ``Map.as_sparse``. The declaration counts only for the ``forward`` it was
written for: a subclass that overrides ``forward`` and declares nothing is a new map, and runs in blocks of rows.

>>> import torch, undilute as ud
>>> class Mine(ud.rules.Map):
...     def forward(self, logits, visible):
...         return torch.softmax(logits.masked_fill(~visible, -torch.inf), -1)
...
...     def as_softmax(self):
...         return SoftmaxForm()
>>> q = torch.randn(1, 2, 300, 8)
>>> print(ud.explain(q, q, q, rule=Mine()))
flash: softmax-like, on PyTorch's own kernel
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from undilute.rules.parameters import Number

SOFTMAX = 1e-9  # |α − 1| at which entmax and softmax are the same to every digit of float32 and nine of float64


@dataclass(frozen=True)
class SoftmaxForm:
    """The weights are e^z / (e^sink + Σ e^z), or e^z / Σ e^z if ``sink`` is None.

    Parameters
    ----------
    sink : one number, one per head, or a tensor that broadcasts to (..., heads, queries, 1)
    """

    sink: Number | None = None


@dataclass(frozen=True)
class SparseForm:
    """The weights are α-entmax of s·z, where z are the scaled logits; or softmax over the k largest of them.

    Parameters
    ----------
    epsilon : α − 1, one number or one per head; below 0 every key has weight, and the call takes another route. None
        is softmax over the k largest logits, those equal to the k-th included, and needs ``k``.
    k : n → how many keys a row of n visible ones may keep, whole numbers in the shape of ``n``; None for no limit
    s_min : s, if there is no limit or n ≤ k; one number or one per head
    s_max : otherwise s is the smallest that leaves at most k keys, but at least ``s_min`` and at most ``s_max``
    """

    epsilon: Number | None
    k: Callable[[Tensor], Tensor] | None = None
    s_min: Number = 1.0
    s_max: Number = 1.0
