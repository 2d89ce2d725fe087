"""Every error Undilute raises on purpose: one small family, one clear sentence each.

A message names the value, says why it is wrong and what would be right. The command line prints it without a
traceback and exits with code 2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class UndiluteError(Exception):
    """Base of the family: ``except undilute.UndiluteError`` catches all of it."""


class InvalidValue(UndiluteError, ValueError):
    """A parameter has a value that makes no sense, such as ``alpha = -1``."""


class InvalidTensor(UndiluteError, ValueError, RuntimeError):
    """Tensors whose shapes, dtypes or devices do not fit together.

    Also a ``RuntimeError``, because that is what torch's own attention raises for the same mistakes.
    """


class WorkerKilled(UndiluteError, RuntimeError):
    """A process that did part of the work is gone."""


class UnknownName(UndiluteError, LookupError):
    """A name that is not registered; the message suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.arguments = (kind, name, known := sorted(known))
        plain = {_plain(each): each for each in known}
        near = [plain[each] for each in difflib.get_close_matches(_plain(name), plain, n=3, cutoff=0.5)]
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}."
        super().__init__(f"unknown {kind} {name!r}: {hint}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.arguments


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


class MissingExtra(UndiluteError, ImportError):
    """An optional dependency is not installed; the message says how to get it."""

    def __init__(self, package: str, extra: str) -> None:
        self.arguments = (package, extra)
        super().__init__(f"this needs {package!r}, which is not installed: pip install 'undilute[{extra}]'.")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.arguments
