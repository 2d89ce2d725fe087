"""How loud is a head?  A factor on its output, before the output projection:  "gain:0.5@layers.3.heads.1".

    undilute.apply(model, ["ssmax", Gains({"layers.3.heads.1": 0.5, "layers.4.*": 1.2})])

A gain of 0 mutes a head. The rule of a head stays what it is, and so do its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undilute.errors import InvalidValue
from undilute.models.question_rows import check_rows
from undilute.rules.base import Rule
from undilute.rules.parameters import number, shown
from undilute.treatment.apply import kind
from undilute.treatment.kinds.rules import Rules, Treated
from undilute.treatment.layers import Head, Layer, by_layer, first_calls, layers_of, matched
from undilute.treatment.plan import Assignment, Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHORT = "gain:"


@dataclass(frozen=True)
class Gains:
    """A factor on the output of some heads.

    Attributes
    ----------
    given : {pattern: factor}, patterns as :func:`undilute.apply` takes them; a later one wins
    rows : "all", or "question" (:class:`undilute.treatment.Plan`)

    Examples
    --------
    >>> Gains({"layers.3.heads.1": 0.5, "layers.4.*": 1.2}).label
    'gain 0.5 for layers.3.heads.1, 1.2 for layers.4.*'
    """

    given: Mapping[str, float]
    rows: str = "all"

    def __post_init__(self) -> None:
        if not isinstance(self.given, Mapping) or not self.given:
            raise InvalidValue(f"gains = {shown(self.given)}: must be {{pattern: factor}} with at least one pattern.")
        for pattern, factor in self.given.items():
            number(f"gain of {shown(pattern)}", factor)
        check_rows(self.rows)

    @property
    def label(self) -> str:
        patterns: dict[float, list[str]] = {}
        for pattern, factor in self.given.items():
            patterns.setdefault(float(factor), []).append(str(pattern))
        said = [
            f"{factor:g}" if own == ["*"] else f"{factor:g} for {', '.join(own)}" for factor, own in patterns.items()
        ]
        return f"gain {', '.join(said)}"

    def plan(self, architecture: str, layers: Sequence[Layer]) -> Plan:
        """The gains as a plan for a model with these layers."""
        chosen: dict[Head, float] = {}
        for pattern, factor in self.given.items():
            chosen |= dict.fromkeys(matched(pattern, layers), float(factor))
        assignments = [
            Assignment(layer, tuple(heads), Rule(), tuple(chosen[layer, head] for head in heads))
            for layer, heads in by_layer(chosen).items()
        ]
        return Plan(architecture, layers, assignments, {"rule": self.label}, self.rows)

    def enter(self, model: PreTrainedModel, learn: Sequence[str] = ()) -> Treated:
        """As :func:`undilute.apply` does it."""
        plan = self.plan(type(model).__name__, layers_of(first_calls(model)))
        return Rules(plan, self.label).enter(model, learn)


@kind("gains")
def read(given: Any) -> Gains | None:
    """ "gain:0.5" for every head, "gain:0.5@layers.3.heads.1" for some"""
    if not isinstance(given, str) or not given.startswith(SHORT):
        return None
    factor, at, pattern = given.removeprefix(SHORT).partition("@")
    try:
        return Gains({pattern if at else "*": float(factor)})
    except ValueError:
        raise InvalidValue(
            f"treatment = {given!r}: must be a number and heads, such as 'gain:0.5@layers.3.heads.1'."
        ) from None
