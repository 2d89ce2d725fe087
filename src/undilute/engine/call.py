"""One attention call, checked and normalised: what every route receives.

Everything a user can get wrong is refused here, so that the routes need no checks of their own.
"""

from __future__ import annotations

import math
import operator
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undilute.engine import masks
from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.base import Rule, forward_of, softmax_form
from undilute.rules.masked import broadcasts_to
from undilute.rules.parameters import count, flag, number, shown, tensors_of

FEW = 8
FARTHEST = 2**48  # position that a key or a window may reach: sums of them still fit into int64
_PARALLEL = "torch.distributed.tensor.experimental."
CONTEXT_PARALLEL = (  # where torch keeps what it has rerouted, in one version or another
    f"{_PARALLEL}_attention",
    f"{_PARALLEL}_context_parallel._attention",
    f"{_PARALLEL}_context_parallel._sharding_rules",
)


class Attended(NamedTuple):
    """What a route returns.

    Attributes
    ----------
    output : (..., Hq, L, Ev)
    lse : (..., Hq, L), if the call asks for it: log Σe^z over the visible keys of each row, z the scaled logits; a sink
        is not in it; −inf for a row that sees nothing
    entropy : (..., Hq, L), if the call asks for it
    """

    output: Tensor
    lse: Tensor | None = None
    entropy: Tensor | None = None


class HandOver(Exception):
    """A route finds on its way that it cannot go on: the call is another's."""


