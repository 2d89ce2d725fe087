"""What does a model attend to, call by call?  :func:`watch` is the only way to intercept its attention.

    with undilute.watch(model, on_call):
        model(ids)

Transformers looks its attention function up by name in ``AttentionInterface``, and the function that makes the mask by
the same name in ``AttentionMaskInterface``; a name that is missing from the second silently loses the causal mask. So
both are registered, under names of our own. The model's configurations hold such a name while anything intercepts it:

    undilute_watch_3_of_undilute_treatment_of_sdpa

Each part before an ``_of_`` is one interception; the last part is the model's own implementation. An interception that
ends is taken out of the name; the order does not matter. The original function still computes the attention, and finds
its own name in the configuration, so the output is exactly the same.

Threads may begin and end interceptions at any time; a lock lets one do so at a time. Attention calls only read and hold
no lock. So a name that transformers knows stays known: another thread's pass may be about to look it up, and so may a
copy of the model. Nothing is behind the name any more, and the next interception reuses it. Only one thread can watch a
model at a time, and it sees all passes of the model, whichever thread makes them.
"""

from __future__ import annotations

import copy
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from undilute.errors import InvalidValue, MissingExtra
from undilute.models import head_rules
from undilute.models.attention_call import IMPLEMENTATION, arguments
from undilute.models.cross_attention import CrossAttention
from undilute.models.passes import Runs
from undilute.models.watched_call import WatchedCall

Attention = Callable[..., Any]
OnCall = Callable[[WatchedCall], Any]
OURS, OF = "undilute_", "_of_"
TREATMENT = head_rules.TREATMENT
NEVER_ASKED = ("eager", "sdpa")  # implementations that read no name in the configuration
_lock = threading.RLock()


@contextmanager
def watch(model: nn.Module, on_call: OnCall, *, replace: bool = False, alone: bool = False) -> Iterator[None]:
    """Give ``on_call`` every attention call of every pass of ``model``, without changing the model.

    Parameters
    ----------
    model : a Hugging Face model whose attention goes through ``AttentionInterface``: causal or not, treated or not, in
        training or generating; put back as it was on exit, even after an error, which may come from ``on_call``
    on_call : called with a :class:`~undilute.models.WatchedCall` after the model's own attention has run. It has

        - ``layer``, ``run``: the module's name in the model; with how often it ran before in the same pass
        - ``module``, ``implementation``, ``options``: the attention layer, and what else its function was given
        - ``query`` (batch, heads, queries, features), ``key``, ``value`` (batch, key heads, keys, features), ``mask``
        - ``output`` (batch, queries, heads, features), what the model's own attention made; ``input`` (batch, queries,
          features), the hidden states that the layer was given
        - ``logits(batch, rows)``, ``weights(batch, rows)``: (heads, rows, keys) of any few queries; ``visible(batch,
          rows)``: which keys they see; ``block(batch, rows)``: all of it, as measures take it
        - ``rules``: those of a treated layer, else None; ``gains_of(batch, rows)``: the factor on its outputs
        - ``sequences``: which queries are no padding; ``is_cross``: whether the keys are another text's
        - ``is_repeat``: whether the same rows were there before, as when checkpointing computes a call again

        Tensors are the model's own: read them, and keep what you compute, not the call, which would keep them alive.
    replace : what ``on_call`` returns replaces the output, and None leaves it; gradients flow through it. By default
        what it returns is ignored, it runs without gradients, and the model's output is the same bit for bit
    alone : hide the passes inside from any other watcher of the model

    Examples
    --------
    The largest weight of each head in the last row, from one row of logits; nothing is as large as n × n:

    >>> import torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50)
    >>> model, largest = transformers.GPT2LMHeadModel(config).eval(), {}
    >>> def on_call(call):
    ...     last = torch.tensor([call.queries - 1])
    ...     largest[call.layer] = call.weights(0, last).amax(-1)
    >>> with ud.watch(model, on_call):
    ...     _ = model(torch.arange(40)[None])
    >>> {layer: tuple(weights.shape) for layer, weights in largest.items()}  # (heads, rows)
    {'transformer.h.0.attn': (4, 1), 'transformer.h.1.attn': (4, 1)}

    Without the first head of every layer:

    >>> def first_head_off(call):
    ...     output = call.output.clone()
    ...     output[:, :, 0] = 0
    ...     return output
    >>> with ud.watch(model, first_head_off, replace=True):
    ...     _ = model.generate(torch.arange(4)[None], max_new_tokens=2, pad_token_id=0)
    """
    if not callable(on_call):
        raise InvalidValue(f"on_call is a {type(on_call).__name__}: must be a function of one attention call.")
    watcher = _Watcher(model, on_call, replace, alone)
    with _lock:
        part = next(name for number in itertools.count() if (name := f"{OURS}watch_{number}") not in _standing)
        standing = Interception(model, part, watcher)
    try:
        with watcher.runs, watcher.texts:
            yield
    finally:
        standing.undo()


