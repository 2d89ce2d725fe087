"""The inner loops of the sparse route, compiled by Numba without the GIL.

A row's *candidates* are the keys seen so far that can still be in its support: those whose logit exceeds *floor*, a
lower bound of the row's final threshold. More keys only raise the threshold, so the exact threshold of the keys seen so
far is such a bound, and so is the threshold of the maxima of chunks of keys alone. Chunks whose maximum is not above
the floor are never looked into.

All in one file, because Numba's cache on disk does not notice a change in another one.

Thresholds are in units of the logits: entmax keeps z > t with Σ (ε(z − t))₊^(1/ε) = 1, ε = α − 1. Top-k keeps the k
largest, ties included, and is told by k > 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

CHUNK = 16
FASTMATH = {"nnan", "nsz", "reassoc", "contract", "arcp"}  # all but "no infinities": hidden keys are −inf
STEPS = 4  # Newton steps towards a bound; a threshold takes as many as it needs
LOG2 = tuple(np.float32(2.0 / (math.log(2.0) * k)) for k in (1, 3, 5, 7, 9))
EXP2 = tuple(np.float32(math.log(2.0) ** k / math.factorial(k)) for k in range(1, 8))
Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile without the GIL; keep the result on disk if there is a place for it."""
    options: dict[str, Any] = {"nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}
    try:
        made: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory for the cache is writable
        made = numba.njit(**options)(function)
    return made  # type: ignore[no-any-return]


@compiled
def powers(work: Array, other: Array, m: int, exponent: float) -> None:
    """work[:m] **= exponent for positive float32, to about 1e-7 · exponent · |log₂|; ``other`` is float32 scratch.

    Written so that LLVM makes vector code of it (1.6 ns a value; libm's exp and log take 15): x = 2^e·y with y near 1,
    log₂ y by its series in (y − 1)/(y + 1), then 2^… by the reverse.
    """
    bits, shift = work.view(np.int32), other.view(np.int32)
    by, one, half = np.float32(exponent), np.float32(1.0), np.float32(0.5)
    for c in range(m):
        e = (bits[c] - np.int32(0x3F3504F3)) >> np.int32(23)  # so that y is in [√½, √2)
        other[c] = np.float32(e)
        bits[c] -= e << np.int32(23)
    for c in range(m):
        s = (work[c] - one) / (work[c] + one)
        s2 = s * s
        log2 = LOG2[3] + s2 * LOG2[4]
        log2 = s * (LOG2[0] + s2 * (LOG2[1] + s2 * (LOG2[2] + s2 * log2)))
        y = max(by * (other[c] + log2), np.float32(-126.0))
        whole = np.floor(y + half)
        f = y - whole
        power = EXP2[3] + f * (EXP2[4] + f * (EXP2[5] + f * EXP2[6]))
        work[c] = one + f * (EXP2[0] + f * (EXP2[1] + f * (EXP2[2] + f * power)))
        shift[c] = np.int32(whole)
    for c in range(m):
        bits[c] += shift[c] << np.int32(23)


@compiled
def entmax_sums(
    values: Array, m: int, t: float, epsilon: float, fast: bool, work: Array, other: Array
) -> tuple[float, float]:
    """Σ w^(1/ε) and Σ w^(1/ε − 1) over w = (ε(z − t))₊: how far t is from the threshold, and the slope there."""
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
    elif fast:
        for c in range(m):
            work[c] = max(epsilon * (values[c] - t), 1e-30)
        powers(work, other, m, 1.0 / epsilon - 1.0)
        for c in range(m):
            w = max(epsilon * (values[c] - t), 0.0)
            total += work[c] * w
            slope += work[c] if w > 0.0 else 0.0
    else:
        for c in range(m):
            w = epsilon * (values[c] - t)
            if w > 0.0:
                u = math.exp((1.0 / epsilon - 1.0) * math.log(w))
                total += u * w
                slope += u
    return total, slope


@compiled
def entmax_threshold(
    values: Array, m: int, start: float, top: float, epsilon: float, steps: int, fast: bool, work: Array, other: Array
) -> float:
    """t of the first m values, or after a few ``steps`` a lower bound of it.

    Newton from ``start`` ≤ t: the sum is convex in t for ε ≤ 1, so every step stays below. Bisection for ε > 1.
    """
    if epsilon > 1.0:
        return entmax_bisected(values, m, start, top, epsilon)
    precision = 1e-6 if fast else 1e-15
    t = max(start, top - 1.0 / epsilon)
    for _ in range(steps):
        total, slope = entmax_sums(values, m, t, epsilon, fast, work, other)
        if slope <= 0.0 or total <= 1.0:
            break
        step = (total - 1.0) / slope
        t += step
        if step <= precision * (1.0 + abs(t)):
            break
    return t


@compiled
def entmax_bisected(values: Array, m: int, start: float, top: float, epsilon: float) -> float:
    """t of the first m values by bisection, for any ε."""
    power = 1.0 / epsilon
    low, high = max(start, top - power), top - power * m ** (-epsilon)
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
    return float(work[wanted])


@compiled
def keep_above(index: Array, value: Array, m: int, floor: float) -> int:
    """Drop candidates not above ``floor``; the new number of them."""
    kept = 0
    for c in range(m):
        x = value[c]
        index[kept], value[kept] = index[c], x
        kept += 1 if x > floor else 0
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
    settled: Array,
    index: Array,
    value: Array,
    maxima: Array,
    ranked: Array,
    fast: bool,
    work: Array,
    other: Array,
) -> None:
    """Take in a tile of logits (rows, keys first … ): update top, floor and candidates of each row."""
    rows, width = tile.shape
    for r in range(rows):
        a, b = max(low[r] - first, 0), min(high[r] - first, width)
        if a >= b:
            continue
        row = tile[r]
        chunk_maxima(row, a, b, maxima)
        start, stop = a // CHUNK, (b + CHUNK - 1) // CHUNK
        biggest = maxima[start]
        for chunk in range(start, stop):
            biggest = max(biggest, maxima[chunk])
        limit, m = floor[r], count[r]
        if not biggest > limit:
            continue
        if k[r] > 0:
            if m == 0 and k[r] <= stop - start:
                limit = below(kth_largest(maxima[start:stop], stop - start, k[r], ranked), False)
        elif biggest > top[r]:
            top[r] = biggest
            limit = max(limit, below(biggest - 1.0 / epsilon, fast))
            if m == 0:
                bound = entmax_threshold(
                    maxima[start:stop], stop - start, limit, biggest, epsilon, STEPS, fast, work, other
                )
                limit = max(limit, below(bound, fast))
        for chunk in range(start, stop):
            if maxima[chunk] > limit:
                for j in range(max(a, chunk * CHUNK), min(b, chunk * CHUNK + CHUNK)):
                    index[r, m] = first + j  # written always, kept if m moves on: no branch to mispredict
                    value[r, m] = row[j]
                    m += 1 if row[j] > limit else 0
        if m > settled[r] + settled[r] // 4 + k[r] + 8:
            if k[r] > 0:
                limit = max(limit, below(kth_largest(value[r], m, k[r], ranked), False))
            else:
                limit = max(
                    limit, below(entmax_threshold(value[r], m, limit, top[r], epsilon, STEPS, fast, work, other), fast)
                )
            m = keep_above(index[r], value[r], m, limit)
            settled[r] = m
        floor[r], count[r] = limit, m


