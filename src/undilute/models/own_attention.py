"""Does a model compute its attention in its own code, where no ``attn_implementation`` reaches it?

BLOOM, MPT, GPT-J and about ninety others do. Under a name of ours they would silently lose their causal mask, ignore
the rule, or fail with a KeyError. So they are refused, as "sdpa" is by models that lack it: when a model is built, and
when it is given the name. transformers asks at both places, but lets a name that it has registered pass, hence the two
methods of ``PreTrainedModel`` that :func:`stand_guard` wraps; a third one sees the built model.

    before it is built   its file must call AttentionInterface, and not choose its attention by name
    once it is built     no part may attend in its own code, and one of those that have the name must attend at all
    when it runs         the masks of our names are made for no other model, however it came by the name
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from undilute.errors import InvalidValue

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # what transformers' models call it
CLASSES_BY_NAME = "ATTENTION_CLASSES"  # how the tables end in which a model looks a class up by its implementation
GUARDED = "undilute_guards"
WORKING = "such as Llama, Qwen, Mistral, Gemma, GPT-2 or BERT"
_known: set[type] = set()  # classes of configurations whose models were seen to go through the interface


def has_own_attention(kind: type[PreTrainedModel]) -> bool:
    """Whether the models of this class attend in code of their own, as far as their file shows.

    A class of the user's own, in a notebook or another file, attends as the one that it inherits from.

    Examples
    --------
    >>> import transformers
    >>> has_own_attention(transformers.BloomModel), has_own_attention(transformers.LlamaModel)
    (True, False)
    """
    kinds: list[Any] = [each for each in kind.__mro__ if hasattr(each, GUARDED) and GUARDED not in vars(each)]
    files = [vars(sys.modules[each.__module__]) for each in kinds if each.__module__ in sys.modules]
    by_name = any(name.endswith(CLASSES_BY_NAME) for file in files for name in file)
    return by_name or not any(each._can_set_attn_implementation() for each in kinds)


def check_interface(model: PreTrainedModel, name: str) -> None:
    """Raise if a model that is being built, or built, attends in its own code; ``name`` is the implementation."""
    if has_own_attention(type(model)):
        raise refusal(type(model).__name__, name)


def check_built(model: PreTrainedModel, name: str) -> None:
    """Raise if a part of a built model attends in its own code."""
    check_interface(model, name)
    kinds: set[Any] = {type(part) for part in model.modules()}
    if not model._supports_sdpa:  # with it, transformers vouches for what such parts make of torch's masks
        for kind in sorted(filter(_attends_by_itself, kinds), key=lambda kind: kind.__name__):
            raise refusal(f"{type(model).__name__}, in its {kind.__name__},", name)


def check_attends(model: PreTrainedModel, parts: Iterable[PreTrainedModel], name: str) -> None:
    """Raise if none of the ``parts`` of ``model`` that are given the name attends; one that does is enough."""
    if not any(attends_through_interface(type(module)) for part in parts for module in part.modules()):
        raise refusal(type(model).__name__, name, "makes no attention call")


def attends_through_interface(kind: Any) -> bool:
    """Whether modules of a class call transformers' AttentionInterface.

    Examples
    --------
    >>> from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP
    >>> attends_through_interface(LlamaAttention), attends_through_interface(LlamaMLP)
    (True, False)
    """
    return INTERFACE in _names(kind)


def refusal(who: str, name: str, does: str = "computes its attention in its own code, not") -> InvalidValue:
    """The sentence."""
    return InvalidValue(
        f"{who} {does} through transformers' AttentionInterface, so attn_implementation = {name!r} cannot change it: "
        f"must be a model that supports attn_implementation, {WORKING}; another part of a larger model can be given "
        f"it alone, as {{'text_config': {name!r}}}."
    )


def stand_guard(model: type[PreTrainedModel], prefix: str) -> None:
    """Let transformers' ``PreTrainedModel`` refuse names that begin with ``prefix`` where they mean nothing.

    There is no public place for such a check: these are the methods in which transformers refuses "sdpa", changes the
    implementation, and has a model finished. Nothing happens the second time.
    """
    if hasattr(model, GUARDED):
        return
    setattr(model, GUARDED, prefix)

    def is_ours(name: object) -> bool:
        return isinstance(name, str) and name.startswith(prefix)

    def before_building(self: PreTrainedModel, requested_attention: Any, *args: Any, **options: Any) -> None:
        if is_ours(requested_attention):
            _check_plain(requested_attention, prefix)
            check_interface(self, requested_attention)
            _known.add(type(self.config))

    def before_changing(self: PreTrainedModel, attn_implementation: Any, *args: Any, **options: Any) -> None:
        asked = [(part, name) for part, name in _asked(self, attn_implementation) if is_ours(name)]
        for part, name in asked:
            _check_plain(name, prefix)
            check_built(part, name)
            if not part._can_set_attn_implementation():  # transformers would log that it does nothing
                raise refusal(type(part).__name__, name)
        if asked:
            check_attends(self, (part for part, _ in asked), asked[0][1])
        _known.update(type(part.config) for part, _ in asked)

    def once_built(self: PreTrainedModel) -> None:
        if is_ours(self.config._attn_implementation):
            check_built(self, self.config._attn_implementation)
        if not _is_within_another(self):  # which may attend elsewhere
            named = [part for part in _models(self) if is_ours(part.config._attn_implementation)]
            if named:
                check_attends(self, named, named[0].config._attn_implementation)

    _preceded(model, "get_correct_attn_implementation", before_building)
    _preceded(model, "set_attn_implementation", before_changing)
    _preceded(model, "post_init", once_built)


def _check_plain(name: str, prefix: str) -> None:
    """Refuse a rule with parameters, for which transformers would list everything that it knows."""
    if "(" in name:
        raise InvalidValue(
            f"attn_implementation = {name!r}: must be a rule's name without parameters; undilute.apply(model, "
            f"{name.removeprefix(prefix)!r}) takes them."
        )


def guarded(mask: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A mask function that makes no mask for a model which would never hand it to our attention.

    Whoever writes a name straight into a configuration passes every other check.
    """

    @functools.wraps(mask)
    def make(*args: Any, **options: Any) -> Any:
        config = options.get("config")
        if config is not None and type(config) not in _known:
            _check_owner(type(config), name)
        return mask(*args, **options)

    return make


