"""How is a rule written as text?  As what can be typed: ``get(text(rule))`` is the same rule."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from undilute.errors import InvalidValue
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.data import to_data
from undilute.rules.expression import literal
from undilute.rules.registry import Factory, as_rule, get, names, parameters_of, preset


def text(rule: str | Rule | Map | Scale) -> str:
    """The shortest expression that means ``rule``: a preset with what is not its default, or two that are joined.

    What was learned becomes a constant, as in a plan, and tensors are float32.

    Examples
    --------
    >>> import undilute as ud
    >>> ud.rules.text(ud.rules.get("llama4", beta=0.331, floor_length=1025))
    'llama4(beta=0.331, floor_length=1025)'
    >>> ud.rules.text(ud.rules.Rule(ud.rules.LogLength(0.4), ud.rules.Entmax(1.5)))
    'ssmax(s=0.4) | entmax15'
    """
    data, plain = to_data(get(rule)), to_data(Rule())
    if (whole := _as_preset(data)) is not None:
        return whole
    parts = [_as_preset(plain | {part: data[part]}) for part in ("scale", "map")]
    if None in parts:
        kinds = " and ".join(part["kind"] for part in data.values())
        raise InvalidValue(f"a rule of {kinds} cannot be written as text: no preset makes it; keep it in a plan.")
    return " | ".join(map(str, parts))


def _as_preset(data: dict[str, Any]) -> str | None:
    """The expression with the fewest parameters that makes a rule with these data; None if no preset does."""
    found = [(len(given), name, given) for name in names() if (given := _parameters(name, data)) is not None]
    if not found:
        return None
    _, name, given = min(found, key=lambda each: each[0])
    return _written(name, given)


def _parameters(name: str, data: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters that make the preset a rule with these data; None if there are none."""
    default = _default(preset(name).factory)
    if default is None or any(default[part]["kind"] != data[part]["kind"] for part in data):
        return None
    own, usual = ({**each["map"], **each["scale"]} for each in (data, default))
    takes = parameters_of(preset(name).factory).parameters
    given = {each: own[each] for each in takes if each in own and own[each] != usual[each]}
    if _data(_written(name, given)) != data:
        return None
    for each in list(given):  # such as k = None, where a fraction is given
        fewer = {key: value for key, value in given.items() if key != each}
        given = fewer if _data(_written(name, fewer)) == data else given
    return given


def _written(name: str, given: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={literal(value)}' for key, value in given.items())})" if given else name


@lru_cache(maxsize=256)
def _default(factory: Factory) -> dict[str, Any] | None:
    try:
        return to_data(as_rule(factory()))
    except InvalidValue:  # more than a scale and a map
        return None


def _data(expression: str) -> dict[str, Any] | None:
    try:
        return to_data(get(expression))
    except InvalidValue:
        return None
