"""Rules by name: what ``rule="ssmax"`` and ``rule="ssmax(s=0.4)"`` mean, and how a user adds a name.

    @undilute.rules.register("squared-relu", formula="relu(z)² / Σ relu(z)²")
    class SquaredReLU(undilute.rules.Map): ...

The decorated thing is a Map, a Scale or a function returning a Rule; called with no arguments it must give the
preset's default.

A package brings rules by entry points of the group ``undilute.rules``: a module, which registers them when it is
imported, or a factory, which is registered under the entry point's name. They are loaded when all names are asked for,
or one that is not known yet.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from undilute import plugins
from undilute.errors import InvalidValue, UndiluteError, UnknownName
from undilute.rules.base import Map, Rule, Scale, forward_of
from undilute.rules.data import received
from undilute.rules.expression import Call, parse
from undilute.rules.parameters import shown

GROUP = "undilute.rules"

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
_plugins: list[EntryPoint] | None = None  # those that were looked at; None if nobody has asked yet
_looking = threading.RLock()


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
    """Call ``listener`` with every registered name, and with every name that is registered from now on.

    Examples
    --------
    >>> from undilute import rules
    >>> heard = []
    >>> rules.on_register(heard.append)
    >>> heard == rules.names()
    True
    """
    known = names()
    _listeners.append(listener)
    for name in known:
        listener(name)


def unregister(name: str) -> None:
    """Take a name out of the registry."""
    if name not in _known():
        raise UnknownName("rule", name, _presets)
    del _presets[name]


def names() -> list[str]:
    """Every registered name, in the order of registration; those of installed packages come after Undilute's own."""
    return list(_known())


def preset(rule: str) -> Preset:
    """The registry's entry for a name; for an expression such as ``"ssmax(s=0.4)"`` one that has these parameters."""
    if rule in _presets:
        return _presets[rule]
    calls = parse(rule)
    if len(calls) > 2:
        raise InvalidValue(f"rule {shown(rule)} joins {len(calls)} rules: must be a scale and a map, {JOINED}.")
    parts = [_called(rule, call) for call in calls]
    return parts[0] if len(parts) == 1 else _joined(rule, *parts)


def get(rule: str | Rule | Map | Scale, **parameters: Any) -> Rule:
    """The rule behind a name or an expression, with the preset's parameters changed if given.

    Examples
    --------
    >>> import undilute as ud
    >>> ud.rules.get("top-k", k=2)
    Rule(
      (scale): Temperature(T=1)
      (map): TopK(k=2)
    )
    >>> ud.rules.get("ssmax(s=0.4) | top-k(k=2)")
    Rule(
      (scale): LogLength(s=0.4, b=0)
      (map): TopK(k=2)
    )
    """
    if not isinstance(rule, str):
        if parameters:
            raise InvalidValue(f"parameters {sorted(parameters)} go with a rule's name, not with a rule object.")
        return as_rule(rule)
    factory = preset(rule).factory
    _bound(rule, factory, (), parameters)
    return as_rule(factory(**parameters))


def learnable(rule: str, embed_dim: int, num_heads: int) -> Rule:
    """The trainable form of a preset: one set of learned parameters per head where the papers learn them.

    A rule with given parameters, as in ``"ssmax(s=0.4)"``, keeps them and learns nothing.
    """
    make = preset(rule).learnable
    return get(rule) if make is None else as_rule(make(embed_dim, num_heads))


def parameters_of(factory: Factory) -> inspect.Signature:
    """What a factory takes; nothing, if it is a class without a constructor."""
    is_bare = isinstance(factory, type) and factory.__init__ is nn.Module.__init__  # type: ignore[misc]
    return inspect.Signature() if is_bare else inspect.signature(factory)


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


# ---------------------------------------------------------------- expressions

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
JOINED = "as in 'ssmax(s=0.4) | entmax15'"