@dataclass(frozen=True)
class Call:
    """A valid call.

    query (..., Hq, L, E), key (..., Hk, S, E), value (..., Hk, S, Ev) share dtype and device; Hq = groups · Hk.
    ``mask`` is boolean, ``bias`` is added to the logits; both broadcast to ``logits_shape`` = (..., Hq, L, S).
    Row i stands at position i + ``offset``, key j at j; if ``causal`` it sees keys up to its position, if ``window`` is
    set only keys less than ``window`` away from it. ``n`` is what rows count as, if it is not what they see: a number,
    or a tensor that broadcasts to (..., Hq, L, 1). ``softcap`` c makes c·tanh(z/c) of the logits z before ``bias``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    rule: Rule
    scale: float
    groups: int
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    offset: int
    window: int | None
    dropout: float
    logits_shape: torch.Size
    return_entropy: bool
    return_lse: bool = False
    n: int | Tensor | None = None
    softcap: float | None = None

    @property
    def queries(self) -> int:
        """L, the number of queries."""
        return self.logits_shape[-2]

    @property
    def keys(self) -> int:
        """S, the number of keys."""
        return self.logits_shape[-1]

    @property
    def is_step(self) -> bool:
        """Are there only a few queries, as in a step of decoding?"""
        return self.queries <= FEW

    @property
    def is_abstract(self) -> bool:
        """Do the tensors have a shape but no numbers, as on the meta device or while torch traces a model?"""
        tracing: Any = sys.modules.get("torch._subclasses.fake_tensor")
        return self.query.is_meta or (tracing is not None and tracing.is_fake(self.query))

    def needs_gradient(self) -> bool:
        """Is this call part of a graph?"""
        tensors = (self.query, self.key, self.value, self.bias, *tensors_of(self.rule))
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)

    @cached_property
    def largest_product(self) -> float:
        """At least as much as any |q·k| of this call; ∞ if some number is not finite.

        For a few queries the question costs as much as the attention; there the routes look at the logits instead.
        """
        product = float(self.query.shape[-1])
        for t in (self.query, self.key):
            smallest, largest = torch.aminmax(t.detach())
            product *= max(float(largest), -float(smallest))
        return product if math.isfinite(product) else math.inf

    def for_heads(self, kv: slice) -> Call:
        """The same call for some of the key heads and the query heads that share them."""
        own = slice(kv.start * self.groups, kv.stop * self.groups)

        def cut(t: Tensor, heads: slice) -> Tensor:
            return t if t.dim() < 3 or t.shape[-3] == 1 else t[..., heads, :, :]

        *batch, total, queries, keys = self.logits_shape
        return replace(
            self,
            query=cut(self.query, own),
            key=cut(self.key, kv),
            value=cut(self.value, kv),
            rule=self.rule.for_heads(own, total),
            n=cut(self.n, own) if isinstance(self.n, Tensor) else self.n,
            mask=None if self.mask is None else cut(self.mask, own),
            bias=None if self.bias is None else cut(self.bias, own),
            logits_shape=torch.Size((*batch, own.stop - own.start, queries, keys)),
        )

    def block(self, start: int, stop: int) -> Call:
        """The same call for queries start … stop − 1 and the keys they can reach."""
        rows, keys = slice(start, stop), masks.reach(self, start, stop)
        return replace(
            self,
            query=self.query[..., rows, :],
            key=self.key[..., keys, :],
            value=self.value[..., keys, :],
            rule=self.rule.for_rows(rows, self.queries),
            n=self.n[..., rows, :] if isinstance(self.n, Tensor) and self.n.shape[-2] > 1 else self.n,
            mask=None if self.mask is None else masks.part(self.mask, rows, keys),
            bias=None if self.bias is None else masks.part(self.bias, rows, keys),
            offset=self.offset + start - keys.start,
            logits_shape=torch.Size((*self.logits_shape[:-2], stop - start, keys.stop - keys.start)),
        )


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: Rule,
    sliding_window: int | None = None,
    softcap: float | None = None,
    n: int | Tensor | None = None,
    key_offset: int = 0,
    return_lse: bool = False,
    return_entropy: bool = False,
    past: int | None = None,
) -> Call:
    """Check the arguments of ``undilute.attention`` and put them in order.

    ``past`` is for layers: causal attention whose first row stands at position ``past``, whatever ``attn_mask`` is.
    """
    is_causal, return_entropy = flag("is_causal", is_causal), flag("return_entropy", return_entropy)
    query, key, value = _autocast(query, key, value)
    check_tensors(query, key, value)
    check_whole_sequence()
    groups = _groups(query, key, value, flag("enable_gqa", enable_gqa))
    shape = _logits_shape(query, key, value, groups)
    causal, offset = is_causal or past is not None, (past or 0) - _position("key_offset", key_offset)
    if attn_mask is not None:
        if is_causal:
            raise InvalidValue("attn_mask and is_causal = True: give one of the two, as with torch's attention.")
        if _is_causal_bias(attn_mask):
            attn_mask, causal, offset = None, True, offset + _offset(attn_mask, shape)
        else:
            attn_mask = _checked_mask(attn_mask, query, shape)
    mask, bias = _split(attn_mask)
    return Call(
        query=query,
        key=key,
        value=value,
        rule=rule,
        scale=_scale(scale, query.shape[-1]),
        groups=groups,
        mask=mask,
        bias=bias,
        causal=causal,
        offset=offset,
        window=None if sliding_window is None else min(count("sliding_window", sliding_window), FARTHEST),
        dropout=probability("dropout_p", dropout_p),
        logits_shape=shape,
        return_entropy=return_entropy,
        return_lse=_has_lse(rule) if flag("return_lse", return_lse) else False,
        n=None if n is None else _n(n, rule, query, shape),
        softcap=None if softcap is None else number("softcap", softcap, 0.0, ", or None for no cap"),
    )


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under torch.autocast, the tensors in its dtype, as torch's own attention takes them."""
    if not all(isinstance(t, Tensor) for t in tensors):
        return tensors
    kind = tensors[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse query, key and value that do not fit together."""
    named = {"query": query, "key": key, "value": value}
    for name, t in named.items():
        if not isinstance(t, Tensor) or not t.is_floating_point():
            got = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise InvalidTensor(f"{name} is {got}: must be a floating-point tensor.")
        if t.layout is not torch.strided and not t.is_nested:
            raise InvalidTensor(f"{name} has layout {t.layout}: must be dense, as {name}.to_dense() makes it.")
        if t.is_nested:
            raise InvalidTensor(f"{name} is a nested tensor: pad it and pass a mask instead.")
        if t.dim() < 2:
            raise InvalidTensor(f"{name} has shape {tuple(t.shape)}: must have at least (length, features).")
    for what in ("dtype", "device"):
        if len({getattr(t, what) for t in named.values()}) > 1:
            listed = ", ".join(f"{name} {getattr(t, what)}" for name, t in named.items())
            raise InvalidTensor(f"{what}s differ ({listed}): query, key and value must share one {what}.")
    if query.shape[-1] != key.shape[-1] or query.shape[-1] == 0:
        raise InvalidTensor(
            f"query has {query.shape[-1]} features and key {key.shape[-1]}: both need the same number, at least 1."
        )
    if key.shape[-2] != value.shape[-2]:
        raise InvalidTensor(f"key has length {key.shape[-2]} and value {value.shape[-2]}: one value per key is needed.")


def check_whole_sequence() -> None:
    """Refuse to run inside torch's ``context_parallel``, where every process holds a part of the keys.

    It reroutes torch's own attention; ours would attend to the part alone, as if that were all.
    """
    for module in filter(None, map(sys.modules.get, CONTEXT_PARALLEL)):
        replaced = torch.nn.functional.scaled_dot_product_attention in getattr(module, "_replaced_functions", ())
        if replaced or getattr(module, "_cp_strategy_contexts", None):
            raise InvalidValue(
                "undilute.attention inside torch's context_parallel would see only one process's part of the keys: "
                "keep each sequence whole on its device, or split its heads instead, as Ulysses parallelism does."
            )


def _groups(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> int:
    if not enable_gqa:
        return 1
    if min(query.dim(), key.dim(), value.dim()) < 3:
        raise InvalidTensor("enable_gqa = True needs a head dimension: shapes (..., heads, length, features).")
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if kv_heads != value.shape[-3]:
        raise InvalidTensor(f"key has {kv_heads} heads and value {value.shape[-3]}: must be equal.")
    if kv_heads == 0 or heads % kv_heads:
        raise InvalidTensor(f"query has {heads} heads and key {kv_heads}: query's must be a multiple of key's.")
    return heads // kv_heads


def _logits_shape(query: Tensor, key: Tensor, value: Tensor, groups: int) -> torch.Size:
    def leading(t: Tensor, repeat: int) -> tuple[int, ...]:
        return tuple(t.shape[:-2]) if repeat == 1 else (*t.shape[:-3], t.shape[-3] * repeat)

    try:
        batch = torch.broadcast_shapes(leading(query, 1), leading(key, groups), leading(value, groups))
    except RuntimeError:
        hint = "" if groups > 1 else " (fewer key heads than query heads need enable_gqa = True)"
        raise InvalidTensor(
            f"leading dimensions of query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} "
            f"do not broadcast{hint}."
        ) from None
    return torch.Size((*batch, query.shape[-2], key.shape[-2]))


def _is_causal_bias(attn_mask: object) -> bool:
    """Is it torch's CausalBias?  Asked without importing its module, which takes longer than torch itself."""
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(attn_mask, module.CausalBias)


def _offset(attn_mask: Any, shape: torch.Size) -> int:
    """Position of the first row under a CausalBias: 0 aligned to the upper left, S − L to the lower right."""
    if (attn_mask.seq_len_q, attn_mask.seq_len_kv) != tuple(shape[-2:]):
        raise InvalidTensor(
            f"attn_mask is a causal bias for {attn_mask.seq_len_q} × {attn_mask.seq_len_kv}: "
            f"the lengths here are {shape[-2]} × {shape[-1]}."
        )
    return shape[-1] - shape[-2] if attn_mask.variant.name == "LOWER_RIGHT" else 0


def _checked_mask(attn_mask: Tensor, query: Tensor, shape: torch.Size) -> Tensor:
    """The mask with at least one dimension, if it can be one."""
    if not isinstance(attn_mask, Tensor):
        raise InvalidTensor(f"attn_mask is {type(attn_mask).__name__}: must be a boolean or floating-point tensor.")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise InvalidTensor(f"attn_mask has dtype {attn_mask.dtype}: must be bool (True = visible) or floating-point.")
    if attn_mask.device != query.device:
        raise InvalidTensor(f"attn_mask is on {attn_mask.device}, query on {query.device}: must be on one device.")
    if not broadcasts_to(attn_mask.shape, shape):
        raise InvalidTensor(
            f"attn_mask has shape {tuple(attn_mask.shape)}: must broadcast to the weights' shape {tuple(shape)}."
        )
    traced = torch.compiler.is_compiling()
    if not traced and attn_mask.is_inference() and torch.is_grad_enabled():  # autograd keeps none of inference mode
        attn_mask = attn_mask.clone()
    return attn_mask if attn_mask.dim() else attn_mask[None]


def _split(attn_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """(boolean mask, additive bias). An additive entry of −inf or close to its dtype's lowest number hides the key:
    that lowest number is how Hugging Face writes −inf, and a key it hides must not count in n."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask, None
    visible = ~(attn_mask <= torch.finfo(attn_mask.dtype).min / 2)
    return visible, attn_mask.masked_fill(~visible, 0.0)


def _position(name: str, value: object) -> int:
    """``value`` as a whole number of either sign, small enough to be added to positions."""
    try:
        checked = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        checked = FARTHEST + 1
    if isinstance(value, bool) or abs(checked) > FARTHEST:
        raise InvalidValue(f"{name} = {shown(value)}: must be a whole number from {-FARTHEST:,} to {FARTHEST:,}.")
    return checked


def _has_lse(rule: Rule) -> bool:
    """True, or an error."""
    if forward_of(rule) is not Rule or softmax_form(rule.map) is None:
        name = type(rule).__name__ if forward_of(rule) is not Rule else type(rule.map).__name__
        raise InvalidValue(
            f"return_lse = True with {name}, which is not softmax-like: only softmax and sinks, with any scale, have a "
            "log-sum-exp."
        )
    return True


def _n(n: int | Tensor, rule: Rule, query: Tensor, shape: torch.Size) -> int | Tensor:
    """n as a number, or as a tensor with one more dimension for the keys; refused if the rule cannot be told."""
    wanted = f"must be a whole number, or whole numbers in a tensor that broadcasts to {tuple(shape[:-1])}"
    if not isinstance(n, Tensor):
        checked: int | Tensor = count("n", n)
    elif n.dtype.is_floating_point or n.dtype.is_complex or n.dtype == torch.bool:
        raise InvalidTensor(f"n has dtype {n.dtype}: {wanted}.")
    elif n.device != query.device:
        raise InvalidTensor(f"n is on {n.device}, query on {query.device}: must be on one device.")
    elif not broadcasts_to(n.shape, shape[:-1]):
        raise InvalidTensor(f"n has shape {tuple(n.shape)}: {wanted}.")
    elif n.device.type == "cpu" and not torch.compiler.is_compiling() and n.numel() and bool((n < 0).any()):
        raise InvalidValue(f"n holds {n.min().item()}: no row can see fewer than 0 keys.")
    else:
        checked = (n if n.dim() else n[None])[..., None].clamp(min=1)
    if (part := rule.deaf_part()) is not None:
        raise InvalidValue(
            f"n was given, but {type(part).__name__} takes what it needs from the keys that a row sees: leave n unset, "
            "or use a rule that needs n only in its scale, such as 'ssmax'."
        )
    return checked


def _scale(scale: float | None, features: int) -> float:
    hint = ", or None for 1/√features (to learn it, use rule = undilute.rules.Temperature)"
    return 1.0 / math.sqrt(features) if scale is None else number("scale", scale, hint=hint)


def probability(name: str, value: float) -> float:
    """``value`` as a number between 0 and 1, else a clear error."""
    if not 0.0 <= (checked := number(name, value)) <= 1.0:
        raise InvalidValue(f"{name} = {value!r}: must be between 0 and 1.")
    return checked
