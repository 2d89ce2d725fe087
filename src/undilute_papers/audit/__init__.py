"""Which of the papers' statements are true?  Every one of them, with a verdict that the program recomputes.

>>> from undilute_papers import audit
>>> [result] = audit.run("A3")
>>> result.statement.verdict.value, result.reproduces
('conditional', True)
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from undilute_papers.audit.statement import (
    Curve,
    Evidence,
    Finding,
    Result,
    Source,
    Statement,
    Verdict,
    statement,
    statements,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Curve",
    "Evidence",
    "Finding",
    "Result",
    "Source",
    "Statement",
    "Verdict",
    "run",
    "statement",
    "statements",
]


def run(id: str | None = None, seed: int = 0) -> list[Result]:
    """Check every statement, or those called ``id``, afresh."""
    return [each.run(seed) for each in statements(id)]
