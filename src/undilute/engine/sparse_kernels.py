"""The inner loops of the sparse route, compiled by Numba without the GIL.

A row's *candidates* are the keys seen so far that can still be in its support: those whose logit exceeds *floor*, a
lower bound of the row's final threshold. More keys only raise the threshold, so the exact threshold of the keys seen so
far is such a bound, and so is the threshold of the maxima of chunks of keys alone. Chunks whose maximum is not above
the floor are never looked into.

Thresholds are in units of the logits: entmax keeps z > t with Σ (ε(z − t))₊^(1/ε) = 1, ε = α − 1. Top-k keeps the k
largest, ties included, and is told by k > 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

CHUNK = 64
Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile without the GIL; keep the result on disk if there is a place for it."""
    options = {"nogil": True, "fastmath": {"nnan", "nsz", "reassoc", "contract", "arcp"}, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no directory for the cache is writable
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


@compiled
def entmax_threshold(values: Array, m: int, start: float, top: float, n: int, epsilon: float) -> float:
    """t of the first m values. Newton from ``start`` ≤ t (the sum is convex in t for ε ≤ 1), bisection for ε > 1."""
    power = 1.0 / epsilon
    if epsilon > 1.0:
        low, high = max(start, top - power), top - power * n ** (-epsilon)
        for _ in range(100):
            t = 0.5 * (low + high)
            total = 0.0
            for c in range(m):
                w = epsilon * (values[c] - t)
                if w > 0.0:
                    total += w**power
            if total >= 1.0:
                low = t
            else:
                high = t
        return low
    t = max(start, top - power)
    for _ in range(64):
        total, slope = 0.0, 0.0
        if epsilon == 0.5:
            for c in range(m):
                w = max(0.5 * (values[c] - t), 0.0)
                total += w * w
                slope += w
        elif epsilon == 1.0:
            for c in range(m):
                w = values[c] - t
                total += max(w, 0.0)
                slope += 1.0 if w > 0.0 else 0.0
        else:
            for c in range(m):
                w = epsilon * (values[c] - t)
                if w > 0.0:
                    u = w ** (power - 1.0)
                    total += u * w
                    slope += u
        if slope <= 0.0:
            break
        step = (total - 1.0) / slope
        t += step
        if step <= 1e-15 * (1.0 + abs(t)):
            break
    return t


@compiled
def kth_largest(values: Array, m: int, k: int, work: Array) -> float:
    """The k-th largest of the first m values, by quickselect on a copy in ``work``."""
    work[:m] = values[:m]
    low, high, wanted = 0, m - 1, k - 1
    while low < high:
        pivot = work[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while work[i] > pivot:
                i += 1
            while work[j] < pivot:
                j -= 1
            if i <= j:
                work[i], work[j] = work[j], work[i]
                i += 1
                j -= 1
        if wanted <= j:
            high = j
        elif wanted >= i:
            low = i
        else:
            break
    return work[wanted]


@compiled
def keep_above(index: Array, value: Array, m: int, floor: float) -> int:
    """Drop candidates not above ``floor``; the new number of them."""
    kept = 0
    for c in range(m):
        if value[c] > floor:
            index[kept] = index[c]
            value[kept] = value[c]
            kept += 1
    return kept


@compiled
def scan(
    tile: Array,
    first: int,
    low: Array,
    high: Array,
    epsilon: float,
    k: Array,
    top: Array,
    floor: Array,
    count: Array,
    index: Array,
    value: Array,
    maxima: Array,
    work: Array,
) -> None:
    """Take in a tile of logits (rows, keys first … ): update top, floor and candidates of each row."""
    rows, width = tile.shape
    for r in range(rows):
        a, b = max(low[r] - first, 0), min(high[r] - first, width)
        if a >= b:
            continue
        row = tile[r]
        chunks, biggest = 0, row[a]
        for c in range(a, b, CHUNK):
            large = row[c]
            for j in range(c, min(c + CHUNK, b)):
                large = max(large, row[j])
            maxima[chunks] = large
            chunks += 1
            biggest = max(biggest, large)
        limit, m = floor[r], count[r]
        if not biggest > limit:
            continue
        if k[r] == 0 and biggest > top[r]:
            top[r] = biggest
            limit = max(limit, biggest - 1.0 / epsilon)
            if m == 0 and chunks > 1:
                limit = max(limit, entmax_threshold(maxima, chunks, limit, biggest, chunks, epsilon))
            limit = lower(limit)
        before = m
        for chunk in range(chunks):
            if maxima[chunk] > limit:
                start = a + chunk * CHUNK
                for j in range(start, min(start + CHUNK, b)):
                    if row[j] > limit:
                        index[r, m] = first + j
                        value[r, m] = row[j]
                        m += 1
        if k[r] == 0:
            if m > before:
                limit = lower(max(limit, entmax_threshold(value[r], m, limit, top[r], m, epsilon)))
                m = keep_above(index[r], value[r], m, limit)
        elif m > 2 * k[r]:
            limit = max(limit, lower(kth_largest(value[r], m, k[r], work)))
            m = keep_above(index[r], value[r], m, limit)
        floor[r], count[r] = limit, m


@compiled
def lower(x: float) -> float:
    """A little below x, by more than the rounding of Newton's steps: a bound must stay a bound."""
    return x - 1e-12 * (abs(x) + 1.0)


@compiled
def weigh(
    epsilon: float,
    k: Array,
    top: Array,
    count: Array,
    index: Array,
    value: Array,
    entropy: Array,
    work: Array,
) -> int:
    """Candidates → support: their logits in ``value`` become weights; the total size of the supports."""
    total = 0
    for r in range(len(count)):
        m = count[r]
        if m == 0:
            continue
        if k[r] > 0:
            if m > k[r]:
                m = keep_at_least(index[r], value[r], m, kth_largest(value[r], m, k[r], work))
            largest = value[r, 0]
            for c in range(m):
                largest = max(largest, value[r, c])
            for c in range(m):
                value[r, c] = math.exp(value[r, c] - largest)
        else:
            t = entmax_threshold(value[r], m, top[r] - 1.0 / epsilon, top[r], m, epsilon)
            kept = 0
            for c in range(m):
                w = epsilon * (value[r, c] - t)
                if w > 0.0:
                    index[r, kept] = index[r, c]
                    value[r, kept] = w * w if epsilon == 0.5 else w if epsilon == 1.0 else w ** (1.0 / epsilon)
                    kept += 1
            m = kept
        mass = 0.0
        for c in range(m):
            mass += value[r, c]
        spread = 0.0
        for c in range(m):
            value[r, c] /= mass
            if value[r, c] > 0.0:
                spread -= value[r, c] * math.log(value[r, c])
        entropy[r] = spread
        count[r] = m
        total += m
    return total


@compiled
def keep_at_least(index: Array, value: Array, m: int, lowest: float) -> int:
    """Drop candidates below ``lowest``; the new number of them."""
    kept = 0
    for c in range(m):
        if value[c] >= lowest:
            index[kept] = index[c]
            value[kept] = value[c]
            kept += 1
    return kept


@compiled
def gather(count: Array, index: Array, weight: Array, values: Array, out: Array) -> None:
    """out[r] = Σ weight · values[index] over the support of each row."""
    for r in range(len(count)):
        out[r, :] = 0.0
        for c in range(count[r]):
            w, source = weight[r, c], values[index[r, c]]
            for d in range(values.shape[1]):
                out[r, d] += w * source[d]


@compiled
def pack(count: Array, index: Array, weight: Array, packed_index: Array, packed_weight: Array) -> None:
    """The supports of all rows one after the other."""
    position = 0
    for r in range(len(count)):
        for c in range(count[r]):
            packed_index[position] = index[r, c]
            packed_weight[position] = weight[r, c]
            position += 1


@compiled
def slope_in_alpha(p: Array, g: Array, total: float, epsilon: float) -> float:
    """Σ g·∂p/∂α of one row; the formula of ``undilute.rules.maps.entmax``."""
    H, D, E = 0.0, 0.0, 0.0
    for c in range(len(p)):
        l = math.log(p[c])
        r = -epsilon * l
        H -= p[c] * l
        D += p[c] * math.expm1(r)
        E += p[c] * beyond_first_order(r)
    result = 0.0
    for c in range(len(p)):
        l = math.log(p[c])
        r = -epsilon * l
        slope = (E - beyond_first_order(r)) / epsilon**2 - (l * D + H * math.expm1(r)) / epsilon
        result += g[c] * p[c] * slope / total
    return result


@compiled
def beyond_first_order(r: float) -> float:
    """e^r − 1 − r, accurate for small r too."""
    if abs(r) < 0.05:
        return r * r / 2 * (1 + r / 3 * (1 + r / 4 * (1 + r / 5 * (1 + r / 6 * (1 + r / 7 * (1 + r / 8))))))
    return math.expm1(r) - r


@compiled
def backward(
    count: Array,
    index: Array,
    weight: Array,
    epsilon: float,
    wants_alpha: bool,
    scale: float,
    q: Array,
    k: Array,
    v: Array,
    grad_out: Array,
    grad_entropy: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    g: Array,
    u: Array,
) -> float:
    """Gradients of a block of rows from their packed supports; adds to dk and dv; returns the gradient in α.

    ∂w/∂z = diag(u) − uuᵀ/Σu with u = w^(1−ε); ε = 0 stands for softmax over the support (top-k).
    """
    features, width, position, grad_alpha = q.shape[1], v.shape[1], 0, 0.0
    for r in range(len(count)):
        m = count[r]
        total, mean = 0.0, 0.0
        for c in range(m):
            j, w = index[position + c], weight[position + c]
            dot = 0.0
            for d in range(width):
                dot += grad_out[r, d] * v[j, d]
            for d in range(width):
                dv[j, d] += w * grad_out[r, d]
            if grad_entropy[r] != 0.0 and w > 0.0:
                dot -= grad_entropy[r] * (math.log(w) + 1.0)
            g[c] = dot
            if epsilon == 0.0:
                u[c] = w
            elif epsilon == 0.5:
                u[c] = math.sqrt(w)
            elif epsilon == 1.0:
                u[c] = 1.0
            else:
                u[c] = w ** (1.0 - epsilon)
            total += u[c]
            mean += u[c] * dot
        if m > 0 and total > 0.0:
            mean /= total
        for d in range(features):
            dq[r, d] = 0.0
        for c in range(m):
            j, dz = index[position + c], scale * u[c] * (g[c] - mean)
            for d in range(features):
                dq[r, d] += dz * k[j, d]
            for d in range(features):
                dk[j, d] += dz * q[r, d]
        if wants_alpha and m > 0:
            grad_alpha += slope_in_alpha(weight[position : position + m], g, total, epsilon)
        position += m
    return grad_alpha
