"""Which heads does a pattern mean?

``"layers.12.*"`` is every head of layer 12, ``"layers.*.heads.3"`` head 3 of every layer, ``"*"`` all of them. Layers
are counted from 0 in the order in which they run; the model's own names do as well: ``"transformer.h.12.attn"``.
Patterns are those of a shell: ``*``, ``?`` and ``[…]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from undilute.errors import InvalidValue

Head = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """An attention layer: its name in the model, and how many query heads it has."""

    name: str
    heads: int


def matched(pattern: str, layers: Sequence[Layer]) -> list[Head]:
    """(layer, head) of every head that the pattern means, in order; an error if there is none.

    Examples
    --------
    >>> layers = [Layer(f"model.layers.{index}.self_attn", 2) for index in range(3)]
    >>> matched("layers.1.*", layers), matched("layers.*.heads.0", layers)
    ([(1, 0), (1, 1)], [(0, 0), (1, 0), (2, 0)])
    >>> matched("model.layers.2.self_attn", layers)
    [(2, 0), (2, 1)]
    """
    if not isinstance(pattern, str):
        raise InvalidValue(f"pattern {pattern!r}: must be text such as 'layers.12.*' or 'layers.*.heads.3'.")
    found = [
        (index, head)
        for index, layer in enumerate(layers)
        for head in range(layer.heads)
        if any(fnmatchcase(name, pattern) for name in _names(index, head, layer))
    ]
    if not found:
        raise InvalidValue(f"no head matches {pattern!r}: {described(layers)}.")
    return found


def heads_of(chosen: str | Iterable[Any], layers: Sequence[Layer]) -> list[Head]:
    """(layer, head) of heads given as a pattern, or as patterns, pairs or heads of a diagnosis; each once, in order.

    Examples
    --------
    >>> heads_of([(0, 1), "layers.2.*"], [Layer(f"layers.{index}", 2) for index in range(3)])
    [(0, 1), (2, 0), (2, 1)]
    """
    if isinstance(chosen, str):
        return matched(chosen, layers)
    found: set[Head] = set()
    for each in chosen:
        found.update(matched(each, layers) if isinstance(each, str) else [_pair(each, layers)])
    return sorted(found)


def described(layers: Sequence[Layer]) -> str:
    """The layers and heads there are, in a few words.

    Examples
    --------
    >>> described([Layer("model.layers.0.self_attn", 9), Layer("model.layers.1.self_attn", 9)])
    "there are layers.0 to layers.1 ('model.layers.0.self_attn', …), with heads.0 to heads.8"
    """
    most = max(layer.heads for layer in layers)
    return f"there are layers.0 to layers.{len(layers) - 1} ({layers[0].name!r}, …), with heads.0 to heads.{most - 1}"


def by_layer(heads: Mapping[Head, Any] | Iterable[Head]) -> dict[int, list[int]]:
    """Heads by their layer, both in order."""
    found: dict[int, list[int]] = {}
    for layer, head in sorted(heads):
        found.setdefault(layer, []).append(head)
    return found


def _names(index: int, head: int, layer: Layer) -> tuple[str, ...]:
    return (
        f"layers.{index}",
        f"layers.{index}.heads.{head}",
        layer.name,
        f"{layer.name}.heads.{head}",
    )


def _pair(head: Any, layers: Sequence[Layer]) -> Head:
    """A head given as (layer, head), or as something with these attributes, as a diagnosis has it."""
    if hasattr(head, "layer") and hasattr(head, "head"):
        head = (head.layer, head.head)
    try:
        layer, number = (int(each) for each in head)
    except (TypeError, ValueError):
        raise InvalidValue(
            f"head {head!r}: must be a pattern such as 'layers.*.heads.3', a pair (layer, head), or a head of a "
            "diagnosis."
        ) from None
    if not (0 <= layer < len(layers) and 0 <= number < layers[layer].heads):
        raise InvalidValue(f"there is no head {number} in a layer {layer}: {described(layers)}.")
    return layer, number
