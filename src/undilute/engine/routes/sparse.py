"""Exact sparse attention, faster than softmax: find each row's support, touch nothing else.

The support of a row is found as `supports` says. The output gathers the values of the support only, and the support
(index, weight) is kept for a backward pass that needs no matrix product at all; past the memory budget it is found
again instead. Threads of our own, each with torch on one core, share blocks of rows.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undilute.engine import scaling
from undilute.engine.budget import support_budget
from undilute.engine.call import Attended, Call
from undilute.engine.once import once
from undilute.engine.supports import Keep, Lane, Problem, Scratch, Task, Unfolded, lanes, pack
from undilute.engine.threads import share
from undilute.rules.base import sparse_form
from undilute.rules.forms import SOFTMAX, SparseForm
from undilute.rules.masked import working_dtype
from undilute.rules.parameters import Number, per_head, smallest


def obstacle(call: Call) -> str | None:
    """Why this route cannot run the call, or None."""
    form = sparse_form(call.rule.map)
    if form is None:
        return f"the map {type(call.rule.map).__name__} has no support to find"
    for name, value in _values(form).items():
        if torch.as_tensor(value).dim() > 1:
            return f"{name} differs from row to row"
    if call.query.device.type == "cpu" and form.epsilon is not None and smallest(form.epsilon) < 0.0:
        return "alpha below 1 gives every key some weight"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (pip install 'undilute[fast]')"
    return scaling.obstacle(call)


def run(call: Call) -> Attended:
    """Output and, if asked for, entropy."""
    by = 1.0 if scaling.is_trivial(call.rule) else scaling.factor(call)
    unfolded = None if call.rule.map.is_continuous or not isinstance(by, Tensor) else Unfolded.of(call, by)
    return _run(scaling.multiply(call, by), unfolded)


def _run(call: Call, unfolded: Unfolded | None) -> Attended:
    lead, dtype = call.logits_shape[:-2], working_dtype(call.query.dtype)
    kv_lead = (*lead[:-1], lead[-1] // call.groups) if call.groups > 1 else lead
    q, k, v = (
        t.to(dtype).expand(*own, *t.shape[-2:]).reshape(-1, *t.shape[-2:])
        for t, own in ((call.query, lead), (call.key, kv_lead), (call.value, kv_lead))
    )
    form = sparse_form(call.rule.map)
    assert form is not None
    epsilon, *limits = (_per_head(call, name, value) for name, value in _values(form).items())
    epsilon = epsilon if form.epsilon is None else epsilon.clamp(min=SOFTMAX)  # a learned α may come to 1
    out, entropy = _Sparse.apply(q, k, v, epsilon, *limits, call, unfolded)  # type: ignore[no-untyped-call]
    out = out.reshape(*lead, call.queries, v.shape[-1]).to(call.value.dtype)
    return Attended(out, None, entropy.reshape(*lead, call.queries) if call.return_entropy else None)


def _values(form: SparseForm) -> dict[str, Number]:
    """α − 1 and the least and the most that entmax's own scale can be, by the names users know; 0 stands for top-k."""
    return {"alpha": 0.0 if form.epsilon is None else form.epsilon, "s_min": form.s_min, "s_max": form.s_max}


def _per_head(call: Call, name: str, value: Number) -> Tensor:
    """The value of each head, float64 (heads of all batches,)."""
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
        unfolded: Unfolded | None,
    ) -> tuple[Tensor, Tensor]:
        problem = Problem(call, q, k, v, epsilon, least, most, unfolded)
        out, entropy = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype), torch.zeros(q.shape[:2], dtype=q.dtype)
        keep = Keep(support_budget() if any(ctx.needs_input_grad) else 0)

        def work(task: Task, scratch: Scratch) -> None:
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
        problem = Problem(ctx.call, q, k, v, epsilon, least, most, ctx.unfolded)
        grad_out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=q.dtype) if grad_out is None else grad_out
        grad_entropy = torch.zeros(q.shape[:2], dtype=q.dtype) if grad_entropy is None else grad_entropy
        go, ge = grad_out.contiguous().numpy(), grad_entropy.contiguous().numpy()
        dq, slopes = torch.zeros_like(q, memory_format=torch.contiguous_format), []
        work_lanes = lanes(problem.tasks(), len(k), problem.threads)
        dk, dv = (np.zeros((max(lane.copy for lane in work_lanes) + 1, *t.shape), t.numpy().dtype) for t in (k, v))

        def work(lane: Lane, scratch: Scratch) -> None:
            for task in lane.tasks:
                support = ctx.keep.get(task) or pack(problem.kernels, problem.support(task, scratch, problem.nowhere))
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

        share(work_lanes, work, problem.scratch)
        totals = torch.zeros(3, len(q), dtype=torch.float64)
        for task, of_task in sorted(slopes, key=lambda pair: (pair[0].head, pair[0].start)):  # always in the same order
            totals[:, task.head] += torch.tensor(of_task, dtype=torch.float64)
        return dq, torch.from_numpy(dk.sum(0)), torch.from_numpy(dv.sum(0)), *totals, None, None
