"""What was computed about a group of passages need not be computed again: where it is kept.

A scorer asks for tensors by a key that says all that they depend on. :class:`Nothing` computes them each time;
``undilute.selection.library`` keeps them in memory or on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

Tensors = dict[str, Tensor]


class Kept(Protocol):
    """Where tensors are kept."""

    def tensors(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        """What is kept under ``key``; made, and kept, if there is nothing."""


class Nothing:
    """Keeps nothing."""

    def tensors(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        return make()
