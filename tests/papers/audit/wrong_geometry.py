"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from undilute_papers.audit import geometry
from undilute_papers.theory import separability


def times(factor: float, form: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: factor * form(*arguments)


def bounds_off(**factors: float) -> Callable[..., separability.ProbabilityBounds]:
    """probability_bounds with some of its fields off by a factor."""

    def wrong(*arguments: Any) -> separability.ProbabilityBounds:
        found = separability.probability_bounds(*arguments)
        return found._replace(**{name: factor * getattr(found, name) for name, factor in factors.items()})

    return wrong


def other_dimension(weights: Any, radius: Any, dim: int) -> separability.ProbabilityBounds:
    return separability.probability_bounds(weights, radius, dim + 1)


def halved(*arguments: Any, **options: Any) -> separability.Separability:
    found = separability.separable_fraction(*arguments, **options)
    return found._replace(fraction=found.fraction / 2)


def closed_ball(*arguments: Any, **options: Any) -> separability.Separability:
    return separability.separable_fraction(*arguments, **{**options, "strict": False})


def open_ball(*arguments: Any, **options: Any) -> separability.Separability:
    return separability.separable_fraction(*arguments, **{**options, "strict": True})


def unmasked(*arguments: Any, strict: bool = True, visible: Any = None) -> separability.Separability:
    return separability.separable_fraction(*arguments, strict=strict)


def always_one(*arguments: Any, **options: Any) -> separability.Separability:
    found = separability.separable_fraction(*arguments, **options)
    return found._replace(fraction=torch.ones_like(found.fraction))


WRONG: list[tuple[str, str, Callable[..., Any]]] = [
    ("B8.1", "ordered", geometry.unordered_xi),
    ("B8.1", "ordered", geometry.literal_xi),
    ("B8.1", "ordered", times(0.999, separability.xi)),
    ("B8.1", "unordered", separability.xi),
    ("B8.1", "literal", geometry.unordered_xi),
    ("B8.1", "bound", lambda w, r, delta: separability.fraction_lower_bound(w, 2 * r, delta)),
    ("B8.1", "bound", lambda w, r, delta: separability.fraction_lower_bound(w, 1.05 * r, delta)),
    ("B8.1", "certain", lambda w, r, delta: separability.certain_fraction(w, 1.1 * r, delta)),
    ("B8.1", "certain", lambda w, r, delta: separability.certain_fraction(w, 0.9 * r, delta)),
    ("B8.2", "close", lambda delta: delta**2 / 2),
    ("B8.2", "close", lambda delta: 0.95 * delta**2 / 4),
    ("B8.2", "second_moment", lambda weights: geometry._others(weights).square()),
    ("B8.2", "second_moment", lambda weights: 1.001 * geometry._others(weights.square())),
    ("B9.1", "printed", lambda w, r, delta: separability.probability_bounds(w, r, 64).fraction_upper),
    ("B9.1", "printed", lambda w, r, delta: geometry.printed_upper(w, r, delta).sqrt()),
    ("B9.1", "corrected", bounds_off(upper=0.9)),
    ("B9.1", "corrected", bounds_off(lower=1.1)),
    ("B9.1", "corrected", bounds_off(fraction_upper=0.99)),
    ("B9.1", "corrected", bounds_off(fraction_lower=1.01)),
    ("B9.1", "corrected", other_dimension),
    ("B9.2", "printed", lambda w, r, delta: geometry.printed_upper(w, r, delta) ** 2),
    ("B10.1", "fraction", halved),
    ("B10.1", "fraction", always_one),
    ("B10.2", "fraction", halved),
    ("B10.2", "fraction", closed_ball),
    ("B10.2", "fraction", open_ball),
    ("B10.2", "fraction", unmasked),
    ("B10.2", "xi", lambda w, delta: geometry.unordered_xi(w, delta)),
]
