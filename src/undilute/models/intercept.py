"""How does one stand between a Hugging Face model and its attention?

Transformers looks its attention function up by name in ``AttentionInterface``, and the function that makes the mask by
the same name in ``AttentionMaskInterface``; a name that is missing from the second silently loses the causal mask. So
both are registered, under names of our own that the model's configurations hold while somebody stands in between:

    undilute_watch_3_of_undilute_treatment_of_sdpa

Each part before an ``_of_`` is one who stands there, the last is the model's own implementation. Whoever leaves is
taken out of the name, in whatever order. The original function still does the attention, with its own name in place
while it runs: the output is the very same.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from undilute.errors import InvalidValue, MissingExtra
from undilute.models import head_rules
from undilute.models.attention_call import arguments

Attention = Callable[..., Any]
Around = Callable[[str, Attention], Attention]
OURS, OF = "undilute_", "_of_"
TREATMENT = f"{OURS}treatment"
_numbers = itertools.count()


class Interception:
    """One who stands between a model and its attention, until ``undo()``.

    Parameters
    ----------
    model : a Hugging Face model whose attention goes through ``AttentionInterface``
    part : a name of its own, that begins with ``undilute_``. Several may stand there under one name: it stays in the
        configurations until the last of them has left
    around : given the name of the model's implementation ("sdpa", "eager", …) and its function, returns the function
        to call instead, with the same signature
    """

    def __init__(self, model: nn.Module, part: str, around: Around) -> None:
        check_supported(model)
        self.part = part
        self._configs = _configurations(model)
        _arounds[part] = around
        for config in self._configs:
            users, parts = _users.setdefault((id(config), part), []), _parts(config._attn_implementation)
            if part not in parts:
                _set(config, [part, *parts])
            elif not users:  # a copy of a treated model: the part is its own, and stays
                users.append(config)
            users.append(config)

    def undo(self) -> None:
        """Leave; nothing to do the second time."""
        configs, self._configs = self._configs, []
        for config in configs:
            users = _users[id(config), self.part]
            users.pop()
            if not users:
                del _users[id(config), self.part]
                parts = _parts(config._attn_implementation)
                if self.part in parts:  # not if somebody has given the model another implementation meanwhile
                    _set(config, [each for each in parts if each != self.part])
        if configs and self.part != TREATMENT:
            _forget(self.part)


_arounds: dict[str, Around] = {}
_users: dict[tuple[int, str], list[Any]] = {}  # who holds a part: the configuration, once for each


@contextmanager
def intercepted(model: nn.Module, around: Around) -> Iterator[None]:
    """Inside, every attention call of ``model`` goes through ``around(implementation, function)``; undone on exit."""
    standing = Interception(model, f"{OURS}watch_{next(_numbers)}", around)
    try:
        yield
    finally:
        standing.undo()


def treated(model: nn.Module) -> Interception:
    """Let the layers of ``model`` attend by their own rules, if they have any, until ``undo()``."""
    return Interception(model, TREATMENT, lambda implementation, function: function)


def implementation(name: str) -> str:
    """The model's own implementation behind a name that may have others standing before it.

    Examples
    --------
    >>> implementation("undilute_watch_1_of_undilute_treatment_of_sdpa")
    'sdpa'
    """
    return _parts(name)[-1]


def _parts(name: str) -> list[str]:
    return name.split(OF) if name.startswith(OURS) else [name]


def _set(config: Any, parts: list[str]) -> None:
    """Make the name of these parts the configuration's, and known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = OF.join(parts)
    if len(parts) > 1 and name not in AttentionInterface._global_mapping:
        AttentionInterface.register(name, _standing(name, parts[0], OF.join(parts[1:])))
        masks: dict[str, Any] = AttentionMaskInterface._global_mapping
        if parts[-1] in masks:
            AttentionMaskInterface.register(name, masks[parts[-1]])
    config._attn_implementation_internal = name


def _forget(part: str) -> None:
    """Take every name with this part from transformers; that of treatments stays, for copies of treated models."""
    from transformers import AttentionInterface, AttentionMaskInterface

    _arounds.pop(part, None)
    for mapping in (AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping):
        for name in [name for name in mapping if part in _parts(name)]:
            mapping.pop(name)


def _standing(name: str, part: str, rest: str) -> Attention:
    """The function to register: ``part`` around the rest, with the rest's name in the configuration while it runs.

    Whoever stands there is given query, key, value and mask in this order, however the model gives them.
    """

    def attend(module: nn.Module, *given: Any, **named: Any) -> Any:
        args, options = arguments(module, implementation(rest), given, named)
        function = _arounds[part](implementation(rest), function_of(module, rest))
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) != name:
            return function(module, *args, **options)
        config._attn_implementation_internal = rest
        try:
            return function(module, *args, **options)
        finally:
            config._attn_implementation_internal = name

    return attend


def function_of(module: nn.Module, original: str) -> Attention:
    """What ``original`` means to this module: its own rules, a registered function, or the eager one of its file.

    Whoever stands in between, in any order, rules come last, in the place of the model's own attention.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not original.startswith(OURS) and head_rules.ATTRIBUTE in module._modules:
        treated: Attention = head_rules.attention(original)
        return treated
    for kind in type(module).__mro__:
        source = sys.modules.get(kind.__module__)
        registry = getattr(source, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
        if original in registry:
            function: Attention = registry[original]
            return function
        eager: Attention | None = getattr(source, "eager_attention_forward", None)
        if original == "eager" and eager is not None:
            return eager
    raise InvalidValue(
        f"{type(module).__name__} has no attention function {original!r} that can be called from outside: "
        "load the model with attn_implementation='sdpa'."
    )


def check_supported(model: object) -> None:
    """Raise unless ``model`` is a Hugging Face model whose attention goes through ``AttentionInterface``."""
    try:
        from transformers import PreTrainedModel
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "models") from None
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise InvalidValue(
            f"model is a {kind}: must be a Hugging Face model (transformers.PreTrainedModel), whose attention goes "
            "through AttentionInterface."
        )
    if not model._can_set_attn_implementation():
        raise InvalidValue(
            f"{kind} computes its attention in code of its own, not through transformers' AttentionInterface, so it "
            "cannot be read from outside: must be a model that supports attn_implementation, such as Llama, Qwen, "
            "Mistral, Gemma, GPT-2 or BERT."
        )


def check_attended(model: nn.Module, calls: int) -> None:
    """Raise if a pass through ``model`` has shown no attention call at all."""
    if calls == 0:
        raise InvalidValue(
            f"{type(model).__name__} made no attention call through transformers' AttentionInterface, so its attention "
            "can be neither read nor changed from outside: must be a model that attends, with an implementation that "
            "goes through it, such as attn_implementation='sdpa'."
        )


def _configurations(model: nn.Module) -> list[Any]:
    """Every configuration of the model and its parts that names an attention implementation.

    Not those of parts whose attention is code of their own: it may ask for its name, and takes the wrong branch then.
    """
    from transformers import PreTrainedModel

    found = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not part._can_set_attn_implementation():
            found.pop(id(part.config), None)
    configs = [each for each in found.values() if getattr(each, "_attn_implementation", None) is not None]
    if not configs:
        raise InvalidValue(
            f"{type(model).__name__} names no attention implementation: load it with attn_implementation='sdpa'."
        )
    return configs
