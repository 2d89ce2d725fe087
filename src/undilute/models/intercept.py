"""How does one stand between a Hugging Face model and its attention?

Transformers looks its attention function up by name in ``AttentionInterface``, and the function that makes the mask by
the same name in ``AttentionMaskInterface``; a name that is missing from the second silently loses the causal mask. So
both are registered, under a name of our own that the model's configurations hold while the context lasts. The original
function still does the attention, with its own name in place while it runs: the output is the very same.
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

Attention = Callable[..., Any]
Around = Callable[[str, Attention], Attention]
PREFIX = "undilute_interception"
_numbers = itertools.count()


@contextmanager
def intercepted(model: nn.Module, around: Around) -> Iterator[None]:
    """Inside, every attention call of ``model`` goes through ``around(implementation, function)``; undone on exit.

    Parameters
    ----------
    model : a Hugging Face model whose attention goes through ``AttentionInterface``
    around : given the name of the model's implementation ("sdpa", "eager", …) and its function, returns the function
        to call instead, with the same signature
    """
    check_supported(model)
    from transformers import AttentionInterface, AttentionMaskInterface

    configs = _configurations(model)
    originals = {id(config): config._attn_implementation for config in configs}
    number = next(_numbers)
    names = {original: f"{PREFIX}_{number}_of_{original}" for original in set(originals.values())}
    try:
        for original, name in names.items():
            AttentionInterface.register(name, _between(around, original, configs, names))
            masks: dict[str, Any] = AttentionMaskInterface._global_mapping
            if original in masks:
                AttentionMaskInterface.register(name, masks[original])
        for config in configs:
            config._attn_implementation_internal = names[originals[id(config)]]
        yield
    finally:
        for config in configs:
            config._attn_implementation_internal = originals[id(config)]
        for name in names.values():
            AttentionInterface._global_mapping.pop(name, None)
            AttentionMaskInterface._global_mapping.pop(name, None)


def implementation(name: str) -> str:
    """The model's own implementation behind a name that may be an interception, or one of another.

    Examples
    --------
    >>> implementation("undilute_interception_1_of_undilute_interception_0_of_sdpa")
    'sdpa'
    """
    return name.rsplit("_of_", 1)[-1] if name.startswith(PREFIX) else name


def _between(around: Around, original: str, configs: list[Any], names: dict[str, str]) -> Attention:
    """The function to register: the intercepted one, with the original's name in the configurations while it runs."""

    def attend(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        function = around(implementation(original), function_of(module, original))
        config: Any = getattr(module, "config", None)
        ours = getattr(config, "_attn_implementation", None)
        if ours != names[original]:
            return function(module, *args, **kwargs)
        config._attn_implementation_internal = original
        try:
            return function(module, *args, **kwargs)
        finally:
            config._attn_implementation_internal = ours

    return attend


def function_of(module: nn.Module, original: str) -> Attention:
    """What ``original`` means to this module: its own rules, a registered function, or the eager one of its file.

    Interceptions may be nested in any order; rules come last, in the place of the model's own attention.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not original.startswith(PREFIX) and head_rules.ATTRIBUTE in module._modules:
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


def _configurations(model: nn.Module) -> list[Any]:
    """Every configuration of the model and its parts that names an attention implementation."""
    found = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    configs = [each for each in found.values() if getattr(each, "_attn_implementation", None) is not None]
    if not configs:
        raise InvalidValue(
            f"{type(model).__name__} names no attention implementation: load it with attn_implementation='sdpa'."
        )
    return configs
