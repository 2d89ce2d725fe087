"""Is this the same model as before?  A short text that changes when anything does that decides what it computes.

    weights      of every tensor its shape, its type, the sum of all its bits and a few thousand of its numbers; buffers
                 that no checkpoint holds (the frequencies of rotary positions) too
    settings     the configuration, the plain attributes of every module, the attention function
    treatments   the rules of every layer with all that they hold, and hooks
    tokenizer    all of it

What cannot be looked into is never taken for the same: a model whose weights are elsewhere (on a disk, on the meta
device) is known again in the same process only, and an object that shows nothing of itself not at all.

Hashing every weight of a large model would take longer than using it. A sum runs as fast as memory does.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import types
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.head_rules import HeadRules, own_rules
from undilute.models.texts import beginning, ending
from undilute.models.watch import implementation
from undilute.rules import registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SAMPLED = 2048  # numbers of each tensor
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number
NOTHING_COMPUTED = ("_name_or_path", "name_or_path", "transformers_version", "use_cache", "training", "warnings_issued")
OF_MODULES = frozenset({*vars(nn.Module()), *NOTHING_COMPUTED})
KNOWN = ("undilute.", "torch.", "transformers.", "builtins", "collections")  # whose code is that of a release
_elsewhere: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def of_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """64 hexadecimal digits.

    Parameters
    ----------
    model : of Hugging Face, treated or not
    tokenizer : its tokenizer, which decides what the model reads
    """
    found = _Account()
    found.add(type(model).__qualname__, _settings(model))
    for name, value in sorted({**model.state_dict(), **dict(model.named_buffers())}.items()):
        found.add(name)
        if isinstance(value, Tensor) and value.is_meta:
            found.add(tuple(value.shape), _elsewhere.setdefault(model, secrets.token_hex()))
        else:
            found.add(value)
    for name, module in model.named_modules():
        found.add(name, type(module).__qualname__, _plain_attributes(module))
        _add_treatments(found, module)
    _add_tokenizer(found, tokenizer)
    return found.made.hexdigest()


def _settings(model: PreTrainedModel) -> str:
    data = {name: each for name, each in model.config.to_dict().items() if name not in NOTHING_COMPUTED}
    return json.dumps(data, sort_keys=True, default=str)


def _plain_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """Those that are numbers or texts, or made of them: a scale, a window, the adapter in use."""
    own = {name: value for name, value in vars(module).items() if name not in OF_MODULES}
    return sorted((name, value) for name, value in own.items() if _is_plain(value))


def _is_plain(value: object, depth: int = 4) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and all(_is_plain(each, depth - 1) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value)
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def _add_treatments(found: _Account, module: nn.Module) -> None:
    if (rules := own_rules(module)) is not None:
        found.add(rules)
    name = implementation(getattr(getattr(module, "config", None), "_attn_implementation", None) or "")
    found.add(name)
    if name.startswith(IMPLEMENTATION):
        found.add(registry.as_rule(registry.preset(name.removeprefix(IMPLEMENTATION)).factory()))
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    for each in [*hooks, vars(module).get("forward")]:
        if not str(getattr(each, "__module__", "")).startswith("undilute.models."):  # who watches changes nothing
            found.add(_without_modules(each))


def _add_tokenizer(found: _Account, tokenizer: PreTrainedTokenizerBase) -> None:
    found.add(beginning(tokenizer), ending(tokenizer))  # after which no truncation or padding is set
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "to_str"):
        found.add(backend.to_str())
    else:
        found.add(type(tokenizer).__qualname__, sorted(tokenizer.get_vocab().items()))


def _without_modules(hook: Any) -> Any:
    """What a hook does, as its code and the plain values that it holds: it may hold the whole model."""
    if isinstance(hook, types.MethodType):
        return [hook.__func__.__code__ if hasattr(hook.__func__, "__code__") else type(hook), _held(hook.__self__)]
    if isinstance(hook, partial):
        return [_without_modules(hook.func), *(each for each in hook.args if _is_held(each))]
    if isinstance(hook, types.FunctionType):
        cells = [cell.cell_contents for cell in hook.__closure__ or () if _is_filled(cell)]
        inner = [_without_modules(each) for each in cells if isinstance(each, types.FunctionType | partial)]
        return [hook.__code__, [each for each in cells if _is_held(each)], inner, hook.__defaults__]
    return None if hook is None else [type(hook), _held(hook)]


def _held(value: object) -> list[tuple[str, Any]]:
    own = {} if isinstance(value, nn.Module) else getattr(value, "__dict__", {})
    return sorted((name, each) for name, each in own.items() if _is_held(each))


def _is_held(value: object) -> bool:
    return isinstance(value, Tensor) or _is_plain(value)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


class _Account:
    """A hash of values of any kind, with all that they hold."""

    def __init__(self) -> None:
        self.made = hashlib.sha256()
        self._within: list[int] = []

    def add(self, *values: object) -> None:
        for each in values:
            self._add(each)

    def _add(self, value: Any) -> None:
        if id(value) in self._within:
            self._tell("again", self._within.index(id(value)))
            return
        self._within.append(id(value))
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
            self._tell(type(value).__name__, repr(value))
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.CodeType):
            self._several("code", [value.co_code, value.co_names, value.co_consts])
        elif isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            self._several("function", [value.__code__, value.__defaults__, value.__kwdefaults__, cells])
        elif isinstance(value, types.BuiltinFunctionType | types.ModuleType):
            self._tell("built in", getattr(value, "__module__", ""), value.__name__)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif type(value) in (list, tuple):
            self._several("list", value)
        elif type(value) in (set, frozenset):
            self._several("set", sorted(value, key=repr))
        elif type(value) is dict:
            self._several("dict", [each for pair in value.items() for each in pair])
        else:
            self._object(value)
        self._within.pop()

    def _tell(self, *words: object) -> None:
        for each in map(str, words):
            self.made.update(f"{len(each)}:{each}".encode(errors="surrogatepass"))

    def _several(self, kind: str, values: Iterable[object]) -> None:
        every = list(values)
        self._tell(kind, len(every))
        self.add(*every)

    def _class(self, value: type) -> None:
        """Its name, and what its methods do unless they are those of a release."""
        self._tell("class", value.__module__, value.__qualname__)
        for each in value.__mro__:
            if not f"{each.__module__}.".startswith(KNOWN):
                functions = {name: own for name, own in vars(each).items() if isinstance(own, types.FunctionType)}
                self._several("methods", [each.__qualname__, *(own.__code__ for _, own in sorted(functions.items()))])

    def _module(self, value: nn.Module) -> None:
        """Its class, its tensors, its parts and everything else that it holds."""
        own = {name: each for name, each in vars(value).items() if name not in OF_MODULES}
        if isinstance(value, HeadRules):
            own.pop("neighbours", None)  # the model's other layers, whose names it has anyway
        hooks = [*value._forward_pre_hooks.values(), *value._forward_hooks.values()]
        self.add(type(value), value._parameters, value._buffers, value._modules, own, hooks)

    def _object(self, value: Any) -> None:
        """As it would be written to a file; what cannot be is never the same."""
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # whatever it says instead of showing itself
            self._tell(secrets.token_hex())
            return
        if isinstance(parts, str):
            self._tell("object", type(value).__module__, parts)
        else:
            made, given, *more = parts
            if isinstance(made, types.FunctionType):  # the same for all objects of a kind
                made = f"{made.__module__}.{made.__qualname__}"
            self._several("object", [made, given, *(each if _is_state(each) else list(each) for each in more)])

    def _tensor(self, value: Tensor) -> None:
        self._tell("tensor", tuple(value.shape), value.dtype)
        value = value.detach()
        if value.is_meta or value.layout is not torch.strided:
            self._tell(secrets.token_hex())
        elif value.is_quantized:
            self.add(value.dequantize())
        elif hasattr(value, "to_local"):  # this process's share of one that is split over several
            self.add(value.to_local())
        elif hasattr(value, "__tensor_flatten__"):  # of a class of its own, such as a quantised one
            names, settings = value.__tensor_flatten__()
            self.add(type(value).__qualname__, repr(settings), *(getattr(value, name) for name in names))
        else:
            self._numbers(value.reshape(-1))

    def _numbers(self, flat: Tensor) -> None:
        """The sum of all bits, which any change changes, and some numbers, which a change of order does."""
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        bits = flat.contiguous().view(WHOLE[flat.element_size()])
        some = bits[:: max(1, len(bits) // SAMPLED) | 1]  # an odd step meets all columns of most matrices
        if bits.nbytes % 8 == 0 and bits.storage_offset() * bits.element_size() % 8 == 0:
            bits = bits.view(torch.int64)
        self._tell(int(bits.sum(dtype=torch.int64)))
        self.made.update(some.cpu().numpy().tobytes())


def _is_state(value: object) -> bool:
    return value is None or isinstance(value, dict | tuple | list | str | bytes)
