"""How do a rule's top weight and entropy move as n grows?  One needle, n − 1 competitors, every rule.

A row has one logit of ``gap`` (the token that matters) and n − 1 logits drawn from N(0, noise²). Lengths share their
draws: a shorter row is the beginning of a longer one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from undilute.errors import InvalidValue
from undilute.rules.base import Rule
from undilute.rules.entropy import entropy
from undilute.rules.parameters import count, number

LENGTHS = tuple(2**k for k in range(1, 17))


@dataclass(frozen=True)
class Point:
    """One rule at one length, averaged over the seeds."""

    rule: str
    n: int
    needle_weight: float
    entropy: float
    normalised_entropy: float
    effective_keys: float
    total_weight: float


def needle_curves(
    rules: dict[str, Rule],
    *,
    lengths: Sequence[int] = LENGTHS,
    gap: float = 6.0,
    noise: float = 1.0,
    seeds: int = 16,
    seed: int = 0,
) -> list[Point]:
    """Weight of the needle and entropy of the row, for each rule and length.

    Examples
    --------
    >>> from undilute import rules
    >>> points = needle_curves({"softmax": rules.get("softmax")}, lengths=[100], gap=2.0, noise=0.0)
    >>> round(points[0].needle_weight, 6)  # e² / (e² + 99)
    0.069453
    """
    number("gap", gap)
    if number("noise", noise) < 0:
        raise InvalidValue(f"noise = {noise!r}: must be at least 0.")
    count("seeds", seeds)
    if not -(2**63) <= seed < 2**63:
        raise InvalidValue(f"seed = {seed}: must fit in 64 bits.")
    lengths = [count("length", n) for n in lengths]
    generator = torch.Generator().manual_seed(seed)
    logits = noise * torch.randn(seeds, max(lengths), generator=generator, dtype=torch.float64)
    logits[:, 0] = gap
    return [_measure(name, rule, logits[:, :n]) for name, rule in rules.items() for n in lengths]


@torch.no_grad()
def _measure(name: str, rule: Rule, logits: torch.Tensor) -> Point:
    weights = rule(logits)
    n = logits.shape[-1]
    spread = entropy(weights)
    return Point(
        rule=name,
        n=n,
        needle_weight=float(weights[:, 0].mean()),
        entropy=float(spread.mean()),
        normalised_entropy=float(spread.mean()) / math.log(n) if n > 1 else 0.0,
        effective_keys=float(spread.exp().mean()),
        total_weight=float(weights.sum(-1).mean()),
    )
