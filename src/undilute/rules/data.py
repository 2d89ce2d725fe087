"""How is a rule kept in a file?  As plain data: the kind of its scale and map, and their parameters.

    {"scale": {"kind": "LogLength", "s": [0.3, 0.4], "b": 0.0, "floor": 1.0}, "map": {"kind": "Softmax"}}

A kind is the name of a class; its parameters are those of the class's constructor, read off the attributes of the same
name. So a rule of one's own is data too, if it keeps what it was made of. A learned scale or map becomes the constant
one with the values it has learned: ``LearnableLogLength`` is written as ``LogLength``.

Tensors become lists, and lists become float32 tensors where a constructor takes tensors. Reading never imports
anything: a kind must be a class that is already loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from undilute.errors import InvalidValue, UnknownName
from undilute.rules.base import Map, Rule, Scale, forward_of
from undilute.rules.parameters import shown

KIND = "kind"
PARTS: dict[str, type[Scale] | type[Map]] = {"scale": Scale, "map": Map}
BEHAVIOUR = ("forward", "at_length", "at_entropy", "on")  # what a class must not have changed to be written as another
MISSING = object()


def to_data(rule: Rule) -> dict[str, Any]:
    """The rule as data for JSON.

    Parameters
    ----------
    rule : Rule; its constructor's parameters must be numbers, texts, tensors, None, or lists of these

    Returns
    -------
    {"scale": {"kind": …, parameters}, "map": {"kind": …, parameters}}

    Examples
    --------
    >>> import undilute as ud
    >>> ud.rules.to_data(ud.rules.get("top-k", k=2))
    {'scale': {'kind': 'Temperature', 'T': 1.0}, 'map': {'kind': 'TopK', 'k': 2, 'fraction': None}}
    """
    if not isinstance(rule, Rule):
        raise InvalidValue(
            f"rule = {rule!r}: must be a Rule; undilute.rules.get makes one from a name, a Scale or a Map."
        )
    if forward_of(rule) is not Rule:
        raise InvalidValue(
            f"{type(rule).__name__} cannot be written as data: its weights are more than its scale and its map."
        )
    return {"scale": _part_to_data(rule.scale, Scale), "map": _part_to_data(rule.map, Map)}


def from_data(data: Mapping[str, Any]) -> Rule:
    """The rule that ``to_data`` wrote.

    Parameters
    ----------
    data : with "scale", "map" or both; what is left out, of the rule or of its parameters, has its default

    Examples
    --------
    >>> import undilute as ud
    >>> ud.rules.from_data({"scale": {"kind": "LogLength", "s": [0.3, 0.4], "floor": 1.0}})
    Rule(
      (scale): LogLength(s=<2 values>, b=0, floor=1)
      (map): Softmax()
    )
    """
    if not isinstance(data, Mapping) or not data or not set(data) <= set(PARTS):
        held = sorted(map(str, data)) if isinstance(data, Mapping) else shown(data)
        raise InvalidValue(f"rule data hold {held}: must be 'scale', 'map' or both.")
    return Rule(**{name: _part_from_data(name, part) for name, part in data.items()})


def _part_to_data(part: Scale | Map, base: type[Scale] | type[Map]) -> dict[str, Any]:
    cls = _written_as(part, base)
    if _classes(base).get(cls.__name__) is not cls:
        raise InvalidValue(
            f"{cls.__name__} of {cls.__module__} cannot be written as data: another {base.__name__} has the same name."
        )
    return {KIND: cls.__name__} | {name: _plain(cls, name, _attribute(part, name)) for name in _parameters(cls)}


def _written_as(part: Scale | Map, base: type[Scale] | type[Map]) -> type:
    """The first class, from the part's own up, that could make a part like it from the part's attributes."""
    own = type(part)
    for cls in own.__mro__[: own.__mro__.index(base)]:
        alike = all(getattr(own, name, None) is getattr(cls, name, None) for name in BEHAVIOUR)
        names = _parameters(cls)
        if alike and KIND not in names and all(_attribute(part, name) is not MISSING for name in names):
            return cls
    lost = [name for name in _parameters(own) if name == KIND or _attribute(part, name) is MISSING]
    raise InvalidValue(
        f"{own.__name__} cannot be written as data: it does not show its {', '.join(lost)}. A parameter must be an "
        f"attribute of the same name, other than {KIND!r}; what reads the layer's input is more than its parameters."
    )


def _attribute(part: Scale | Map, name: str) -> Any:
    """The part's attribute; None if its class declares it and the part has none, as with an optional parameter."""
    declared = any(name in inspect.get_annotations(cls) for cls in type(part).__mro__)
    return getattr(part, name, None if declared else MISSING)


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    """What the constructor takes."""
    inherited = cls.__init__ is nn.Module.__init__  # type: ignore[misc]
    return {} if inherited else inspect.signature(cls).parameters


