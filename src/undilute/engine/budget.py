"""How much memory may a call use in addition to its inputs and output?  One number, which the user can set."""

from __future__ import annotations

from undilute.rules.parameters import above

_megabytes, _support_megabytes = 128.0, 512.0


def set_memory_budget(megabytes: float, supports: float | None = None) -> None:
    """Let ``undilute.attention`` use about this much memory in addition to its inputs and output.

    Parameters
    ----------
    megabytes : for blocks of logits; initially 128
    supports : for what the sparse route keeps for its backward pass; past it the backward pass finds supports again,
        which takes longer. Four times ``megabytes`` by default, so initially 512.

    The result does not depend on either.

    Examples
    --------
    >>> import undilute as ud
    >>> ud.set_memory_budget(128)
    """
    global _megabytes, _support_megabytes
    checked = float(above("megabytes", megabytes, 0.0))
    _support_megabytes = 4 * checked if supports is None else float(above("supports", supports, 0.0))
    _megabytes = checked


def memory_budget() -> int:
    """The budget for blocks, in bytes."""
    return int(_megabytes * 2**20)


def support_budget() -> int:
    """The budget for supports, in bytes."""
    return int(_support_megabytes * 2**20)
