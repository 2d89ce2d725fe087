"""Rules by name: what ``rule="ssmax"`` means, and how a user adds a name.

    @undilute.rules.register("squared-relu", formula="relu(z)² / Σ relu(z)²")
    class SquaredReLU(undilute.rules.Map): ...

The decorated thing is a Map, a Scale or a function returning a Rule; called with no arguments it must give the
preset's default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from undilute.errors import InvalidValue, UnknownName
from undilute.rules.base import Map, Rule, Scale

Factory = Callable[..., Rule | Map | Scale]
LearnableFactory = Callable[[int, int], Rule | Map | Scale]
F = TypeVar("F", bound=Factory)


@dataclass(frozen=True)
class Preset:
    """A named rule: how to make it, and what a reader wants to know about it."""

    name: str
    factory: Factory
    formula: str
    paper: str
    learnable: LearnableFactory | None


_presets: dict[str, Preset] = {}
_listeners: list[Callable[[str], None]] = []


def register(
    name: str, *, formula: str = "", paper: str = "", learnable: LearnableFactory | None = None
) -> Callable[[F], F]:
    """Decorator: make ``rule=name`` work everywhere.

    Parameters
    ----------
    name : what users type
    formula : one line for ``undilute rules``
    paper : where it comes from
    learnable : ``(embed_dim, num_heads) → rule``, the trainable form that ``undilute.nn.Attention`` uses for this name
    """

    def add(factory: F) -> F:
        if name in _presets and _presets[name].factory is not factory:
            raise InvalidValue(f"rule name {name!r} is taken: choose another, or unregister({name!r}) first.")
        is_new = name not in _presets
        _presets[name] = Preset(name, factory, formula, paper, learnable)
        if is_new:
            for listener in _listeners:
                listener(name)
        return factory

    return add


def on_register(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with every name there is, and with every name that is registered from now on.

    Examples
    --------
    >>> from undilute import rules
    >>> heard = []
    >>> rules.on_register(heard.append)
    >>> heard == rules.names()
    True
    """
    _listeners.append(listener)
    for name in names():
        listener(name)


def unregister(name: str) -> None:
    """Take a name out of the registry."""
    preset(name)
    del _presets[name]


def names() -> list[str]:
    """Every registered name, in the order of registration."""
    return list(_presets)


def preset(name: str) -> Preset:
    """The registry's entry for ``name``."""
    if name not in _presets:
        raise UnknownName("rule", name, _presets)
    return _presets[name]


def get(rule: str | Rule | Map | Scale, **parameters: Any) -> Rule:
    """The rule behind a name, with the preset's parameters changed if given.

    Examples
    --------
    >>> import undilute as ud
    >>> ud.rules.get("top-k", k=2)
    Rule(
      (scale): Temperature(T=1)
      (map): TopK(k=2)
    )
    """
    if not isinstance(rule, str):
        if parameters:
            raise InvalidValue(f"parameters {sorted(parameters)} go with a rule's name, not with a rule object.")
        return as_rule(rule)
    factory = preset(rule).factory
    try:
        inspect.signature(factory).bind(**parameters)
    except TypeError:
        takes = ", ".join(inspect.signature(factory).parameters) or "none"
        raise InvalidValue(f"rule {rule!r} got parameters {sorted(parameters)}: it takes {takes}.") from None
    return as_rule(factory(**parameters))


def learnable(name: str, embed_dim: int, num_heads: int) -> Rule:
    """The trainable form of a preset: one set of learned parameters per head where the papers learn them."""
    make = preset(name).learnable
    return get(name) if make is None else as_rule(make(embed_dim, num_heads))


def as_rule(thing: object) -> Rule:
    """A Rule from a Rule, a Map or a Scale."""
    match thing:
        case Rule():
            return thing
        case Map():
            return Rule(map=thing)
        case Scale():
            return Rule(scale=thing)
    raise InvalidValue(
        f"rule = {thing!r} of type {type(thing).__name__}: must be a rule's name, a Rule, a Map or a Scale."
    )
