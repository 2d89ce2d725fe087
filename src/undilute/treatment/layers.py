"""Which attention layers does a model have, and which of their heads does a pattern mean?

The model itself says which modules attend, in which order, and with how many heads: a pass over two tokens shows every
attention call, whatever the architecture names its layers.

``"layers.12.*"`` is every head of layer 12, ``"layers.*.heads.3"`` head 3 of every layer, ``"*"`` all of them. Patterns
are those of a shell: ``*``, ``?`` and ``[…]``.

Layers are attention layers, counted from 0 in the order they run. In a hybrid, whose other layers do not attend,
``"layers.0.*"`` is the first attention layer, which the model may call ``model.layers.4.self_attn``. The model's own
names work too, and so do those of the modules around them: ``"model.layers.4.self_attn"``, ``"model.layers.4.*"``,
``"model.layers.4.heads.3"``. If the model's own names begin with ``layers.``, as in a model without its head, a pattern
that begins this way means them and not our numbers.

A module that runs several times in a pass counts as several layers: ``"…attention.passes.2"``; its own name means all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch

from undilute.errors import InvalidValue
from undilute.models.attention_call import AttentionCall
from undilute.models.forward_pass import evaluating, first_pass
from undilute.models.passes import Run, is_numbered_alike, layer_names
from undilute.models.tensor_parallel import share
from undilute.models.watch import check_attended, watch
from undilute.models.watched_call import WatchedCall

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Head = tuple[int, int]
COUNTED = "layers."  # how our own names of layers begin


@dataclass(frozen=True)
class Layer:
    """An attention layer: its name in the model (``undilute.models.passes``), and how many query heads it has."""

    name: str
    heads: int


def first_calls(model: PreTrainedModel) -> dict[str, AttentionCall]:
    """The first attention call of each layer, by the layer's name, in the order in which they run.

    Examples
    --------
    >>> import transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1)
    >>> list(first_calls(transformers.GPT2LMHeadModel(config)))
    ['transformer.h.0.attn', 'transformer.h.1.attn']
    """
    calls: dict[Run, AttentionCall] = {}

    def keep(call: WatchedCall) -> None:
        if not call.is_repeat:
            calls.setdefault(call.run, call)

    devices = {parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda}
    with evaluating(model), torch.random.fork_rng(sorted(devices)), watch(model, keep, alone=True), torch.no_grad():
        first_pass(model, torch.zeros(2, dtype=torch.int64))
    check_attended(model, len(calls))
    return dict(zip(layer_names(calls), calls.values(), strict=True))


def layers_of(calls: dict[str, AttentionCall]) -> list[Layer]:
    """Names and numbers of heads; with tensor parallelism, of those in all processes."""
    return [Layer(name, share(call).total) for name, call in calls.items()]


def matched(pattern: str, layers: Sequence[Layer]) -> list[Head]:
    """(layer, head) of every head that the pattern means, in order; an error if there is none.

    Examples
    --------
    >>> layers = [Layer(f"model.layers.{index}.self_attn", 2) for index in range(3)]
    >>> matched("layers.1.*", layers), matched("layers.*.heads.0", layers)
    ([(1, 0), (1, 1)], [(0, 0), (1, 0), (2, 0)])
    >>> matched("model.layers.2.self_attn", layers), matched("model.layers.2.heads.0", layers)
    ([(2, 0), (2, 1)], [(2, 0)])
    """
    if not isinstance(pattern, str):
        raise InvalidValue(f"pattern {pattern!r}: must be text such as 'layers.12.*' or 'layers.*.heads.3'.")
    counted = not (pattern.startswith(COUNTED) and _are_own(layers))
    found = [
        (index, head)
        for index, layer in enumerate(layers)
        for head in range(layer.heads)
        if any(fnmatchcase(name, pattern) for name in _names(index, head, layer, counted=counted))
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
    >>> described([Layer("model.layers.4.self_attn", 9), Layer("model.layers.12.self_attn", 9)])
    "there are layers.0 ('model.layers.4.self_attn') to layers.1 ('model.layers.12.self_attn'), with heads.0 to heads.8"
    """
    first, last, most = layers[0].name, layers[-1].name, max(layer.heads for layer in layers)
    if is_numbered_alike([layer.name for layer in layers]):
        named = f"layers.0 to layers.{len(layers) - 1} ({first!r}, …)"
    elif _are_own(layers):
        named = f"{first!r} to {last!r}"
    else:
        named = f"layers.0 ({first!r}) to layers.{len(layers) - 1} ({last!r})"
    return f"there are {named}, with heads.0 to heads.{most - 1}"


def index_of(layer: int | str, layers: Sequence[Layer]) -> int:
    """Which layer an index or a name means; an error unless it is one.

    Examples
    --------
    >>> index_of("model.layers.4", [Layer("model.layers.4.self_attn", 9), Layer("model.layers.12.self_attn", 9)])
    0
    """
    if isinstance(layer, str):
        found = sorted(by_layer(matched(layer, layers)))
        if len(found) > 1:
            raise InvalidValue(f"{layer!r} is {len(found)} layers: must name one; {described(layers)}.")
        return found[0]
    return layer


def by_layer(heads: Mapping[Head, Any] | Iterable[Head]) -> dict[int, list[int]]:
    """Heads by their layer, both in order."""
    found: dict[int, list[int]] = {}
    for layer, head in sorted(heads):
        found.setdefault(layer, []).append(head)
    return found


def _are_own(layers: Sequence[Layer]) -> bool:
    """Whether the model's own names begin as our numbers do."""
    return any(layer.name.startswith(COUNTED) for layer in layers)


def _names(index: int, head: int, layer: Layer, *, counted: bool) -> list[str]:
    """Everything that a head is called: its layer and the modules around that, each with and without the head."""
    parts = layer.name.split(".")
    around = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    places = [f"{COUNTED}{index}", *around] if counted else around
    return [name for place in places for name in (place, f"{place}.heads.{head}")]


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
        raise InvalidValue(f"no head {number} in layer {layer}: {described(layers)}.")
    return layer, number
