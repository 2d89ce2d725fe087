"""Which implementation runs a call?  The one place that decides.

| route | runs | memory |
|---|---|---|
| flash | softmax-like rules on the CPU, by PyTorch's own kernel | O(n) |
| sdpa | softmax-like rules whose scale depends on n alone, on any device, compiled too | O(n), and masks |
| sparse | entmax and top-k on the CPU: only the support is touched | O(n) |
| rows | everything else: blocks of query rows | O(block · n) |
| reference | small calls: dense, the specification | O(n²) |

A route is a module with ``obstacle(call)`` (why it cannot run a call, or None) and ``run(call)``. It knows no other
route. If it finds on its way that it cannot go on, it raises ``HandOver``, and the rows route, which takes every call,
has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

from undilute.engine import scaling
from undilute.engine.budget import memory_budget
from undilute.engine.call import Attended, Call, HandOver
from undilute.engine.routes import flash, reference, rows, sdpa, sparse
from undilute.errors import InvalidValue, UnknownName
from undilute.rules.base import Rule

SMALL = 2**16  # logits; up to here dense is fastest, and it is differentiable twice


class Implementation(Protocol):
    """What a route's module offers."""

    def obstacle(self, call: Call) -> str | None: ...
    def run(self, call: Call) -> Attended: ...


ROUTES: dict[str, Implementation] = {
    "flash": flash,
    "sdpa": sdpa,
    "sparse": sparse,
    "rows": rows,
    "reference": reference,
}
PRAISE = {
    "flash": "softmax-like, on PyTorch's own kernel",
    "sdpa": "softmax-like, scaled queries on torch's public attention",
    "sparse": "few keys get any weight, and only those are touched",
}


@dataclass(frozen=True)
class Route:
    """The route a call takes, and why; prints as one sentence."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.name)}</b>: {escape(self.reason)}</p>"


def choose(call: Call, forced: str | None = None) -> Route:
    """The route for this call; a forced one is refused if it cannot run the call."""
    if forced is not None:
        if not isinstance(forced, str) or forced not in ROUTES:
            raise UnknownName("route", str(forced), ROUTES)
        if (why := ROUTES[forced].obstacle(call)) is not None:
            raise InvalidValue(f"route = {forced!r} cannot run this call: {why}; leave route unset.")
    logits = call.logits_shape.numel()
    if logits == 0 or call.value.shape[-1] == 0:
        return Route("reference", "no rows, no keys or no values: nothing to compute")
    if call.is_abstract:
        return Route("reference", "tensors without numbers: only shapes are worked out")
    if _is_transformed():
        if forced not in (None, "reference"):
            raise InvalidValue(
                f"route = {forced!r} cannot run inside torch.func or forward-mode autograd: leave route unset."
            )
        return Route("reference", "inside torch.func or forward-mode autograd, which only dense code supports")
    if forced is not None:
        if forced in PRAISE and (why := _too_large(forced, call)) is not None:
            raise InvalidValue(f"route = {forced!r} cannot run this call: {why}; leave route unset.")
        return Route(forced, "asked for")
    if logits <= SMALL:
        return Route("reference", f"{logits:,} logits, where dense is fastest")
    return _step_route(call) if call.is_step else _fast_route(call)


def _step_route(call: Call) -> Route:
    """A few queries against many keys: memory does not matter, one pass over the keys does."""
    if call.query.device.type != "cpu" and sdpa.obstacle(call) is None:
        return Route("sdpa", f"{call.queries} queries; {PRAISE['sdpa']}")
    looks_at_logits = call.rule.scale.is_foldable and call.bias is None  # the route does, of a few queries
    if sparse.obstacle(call) is None and (looks_at_logits or _too_large("sparse", call) is None):
        return Route("sparse", f"{call.queries} queries; {PRAISE['sparse']}")
    if rows.has_fast_form(call):
        return Route("rows", f"{call.queries} queries: one pass over the keys")
    return Route("reference", f"{call.queries} queries: one pass over the keys, in dense code")


def _fast_route(call: Call) -> Route:
    why_not: list[str] = []
    for name, praise in PRAISE.items():
        why = ROUTES[name].obstacle(call) or _too_large(name, call) or _too_much(name, call)
        if why is None:
            return Route(name, "; ".join([praise, *why_not]))
        why_not.append(f"not {name}, since {why}")
    return Route("rows", f"blocks of query rows ({'; '.join(why_not)})")


def _too_much(name: str, call: Call) -> str | None:
    """Why a route would take too much memory, or None."""
    if name == "sdpa" and sdpa.bytes_written(call) > memory_budget():
        return "torch would need more than the memory budget"
    return None


def _too_large(name: str, call: Call) -> str | None:
    """Why the numbers of a call are too much for a fast route, or None. Other devices would have to wait for that."""
    if call.query.device.type != "cpu":
        return None
    if not scaling.has_room(call):
        return "its numbers are not finite, or its products of query and key are too large"
    is_scaled = name == "sparse" or call.return_entropy
    if (is_scaled or not call.rule.scale.is_foldable) and not scaling.has_digits(call, is_scaled):
        return "its logits are so large that rounding would destroy their differences"
    return None


def run(call: Call, forced: str | None = None) -> Attended:
    """Output and, if the call asks for it, log-sum-exp and entropy.

    Under torch.compile or torch.export, a call that the sdpa route can take is part of the graph; any other is one
    opaque operation.
    """
    if not torch.compiler.is_compiling():
        return _run(call, forced)
    if forced in (None, "sdpa") and sdpa.obstacle(call) is None:
        with _without_autocast(call):
            return sdpa.run(call)
    global _opaque
    if _opaque is None:
        _opaque = torch._dynamo.disable(_run)
    return _opaque(call, forced)


_opaque: Callable[[Call, str | None], Attended] | None = None


def _run(call: Call, forced: str | None) -> Attended:
    with _without_autocast(call):
        name = choose(call, forced).name
        call = replace(call, rule=Rule()) if call.is_abstract and not _is_recorded() else call
        try:
            return ROUTES[name].run(call)
        except HandOver:
            return rows.run(call)


def _without_autocast(call: Call) -> AbstractContextManager[Any]:
    """Precision is ours to choose inside."""
    kind = call.query.device.type
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()


def _is_recorded() -> bool:
    """Is a graph made of what runs, as by ``torch.export``?  Then the rule itself must run, not only its shapes."""
    recorder: Any = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return recorder is not None and recorder.get_proxy_mode() is not None


def _is_transformed() -> bool:
    """Does a transform of ``torch.func`` (vmap, grad, jvp, …) or forward-mode autograd look into what runs?"""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
