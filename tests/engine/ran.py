"""Which route really ran?  A test of a route that ran on another proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from undilute.engine.routes.choose import ROUTES


@contextmanager
def watched() -> Iterator[list[str]]:
    """Inside, the names of the routes that run, in order; one that hands a call on to another shows as both."""
    names: list[str] = []

    def noted(name: str, run: Any) -> Any:
        def noting(*arguments: Any) -> Any:
            names.append(name)
            return run(*arguments)

        return noting

    with_notes = [patch.object(module, "run", noted(name, module.run)) for name, module in ROUTES.items()]
    for each in with_notes:
        each.start()
    try:
        yield names
    finally:
        for each in with_notes:
            each.stop()


@contextmanager
def only(route: str, overflows: bool = False) -> Iterator[None]:
    """Fails unless just this route runs inside.

    The rows route may run the reference on its blocks; the sparse one hands a step on if its logits ``overflow``.
    """
    with watched() as names:
        yield
    below = {"rows", "reference"} if route == "rows" or (route == "sparse" and overflows) else set()
    assert names[:1] == [route], f"asked for {route}, ran {names}"
    assert set(names) <= below | {route}, f"asked for {route}, ran {names}"
