"""How does long work report progress?  By calling a function with the share that is done and what is being done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]


def quiet(share: float, doing: str) -> None:
    """Progress for nobody: ``share`` in [0, 1] is done, and ``doing`` is under way."""
