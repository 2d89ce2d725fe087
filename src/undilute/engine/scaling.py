"""Scales on the fast routes: a scale that depends on n alone is multiplied into the queries and costs nothing more."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from undilute.engine import masks
from undilute.engine.call import Call
from undilute.rules.base import Rule, Scale, forward_of
from undilute.rules.masked import working_dtype
from undilute.rules.parameters import largest_magnitude
from undilute.rules.scales.of_entropy import OfEntropy
from undilute.rules.scales.temperature import Temperature

ROUNDING = 0.01  # of a logit: more would spoil what is computed from differences of them
LARGEST = 2.0**30  # logit for which float64 leaves seven digits to such differences


def is_trivial(rule: Rule) -> bool:
    """Does the rule's scale leave the logits alone?"""
    plain = forward_of(rule) is Rule and rule.scale.is_foldable and type(rule.scale) is Temperature
    return plain and isinstance(rule.scale.T, float) and rule.scale.T == 1.0


def obstacle(call: Call) -> str | None:
    """Why the CPU kernels of the flash and sparse routes cannot take this call, whatever its map; or None."""
    scale = call.rule.scale
    if forward_of(call.rule) is not Rule:
        return f"{type(call.rule).__name__} computes its weights in a forward of its own"
    if not (scale.is_foldable or forward_of(scale) is OfEntropy):
        return f"the scale {type(scale).__name__} reads the logits"
    if call.query.device.type != "cpu":
        return f"its kernels are wired up for the CPU, not for {call.query.device.type}"
    if call.dropout > 0:
        return "its kernels have no dropout"
    if call.bias is not None and (call.bias.requires_grad or not is_trivial(call.rule)):
        return "an additive mask needs its own gradient or scale"
    return None


def keeps_ties(call: Call) -> bool:
    """Does folding leave equal logits equal, or does the map not mind?

    A factor that differs from row to row is multiplied into the queries and rounded there. Logits that were equal then
    differ in their last digit, and a map that jumps (top-k, hard) chooses among them.
    """
    return call.rule.map.is_continuous or not call.rule.scale.is_foldable or not isinstance(factor(call), Tensor)


def factor(call: Call) -> Tensor | float:
    """What multiplies each row's logits: a number, or a tensor that broadcasts to (..., Hq, L, 1)."""
    dtype = working_dtype(call.query.dtype)
    one_for_all = call.mask is None and not call.causal and call.window is None
    if one_for_all and not (*call.rule.scale.parameters(), *call.rule.scale.buffers()):
        one = call.rule.scale.at_length(torch.full((1,), max(1, call.keys), dtype=dtype))
        if not isinstance(one, Tensor) or (one.numel() == 1 and not one.requires_grad):
            return float(one)
    n = masks.row_counts(call).clamp(min=1).to(dtype)
    return call.rule.scale.at_length(n.expand(*call.logits_shape[:-1], 1))


def has_room(call: Call) -> bool:
    """Are all logits certain to be finite, with room to spare?  The fast routes, unlike the reference, need that."""
    scale = max(1.0, abs(call.scale)) * max(1.0, _largest_factor(call))
    return call.largest_product * scale < math.sqrt(torch.finfo(working_dtype(call.query.dtype)).max)


def has_digits(call: Call, is_scaled: bool) -> bool:
    """Are all logits small enough for differences of them: an entropy from log-sum-exp, a threshold of entmax?

    ``is_scaled`` if it is the scaled logits that count.
    """
    scale = abs(call.scale) * (max(1.0, _largest_factor(call)) if is_scaled else 1.0)
    return call.largest_product * scale < largest_logit(call.query.dtype)


def largest_logit(dtype: torch.dtype) -> float:
    """The largest logit of calls in ``dtype`` whose differences have enough digits."""
    return min(LARGEST, ROUNDING / torch.finfo(working_dtype(dtype)).eps)


def _largest_factor(call: Call) -> float:
    """The most that a rule's scale can multiply a call's logits by; ∞ if it does not say."""
    scale = call.rule.scale
    if is_trivial(call.rule):
        return 1.0
    if scale.is_foldable:
        return largest_magnitude(factor(call))
    return math.inf if type(scale).bound is Scale.bound else scale.bound(max(1, call.keys))


def fold(call: Call) -> Call:
    """The same call with its foldable scale multiplied into the queries (or into ``scale``, if it is one number)."""
    return call if is_trivial(call.rule) else multiply(call, factor(call))


def multiply(call: Call, by: Tensor | float) -> Call:
    """The same call with its logits multiplied by ``by`` and no scale of its own left.

    Half-precision queries become single: rounded once more after the product, they would be off by several times what
    the attention itself is. Keys and values are left alone; the output goes by the values' dtype.
    """
    unscaled = Rule(map=call.rule.map)
    if not isinstance(by, Tensor):
        bias = None if call.bias is None else call.bias * by
        return replace(call, scale=call.scale * by, bias=bias, rule=unscaled)
    bias = None if call.bias is None else call.bias * by.to(call.bias.dtype)
    query = call.query.to(torch.promote_types(call.query.dtype, by.dtype)) * by
    return replace(call, query=query, bias=bias, rule=unscaled)
