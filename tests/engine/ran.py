"""Which route really ran?  A test of a route that ran on another proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from undilute.engine.routes.choose import ROUTES


@contextmanager
def watched() -> Iterator[list[str]]:
    """Inside, the names of the routes that run, in order; one that hands its call over shows before the next."""
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
    """Fails unless just this route runs inside; but the sparse one hands a step over if its logits ``overflow``."""
    with watched() as names:
        yield
    allowed = {route, "rows"} if route == "sparse" and overflows else {route}
    assert names[:1] == [route], f"asked for {route}, ran {names}"
    assert set(names) <= allowed, f"asked for {route}, ran {names}"
