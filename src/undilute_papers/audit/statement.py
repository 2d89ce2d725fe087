"""What is a statement of a paper, and what counts as evidence for a verdict on it?

A statement is a record (where it was printed, what it says, our verdict, the corrected form, a proof sketch) around a
check: a function that computes the evidence afresh from a seed. The check takes the formulas it examines as keyword
arguments, so that a test can hand it a wrong one and see it fail:

    @statement("B13.1", PAPER, place="Corollary 3", verdict=Verdict.FALSE, claim=…, correction=…, …)
    def jacobian_norm(evidence, printed=printed_cap, corrected=jacobian.largest_norm):
        evidence.quoted("norm at logits (0, 0, −50), T = 0.1", norm, "5")
        evidence.breaks("printed cap", printed(T) - norms)
        evidence.holds("corrected cap", corrected(T) - norms)

A verdict reproduces when every finding comes out as it says.
"""

from __future__ import annotations

import inspect
import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from undilute.errors import UnknownName


class Verdict(StrEnum):
    TRUE = "true"
    CONDITIONAL = "conditional"  # true under conditions that the source leaves out or states wrongly
    FALSE = "false"
    UNVERIFIED = "unverified"  # a claim about the world that cannot be checked here; its consequences are


@dataclass(frozen=True)
class Source:
    """A document that was audited, and the version of it."""

    title: str
    authors: str
    version: str
    url: str


@dataclass(frozen=True)
class Finding:
    """One piece of evidence: what was looked at, what came out, and whether it came out as the verdict says."""

    label: str
    outcome: str
    as_stated: bool
    cases: int = 1


@dataclass
class Evidence:
    """What a check fills in. ``rng`` is seeded from the statement and the user's seed."""

    rng: torch.Generator
    findings: list[Finding] = field(default_factory=list)

    def quoted(self, label: str, value: float | Tensor, printed: str) -> None:
        """``value`` rounds to the ``printed`` number, to every digit given: ``quoted("gap", 4.5951, "4.595")``.

        So "5" accepts anything from 4.5 to 5.5: write "5.000" where more is meant.
        """
        value, expected = float(value), float(printed.replace(",", ""))
        mantissa, _, exponent = printed.lower().replace(",", "").partition("e")
        unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        right = math.isclose(value, expected, rel_tol=1e-12, abs_tol=unit * (0.5 + 1e-6))
        self.findings.append(Finding(label, f"{_digits(value)}, quoted {printed}", right))

    def near(self, label: str, value: float | Tensor, expected: float, within: float) -> None:
        """``value`` is ``expected`` up to ``within``: for exact identities (rounding) and averages (sampling error)."""
        value = float(value)
        outcome = f"{_digits(value)}, expected {_digits(expected)} ± {within:.2g}"
        self.findings.append(Finding(label, outcome, abs(value - expected) <= within))

    def holds(self, label: str, slack: Tensor, tolerance: float = 1e-9) -> None:
        """An inequality survives every case: ``slack`` = larger side − smaller side, one number per case."""
        violations = int((~(slack >= -tolerance)).sum())
        outcome = f"{_violations(violations, slack)}, smallest slack {float(slack.min()):.2g}"
        self.findings.append(Finding(label, outcome, violations == 0, slack.numel()))

    def breaks(self, label: str, slack: Tensor, tolerance: float = 1e-9) -> None:
        """An inequality fails in at least one case, by more than rounding: ``slack`` as in :meth:`holds`."""
        violations = int((slack < -tolerance).sum())
        outcome = f"{_violations(violations, slack)}, worst by {-float(slack.min()):.2g}"
        self.findings.append(Finding(label, outcome, violations > 0, slack.numel()))

    def true(self, label: str, condition: bool | Tensor, outcome: str) -> None:
        """Anything else: a condition, and what was seen, in words."""
        self.findings.append(Finding(label, outcome, bool(condition)))


@dataclass(frozen=True)
class Curve:
    """A small picture: named lines over a common axis."""

    x: Sequence[float]
    lines: dict[str, Sequence[float]]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Result:
    """A statement with the evidence of one run."""

    statement: Statement
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def reproduces(self) -> bool:
        return bool(self.findings) and all(finding.as_stated for finding in self.findings)

    @property
    def cases(self) -> int:
        return sum(finding.cases for finding in self.findings)


@dataclass(frozen=True)
class Statement:
    """One audited statement.

    ``claim``, ``correction`` and ``proof`` are in our own words, in plain text; ``formula`` and ``corrected_formula``
    are LaTeX, without dollar signs, or empty.
    """

    id: str
    source: Source
    place: str
    verdict: Verdict
    title: str
    claim: str
    formula: str
    correction: str
    corrected_formula: str
    proof: str
    check: Callable[..., None]
    curve: Callable[[], Curve] | None = None

    @property
    def forms(self) -> dict[str, Any]:
        """The formulas that the check examines, by name."""
        parameters = list(inspect.signature(self.check).parameters.values())[1:]
        return {each.name: each.default for each in parameters}

    def run(self, seed: int = 0, **forms: Any) -> Result:
        """Compute the evidence; ``forms`` replaces formulas, to see the check fail."""
        rng = torch.Generator().manual_seed(zlib.crc32(f"{self.id} {seed}".encode()))
        evidence, start = Evidence(rng), time.perf_counter()
        self.check(evidence, **forms)
        return Result(self, tuple(evidence.findings), time.perf_counter() - start)


_STATEMENTS: dict[str, Statement] = {}


def statement(
    id: str,
    source: Source,
    *,
    place: str,
    verdict: Verdict,
    title: str,
    claim: str,
    proof: str,
    formula: str = "",
    correction: str = "",
    corrected_formula: str = "",
    curve: Callable[[], Curve] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated check as the evidence for one statement."""

    def register(check: Callable[..., None]) -> Callable[..., None]:
        if id in _STATEMENTS:
            raise AssertionError(f"two statements are called {id}")
        record = Statement(
            id, source, place, verdict, title, claim, formula, correction, corrected_formula, proof, check, curve
        )
        _STATEMENTS[id] = record
        return check

    return register


def statements(id: str | None = None) -> list[Statement]:
    """Every statement in order; with ``id``, that one and its parts: ``"B6"`` gives B6.1 and B6.2."""
    every = sorted(_STATEMENTS.values(), key=_order)
    if id is None:
        return every
    found = [each for each in every if each.id.upper() == id.upper() or each.id.upper().startswith(f"{id.upper()}.")]
    if not found:
        raise UnknownName("statement", id, {each.id.partition(".")[0] for each in every})
    return found


def _order(each: Statement) -> tuple[str, list[int]]:
    return each.id[0], [int(part) for part in each.id[1:].split(".")]


def _violations(violations: int, slack: Tensor) -> str:
    if slack.numel() == 1:
        return "violated" if violations else "holds"
    return f"{violations:,} violation{'s' * (violations != 1)} in {slack.numel():,} cases"


def _digits(value: float) -> str:
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.6g}"
