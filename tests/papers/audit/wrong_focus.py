"""Wrong formulas that the checks of this part of the audit must notice: (id, form, wrong)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from undilute.rules import get
from undilute.theory import focus, jacobian
from undilute_papers.audit.properties import properties


def times(factor: float, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: factor * function(*arguments)


def with_another(name: str, rule: str) -> Callable[..., Any]:
    """The measured properties, with one rule in another's place."""
    return lambda rules: properties({**rules, name: get(rule)}, lengths=(60, 240), tries=1)


_BY_ID: dict[str, list[tuple[str, Callable[..., Any]]]] = {
    "U5": [
        ("scale", times(0.999, focus.fitting_scale)),
        ("border", times(0.999, focus.tie_lead)),
        ("weights", lambda z, K, alpha: focus.fitted_weights(z, K, 2.0)),
        ("floor", lambda k, n, power=0.0: 1.01 / k + 0 * n),
    ],
    "U6": [
        ("constant", times(0.95, focus.steepest)),
        ("reached", focus.steepness),
        ("norm", lambda p, alpha: jacobian.entmax_spectral_norm(p, alpha)),
    ],
    "U7": [
        ("needed", times(1.01, focus.distance_needed)),
        ("needed", lambda K, n, lipschitz: (1 / K) ** 0.5 / lipschitz),
        ("leaves", lambda m, n, alpha, s_max: focus.tie_exit(1, n, alpha, s_max)),
    ],
    "U8": [
        ("measure", with_another("focus", "entmax15")),
        ("measure", with_another("entmax15, T = 1/16", "focus")),
    ],
}
WRONG = [(id, form, wrong) for id, table in _BY_ID.items() for form, wrong in table]
