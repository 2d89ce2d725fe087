"""What a rule's parameters may be, and how they meet a batch of rows.

A parameter is a number or a tensor. A tensor of shape ``(H,)`` holds one value per head and meets logits of shape
``(..., H, queries, keys)``; a tensor with more dimensions must broadcast to ``(..., H, queries, 1)`` as it stands.
A ``torch.nn.Parameter`` is learned like any other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.masked import broadcasts_to

Number = float | Tensor
AnyModule = TypeVar("AnyModule", bound=nn.Module)
LARGEST = 2**63 - 1  # what torch counts with
LONGEST = 80  # characters of a value in an error


class Parametrised(nn.Module):
    """A module whose named parameters may be plain numbers, constant tensors or learned ones."""

    def hold(self, name: str, value: Number) -> None:
        """Keep ``value`` as attribute ``name``: numbers stay numbers, tensors follow ``.to(device)``."""
        if isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Tensor):
            self.register_buffer(name, value)
        else:
            setattr(self, name, float(value))
        self.__dict__.setdefault("_held", []).append(name)

    @property
    def held(self) -> list[str]:
        """Names of the parameters."""
        names: list[str] = self.__dict__.get("_held", [])
        return names

    def learn(self, name: str, heads: int) -> None:
        """Make the parameter ``name`` a learned one with a value for each of ``heads`` heads, from where it is."""
        value = getattr(self, name)
        if name not in self.held or not isinstance(value, float | Tensor):
            raise InvalidValue(f"{type(self).__name__}.{name} = {value!r}: must be a number, to be learned.")
        start = torch.as_tensor(value, dtype=torch.float32).detach().clone()
        if start.dim() > 1:
            raise InvalidValue(f"{name} has shape {tuple(start.shape)}: only one number, or one per head, is learned.")
        delattr(self, name)
        self.register_parameter(name, nn.Parameter(start.expand(heads).clone()))

    def for_rows(self, rows: slice, length: int) -> Self:
        """This module for some of ``length`` rows: parameters given per row (..., length, 1) are cut to size."""
        return self._with(
            {
                name: value[..., rows, :]
                for name, value in self._held_tensors().items()
                if value.dim() > 1 and value.shape[-2] == length > 1
            }
        )

    def for_heads(self, heads: slice | list[int], total: int) -> Self:
        """This module for some of ``total`` heads: parameters given per head are cut to size."""
        tensors = self._held_tensors().items()
        flat = {name: value[heads] for name, value in tensors if value.dim() == 1 and len(value) == total > 1}
        deep = {
            name: value[..., heads, :, :] for name, value in tensors if value.shape[-3:-2] == (total,) and total > 1
        }
        return self._with(flat | deep)

    def _held_tensors(self) -> dict[str, Tensor]:
        named = {name: getattr(self, name) for name in self.held}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def _with(self, cut: dict[str, Tensor]) -> Self:
        """This module with some tensors in place of its own."""
        if not cut:
            return self
        twin = as_it_is(self)
        if parametrize.is_parametrized(self):  # its tensors are properties of a class that torch made for it
            twin.__class__ = parametrize.type_before_parametrizations(self)
            del twin._modules["parametrizations"]
            cut = self._held_tensors() | cut
        for name, value in cut.items():
            twin._parameters.pop(name, None)
            twin._buffers[name] = value
        return twin

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={_short(getattr(self, name))}" for name in self.held)


def as_it_is(module: AnyModule) -> AnyModule:
    """A module with the tensors, numbers and hooks that it has now, whatever becomes of the original.

    ``torch.func.functional_call`` lends a module other tensors for one call, and takes them back before ``backward``.
    """
    twin = type(module).__new__(type(module))
    vars(twin).update({name: each.copy() if isinstance(each, dict) else each for name, each in vars(module).items()})
    twin._modules = {name: each and as_it_is(each) for name, each in module._modules.items()}
    return twin


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Every tensor of a module, once: its parameters, its buffers, and those that are plain attributes."""
    plain = (each for part in module.modules() for each in vars(part).values() if isinstance(each, Tensor))
    return list({id(t): t for t in (*module.parameters(), *module.buffers(), *plain)}.values())


def _short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.item():g}" if value.numel() == 1 else f"<{value.numel()} values>"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def finite(name: str, value: Number) -> Number:
    """``value`` if all of it is finite, else a clear error."""
    return _require(name, value, -math.inf, "a finite number")


