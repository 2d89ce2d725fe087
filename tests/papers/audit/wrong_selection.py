"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from undilute_papers.audit import selection
from undilute_papers.theory import distance


def times(factor: float, form: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: factor * form(*arguments)


def with_fields(**factors: float) -> Callable[..., distance.ExpectedDistance]:
    """expected_distance with some of its fields off by a factor."""

    def wrong(*arguments: Any) -> distance.ExpectedDistance:
        found = distance.expected_distance(*arguments)
        return replace(found, **{name: factor * getattr(found, name) for name, factor in factors.items()})

    return wrong


def field(name: str, factor: float) -> Callable[..., torch.Tensor]:
    return lambda *arguments: factor * getattr(distance.expected_distance(*arguments), name)


WRONG: list[tuple[str, str, Callable[..., Any]]] = [
    ("B3", "printed", distance.distance_bound),
    ("B3", "printed", times(1.1, selection.printed_bound)),
    ("B3", "corrected", selection.printed_bound),
    ("B3", "corrected", times(0.99, distance.distance_bound)),
    ("B3", "corrected", times(1.01, distance.distance_bound)),
    ("B4", "printed", selection.corrected_main),
    ("B4", "printed", times(1.01, selection.printed_main)),
    ("B4", "corrected", selection.printed_main),
    ("B4", "corrected", times(0.999, selection.corrected_main)),
    ("B4", "corrected", times(1.001, selection.corrected_main)),
    ("B4", "cap", lambda *a: (0.0, 0.99 * distance.corollary_range(*a)[1])),
    ("B4", "cap", lambda *a: (0.0, 1.01 * distance.corollary_range(*a)[1])),
    ("B5.1", "paper", field("epsilon_paper", 0.5)),
    ("B5.1", "paper", field("epsilon_paper", 1.01)),
    ("B5.1", "paper", field("epsilon_variance", 1.0)),
    ("B5.1", "variance_form", field("epsilon_variance", 0.5)),
    ("B5.1", "sqrt_form", field("epsilon_sqrt", 0.99)),
    ("B5.1", "sqrt_form", field("epsilon_variance", 1.0)),
    ("B5.1", "variances", field("variances", 1.01)),
    (
        "B5.1",
        "variances",
        lambda w, x, top: top / (w.shape[-1] - 1) * (w[..., None] * x).square().sum((-2, -1))[..., None],
    ),
    ("B5.2", "expected", with_fields(main=2.0)),
    ("B5.2", "expected", with_fields(epsilon_paper=0.1)),
    ("B5.2", "expected", with_fields(epsilon_variance=0.5)),
    ("B5.2", "expected", with_fields(epsilon_sqrt=2.0)),
    ("B6.1", "printed", times(0.5, selection.printed_sum)),
    ("B6.1", "printed", lambda w, x, top: (1 - top / w.shape[-1]) * (top + 1) * selection.printed_sum(w, x, top)),
    ("B6.1", "corrected", lambda *a: (1.1 * distance.corollary_range(*a)[0], distance.corollary_range(*a)[1])),
    ("B6.1", "corrected", lambda *a: (distance.corollary_range(*a)[0], 0.9 * distance.corollary_range(*a)[1])),
    ("B6.1", "orthonormal", times(1.01, distance.expected_orthonormal)),
    ("B6.1", "aligned", distance.expected_one_hot),
    ("B6.1", "one_hot", distance.expected_aligned),
    ("B6.2", "predicted", selection.printed_main),
    ("B6.2", "misprinted", selection.corrected_main),
    ("B6.2", "corrected", selection.printed_main),
    ("B6.3", "expected", with_fields(main=1.01)),
    ("B6.3", "expected", lambda w, x, top: distance.expected_distance(w, x, max(top - 1, 0))),
    ("B7", "measured", lambda w, x, chosen: distance.selection_distance(w, x, chosen) / (~chosen).sum(-1).clamp(min=1)),
    ("B7", "measured", times(3.0, distance.selection_distance)),
    ("B7", "bound", times(0.9, distance.top_distance_bound)),
    ("B14.1", "printed", lambda L: L**0.9),
    ("B14.2", "critical", lambda size, level: 0.7 * selection.critical_distance(size, level)),
    ("B14.2", "misprinted", selection.corrected_main),
]
