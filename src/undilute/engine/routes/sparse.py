"""Exact sparse attention, faster than softmax: find each row's support, touch nothing else.

A block of rows meets the keys a tile at a time: one matrix product per tile, then `sparse_kernels.scan` keeps the few
keys that can still matter. No logit is written to memory for longer than a tile. The output gathers the values of the
support only, and the support (index, weight) is kept for a backward pass that needs no matrix product at all; past the
memory budget it is found again instead. Threads of our own, each with torch on one core, share blocks of rows.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undilute.engine import masks, scaling
from undilute.engine.budget import memory_budget, support_budget
from undilute.engine.call import Call
from undilute.engine.once import once
from undilute.engine.routes import flash, rows
from undilute.engine.threads import share
from undilute.rules.base import forward_of
from undilute.rules.maps.entmax import SOFTMAX, Entmax
from undilute.rules.maps.focus import Focus
from undilute.rules.maps.top_k import TopK
from undilute.rules.masked import working_dtype
from undilute.rules.parameters import Number, per_head, smallest

ROWS, TILE = 256, 2048  # of one tile of logits: 2 MB in float32, which stay in the caches
ROOM = 1024  # for each row's candidates at first
Array = np.ndarray[Any, Any]


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    rule = call.rule
    if forward_of(rule.map) not in (Entmax, Focus, TopK):
        return f"the map {type(rule.map).__name__} has no support to find"
    for name in ("alpha", "s_min", "s_max"):
        if torch.as_tensor(getattr(rule.map, name, 0.0)).dim() > 1:
            return f"{name} differs from row to row"
    if call.query.device.type == "cpu" and smallest(getattr(rule.map, "alpha", 2.0)) < 1.0:
        return "alpha below 1 gives every key some weight"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (pip install 'undilute[fast]')"
    return scaling.obstacle(call)


class _Overflow(Exception):
    """Some logit is not finite, or too large: the kernels cannot go on, the reference can."""


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Output and, if asked for, entropy."""
    try:
        by = 1.0 if scaling.is_trivial(call.rule) else flash.factor(call)
        unfolded = None if call.rule.map.is_continuous or not isinstance(by, Tensor) else _Unfolded.of(call, by)
        return _run(scaling.multiply(call, by), unfolded)
    except _Overflow:
        return rows.run(call)


@dataclass(frozen=True)
class _Unfolded:
    """A factor and the queries without it, for a map that jumps: multiplied into the queries it would be rounded there,
    and logits that were equal would differ in their last digit. The backward pass takes the folded queries."""

    query: Tensor  # (heads, L, E)
    by: Tensor  # (heads, L, 1)

    @classmethod
    def of(cls, call: Call, by: Tensor) -> _Unfolded:
        rows, dtype = call.logits_shape[:-1], working_dtype(call.query.dtype)
        parts = (t.detach().to(dtype).expand(*rows, t.shape[-1]) for t in (call.query, by))
        return cls(*(t.reshape(-1, call.rows, t.shape[-1]).contiguous() for t in parts))


