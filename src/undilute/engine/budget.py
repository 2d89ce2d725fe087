"""How much memory may a call use beside its inputs and output?  One number, which the user can set."""

from __future__ import annotations

from undilute.rules.parameters import above

_megabytes = 128.0


def set_memory_budget(megabytes: float) -> None:
    """Let ``undilute.attention`` use about this much memory for its blocks and supports (128 at the start).

    A larger budget means larger blocks of query rows; the result does not depend on it.

    Examples
    --------
    >>> import undilute as ud
    >>> ud.set_memory_budget(128)
    """
    global _megabytes
    _megabytes = float(above("megabytes", megabytes, 0.0))


def memory_budget() -> int:
    """The budget in bytes."""
    return int(_megabytes * 2**20)
