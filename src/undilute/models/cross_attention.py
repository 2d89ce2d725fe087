"""Do the keys of an attention call belong to the queries' text or to another?  A decoder may look at its encoder's.

Shapes do not say: with a cache there are more keys than queries as well, and two texts may be of one length. The layer
does, when it is called (BART's ``key_value_states``) or by what it is (Mllama, which finds its keys in a cache later):

    it is given another sequence to look at, by one of the names in ``OTHERS``
    it is a cross-attention by its class or its ``is_cross_attention``
    it has fewer keys than queries, or another number of them without being causal or having a cache

Such a layer cannot say which of its queries are padding or where they are in their text, because no key is their own.
The self-attention before it can: that of the same decoder, with the same number of queries.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import Any

from torch import Tensor, nn

from undilute.models.own_attention import attends_through_interface
from undilute.models.passes import Hooks
from undilute.models.watched_call import WatchedCall

OTHERS = (
    "key_value_states",  # BART, T5, Whisper, DETR
    "encoder_hidden_states",  # BERT, GPT-2, BLIP-2
    "cross_attention_states",  # Mllama, Dia
    "context",  # Idefics2
    "context_hidden_states",
    "key",  # SAM, where a layer that looks at its own text is given the query once more
    "keys",
    "key_tensor",
    "k",
)
ASKING = ("query", "queries", "query_tensor", "q")  # who looks at them, if it is not the first argument
CACHES = ("past_key_values", "past_key_value", "layer_past")


class CrossAttention(Hooks):
    """Inside the context, ``of`` says whether an attention call looks at keys of another text.

    Parameters
    ----------
    model : a Hugging Face model
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._owners = _owners(model)
        self._texts = _Texts()
        self._parameters: dict[nn.Module, tuple[str, ...]] = {}

    def __enter__(self) -> CrossAttention:
        for part in self.model.modules():
            if attends_through_interface(type(part)):
                self._parameters[part] = _parameters(part)
                self.hooks.append(part.register_forward_pre_hook(self._begin, with_kwargs=True))
        for owner in set(self._owners.values()):
            self.hooks.append(owner.register_forward_hook(self._end, always_call=True))
        return self

    def of(self, module: nn.Module, query: Tensor, key: Tensor) -> bool:
        """Whether the keys of this call are another text's."""
        if self._texts.is_other.get(module) or _is_cross_attention(module):
            return True
        if query.shape[2] == key.shape[2]:
            return False
        has_cache = getattr(module, "is_causal", True) or self._texts.has_cache.get(module, False)
        return key.shape[2] < query.shape[2] or not has_cache

    def input_of(self, module: nn.Module) -> Tensor | None:
        """(batch, queries, features): the hidden states that a layer was called with, while it attends."""
        known = self._texts.inputs.get(module)
        given = None if known is None else known()
        return None if given is None else given.detach()

    def self_attention_before(self, module: nn.Module) -> WatchedCall | None:
        """The latest self-attention of the decoder that a layer is in, without its vectors."""
        return self._texts.calls.get(self._owners.get(module))

    def keep(self, call: WatchedCall) -> None:
        """Remember a self-attention, for what it knows about its queries."""
        if not call.is_cross:
            self._texts.calls[self._owners.get(call.module)] = call.without_vectors()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any] | None = None) -> None:
        parameters = self._parameters.get(module)
        if parameters is None or named is None:  # a copy's; or one that another thread is just adding or removing
            return
        given = dict(zip(parameters, args, strict=False)) | {name: named[name] for name in parameters if name in named}
        asking = next((given[name] for name in (*ASKING, *parameters) if name in given), None)
        others = (given.get(name) for name in OTHERS)
        self._texts.is_other[module] = any(each is not None and each is not asking for each in others)
        self._texts.has_cache[module] = any(given.get(name) is not None for name in CACHES)
        hidden = given.get("hidden_states", args[0] if args else None)
        if isinstance(hidden, Tensor) and hidden.ndim == 3:
            self._texts.inputs[module] = weakref.ref(hidden)

    def _end(self, owner: nn.Module, *_: Any) -> None:
        """Let go of the masks of a pass that is over."""
        self._texts.calls.pop(owner, None)


class _Texts(threading.local):
    """What a thread's last calls were about: of each module, and the self-attention of each model within the model."""

    def __init__(self) -> None:
        self.is_other: dict[nn.Module, bool] = {}
        self.has_cache: dict[nn.Module, bool] = {}
        self.inputs: dict[nn.Module, weakref.ref[Tensor]] = {}
        self.calls: dict[nn.Module | None, WatchedCall] = {}


def _owners(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """Each module's innermost model: a decoder is one, and so is its encoder."""
    from transformers import PreTrainedModel

    models = [part for part in model.modules() if isinstance(part, PreTrainedModel)]  # each before those within it
    return {module: part for part in models for module in part.modules()}


def _is_cross_attention(module: nn.Module) -> bool:
    return "CrossAttention" in type(module).__name__ or getattr(module, "is_cross_attention", False) is True


def _parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of what a layer is called with, in order."""
    return tuple(inspect.signature(type(module).forward).parameters)[1:]