def _run(call: Call, unfolded: _Unfolded | None) -> tuple[Tensor, Tensor | None]:
    lead, dtype = call.logits_shape[:-2], working_dtype(call.query.dtype)
    kv_lead = (*lead[:-1], lead[-1] // call.groups) if call.groups > 1 else lead
    q, k, v = (
        t.to(dtype).expand(*own, *t.shape[-2:]).reshape(-1, *t.shape[-2:])
        for t, own in ((call.query, lead), (call.key, kv_lead), (call.value, kv_lead))
    )
    of_rule = _epsilon(call), *_limits(call)
    out, entropy = _Sparse.apply(q, k, v, *of_rule, call, unfolded)  # type: ignore[no-untyped-call]
    out = out.reshape(*lead, call.rows, v.shape[-1]).to(call.value.dtype)
    return out, entropy.reshape(*lead, call.rows) if call.return_entropy else None


def _epsilon(call: Call) -> Tensor:
    """α − 1 of each head, float64 (heads of all batches,); 0 stands for top-k."""
    if isinstance(call.rule.map, TopK):
        return _per_head(call, "alpha", 0.0)
    assert isinstance(call.rule.map, Entmax | Focus)
    return _per_head(call, "alpha", call.rule.map.epsilon).clamp(min=SOFTMAX)


def _limits(call: Call) -> tuple[Tensor, Tensor]:
    """The least and the most that entmax's own scale can be in each head, float64 (heads of all batches,)."""
    map = call.rule.map
    least, most = (map.s_min, map.s_max) if isinstance(map, Focus) else (1.0, 1.0)
    return _per_head(call, "s_min", least), _per_head(call, "s_max", most)


def _per_head(call: Call, name: str, value: Number) -> Tensor:
    heads = call.logits_shape[:-2]
    per_head(name, value, torch.empty(call.logits_shape, device="meta"))  # raises unless it fits
    return torch.as_tensor(value, dtype=torch.float64).expand(heads).reshape(-1)


class _Sparse(torch.autograd.Function):
    """(out, entropy) for q (heads, L, E), k and v (kv heads, S, ·), differentiable in all, in α and in the limits."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        epsilon: Tensor,
        least: Tensor,
        most: Tensor,
        call: Call,
        unfolded: _Unfolded | None,
    ) -> tuple[Tensor, Tensor]:
        problem = _Problem(call, q, k, v, epsilon, least, most, unfolded)
        out, entropy = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype), torch.zeros(q.shape[:2], dtype=q.dtype)
        keep = _Keep(support_budget() if any(ctx.needs_input_grad) else 0)

        def work(task: _Task, scratch: _Scratch) -> None:
            spread = entropy.numpy()[task.head, task.rows] if call.return_entropy else problem.nowhere
            found = problem.support(task, scratch, spread)
            problem.kernels.gather(*found[:3], problem.v[task.kv], out.numpy()[task.head, task.rows])
            keep.add(problem.kernels, task, found)

        share(problem.tasks(), work, problem.scratch, at_once=not call.is_step)
        ctx.save_for_backward(q, k, v, epsilon, least, most, call.mask)  # torch notices a change in place
        ctx.call, ctx.keep, ctx.unfolded = call, keep, unfolded
        ctx.set_materialize_grads(False)
        return out, entropy

    @staticmethod
    @once
    def backward(ctx: Any, grad_out: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, epsilon, least, most, _ = ctx.saved_tensors
        if grad_out is None and grad_entropy is None:
            return (None,) * 8
        problem = _Problem(ctx.call, q, k, v, epsilon, least, most, ctx.unfolded)
        grad_out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=q.dtype) if grad_out is None else grad_out
        grad_entropy = torch.zeros(q.shape[:2], dtype=q.dtype) if grad_entropy is None else grad_entropy
        go, ge = grad_out.contiguous().numpy(), grad_entropy.contiguous().numpy()
        dq, slopes = torch.zeros_like(q, memory_format=torch.contiguous_format), []
        lanes = _lanes(problem.tasks(), len(k), problem.threads)
        dk, dv = (np.zeros((max(lane.copy for lane in lanes) + 1, *t.shape), t.numpy().dtype) for t in (k, v))

        def work(lane: _Lane, scratch: _Scratch) -> None:
            for task in lane.tasks:
                support = ctx.keep.get(task) or _pack(problem.kernels, problem.support(task, scratch, problem.nowhere))
                at, kv = (task.head, task.rows), (lane.copy, task.kv)
                of_task = problem.kernels.backward(
                    *support,
                    problem.epsilon[task.head],
                    bool(ctx.needs_input_grad[3]),
                    ctx.call.scale,
                    problem.q[at],
                    problem.k[task.kv],
                    problem.v[task.kv],
                    go[at],
                    ge[at],
                    dq.numpy()[at],
                    dk[kv],
                    dv[kv],
                    scratch.g,
                    scratch.u,
                    np.empty(len(support.keys)),
                    *scratch.fast(problem.epsilon[task.head]),
                )
                slopes.append((task, of_task))

        share(lanes, work, problem.scratch)
        totals = torch.zeros(3, len(q), dtype=torch.float64)
        for task, of_task in sorted(slopes, key=lambda pair: (pair[0].head, pair[0].start)):  # always in the same order
            totals[:, task.head] += torch.tensor(of_task, dtype=torch.float64)
        return dq, torch.from_numpy(dk.sum(0)), torch.from_numpy(dv.sum(0)), *totals, None, None


@dataclass(frozen=True)
class _Task:
    """A block of rows of one head."""

    head: int
    kv: int
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class _Lane:
    """Tasks that add to the same gradients of keys and values, so that one thread must do them in turn."""

    copy: int
    tasks: list[_Task]


def _lanes(tasks: list[_Task], kv_heads: int, threads: int) -> list[_Lane]:
    """One lane per key head; with fewer key heads than threads, several lanes with gradients of their own."""
    copies = 1 if kv_heads >= threads else -(-threads // kv_heads)
    lanes: dict[tuple[int, int], list[_Task]] = {}
    for i, task in enumerate(tasks):
        lanes.setdefault((task.kv, i % copies), []).append(task)
    return [_Lane(copy, each) for (_, copy), each in lanes.items()]


class _Support(NamedTuple):
    """Which keys have weight in a block of rows; packed, the rows stand one after the other.

    Attributes
    ----------
    counts : (rows,) keys of each row
    keys, weights : (rows, room), or packed (keys of all rows,)
    rates, ties : (rows,), as ``sparse_kernels.weigh`` leaves them
    """

    counts: Array
    keys: Array
    weights: Array
    rates: Array
    ties: Array


class _Keep:
    """Supports for the backward pass, up to a number of bytes; the order of arrival decides which."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.packed: dict[_Task, _Support] = {}

    def add(self, kernels: Any, task: _Task, found: _Support) -> None:
        size = int(found.counts.sum()) * (found.keys.itemsize + found.weights.itemsize)
        if size < self.left:
            self.left -= size
            self.packed[task] = _pack(kernels, found)

    def get(self, task: _Task) -> _Support | None:
        return self.packed.get(task)


def _pack(kernels: Any, found: _Support) -> _Support:
    count, index, weight, rates, ties = found
    total = int(count.sum())
    packed = np.empty(total, index.dtype), np.empty(total, weight.dtype)
    kernels.pack(count, index, weight, *packed)
    return _Support(count.copy(), *packed, rates.copy(), ties.copy())


class _Scratch:
    """One thread's memory for a tile and for candidates; the latter grows when a row has more than it holds."""

    def __init__(self, problem: _Problem) -> None:
        rows, keys, dtype = problem.block, problem.call.keys, problem.q.dtype
        self.tile = torch.empty(rows * problem.tile, dtype=torch.from_numpy(problem.q[:0]).dtype)
        self.make_room(rows, min(keys + 1, ROOM), dtype)
        self.top, self.floor, self.rates = (np.empty(rows) for _ in range(3))
        self.count, self.settled, self.ties = (np.empty(rows, np.int64) for _ in range(3))
        self.maxima, self.ranked = np.empty(problem.tile // problem.kernels.CHUNK + 2, dtype), np.empty(keys, dtype)
        self.work, self.other = np.empty(keys + 64, np.float32), np.empty(keys + 64, np.float32)
        self.g, self.u = np.empty(keys), np.empty(keys)

    def make_room(self, rows: int, room: int, dtype: Any) -> None:
        """Let each row have so many candidates."""
        self.index, self.value = np.empty((rows, room), np.int32), np.empty((rows, room), dtype)

    def fast(self, epsilon: float) -> tuple[bool, Array, Array]:
        """May powers be float32 vector code?  Not for float64, nor for an exponent that magnifies its rounding."""
        return self.value.dtype == np.float32 and epsilon > 0.05, self.work, self.other


class _Problem:
    """The arrays of one call and how its work is cut up."""

    def __init__(
        self,
        call: Call,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        epsilon: Tensor,
        least: Tensor,
        most: Tensor,
        unfolded: _Unfolded | None,
    ) -> None:
        from undilute.engine.kernels import entmax as sparse_kernels

        self.kernels: Any = sparse_kernels
        self.call = call
        self.q_tensor, self.k_tensor = q.detach().contiguous(), k.detach().contiguous()
        self.q, self.k, self.v = self.q_tensor.numpy(), self.k_tensor.numpy(), v.detach().contiguous().numpy()
        self.q_of_products = self.q_tensor if unfolded is None else unfolded.query
        self.by = None if unfolded is None else unfolded.by
        self.epsilon = epsilon.detach().tolist()
        self.least, self.most = ((epsilon * limit).detach().tolist() for limit in (least, most))
        self.zero, self.largest = torch.zeros(1, dtype=q.dtype), scaling.largest_logit(q.dtype)
        self.threads = torch.get_num_threads()
        self.block = min(ROWS, call.rows, max(1, memory_budget() // (self.threads * call.keys * 12)))
        self.tile = min(call.keys, max(TILE, ROWS * TILE // self.block))
        low, high = masks.limits(call)
        self.low, self.high = low.numpy(), high.numpy()
        self.kept = self._kept()
        self.all_products = self._all_products() if call.is_step else None
        self.nowhere: Array = np.empty(0, self.q.dtype)
        self.heads = list(np.ndindex(*call.logits_shape[:-2]))

    def scratch(self) -> _Scratch:
        return _Scratch(self)

    def _kept(self) -> Array:
        """k of each row (heads, L), as ``sparse_kernels`` is told it."""
        shape, map = self.q.shape[:2], self.call.rule.map
        if not isinstance(map, TopK | Focus):
            return np.zeros(shape, np.int64)
        n = masks.row_counts(self.call).expand(*self.call.logits_shape[:-1], 1)
        kept = map.kept(n).clamp(min=1)
        if isinstance(map, Focus):
            kept = torch.where(n > kept, kept + 1, 0)
        ranks: Array = kept.reshape(shape).numpy()
        return ranks

    def tasks(self) -> list[_Task]:
        blocks = [(i, min(i + self.block, self.call.rows)) for i in range(0, self.call.rows, self.block)]
        return [_Task(h, h // self.call.groups, *rows) for rows in blocks for h in range(len(self.q))]

    def support(self, task: _Task, scratch: _Scratch, entropy: Array) -> _Support:
        """Each row's support, in the thread's scratch memory; its entropy, if wanted."""
        while (room := self._find(task, scratch, entropy)) > 0:
            scratch.make_room(self.block, min(self.call.keys + 1, 2 * room), self.q.dtype)
        count, rates, ties = (each[: task.size] for each in (scratch.count, scratch.rates, scratch.ties))
        return _Support(count, scratch.index, scratch.value, rates, ties)

    def _find(self, task: _Task, scratch: _Scratch, entropy: Array) -> int:
        """0 if the support was found, else how much room for candidates it takes."""
        kernels, size, block = self.kernels, task.size, task.rows
        state = scratch.top, scratch.floor, scratch.count, scratch.settled, scratch.rates, scratch.ties
        low, high, kept = self.low[block], self.high[block], self.kept[task.head, block]
        epsilon = self.epsilon[task.head]
        reach = masks.reach(self.call, task.start, task.stop)
        if reach.start == reach.stop:
            scratch.count[:size].fill(0)
            scratch.ties[:size].fill(0)
        for first in range(reach.start, reach.stop, self.tile):
            keys = slice(first, min(first + self.tile, reach.stop))
            tile = self._products(task, keys, scratch)
            if self.call.is_step and not float(tile.abs().max()) < self.largest:
                raise _Overflow
            self._mask(tile, task, keys)
            room: int = kernels.scan(
                tile.numpy(),
                first,
                first == reach.start,
                keys.stop == reach.stop,
                low,
                high,
                epsilon,
                self.least[task.head],
                self.most[task.head],
                kept,
                *(each[:size] for each in state),
                scratch.index,
                scratch.value,
                entropy,
                scratch.maxima,
                scratch.ranked,
                *scratch.fast(epsilon),
            )
            if room > 0:
                return room
        return 0

    def _products(self, task: _Task, keys: slice, scratch: _Scratch) -> Tensor:
        """A tile of logits, (rows, keys), to be overwritten."""
        if self.all_products is not None:
            return self.all_products[task.head, task.rows, keys].clone(memory_format=torch.contiguous_format)
        tile = scratch.tile[: task.size * (keys.stop - keys.start)].view(task.size, -1)
        q, k = self.q_of_products[task.head, task.rows], self.k_tensor[task.kv, keys]
        inside = self.call.rule.map.is_continuous  # the product may scale its operands, so that ties are lost
        torch.addmm(self.zero, q, k.T, beta=0.0, alpha=self.call.scale if inside else 1.0, out=tile)
        tile = tile if inside else tile.mul_(self.call.scale)
        return tile if self.by is None else tile.mul_(self.by[task.head, task.rows])

    def _all_products(self) -> Tensor:
        """All logits of a few queries, (heads, L, S), by torch's own threads."""
        q, k = self.q_of_products, self.k_tensor
        products = torch.bmm(q.view(len(k), -1, q.shape[-1]), k.mT).mul_(self.call.scale).view(len(q), -1, k.shape[-2])
        return products if self.by is None else products.mul_(self.by)

    def _mask(self, tile: Tensor, task: _Task, keys: slice) -> None:
        for t, hides in ((self.call.bias, False), (self.call.mask, True)):
            if t is None:
                continue
            own = masks.part(masks.of_head(t, self.heads[task.head]), task.rows, keys).detach()
            if hides:
                tile.masked_fill_(~own, -torch.inf)
            else:
                tile.add_(own.to(tile.dtype))