class _Watcher:
    """Watches a model: lets its attention run, and shows the call."""

    def __init__(self, model: nn.Module, on_call: OnCall, replace: bool, alone: bool) -> None:
        check_supported(model)
        self.on_call, self.replace, self.alone = on_call, replace, alone
        self.runs, self.texts = Runs(model), CrossAttention(model)  # before anybody's pass can ask

    def attend(self, rest: str, module: nn.Module, given: list[Any], options: dict[str, Any]) -> Any:
        """What the attention function behind ``rest`` returns for the call, or with another output."""
        own = implementation(rest)
        made = function_of(module, own if self.alone else rest)(module, *given, **options)
        with nullcontext() if self.replace else torch.no_grad():
            call = self._call(own, module, given, options, made[0])
            before = call.versions
            instead = self.on_call(call)
        if not self.replace and call.versions != before:
            raise InvalidValue(
                f"on_call changed a tensor of {call.layer} in place: must only read them; clone what is to be changed, "
                "and return it with replace = True."
            )
        if not self.replace or instead is None:
            return made
        if (what := _form(instead)) != (must := _form(call.output)):
            raise InvalidValue(
                f"on_call returned {what} instead of {call.layer}'s output: must be {must}, or None to leave it."
            )
        return instead, *made[1:]

    def _call(
        self, own: str, module: nn.Module, given: list[Any], options: dict[str, Any], output: Tensor
    ) -> WatchedCall:
        query, key, value, mask = given
        run, is_repeat = self.runs.of(module, query, key)
        is_cross = self.texts.of(module, query, key)
        call = WatchedCall(
            module,
            own,
            query,
            key,
            value,
            mask,
            options,
            is_cross,
            run=run,
            is_repeat=is_repeat,
            output=output,
            rules=head_rules.rules_of(module, own, query.shape[1]),
            input=self.texts.input_of(module),
            before=self.texts.self_attention_before(module) if is_cross else None,
        )
        self.texts.keep(call)
        return call


def _form(given: object) -> str:
    """What must be the same of an output that takes another's place."""
    if not isinstance(given, Tensor):
        return f"a {type(given).__name__}"
    return f"a tensor of shape {tuple(given.shape)} and dtype {given.dtype} on {given.device}"


class Interception:
    """One who stands between a model and its attention, until ``undo()``.

    Parameters
    ----------
    model : a Hugging Face model whose attention goes through ``AttentionInterface``
    part : a name of its own, that begins with ``undilute_``. Several may stand there under one name: it stays in the
        configurations until the last of them has left
    watcher : whom to show the calls; None if only the layers' own rules stand there
    """

    def __init__(self, model: nn.Module, part: str, watcher: _Watcher | None = None) -> None:
        check_supported(model)
        self.part, self.watcher, self.thread = part, watcher, threading.get_ident()
        with _lock:
            self._configs = _configurations(model)
            if watcher is not None:
                _check_thread(model, self._configs)
                _standing[part] = self
            for config in self._configs:
                self._enter(config)

    def _enter(self, config: Any) -> None:
        users, parts = _users.setdefault((id(config), self.part), []), _parts(config._attn_implementation)
        if self.part not in parts:
            config._attn_implementation_internal = _know([self.part, *parts])
        elif not users and self.watcher is None:  # a copy of a treated model: the part is its own, and stays
            users.append(config)
        users.append(config)

    def sees(self, config: Any) -> bool:
        """Whether a layer with this configuration is the model's: a copy of it has the same names, but its own."""
        return config is None or any(config is each for each in self._configs)

    def undo(self) -> None:
        """Leave; nothing to do the second time."""
        with _lock:
            self._leave()

    def _leave(self) -> None:
        configs, self._configs = self._configs, []
        for config in configs:
            users = _users.get((id(config), self.part), [])  # none if the model was copied while intercepted
            del users[-1:]
            if not users:
                _users.pop((id(config), self.part), None)
                parts = _parts(config._attn_implementation)
                if self.part in parts:  # not if somebody has given the model another implementation meanwhile
                    config._attn_implementation_internal = _know([each for each in parts if each != self.part])
        if configs:
            _standing.pop(self.part, None)


_standing: dict[str, Interception] = {}  # the interception behind a part, if it is more than the layers' own rules
_users: dict[tuple[int, str], list[Any]] = {}  # who uses a part: the configuration, once for each


def treated(model: nn.Module) -> Interception:
    """Let the layers of ``model`` attend by their own rules, if they have any, until ``undo()``."""
    return Interception(model, TREATMENT)


