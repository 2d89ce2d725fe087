"""Scales on the fast routes: multiplied into the queries, a scale costs nothing more.

That takes a scale that depends on n alone, or one that depends on the row's entropy H alone. H comes from the flash
kernel (`kernels.flash`), so adaptive temperature is two calls: one for H and β(H), one with β·q.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from undilute.engine import masks
from undilute.engine.call import Call
from undilute.engine.kernels import flash
from undilute.rules.base import Rule, Scale, entropy_form, forward_of
from undilute.rules.masked import working_dtype
from undilute.rules.parameters import largest_magnitude
from undilute.rules.scales.temperature import Temperature

ROUNDING = 0.01  # of a logit: more would spoil what is computed from differences of them
UNSCALED = Temperature(1.0)  # made here: its checks are not for a graph of torch.compile with dynamic=True
LARGEST = 2.0**30  # logit for which float64 leaves seven digits to such differences


def is_trivial(rule: Rule) -> bool:
    """Does the rule's scale leave the logits alone?"""
    scale = rule.scale
    plain = forward_of(rule) is Rule and scale.is_foldable and "at_length" not in vars(scale)
    return plain and type(scale) is Temperature and isinstance(scale.T, float) and scale.T == 1.0


def unfoldable(call: Call, takes_entropy: bool) -> str | None:
    """Why the rule's scale cannot be multiplied into the queries, or None.

    ``takes_entropy`` if a factor that depends on the row's entropy will do.
    """
    scale = call.rule.scale
    if forward_of(call.rule) is not Rule:
        return f"{type(call.rule).__name__} has its own forward"
    if not (scale.is_foldable or (takes_entropy and entropy_form(scale) is not None)):
        return f"the scale {type(scale).__name__} reads the logits"
    if call.softcap is not None:
        return "capped logits are not a product of queries and keys"
    return None


def obstacle(call: Call) -> str | None:
    """Why the CPU kernels of the flash and sparse routes cannot take this call, whatever its map; or None."""
    if (why := unfoldable(call, takes_entropy=True)) is not None:
        return why
    if call.query.device.type != "cpu":
        return f"its kernels run on the CPU, not on {call.query.device.type}"
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
    scale, dtype = call.rule.scale, working_dtype(call.query.dtype)
    if not scale.is_foldable:
        beta = entropy_form(scale)
        assert beta is not None
        return beta(flash.entropy(multiply(with_positive_scale(call), 1.0))[..., None]).to(dtype)
    if (one := constant_factor(call)) is not None:
        return one
    return scale.at_length(row_lengths(call).to(dtype).expand(*call.logits_shape[:-1], 1))


def constant_factor(call: Call) -> float | None:
    """The factor of a foldable scale, if it is one number that nobody learns and n is the same for all rows."""
    scale, length = call.rule.scale, _one_length(call)
    if length is None or (*scale.parameters(), *scale.buffers()):
        return None
    one = scale.at_length(torch.full((1,), length, dtype=working_dtype(call.query.dtype), device="cpu"))
    if isinstance(one, Tensor) and (one.numel() != 1 or one.requires_grad):
        return None
    return float(one)


def _one_length(call: Call) -> int | None:
    """n, if it is the same for all rows, as far as one can tell without looking."""
    if call.n is not None:
        return call.n if isinstance(call.n, int) else None
    sees_all = call.mask is None and not call.causal and call.window is None
    return max(1, call.keys) if sees_all else None


def row_lengths(call: Call) -> Tensor:
    """n as rules use it, at least 1: what was given, or the number of keys each row sees; broadcasts to all rows."""
    if call.n is None:
        return masks.row_counts(call).clamp(min=1)
    return call.n if isinstance(call.n, Tensor) else torch.full((1, 1), call.n, device=call.query.device)


def has_room(call: Call) -> bool:
    """Are all logits certain to be finite, with room to spare?  The fast routes, unlike the reference, need that."""
    factor, room = max(1.0, _largest_factor(call)), math.sqrt(torch.finfo(working_dtype(call.query.dtype)).max)
    return call.largest_product * max(1.0, abs(call.scale)) * factor < room and _largest_bias(call.bias) * factor < room


def has_digits(call: Call, is_scaled: bool) -> bool:
    """Are all logits small enough for differences of them: an entropy from log-sum-exp, a threshold of entmax?

    ``is_scaled`` if it is the scaled logits that count.
    """
    factor, largest = max(1.0, _largest_factor(call)) if is_scaled else 1.0, largest_logit(call.query.dtype)
    return call.largest_product * abs(call.scale) * factor < largest and _largest_top(call.bias) * factor < largest


def _largest_bias(bias: Tensor | None) -> float:
    """The largest magnitude in an additive mask; ∞ if some of it is not finite."""
    if bias is None:
        return 0.0
    smallest, largest = map(float, torch.aminmax(bias.detach()))
    return max(largest, -smallest) if math.isfinite(largest - smallest) else math.inf


def _largest_top(bias: Tensor | None) -> float:
    """The same of the top of each row: keys far below it, as −1e9 puts them, take no digits from the rest."""
    return 0.0 if bias is None else _largest_bias(bias.detach().amax(-1))


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


def with_positive_scale(call: Call) -> Call:
    """The same call with a ``scale`` > 0: kernels multiply it with the −inf of hidden keys."""
    if call.scale > 0:
        return call
    if call.scale == 0:
        return replace(call, query=call.query * 0.0, scale=1.0)
    return replace(call, query=-call.query, scale=-call.scale)


def fold(call: Call) -> Call:
    """The same call with its rule's scale multiplied into the queries (or into ``scale``, if it is one number)."""
    return call if is_trivial(call.rule) else multiply(call, factor(call))


def multiply(call: Call, by: Tensor | float) -> Call:
    """The same call with its logits multiplied by ``by`` and no scale of its own left.

    Half-precision queries become single: rounded once more after the product, they would be off by several times what
    the attention itself is. Keys and values are left alone; the output goes by the values' dtype.
    """
    unscaled = Rule(UNSCALED, call.rule.map)
    if not isinstance(by, Tensor):
        bias = None if call.bias is None else call.bias.to(working_dtype(call.bias.dtype)) * by
        return replace(call, scale=call.scale * by, bias=bias, rule=unscaled)
    query, bias = (
        t if t is None else t.to(torch.promote_types(t.dtype, by.dtype)) * by for t in (call.query, call.bias)
    )
    assert query is not None
    return replace(call, query=query, bias=bias, rule=unscaled)
