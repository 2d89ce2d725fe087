"""Which of the papers' statements are true?  Every one of them, with a verdict that the program recomputes.

>>> from undilute import audit
>>> [result] = audit.run("A3")
>>> result.statement.verdict.value, result.reproduces
('conditional', True)
"""

from __future__ import annotations

from undilute_papers.audit import blog, dispersion_lemmas, focus, geometry, gradients, selection, sharp, sparse_rules
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

__all__ = [
    "Curve",
    "Evidence",
    "Finding",
    "Result",
    "Source",
    "Statement",
    "Verdict",
    "blog",
    "dispersion_lemmas",
    "focus",
    "geometry",
    "gradients",
    "run",
    "selection",
    "sharp",
    "sparse_rules",
    "statement",
    "statements",
]


def run(id: str | None = None, seed: int = 0) -> list[Result]:
    """Check every statement, or those called ``id``, afresh."""
    return [each.run(seed) for each in statements(id)]