def _called(text: str, call: Call) -> Preset:
    """A preset with the parameters of a call, which are tried out."""
    if call.name not in _presets and call.name not in _known():
        raise UnknownName("rule", call.name, _presets)
    known = _presets[call.name]
    if not call.values and not call.named:
        return known
    bound = _bound(call.name, known.factory, call.values, call.named)
    for name, value in bound.arguments.items():
        if isinstance(value, tuple):
            bound.arguments[name] = received(known.factory, name, _as_list(value))
    by_name = all(each.kind in BY_NAME for each in bound.signature.parameters.values())
    arguments = ((), bound.arguments) if by_name else (bound.args, bound.kwargs)
    factory = partial(known.factory, *arguments[0], **arguments[1])
    try:
        as_rule(factory())
    except UndiluteError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError, LookupError) as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise InvalidValue(f"rule {shown(text)}: {said[0]}") from error
    return replace(known, name=call.text, factory=factory, learnable=None)


def _bound(name: str, factory: Factory, values: Sequence[Any], named: Mapping[str, Any]) -> inspect.BoundArguments:
    """Parameters by name; an error that says which there are, if these do not fit."""
    signature = parameters_of(factory)
    try:
        return signature.bind(*values, **named)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        if values:
            raise InvalidValue(f"rule {name!r} got parameters that do not fit ({error}): it takes {takes}.") from None
        raise InvalidValue(f"rule {name!r} got parameters {sorted(named)}: it takes {takes}.") from None


def _as_list(value: Any) -> Any:
    return [_as_list(each) for each in value] if isinstance(value, tuple) else value


def _joined(text: str, first: Preset, second: Preset) -> Preset:
    """The scale of one preset with the map of another, if each of them has no more than that."""
    from undilute.rules.maps.softmax import Softmax
    from undilute.rules.scales.temperature import Temperature

    scaled, mapped = as_rule(first.factory()), as_rule(second.factory())
    if forward_of(scaled.map) is not Softmax or forward_of(scaled) is not Rule:
        raise InvalidValue(f"rule {shown(text)}: {first.name} has its own map; join a scale and a map, {JOINED}.")
    factor = mapped.scale.T if type(mapped.scale) is Temperature and forward_of(mapped) is Rule else None
    if not isinstance(factor, float) or factor != 1.0:
        raise InvalidValue(f"rule {shown(text)}: {second.name} has its own scale; join a scale and a map, {JOINED}.")

    def trained(embed_dim: int, num_heads: int) -> Rule:
        make = [each.learnable or (lambda *_, each=each: each.factory()) for each in (first, second)]
        scale, map = (as_rule(each(embed_dim, num_heads)) for each in make)
        return Rule(scale.scale, map.map)

    return Preset(
        name=text.strip(),
        factory=lambda: Rule(as_rule(first.factory()).scale, as_rule(second.factory()).map),
        formula=f"{first.formula} | {second.formula}",
        paper=", ".join(dict.fromkeys(filter(None, (first.paper, second.paper)))),
        learnable=trained,
    )


# ---------------------------------------------------------------- installed packages


def _known() -> dict[str, Preset]:
    """Every preset, those of installed packages included; a package that is broken is a warning."""
    global _plugins
    with _looking:
        if _plugins is None:
            _plugins = []  # a package that asks for names itself, while it is loaded, gets those that there are
            _plugins = plugins.points(GROUP)
            for point in _plugins:
                _add(point)
    return _presets


def _add(point: EntryPoint) -> None:
    """Register what an entry point brings; what makes no rule is taken out again."""
    before = set(_presets)
    try:
        thing = point.load()
        if not isinstance(thing, ModuleType) and getattr(_presets.get(point.name), "factory", None) is not thing:
            register(point.name)(thing)
    except (Exception, SystemExit) as error:
        warnings.warn(str(plugins.broken(point, error)), stacklevel=2)
    for name in [name for name in _presets if name not in before]:
        try:
            as_rule(_presets[name].factory())
        except Exception as error:
            del _presets[name]
            warnings.warn(str(plugins.broken(point, error)), stacklevel=2)