@compiled
def chunk_maxima(row: Array, a: int, b: int, maxima: Array) -> None:
    """Largest of row[a:b] in each chunk of the row, at the chunk's number; whole chunks by unrolled vector code."""
    for chunk in range((a + CHUNK - 1) // CHUNK, b // CHUNK):
        largest = row[chunk * CHUNK]
        for j in range(CHUNK):
            largest = max(largest, row[chunk * CHUNK + j])
        maxima[chunk] = largest
    for edge in (a, b):
        chunk = edge // CHUNK
        if edge % CHUNK:
            start = max(a, chunk * CHUNK)
            largest = row[start]
            for j in range(start, min(b, chunk * CHUNK + CHUNK)):
                largest = max(largest, row[j])
            maxima[chunk] = largest


@compiled
def below(x: float, fast: bool) -> float:
    """A little below x, by more than the rounding of Newton's steps: a bound must stay a bound."""
    return x - (1e-5 if fast else 1e-12) * (abs(x) + 1.0)


@compiled
def weigh(
    epsilon: float,
    k: Array,
    top: Array,
    floor: Array,
    count: Array,
    index: Array,
    value: Array,
    entropy: Array,
    ranked: Array,
    fast: bool,
    work: Array,
    other: Array,
) -> int:
    """Candidates → support: their logits in ``value`` become weights; the total size of the supports."""
    total = 0
    for r in range(len(count)):
        m = count[r]
        if m == 0:
            continue
        if k[r] > 0:
            if m > k[r]:
                m = keep_at_least(index[r], value[r], m, kth_largest(value[r], m, k[r], ranked))
            largest = value[r, 0]
            for c in range(m):
                largest = max(largest, value[r, c])
            for c in range(m):
                value[r, c] = math.exp(value[r, c] - largest)
        else:
            t = entmax_threshold(value[r], m, floor[r], top[r], epsilon, 64, fast, work, other)
            m = keep_above(index[r], value[r], m, t)
            entmax_weights(value[r], m, t, epsilon, fast, work, other)
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
def entmax_weights(value: Array, m: int, t: float, epsilon: float, fast: bool, work: Array, other: Array) -> None:
    """value[:m] becomes (ε(value − t))^(1/ε)."""
    if fast and epsilon != 0.5 and epsilon != 1.0:
        for c in range(m):
            work[c] = max(epsilon * (value[c] - t), 1e-30)
        powers(work, other, m, 1.0 / epsilon)
        for c in range(m):
            value[c] = work[c]
        return
    for c in range(m):
        w = epsilon * (value[c] - t)
        value[c] = w * w if epsilon == 0.5 else w if epsilon == 1.0 else math.exp(math.log(w) / epsilon)


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
    fast: bool,
    work: Array,
    other: Array,
) -> float:
    """Gradients of a block of rows from their packed supports; adds to dk and dv; returns the gradient in α.

    ∂w/∂z = diag(u) − uuᵀ/Σu with u = w^(1−ε); ε = 0 stands for softmax over the support (top-k).
    """
    features, width, position, grad_alpha = q.shape[1], v.shape[1], 0, 0.0
    for r in range(len(count)):
        m = count[r]
        total, mean = 0.0, 0.0
        if fast and epsilon != 0.0 and epsilon != 0.5 and epsilon != 1.0:
            for c in range(m):
                work[c] = max(weight[position + c], 1e-30)
            powers(work, other, m, 1.0 - epsilon)
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
            elif fast:
                u[c] = work[c]
            else:
                u[c] = math.exp((1.0 - epsilon) * math.log(w)) if w > 0.0 else 0.0
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