def _check_owner(config: type, name: str) -> None:
    """Raise if the models that a class of configurations belongs to attend in code of their own."""
    from transformers import PreTrainedModel

    home = config.__module__.replace(".configuration_", ".modeling_")
    for kind in list(vars(sys.modules[home]).values()) if home in sys.modules else ():
        is_model = isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__module__ == home
        if is_model and has_own_attention(kind):
            raise refusal(kind.__name__, name)
    _known.add(config)


def _preceded(owner: type, method: str, check: Callable[..., None]) -> None:
    """Let ``check`` run before a method, with the same arguments."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        check(self, *args, **options)
        return original(self, *args, **options)

    setattr(owner, method, checked)


def _asked(model: PreTrainedModel, implementation: Any) -> Iterator[tuple[PreTrainedModel, Any]]:
    """Each model within ``model``, itself among them, and the implementation that is asked of it."""
    asked = dict(_by_configuration(model.config, implementation))
    own = asked[id(model.config)]
    for part in _models(model):
        yield part, asked.get(id(part.config), own)


def _models(model: PreTrainedModel) -> list[PreTrainedModel]:
    """Each model within ``model``, itself among them."""
    from transformers import PreTrainedModel

    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


def _is_within_another(model: PreTrainedModel) -> bool:
    """Whether a model is being built by another, of which it will be a part: only the stack knows that."""
    from transformers import PreTrainedModel

    frame = sys._getframe(1)
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        builder = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
        if isinstance(builder, PreTrainedModel) and builder is not model:
            return True
    return False


def _by_configuration(config: Any, implementation: Any) -> Iterator[tuple[int, Any]]:
    """What is asked of a configuration and those within it, by their ids; a dictionary names the latter."""
    is_named = isinstance(implementation, dict)
    yield id(config), implementation.get("") if is_named else implementation
    for key in config.sub_configs:
        if (within := getattr(config, key, None)) is not None:
            yield from _by_configuration(within, implementation.get(key) if is_named else implementation)


def _attends_by_itself(kind: Any) -> bool:
    """Whether a module takes a mask and makes weights of it without the interface."""
    is_attention = "Attention" in kind.__name__ and "softmax" in _names(kind) and not attends_through_interface(kind)
    return is_attention and any("mask" in parameter for parameter in inspect.signature(kind.forward).parameters)


@functools.cache
def _names(kind: Any) -> frozenset[str]:
    """Every global name and attribute that the methods of a class of modules use."""
    codes = [
        inner.__code__
        for base in kind.__mro__
        if "forward" in vars(base) and base is not nn.Module
        for method in vars(base).values()
        if isinstance(method, FunctionType)
        for inner in _unwrapped(method)
    ]
    return frozenset(name for code in codes for name in _used(code))


def _unwrapped(method: FunctionType) -> Iterator[FunctionType]:
    """A function, and those that it was made of by decorators."""
    while isinstance(method, FunctionType):
        yield method
        method = getattr(method, "__wrapped__", None)  # type: ignore[assignment]


def _used(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _used(constant)
