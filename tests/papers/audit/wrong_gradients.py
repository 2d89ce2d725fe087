"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from undilute.theory import jacobian
from undilute.theory.dispersion import Bounds
from undilute_papers.audit import gradients
from undilute_papers.theory import finite_steps, normalisers


def times(factor: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same formula with a constant off; of a tuple of formulas, each."""

    def wrong(*arguments: Any, **named: Any) -> Any:
        value = function(*arguments, **named)
        return type(value)(*(factor * each for each in value)) if isinstance(value, tuple) else factor * value

    return wrong


def one_norm_off(place: int, factor: float, function: Callable[..., jacobian.Norms]) -> Callable[..., jacobian.Norms]:
    def wrong(*arguments: Any) -> jacobian.Norms:
        norms = list(function(*arguments))
        norms[place] = factor * norms[place]
        return jacobian.Norms(*norms)

    return wrong


def first_direction(p: Tensor) -> Tensor:
    direction = torch.zeros_like(p)
    direction[..., 0] = 1
    return direction


_BY_ID: dict[str, list[tuple[str, Callable[..., Any]]]] = {
    "B11.1": [("printed", lambda epsilon: 2 * epsilon), ("printed", times(1.001, gradients._printed_logit_distance))],
    "B11.2": [
        ("printed", finite_steps.swap_distance),
        ("corrected", gradients._printed_change),
        ("corrected", lambda epsilon, T: 3 * math.sqrt(2) / 4 * epsilon / T),
    ],
    "B12.1": [
        ("printed", times(100.0, gradients._printed_first_term)),
        ("printed", times(0.1, gradients._printed_first_term)),
        *[("corrected", one_norm_off(i, 0.99, normalisers.normaliser_suprema)) for i in range(5)],
        *[("corrected", one_norm_off(i, 1.01, normalisers.normaliser_suprema)) for i in range(5)],
        ("projector", times(0.99, normalisers.projector_bound)),
        ("projector", times(1.01, normalisers.projector_bound)),
        ("exact", lambda alpha, g: normalisers.normaliser_suprema(g).spectral),
        ("exact", times(1.001, normalisers.normaliser_spectral_norm)),
    ],
    "B12.2": [
        ("printed", lambda T: 1 / (2 * T)),
        ("corrected", lambda epsilon, T: torch.full_like(T, math.sqrt(2))),
        ("corrected", lambda epsilon, T: torch.minimum(1 / (4 * T), math.sqrt(2) / epsilon)),
        ("corrected", times(2.0, finite_steps.sensitivity_cap)),
    ],
    "B12.3": [
        ("first_term", times(0.5, gradients._printed_first_term)),
        ("printed", lambda T: 1e20 / T),
        ("corrected", lambda spread, n, T: (spread / T).exp() / n / T),
        ("corrected", lambda spread, n, T: 1 / (4 * T)),
    ],
    "B12.4": [
        ("printed", lambda F, slopes: torch.ones_like(F[..., 0])),
        ("corrected", one_norm_off(0, 0.5, normalisers.normaliser_suprema)),
        ("corrected", one_norm_off(0, 2.0, normalisers.normaliser_suprema)),
    ],
    "B13.1": [
        ("printed", lambda T: 1 / (2 * T)),
        ("corrected", lambda T: jacobian.Norms(*[gradients._printed_corollary(T)] * 5)),
        *[("corrected", one_norm_off(i, 0.99, jacobian.suprema)) for i in range(5)],
        *[("corrected", one_norm_off(i, 1.01, jacobian.suprema)) for i in range(5)],
        ("exact", lambda p, T: jacobian.infinity_norm(p, T)),
        ("exact", times(1.001, jacobian.spectral_norm)),
        ("bounds", lambda p: Bounds(*(0.9 * each for each in jacobian.spectral_bounds(p)))),
        ("bounds", lambda p: Bounds(*(1.1 * each for each in jacobian.spectral_bounds(p)))),
        ("sums", times(1.001, jacobian.infinity_norm)),
        ("sums", jacobian.largest_entry),
        ("to_one", times(0.999, jacobian.infinity_to_one_norm)),
    ],
    "B13.2": [
        ("printed", lambda T: 1 / (2 * T)),
        ("corrected", finite_steps.sensitivity_cap),
        ("corrected", lambda epsilon, T: math.sqrt(2) / epsilon * (epsilon / (2 * T)).tanh()),
        ("cap", lambda epsilon, T: torch.minimum(1 / (4 * T), math.sqrt(2) / epsilon)),
        ("cap", times(1.1, finite_steps.sensitivity_cap)),
    ],
    "B13.3": [
        ("exact", lambda p, T: (1 / (2 * T)).expand(p.shape[:-1])),
        ("exact", times(0.5, jacobian.spectral_norm)),
        ("corrected", times(0.5, gradients._two_key_norm)),
        ("corrected", lambda T: 1 / (2 * T)),
    ],
    "B13.4": [
        ("corrected", lambda p: jacobian.spectral_norm(p).square()),
        ("corrected", lambda p: jacobian.frobenius_norm(p).square()),
        ("spectral", times(0.5, jacobian.spectral_norm)),
        ("worst", first_direction),
    ],
    "B13.5": [
        ("corrected", lambda epsilon, T: 1 / (2 * T) + 0 * epsilon),
        ("corrected", times(0.5, finite_steps.largest_sensitivity)),
        ("measured", lambda l, v, epsilon, T=1.0: 2 * finite_steps.sensitivity(l, v, epsilon, T)),
        ("measured", lambda l, v, epsilon, T=1.0: finite_steps.largest_sensitivity(epsilon, T)),
    ],
}
WRONG = [(id, form, wrong) for id, table in _BY_ID.items() for form, wrong in table]