def implementation(name: str) -> str:
    """The model's own implementation behind a name that may start with interceptions.

    Examples
    --------
    >>> implementation("undilute_watch_1_of_undilute_treatment_of_sdpa")
    'sdpa'
    """
    return _parts(name)[-1]


def _parts(name: str) -> list[str]:
    parts = []
    while name.startswith(OURS) and OF in name:  # the last may have an _of_ of its own
        part, name = name.split(OF, 1)
        parts.append(part)
    return [*parts, name]


def know_treatments() -> None:
    """Make the names that treated models have known to transformers, for one that comes from a file."""
    if "transformers.modeling_utils" in sys.modules:
        from transformers import AttentionInterface

        with _lock:
            for name in ("eager", *AttentionInterface._global_mapping):
                if not name.startswith(OURS):
                    _know([TREATMENT, name])


def _know(parts: list[str]) -> str:
    """The name of these parts, made known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = OF.join(parts)
    if len(parts) > 1 and name not in AttentionInterface._global_mapping:
        AttentionInterface.register(name, torch.compiler.disable(_function(parts[0], OF.join(parts[1:]))))
        masks: dict[str, Any] = AttentionMaskInterface._global_mapping
        if parts[-1] in masks:
            AttentionMaskInterface.register(name, masks[parts[-1]])
    return name


def _function(part: str, rest: str) -> Attention:
    """The function to register: it shows its calls to the watcher behind ``part``; the rest attends."""

    def attend(module: nn.Module, *given: Any, **named: Any) -> Any:
        args, options = arguments(module, implementation(rest), given, named)
        standing = _standing.get(part)
        if standing is None or standing.watcher is None or not standing.sees(getattr(module, "config", None)):
            return function_of(module, rest)(module, *args, **options)
        return standing.watcher.attend(rest, module, args, options)

    return attend


def function_of(module: nn.Module, original: str) -> Attention:
    """What ``original`` means to this module: its own rules, a registered function, or the eager one of its file.

    Whoever stands in between, in any order, rules come last, in the place of the model's own attention.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not original.startswith(OURS) and head_rules.own_rules(module) is not None:
        treated: Attention = head_rules.attention(original)
        return treated
    for kind in type(module).__mro__:
        source = sys.modules.get(kind.__module__)
        registry = getattr(source, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
        if original in registry:
            function: Attention = registry[original]
            return function if original.startswith(OURS) else _by_its_name(original, function)
        eager: Attention | None = getattr(source, "eager_attention_forward", None)
        if original == "eager" and eager is not None:
            return eager
    raise InvalidValue(
        f"{type(module).__name__} has no attention function {original!r} that can be called from outside: "
        "load the model with attn_implementation='sdpa'."
    )


def _by_its_name(original: str, function: Attention) -> Attention:
    """A model's own function, for which the configuration has its own name: flash attention reads its version there.

    It is given a double of the layer. The configuration itself may be in use by another thread.
    """
    if original in NEVER_ASKED or original.startswith(IMPLEMENTATION):
        return function

    def attend(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        config: Any = getattr(module, "config", None)
        if implementation(getattr(config, "_attn_implementation", None) or "") == original:
            module, config = copy.copy(module), copy.copy(config)
            config._attn_implementation_internal, module.config = original, config
        return function(module, *args, **kwargs)

    return attend


def _check_thread(model: nn.Module, configs: list[Any]) -> None:
    """Raise if another thread watches ``model``: each would see the other's passes, or keep it from seeing its own."""
    for config in configs:
        for part in _parts(config._attn_implementation):
            other = _standing.get(part)
            if other is not None and other.thread != threading.get_ident() and other.sees(config):
                raise InvalidValue(
                    f"another thread is watching this {type(model).__name__}: only one can at a time; or give each "
                    "thread its own model (copy.deepcopy)."
                )


def check_supported(model: object) -> None:
    """Raise unless ``model`` is a Hugging Face model whose attention goes through ``AttentionInterface``."""
    try:
        from transformers import PreTrainedModel
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "models") from None
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        for name, part in model.named_modules() if isinstance(model, nn.Module) else ():
            if isinstance(part, PreTrainedModel):
                raise InvalidValue(
                    f"model is a {kind} around a {type(part).__name__}: must be the Hugging Face model itself, "
                    f"model.{name}."
                )
        raise InvalidValue(
            f"model is a {kind}: must be a Hugging Face model (transformers.PreTrainedModel), whose attention goes "
            "through AttentionInterface."
        )
    if not model._can_set_attn_implementation():
        raise InvalidValue(
            f"{kind} computes its attention in its own code, not through transformers' AttentionInterface, so it "
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