def _plain(cls: type, name: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor() if hasattr(value, "full_tensor"):
            raise InvalidValue(
                f"{cls.__name__}.{name} is split over several processes, so none of them can write it: gather it with "
                "full_tensor() first."
            )
        case Tensor():
            return value.detach().tolist()
        case list() | tuple():
            return [_plain(cls, name, each) for each in value]
    raise InvalidValue(
        f"{cls.__name__}.{name} = {value!r} of type {type(value).__name__} cannot be written as data: "
        f"must be a number, a text, a tensor, None, or a list of these."
    )


def _part_from_data(name: str, data: Any) -> Any:
    if not isinstance(data, Mapping) or not isinstance(kind := data.get(KIND), str):
        raise InvalidValue(f"{name} = {shown(data)}: must be data with a {KIND!r}, such as {{'{KIND}': 'Softmax'}}.")
    known = _classes(PARTS[name])
    if kind not in known:
        raise UnknownName(name, kind, known)
    cls, given = known[kind], {key: value for key, value in data.items() if key != KIND}
    _check_names(cls, given)
    try:
        return cls(**{key: received(cls, key, value) for key, value in given.items()})
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # torch's go on for many lines
        raise InvalidValue(f"{name} of kind {kind!r}: {str(error).splitlines()[0]}") from None


def _check_names(cls: type, given: Mapping[str, Any]) -> None:
    """Refuse parameters that the constructor does not take, and the lack of those it needs."""
    takes = _parameters(cls)
    if unknown := sorted(set(map(str, given)) - set(takes)):
        raise InvalidValue(
            f"{cls.__name__} has no parameter {', '.join(unknown)}: it takes {', '.join(takes) or 'none'}."
        )
    needed = [name for name, parameter in takes.items() if parameter.default is inspect.Parameter.empty]
    if missing := [name for name in needed if name not in given]:
        raise InvalidValue(f"{cls.__name__} lacks its parameter {', '.join(missing)}: it takes {', '.join(takes)}.")


def received(make: Callable[..., Any], name: str, value: Any) -> Any:
    """A list as a constructor or factory wants it: a list if its annotation says so, else a tensor."""
    if not isinstance(value, list) or _takes_lists(make, name):
        return value
    try:
        if not all(map(_is_number, _flat(value))):
            raise TypeError
        tensor = torch.tensor(value, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RecursionError is a RuntimeError
        raise InvalidValue(f"{name} = {shown(value)}: must be numbers, in lists of equal length.") from None
    if tensor.numel() == 0:
        raise InvalidValue(f"{name} = {shown(value)}: must hold at least one number.")
    return tensor


def _flat(value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        yield value
        return
    for each in value:
        yield from _flat(each)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _takes_lists(make: Callable[..., Any], name: str) -> bool:
    try:
        hint = get_type_hints(make.__init__ if isinstance(make, type) else make).get(name)  # type: ignore[misc]
    except NameError:  # an annotation that means something only where the class was defined
        return False
    options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    kinds = [get_origin(option) or option for option in options]
    return any(isinstance(kind, type) and issubclass(kind, Sequence) and kind is not str for kind in kinds)


def _classes(base: type) -> dict[str, type]:
    """Every class of scales or of maps by name: Undilute's own, then of equal names the one defined last."""
    found = [cls for cls in _subclasses(base) if not inspect.isabstract(cls)]
    own = [cls for cls in found if cls.__module__.startswith("undilute.")]
    return {cls.__name__: cls for cls in found + own}


def _subclasses(base: type[Any]) -> Iterator[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)