def above(name: str, value: Number, lowest: float, hint: str = "") -> Number:
    """``value`` if all of it is finite and greater than ``lowest``, else a clear error."""
    return _require(name, value, lowest, f"a finite number > {lowest:g}{hint}")


def at_least(name: str, value: Number, lowest: float, hint: str = "") -> Number:
    """``value`` if all of it is finite and no less than ``lowest``, else a clear error."""
    return _require(name, value, lowest, f"a finite number of at least {lowest:g}{hint}", operator.ge)


def _require(
    name: str, value: Number, lowest: float, wanted: str, accepts: Callable[[Any, float], Any] = operator.gt
) -> Number:
    if not isinstance(value, Tensor):
        real = _real(value)
        if real is None or not (abs(real) < math.inf and accepts(real, lowest)):
            raise InvalidValue(f"{name} = {shown(value)}: must be {wanted}.")
        return real
    if not value.is_floating_point():
        raise InvalidValue(f"{name} has dtype {value.dtype}: must be a floating-point tensor.")
    if value.is_meta:
        return value
    wrong = ~(torch.isfinite(value) & accepts(value, lowest))
    if bool(wrong.any()):
        raise InvalidValue(f"{name} holds {value[wrong].flatten()[0].item()!r}: every value must be {wanted}.")
    return value


def _real(value: object) -> float | None:
    """A Python or NumPy number as a float; None for what only looks like one, such as "1" and True."""
    if isinstance(value, bool | str | bytes | bytearray):
        return None
    if not isinstance(value, int | float) and getattr(value, "dtype", None) == np.bool_:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def number(name: str, value: object, lowest: float = -math.inf, hint: str = "") -> float:
    """``value`` as one finite number greater than ``lowest``, else a clear error; tensors are refused."""
    wanted = "one finite number" + (f" > {lowest:g}" if lowest > -math.inf else "") + hint
    if isinstance(value, Tensor):
        raise InvalidValue(f"{name} is a tensor: must be {wanted}.")
    checked = _require(name, value, lowest, wanted)  # type: ignore[arg-type]
    assert isinstance(checked, float)
    return checked


def count(name: str, value: object) -> int:
    """``value`` as a whole number of at least 1, else a clear error."""
    return whole(name, value, 1)


def whole(name: str, value: object, least: int) -> int:
    """``value`` as a whole number from ``least`` to what a tensor can be counted with, else a clear error."""
    try:
        checked = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        checked = least - 1
    if isinstance(value, bool) or checked < least:
        raise InvalidValue(f"{name} = {shown(value)}: must be a whole number of at least {least}.")
    if checked > LARGEST:
        raise InvalidValue(f"{name} = {shown(value)}: must be a whole number of at most {LARGEST:,}.")
    return checked


def flag(name: str, value: object) -> bool:
    """``value`` if it is True or False, else a clear error: "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidValue(f"{name} = {shown(value)}: must be True or False.")
    return bool(value)


def shown(value: object) -> str:
    """A value for an error, shortened if it is long.

    >>> shown("no"), shown(10**400)
    ("'no'", '1000000000000000000000000000 … of 401 characters')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of more than 4,300 digits, or lists in lists in lists
        return f"something of type {type(value).__name__}, too long to show"
    return text if len(text) <= LONGEST else f"{text[:28]} … of {len(text)} characters"


def per_head(name: str, value: Number, logits: Tensor) -> Number:
    """``value`` shaped so that it broadcasts over ``logits``: per-head vectors get two trailing dimensions.

    In place of the logits (..., keys) any tensor with the same rows will do, such as n (..., 1).
    """
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    shaped = value[:, None, None] if value.dim() == 1 and value.numel() > 1 else value
    rows = (*logits.shape[:-1], 1)
    if not broadcasts_to(shaped.shape, rows):
        raise InvalidTensor(
            f"{name} has shape {tuple(value.shape)}, which does not fit logits of shape {tuple(logits.shape)}: "
            f"give one number, one value per head (dimension -3 of the logits), or a shape that broadcasts to {rows}."
        )
    return shaped


def largest(value: Number) -> float:
    """The largest value in ``value``, as a plain number."""
    return float(value.detach().max()) if isinstance(value, Tensor) else value


def smallest(value: Number) -> float:
    """The smallest value in ``value``, as a plain number."""
    return float(value.detach().min()) if isinstance(value, Tensor) else value


def largest_magnitude(value: Number) -> float:
    """The largest absolute value in ``value``, as a plain number."""
    return float(value.detach().abs().max()) if isinstance(value, Tensor) else abs(value)
