"""The whole call at once, in dense code: fastest for small calls, and differentiable as often as one likes."""

from __future__ import annotations

from undilute.engine import dense
from undilute.engine.call import Attended, Call


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    return None


def run(call: Call) -> Attended:
    """Output and, if asked for, log-sum-exp and entropy."""
    return dense.attend(call)
