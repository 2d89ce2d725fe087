"""What is learned?  One θ for each quantity of each head, where θ = 0 is the head as it was.

| rule | quantity | factor on the head's logits |
|---|---|---|
| ``temperature`` | ``beta`` | exp(θ) |
| ``ssmax`` | ``s``, ``b`` | exp(θ_b) + θ_s·log(n / n₀), so s = θ_s and b = exp(θ_b) − θ_s·log n₀ |
| ``llama4`` | ``beta`` | 1 + θ·log(1 + ⌊n / L₀⌋), one θ for all heads: engines have one such curve |
| any | ``gain`` | (on the head's output) exp(θ) |

n₀ is the length that is learned at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models.head_rules import ATTRIBUTE
from undilute.models.passes import module_of
from undilute.rules import registry
from undilute.rules.base import Rule, Scale
from undilute.rules.maps.softmax import Softmax
from undilute.rules.scales.llama4 import Llama4
from undilute.rules.scales.log_length import LogLength
from undilute.rules.scales.temperature import Temperature
from undilute.treatment.layers import Head, Layer, by_layer
from undilute.treatment.plan import Assignment, Plan

GAIN = "gain"
Of = Callable[[Mapping[str, Tensor], float], dict[str, Tensor]]


@dataclass(frozen=True)
class Form:
    """What can be learned of a rule.

    Attributes
    ----------
    quantities : their names
    shared : whether all heads have the same
    of : (θ by quantity, log n₀) → the rule's parameters
    """

    quantities: tuple[str, ...]
    shared: bool
    of: Of


def _temperature(theta: Mapping[str, Tensor], anchor: float) -> dict[str, Tensor]:
    return {"T": (-theta["beta"]).exp()}


def _ssmax(theta: Mapping[str, Tensor], anchor: float) -> dict[str, Tensor]:
    return {"s": theta["s"], "b": theta["b"].exp() - theta["s"] * anchor}


def _llama4(theta: Mapping[str, Tensor], anchor: float) -> dict[str, Tensor]:
    return {"beta": theta["beta"]}


FORMS: dict[type[Scale], Form] = {
    Temperature: Form(("beta",), False, _temperature),
    LogLength: Form(("s", "b"), False, _ssmax),
    Llama4: Form(("beta",), True, _llama4),
}


class Knobs:
    """The θ of a model's heads.

    Parameters
    ----------
    layers : of the model
    heads : that learn
    rule : "temperature", "ssmax" or "llama4(floor_length=…)"
    learn : names of quantities; those of the rule that are not named stay where they are
    length : n₀

    Attributes
    ----------
    size : how many θ there are
    names : of the rule's own parameters that learn, for ``undilute.apply``
    """

    def __init__(
        self, layers: Sequence[Layer], heads: Sequence[Head], rule: str, learn: Sequence[str], length: int
    ) -> None:
        self.layers, self.heads, self.given = layers, sorted(heads), rule
        self.rule = registry.get(rule)
        self.form = self._form(rule, learn)
        self.learn, self.anchor = tuple(learn), math.log(length)
        own = [name for name in learn if name != GAIN]
        self.has_rule, self.has_gain = bool(own), GAIN in learn
        counts = {name: 1 if self.form.shared and name != GAIN else len(self.heads) for name in learn}
        self._parts = dict(zip(counts, _slices(list(counts.values())), strict=True))
        self.size = sum(counts.values())
        zeros = {name: torch.zeros(1) for name in self.form.quantities}
        self.names = (*(self.form.of(zeros, self.anchor) if own else ()), *([GAIN] if self.has_gain else []))

    def _form(self, rule: str, learn: Sequence[str]) -> Form:
        form = FORMS.get(type(self.rule.scale))
        if form is None or type(self.rule.map) is not Softmax:
            raise InvalidValue(f"rule = {rule!r}: must be temperature, ssmax or llama4, whose parameters can be tuned.")
        if isinstance(learn, str) or not learn or not set(learn) <= {*form.quantities, GAIN}:
            raise InvalidValue(
                f"learn = {learn!r}: must be some of {', '.join(map(repr, (*form.quantities, GAIN)))} for {rule}."
            )
        if not self.heads:
            raise InvalidValue("heads is empty: must hold at least one head that learns.")
        plain = registry.get(rule.partition("(")[0]).scale
        for name in form.of({each: torch.zeros(1) for each in form.quantities}, 0.0):
            if getattr(self.rule.scale, name) != getattr(plain, name):
                raise InvalidValue(f"rule = {rule!r}: {name} is learned from where the model is; leave it out.")
        return form

    def quantities(self, theta: Tensor) -> dict[str, Tensor]:
        """Quantity → θ of each head, (heads,)."""
        return {name: theta[part].expand(len(self.heads)) for name, part in self._parts.items()}

    def distance(self, theta: Tensor) -> Tensor:
        """How far the heads are from as they were: the sum over quantities of the mean θ²."""
        return torch.stack([each.square().mean() for each in self.quantities(theta).values()]).sum()

    def values(self, theta: Tensor) -> dict[str, Tensor]:
        """The model's parameter → its value, for a model under :meth:`start` with ``learn=names``."""
        found: dict[str, Tensor] = {}
        for layer, places in self._places().items():
            inside = f"{module_of(self.layers[layer].name)}.{ATTRIBUTE}"
            held, gains = self._held(theta, places)
            found |= {f"{inside}.rules.0.scale.{name}": value for name, value in held.items()}
            if gains is not None:
                found[f"{inside}.learned_gains"] = gains
        return found

    def start(self, architecture: str, rows: str = "all") -> Plan:
        """A plan that changes nothing yet."""
        return self.plan(torch.zeros(self.size), architecture, {}, rows)

    def plan(self, theta: Tensor, architecture: str, made: Mapping[str, Any], rows: str) -> Plan:
        """The plan that these θ (parameters,) make."""
        assignments = []
        for layer, places in self._places().items():
            held, gains = self._held(theta.double(), places)
            kept = [self.heads[place][1] for place in places]
            numbers = None if gains is None else tuple(gains.tolist())
            assignments.append(Assignment(layer, tuple(kept), self._with(held), numbers))
        return Plan(architecture, self.layers, assignments, made, rows)

    def _held(self, theta: Tensor, places: Sequence[int]) -> tuple[dict[str, Tensor], Tensor | None]:
        """The rule's parameters and the gains of some heads."""
        of = {name: each[list(places)] for name, each in self.quantities(theta).items()}
        own = {name: of.get(name, torch.zeros(len(places), dtype=theta.dtype)) for name in self.form.quantities}
        held = self.form.of(own, self.anchor) if self.has_rule else {}
        return held, of[GAIN].exp() if self.has_gain else None

    def _with(self, held: Mapping[str, Tensor]) -> Rule:
        if not held:
            return Rule()
        scale = self.rule.scale
        fixed = {name: getattr(scale, name) for name in scale.held if name not in held}
        return Rule(scale=type(scale)(**{name: each.clone() for name, each in held.items()}, **fixed))

    def _places(self) -> dict[int, list[int]]:
        """Layer → places of its heads among all that learn."""
        at = {head: place for place, head in enumerate(self.heads)}
        return {layer: [at[layer, head] for head in own] for layer, own in by_layer(self.heads).items()}


def _slices(sizes: Sequence[int]) -> list[slice]:
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]
