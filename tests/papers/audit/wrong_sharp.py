"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

from typing import Any

import torch

from undilute.measures import entropy
from undilute.theory import adaptive, dispersion
from undilute_papers.audit import sharp


def stream_without_rescaling(z: torch.Tensor, block: int) -> torch.Tensor:
    """Forgets to shrink the sums when the maximum rises."""
    top, total, moment = z[..., 0], torch.zeros_like(z[..., 0]), torch.zeros_like(z[..., 0])
    for part in z.split(block, -1):
        top = torch.maximum(top, part.amax(-1))
        e = (part - top[..., None]).exp()
        total, moment = total + e.sum(-1), moment + (e * part).sum(-1)
    return top + total.log() - moment / total


def second_pass(z: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Statistics that include what only a second pass can know."""
    return torch.stack([sharp._adaptive_output(z, values)], -1)


WRONG: list[tuple[str, str, Any]] = [
    ("C1", "printed", lambda n, spread, theta: sharp._exponential_bounds(n, spread / 2, theta)),
    ("C1", "printed", lambda n, spread, theta: sharp._exponential_bounds(n, 2 * spread, theta)),
    ("C1", "corrected", sharp._exponential_bounds),
    ("C1", "corrected", lambda n, spread, theta: dispersion.weight_bounds(n + 1, spread, theta)),
    ("C2", "distance", lambda spread, theta: torch.zeros_like(spread)),
    ("C2", "distance", lambda spread, theta: (spread / theta).tanh() / 2),
    ("C2", "corrected", lambda epsilon, spread: dispersion.dispersed_length(epsilon, spread) - 1),
    ("C2", "corrected", lambda epsilon, spread: (spread.exp() / epsilon).floor() + 1),
    ("C3.1", "bound", lambda y, x, q, k: q * k * y * x),
    ("C3.1", "bound", lambda y, x, q, k: 2 * y * x),
    ("C3.1", "bound", lambda y, x, q, k: 4 * q * k * y * x),
    ("C3.2", "needed", lambda c, n, theta: 1.1 * dispersion.spread_to_hold(c, n, theta)),
    ("C3.2", "needed", lambda c, n, theta: dispersion.spread_to_hold(c, n, theta) / 1.1),
    ("C3.2", "needed", lambda c, n, theta: dispersion.spread_to_hold(c, n)),
    ("C4.1", "beta", sharp._reversed_polynomial),
    ("C4.1", "beta", sharp._polynomial),
    ("C4.1", "intervals", lambda: [(0.848582, 5.9)]),
    ("C4.1", "intervals", lambda: [(0.5, 5.944521)]),
    ("C4.1", "peak", lambda: (4.4124, 2.389)),
    ("C4.1", "peak", lambda: (4.0, 2.4214)),
    ("C4.1", "port", sharp._polynomial),
    ("C4.2", "beta", lambda H: 1 / sharp._published_beta(H)),
    ("C4.2", "beta", lambda H: torch.ones_like(H)),
    ("C4.2", "polynomial", lambda H: sharp._polynomial(H) + 1),
    ("C4.3", "weigh", lambda z: (2.4 * z).softmax(-1)),
    ("C4.3", "weigh", lambda z: z.softmax(-1)),
    ("C4.4", "statistics", second_pass),
    ("C4.4", "output", lambda z, values: (z.softmax(-1) * values).sum(-1)),
    ("C4.5", "stream", stream_without_rescaling),
    ("C4.5", "stream", lambda z, block: sharp._streamed_entropy(z[..., :-1], block)),
    ("C4.6", "printed", entropy),
    ("C4.6", "printed", lambda p: -(p * (p + 1e-8).log()).sum(-1)),
    ("C4.6", "corrected", lambda z: sharp._entropy_with_offset(z.softmax(-1))),
    ("C4.6", "corrected", lambda z: 1.001 * sharp._exact_entropy(z)),
    ("C5.1", "gain", lambda before, after: after / before - 1),
    ("C5.1", "gain", lambda before, after: 100 - before),
    ("C5.2", "chance", lambda classes: 100 / (classes + 1)),
    ("C6", "bounds", lambda n, spread: dispersion.weight_bounds(n, 2 * spread)),
    ("C6", "bounds", lambda n, spread: sharp._exponential_bounds(n, spread, torch.tensor(1.0))),
    ("C7", "bound", lambda n, spread: dispersion.weight_bounds(n, spread).upper),
    ("C7", "bound", lambda n, spread: 10 * sharp._influence(n, spread)),
    ("C8", "printed", dispersion.weight_bounds),
    ("C8", "approximation", lambda n, kappa: (n / kappa).log()),
    ("C8", "entropy_of_even", adaptive.uniform_entropy),
    ("C8", "length", lambda kappa: 140.4 * kappa),
    ("C8", "length", lambda kappa: adaptive.switch_off_ratio() * kappa),
]
