"""Which implementation runs a call?  The one place that decides.

Today there is one route, the dense reference. A faster one is added as a module with the same ``run(call)`` and a line
in ``choose``; the public call does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from undilute.engine import reference
from undilute.engine.call import Call
from undilute.rules.base import Rule


@dataclass(frozen=True)
class Route:
    """An implementation: its name, how to run it, and why it was chosen."""

    name: str
    run: Callable[[Call], tuple[Tensor, Tensor | None]]
    reason: str


def choose(call: Call) -> Route:
    """The route for this call."""
    return _for_rule(call.rule)


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Output and, if the call asks for it, entropy."""
    return choose(call).run(call)


def name_for(rule: Rule) -> str:
    """The route an ordinary call with this rule takes."""
    return _for_rule(rule).name


def _for_rule(rule: Rule) -> Route:
    return Route("reference", reference.run, "the only route so far; dense, n × n memory")
