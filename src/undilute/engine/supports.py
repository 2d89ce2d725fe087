"""Which keys have weight in each row?  Supports found a block of rows at a time, and kept for the backward pass.

A block of rows meets the keys a tile at a time: one matrix product per tile, then ``scan`` of `kernels.entmax` keeps
the few keys that can still matter. No logit is written to memory for longer than a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undilute.engine import masks, scaling
from undilute.engine.budget import memory_budget
from undilute.engine.call import Call, HandOver
from undilute.rules.base import sparse_form
from undilute.rules.masked import working_dtype

ROWS, TILE = 256, 2048  # of one tile of logits: 2 MB in float32, which stay in the caches
ROOM = 1024  # for each row's candidates at first
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Unfolded:
    """A factor and the queries without it, for a map that jumps: multiplied into the queries it would be rounded there,
    and logits that were equal would differ in their last digit. The backward pass takes the folded queries."""

    query: Tensor  # (heads, L, E)
    by: Tensor  # (heads, L, 1)

    @classmethod
    def of(cls, call: Call, by: Tensor) -> Unfolded:
        rows, dtype = call.logits_shape[:-1], working_dtype(call.query.dtype)
        parts = (t.detach().to(dtype).expand(*rows, t.shape[-1]) for t in (call.query, by))
        return cls(*(t.reshape(-1, call.queries, t.shape[-1]).contiguous() for t in parts))


@dataclass(frozen=True)
class Task:
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
class Lane:
    """Tasks that add to the same gradients of keys and values, so that one thread must do them in turn."""

    copy: int
    tasks: list[Task]


def lanes(tasks: list[Task], kv_heads: int, threads: int) -> list[Lane]:
    """One lane per key head; with fewer key heads than threads, several lanes with gradients of their own."""
    copies = 1 if kv_heads >= threads else -(-threads // kv_heads)
    lanes: dict[tuple[int, int], list[Task]] = {}
    for i, task in enumerate(tasks):
        lanes.setdefault((task.kv, i % copies), []).append(task)
    return [Lane(copy, each) for (_, copy), each in lanes.items()]


class Support(NamedTuple):
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


class Keep:
    """Supports for the backward pass, up to a number of bytes; the order of arrival decides which."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.packed: dict[Task, Support] = {}

    def add(self, kernels: Any, task: Task, found: Support) -> None:
        size = int(found.counts.sum()) * (found.keys.itemsize + found.weights.itemsize)
        if size < self.left:
            self.left -= size
            self.packed[task] = pack(kernels, found)

    def get(self, task: Task) -> Support | None:
        return self.packed.get(task)


def pack(kernels: Any, found: Support) -> Support:
    count, index, weight, rates, ties = found
    total = int(count.sum())
    packed = np.empty(total, index.dtype), np.empty(total, weight.dtype)
    kernels.pack(count, index, weight, *packed)
    return Support(count.copy(), *packed, rates.copy(), ties.copy())


class Scratch:
    """One thread's memory for a tile and for candidates; the latter grows when a row has more than it holds."""

    def __init__(self, problem: Problem) -> None:
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


class Problem:
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
        unfolded: Unfolded | None,
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
        self.block = min(ROWS, call.queries, max(1, memory_budget() // (self.threads * call.keys * 12)))
        self.tile = min(call.keys, max(TILE, ROWS * TILE // self.block))
        low, high = masks.limits(call)
        self.low, self.high = low.numpy(), high.numpy()
        self.kept = self._kept()
        self.all_products = self._all_products() if call.is_step else None
        self.nowhere: Array = np.empty(0, self.q.dtype)
        self.heads = list(np.ndindex(*call.logits_shape[:-2]))

    def scratch(self) -> Scratch:
        return Scratch(self)

    def _kept(self) -> Array:
        """k of each row (heads, L), as ``sparse_kernels`` is told it."""
        shape, form = self.q.shape[:2], sparse_form(self.call.rule.map)
        if form is None or form.k is None:
            return np.zeros(shape, np.int64)
        n = masks.row_counts(self.call).expand(*self.call.logits_shape[:-1], 1)
        kept = form.k(n).clamp(min=1)
        if form.epsilon is not None:
            kept = torch.where(n > kept, kept + 1, 0)
        ranks: Array = kept.reshape(shape).numpy()
        return ranks

    def tasks(self) -> list[Task]:
        blocks = [(i, min(i + self.block, self.call.queries)) for i in range(0, self.call.queries, self.block)]
        return [Task(h, h // self.call.groups, *rows) for rows in blocks for h in range(len(self.q))]

    def support(self, task: Task, scratch: Scratch, entropy: Array) -> Support:
        """Each row's support, in the thread's scratch memory; its entropy, if wanted."""
        while (room := self._find(task, scratch, entropy)) > 0:
            scratch.make_room(self.block, min(self.call.keys + 1, 2 * room), self.q.dtype)
        count, rates, ties = (each[: task.size] for each in (scratch.count, scratch.rates, scratch.ties))
        return Support(count, scratch.index, scratch.value, rates, ties)

    def _find(self, task: Task, scratch: Scratch, entropy: Array) -> int:
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
                raise HandOver  # some logit is not finite, or too large: the kernels cannot go on
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

    def _products(self, task: Task, keys: slice, scratch: Scratch) -> Tensor:
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

    def _mask(self, tile: Tensor, task: Task, keys: slice) -> None:
        for t, hides in ((self.call.bias, False), (self.call.mask, True)):
            if t is None:
                continue
            own = masks.part(masks.of_head(t, self.heads[task.head]), task.rows, keys).detach()
            if hides:
                tile.masked_fill_(~own, -torch.inf)
            else:
                tile.add_(own.to(tile.dtype))
