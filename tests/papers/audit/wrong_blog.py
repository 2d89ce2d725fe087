"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

import math
from typing import Any

import torch

from undilute.measures import entropy
from undilute.theory import dispersion
from undilute.theory.dispersion import Bounds
from undilute_papers.audit import blog
from undilute_papers.theory import capacity

WRONG: list[tuple[str, str, Any]] = [
    ("A1", "softmax", lambda z: z.exp()),
    ("A1", "softmax", lambda z: (-z).softmax(-1)),
    ("A1", "softmax", lambda z: z.softmax(-1).clamp(min=1e-300)),
    ("A2.1", "law", lambda n, gap: gap.exp() / (gap.exp() + n)),
    ("A2.1", "law", lambda n, gap: 1 / (1 + (n - 1) * gap.exp())),
    ("A2.2", "printed", lambda n, gap: torch.ones_like(n)),
    ("A2.2", "corrected", lambda c, n: n.log() + torch.as_tensor(c).logit()),
    ("A2.2", "corrected", lambda c, n: dispersion.gap_to_hold(c, n) / 2),
    ("A3", "printed", dispersion.doubling_ratio),
    ("A3", "approximation", dispersion.relevant_weight),
    ("A3", "corrected", lambda n, gap: (gap.exp() + n) / (gap.exp() + 2 * n)),
    ("A3", "corrected", lambda n, gap: torch.full_like(n * gap, 0.5)),
    ("A4.1", "code", lambda n, *scores: blog.PRINTED[n]),
    ("A4.1", "code", lambda n, relevant=5.0, noise=1.0: blog.run_printed_code(n, relevant, noise)),
    ("A4.2", "implied", lambda alpha, n: alpha * n / (1 - alpha)),
    ("A4.2", "implied", lambda alpha, n: 41.0),
    ("A4.2", "deficit", lambda n, gap: 2 * capacity.needle_deficit(n, gap)),
    ("A4.3", "scores", lambda n: blog.article_scores(n) + torch.linspace(0, 1e-3, n)),
    ("A4.3", "scores", lambda n: torch.full((n,), 0.25)),
    ("A5", "printed", lambda alpha, n: -alpha.log2()),
    ("A5", "gain", lambda alpha, n: -n.log() - capacity.surprisal(alpha)),
    ("A5", "deficit", lambda n, gap: (gap.exp() * (gap - 1) + 1) / n),
    ("A6.1", "deficit", lambda n, gap: capacity.needle_deficit(n, gap) * blog.BITS),
    ("A6.1", "deficit", lambda n, gap: capacity.needle_deficit(n, 2 * gap)),
    ("A6.2", "printed", lambda n, spread: spread),
    ("A6.2", "corrected", lambda spread: dispersion.entropy_deficit_bound(spread) / 1.1),
    ("A6.2", "corrected", lambda spread: torch.minimum(spread, spread.square() / 4)),
    ("A6.2", "corrected", lambda spread: torch.minimum(spread / 1.1, spread.square() / 8)),
    ("A6.2", "corrected", lambda spread: spread.square() / 8),
    ("A7.1", "effective", lambda p: 1 / p.square().sum(-1)),
    ("A7.1", "effective", lambda p: 2 ** entropy(p)),
    ("A7.2", "printed", 99_999.8),
    ("A7.2", "effective", lambda p: torch.tensor(21_619.0)),
    ("A8.1", "slope", lambda z, beta: -dispersion.entropy_slope(z, beta)),
    ("A8.1", "slope", lambda z, beta: dispersion.entropy_slope(z, beta) / beta),
    ("A8.2", "demo", lambda scores, tau: blog.printed_demo(scores, 1 / tau)),
    ("A8.2", "demo", lambda scores, tau: tuple(each.clamp(min=0.0) for each in blog.printed_demo(scores, tau))),
    ("A9.1", "drop", lambda before, after: before - after),
    ("A9.2", "printed", lambda factor: 0.5),
    ("A9.2", "exponent", lambda ratio, factor: 0.5),
    ("A10", "printed", lambda heads, p: heads * entropy(p)),
    ("A10", "corrected", lambda n, spread: Bounds(n * (-(spread.square()) / 16).exp(), torch.tensor(float(n)))),
    ("A10", "corrected", lambda n, spread: Bounds(n * (-(spread.square()) / 2).exp(), torch.tensor(float(n)))),
    (
        "A10",
        "corrected",
        lambda n, spread: Bounds(dispersion.effective_keys_bounds(n, spread).lower, torch.tensor(n - 1.0)),
    ),
    ("A11.1", "limit", lambda n: math.log2(n) - 0.01),
    ("A11.1", "limit", lambda n: math.log2(n) + 0.01),
    ("A11.2", "printed", lambda p: torch.tensor(128.0)),
    ("A11.2", "corrected", lambda joint: 1.1 * capacity.mutual_information(joint)),
    ("A11.2", "corrected", lambda joint: entropy(joint.flatten(-2))),
    ("A11.3", "printed", lambda n: float(n) + 2000.0),
    ("A11.3", "corrected", lambda d, b: torch.tensor(float(d + b))),
    ("A12", "weigh", lambda scores: scores),
    ("A12", "weigh", lambda scores: scores.softmax(-1)),
    ("A12", "corrected", lambda n, low, high: dispersion.general_weight_bounds(n, low, 2 * high)),
    ("A12", "corrected", lambda n, low, high: Bounds(low / high / n, high / low / n)),
]
