"""In every test here a forced route is one that ran: a test of a route that ran on another proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import undilute as ud
from tests.engine.ran import only


@pytest.fixture(autouse=True)
def forced_routes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = ud.attention

    def checked(query: torch.Tensor, *rest: Any, route: str | None = None, **options: Any) -> Any:
        if route is None:
            return attention(query, *rest, **options)
        chosen = ud.explain(query, *rest, route=route, **options)
        assert chosen.name == route or "nothing to compute" in chosen.reason
        with only(chosen.name):
            return attention(query, *rest, route=route, **options)

    monkeypatch.setattr(ud, "attention", checked)
