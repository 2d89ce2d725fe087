"""The inner loops of the sparse route, compiled by Numba without the GIL.

A row's *candidates* are the keys seen so far that can still be in its support: those whose logit exceeds *floor*, a
lower bound of the row's final threshold. More keys only raise the threshold, so the exact threshold of the keys seen so
far is such a bound, and so is the threshold of the maxima of chunks of keys alone. Chunks whose maximum is not above
the floor are never looked into.

All in one file, because Numba's cache on disk does not notice a change in another one.

Thresholds are in units of the logits: entmax of s·z keeps z > t with Σ (r(z − t))₊^(1/ε) = 1, ε = α − 1 and the *rate*
r = ε·s. Which rule it is, a row is told by k and ε:

| k | ε | rule |
|---|---|---|
| 0 | α − 1 | entmax at the rate ``least`` |
| k | 0 | top-k: the k largest, ties included |
| K + 1 | α − 1 | focus: the rate that puts t at the (K+1)-th largest, between ``least`` and ``most`` |

The threshold of focus is max(t(least), min(z_{K+1}, t(most))), since t rises with the rate. Where it is z_{K+1}, the
keys of just that logit stand at the end of the row's support with weight 0: they have no share in the output, but the
gradient moves the threshold with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

CHUNK = 16
FASTMATH = {"nnan", "nsz", "reassoc", "contract", "arcp"}  # all but "no infinities": hidden keys are −inf
SPAN = np.float32(1e3)  # of logits, when −inf is among them
STEPS = 2  # Newton steps towards a bound; a threshold takes as many as it needs
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
    values: Array, m: int, t: float, epsilon: float, rate: float, fast: bool, work: Array, other: Array
) -> tuple[float, float]:
    """Σ w^(1/ε) and Σ w^(1/ε − 1) over w = (r(z − t))₊: how far t is from the threshold, and the slope there."""
    total, slope = 0.0, 0.0
    if epsilon == 0.5:
        for c in range(m):
            w = max(rate * (values[c] - t), 0.0)
            total += w * w
            slope += w
    elif epsilon == 1.0:
        for c in range(m):
            w = rate * (values[c] - t)
            total += max(w, 0.0)
            slope += 1.0 if w > 0.0 else 0.0
    elif fast:
        for c in range(m):
            work[c] = max(rate * (values[c] - t), 1e-30)
        powers(work, other, m, 1.0 / epsilon - 1.0)
        for c in range(m):
            w = max(rate * (values[c] - t), 0.0)
            total += work[c] * w
            slope += work[c] if w > 0.0 else 0.0
    else:
        for c in range(m):
            w = rate * (values[c] - t)
            if w > 0.0:
                u = math.exp((1.0 / epsilon - 1.0) * math.log(w))
                total += u * w
                slope += u
    return total, slope


@compiled
def entmax_threshold(
    values: Array,
    m: int,
    start: float,
    top: float,
    epsilon: float,
    rate: float,
    steps: int,
    fast: bool,
    work: Array,
    other: Array,
) -> float:
    """t of the first m values, or after a few ``steps`` a lower bound of it.

    Newton from ``start`` ≤ t, for (Σ w^(1/ε))^ε = 1: a norm of w, so convex in t for ε ≤ 1 (every step stays below) and
    nearly straight (few steps). Bisection for ε > 1.
    """
    if epsilon > 1.0:
        return entmax_bisected(values, m, start, top, epsilon, rate)
    precision = 1e-6 if fast else 1e-15
    t = max(start, top - 1.0 / rate)
    for _ in range(steps):
        total, slope = entmax_sums(values, m, t, epsilon, rate, fast, work, other)
        if slope <= 0.0 or total <= 1.0:
            break
        if epsilon == 1.0:
            step = (total - 1.0) / (rate * slope)
        elif epsilon == 0.5:
            step = (total - math.sqrt(total)) / (rate * slope)
        else:
            step = (total - math.exp((1.0 - epsilon) * math.log(total))) / (rate * slope)
        t += step
        if step <= precision * (1.0 + abs(t)):
            break
    return t


@compiled
def entmax_bisected(values: Array, m: int, start: float, top: float, epsilon: float, rate: float) -> float:
    """t of the first m values by bisection, for any ε."""
    power = 1.0 / epsilon
    low, high = max(start, top - 1.0 / rate), top - m ** (-epsilon) / rate
    for _ in range(100):
        t = 0.5 * (low + high)
        total = 0.0
        for c in range(m):
            w = rate * (values[c] - t)
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
def count_from(values: Array, m: int, least: float) -> int:
    """How many of the first m values are ``least`` or more?"""
    count = 0
    for c in range(m):
        count += 1 if values[c] >= least else 0
    return count


@compiled
def kth_bound(values: Array, m: int, k: int) -> float:
    """A lower bound of the k-th largest of the first m ≥ k values: counting by halves, in vector code."""
    low, high = values[0], values[0]
    for c in range(m):
        low, high = min(low, values[c]), max(high, values[c])
    if not low > high - SPAN:  # some are hidden
        low = high - SPAN
        if count_from(values, m, low) < k:
            return -np.inf
    for _ in range(8):
        middle = (low + high) / 2
        if count_from(values, m, middle) >= k:
            low = middle
        else:
            high = middle
    return float(low)


@compiled
def keep_above(index: Array, value: Array, m: int, floor: float) -> int:
    """Drop candidates not above ``floor``; the new number of them."""
    kept = np.uintp(0)
    for c in range(m):
        x = value[c]
        index[kept], value[kept] = index[c], x
        kept += np.uintp(x > floor)
    return int(kept)


@compiled
def chunk_maxima(row: Array, a: int, b: int, maxima: Array) -> int:
    """Largest of row[a:b] in each chunk of the row, and how many chunks; whole chunks by unrolled vector code."""
    start, stop = a // CHUNK, (b + CHUNK - 1) // CHUNK
    for chunk in range((a + CHUNK - 1) // CHUNK, b // CHUNK):
        largest = row[chunk * CHUNK]
        for j in range(CHUNK):
            largest = max(largest, row[chunk * CHUNK + j])
        maxima[chunk - start] = largest
    for edge in (a, b):
        chunk = edge // CHUNK
        if edge % CHUNK:
            from_ = max(a, chunk * CHUNK)
            largest = row[from_]
            for j in range(from_, min(b, chunk * CHUNK + CHUNK)):
                largest = max(largest, row[j])
            maxima[chunk - start] = largest
    return stop - start


@compiled
def below(x: float, fast: bool) -> float:
    """A little below x, by more than the rounding of Newton's steps: a bound must stay a bound."""
    return x - (1e-5 if fast else 1e-12) * (abs(x) + 1.0)


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
def entmax_weights(
    value: Array, m: int, t: float, epsilon: float, rate: float, fast: bool, work: Array, other: Array
) -> None:
    """value[:m] becomes (r(value − t))^(1/ε)."""
    if fast and epsilon != 0.5 and epsilon != 1.0:
        for c in range(m):
            work[c] = max(rate * (value[c] - t), 1e-30)
        powers(work, other, m, 1.0 / epsilon)
        for c in range(m):
            value[c] = work[c]
        return
    for c in range(m):
        w = rate * (value[c] - t)
        value[c] = w * w if epsilon == 0.5 else w if epsilon == 1.0 else math.exp(math.log(w) / epsilon)


@compiled
def entropy_of(weights: Array, m: int) -> float:
    """−Σ w ln w of the first m weights."""
    spread = 0.0
    for c in range(m):
        if weights[c] > 0.0:
            spread -= weights[c] * math.log(weights[c])
    return spread


@compiled
def fitting_rate(value: Array, m: int, level: float, top: float, epsilon: float) -> float:
    """The rate at which entmax of the first m values has its threshold at ``level``: 1/(Σ (z − level)₊^(1/ε))^ε."""
    widest, total = top - level, 0.0
    if widest <= 0.0:
        return np.inf
    for c in range(m):
        w = (value[c] - level) / widest
        if w > 0.0:
            total += w * w if epsilon == 0.5 else w if epsilon == 1.0 else math.exp(math.log(w) / epsilon)
    return 1.0 / (widest * (math.sqrt(total) if epsilon == 0.5 else total**epsilon))


@compiled
def keep_to(index: Array, value: Array, m: int, level: float) -> tuple[int, int]:
    """Keep the candidates above ``level``, then those just there; how many of each."""
    above = 0
    for c in range(m):
        if value[c] > level:
            index[above], index[c] = index[c], index[above]
            value[above], value[c] = value[c], value[above]
            above += 1
    end = above
    for c in range(above, m):
        if value[c] == level:
            index[end], value[end] = index[c], value[c]
            end += 1
    return above, end - above


@compiled
def weigh(
    epsilon: float,
    least: float,
    most: float,
    k: Array,
    top: Array,
    floor: Array,
    count: Array,
    rates: Array,
    ties: Array,
    index: Array,
    value: Array,
    entropy: Array,
    ranked: Array,
    fast: bool,
    work: Array,
    other: Array,
) -> None:
    """Candidates → support: their logits in ``value`` become weights; entropy only if there is a place for it.

    ``rates`` are those that entmax had; ``ties`` how many keys the threshold of focus stands on, −1 where its rate was
    ``most``.
    """
    for r in range(len(count)):
        m, rates[r], ties[r] = count[r], least, 0
        if m == 0:
            continue
        if k[r] > 0 and epsilon == 0.0:
            if m > k[r]:
                m = keep_at_least(index[r], value[r], m, kth_largest(value[r], m, k[r], ranked))
            largest = value[r, 0]
            for c in range(m):
                largest = max(largest, value[r, c])
            for c in range(m):
                value[r, c] = math.exp(value[r, c] - largest)
        else:
            start = floor[r]
            if k[r] > 0:
                level = kth_largest(value[r], m, k[r], ranked)
                fitting = fitting_rate(value[r], m, level, top[r], epsilon)
                if fitting > most:
                    rates[r], ties[r] = most, -1
                elif fitting >= least:
                    rates[r] = fitting
                    m, ties[r] = keep_to(index[r], value[r], m, level)
                    entmax_weights(value[r], m, level, epsilon, fitting, False, work, other)
                    value[r, m : m + ties[r]] = 0.0
                else:
                    start = level
                    if most < least:  # learned limits may cross: the upper one counts
                        rates[r], ties[r] = most, -1
            if ties[r] <= 0:
                t = entmax_threshold(value[r], m, start, top[r], epsilon, rates[r], 64, fast, work, other)
                m = keep_above(index[r], value[r], m, t)
                entmax_weights(value[r], m, t, epsilon, rates[r], fast, work, other)
        mass = 0.0
        for c in range(m):
            mass += value[r, c]
        for c in range(m):
            value[r, c] /= mass
        if len(entropy) > 0:
            entropy[r] = entropy_of(value[r], m)
        count[r] = m + max(ties[r], 0)


@compiled
def bound(
    row: Array,
    a: int,
    b: int,
    maxima: Array,
    chunks: int,
    biggest: float,
    k: int,
    epsilon: float,
    least: float,
    most: float,
    fast: bool,
    work: Array,
    other: Array,
) -> float:
    """A lower bound of the threshold of row[a:b], mostly from the maxima of its chunks alone."""
    level = np.inf
    if k > 0:
        if k <= chunks:
            level = below(kth_bound(maxima, chunks, k), False)
        else:
            level = below(kth_bound(row[a:b], b - a, k), False) if k < b - a else -np.inf
        if epsilon == 0.0 or level <= biggest - 1.0 / most:
            return level
    rate = most if k > 0 else least
    start = below(biggest - 1.0 / rate, fast)
    found = entmax_threshold(maxima, chunks, start, biggest, epsilon, rate, STEPS, fast, work, other)
    return min(level, max(start, below(found, fast)))


@compiled
def refined(
    value: Array,
    m: int,
    limit: float,
    top: float,
    k: int,
    epsilon: float,
    least: float,
    most: float,
    ranked: Array,
    fast: bool,
    work: Array,
    other: Array,
) -> float:
    """A better lower bound of the threshold, from the first m candidates."""
    level = np.inf
    if k > 0:
        level = below(kth_largest(value, m, k, ranked), False)
        if epsilon == 0.0 or level <= top - 1.0 / most:
            return max(limit, level)
    rate = most if k > 0 else least
    found = entmax_threshold(value, m, limit, top, epsilon, rate, STEPS, fast, work, other)
    return max(limit, min(level, below(found, fast)))


@compiled
def append(values: Array, first: int, limit: float, index: Array, value: Array) -> int:
    """Put those ``values`` that are above ``limit``, and their number from ``first``, into the arrays; how many.

    Written always, kept if the count moves on: no branch to mispredict. Unsigned, so that Numba need not ask whether an
    index is negative.
    """
    kept = np.uintp(0)
    for j in range(len(values)):
        x = values[j]
        index[kept], value[kept] = first + j, x
        kept += np.uintp(x > limit)
    return int(kept)


@compiled
def collect(
    row: Array, a: int, b: int, first: int, limit: float, maxima: Array, chunks: int, index: Array, value: Array, m: int
) -> int:
    """Add what of row[a:b] is above ``limit`` to the first m candidates; the new number of them.

    If few chunks have any, only those are looked into. If there might be more than there is room for, they are counted
    first, and if there are, the answer is minus the room it takes.
    """
    active = 0
    for c in range(chunks):
        active += 1 if maxima[c] > limit else 0
    if m + active * CHUNK >= len(index):
        room = m + count_from(row[a:b], b - a, limit) + 1
        if room > len(index):
            return -room
    if 3 * active > chunks:
        return m + append(row[a:b], first + a, limit, index[m:], value[m:])
    start = a // CHUNK
    for c in range(chunks):
        if maxima[c] > limit:
            j = max(a, (start + c) * CHUNK)
            m += append(row[j : min(b, (start + c + 1) * CHUNK)], first + j, limit, index[m:], value[m:])
    return m


@compiled
def scan(
    tile: Array,
    first: int,
    is_first: bool,
    is_last: bool,
    low: Array,
    high: Array,
    epsilon: float,
    least: float,
    most: float,
    k: Array,
    top: Array,
    floor: Array,
    count: Array,
    settled: Array,
    rates: Array,
    ties: Array,
    index: Array,
    value: Array,
    entropy: Array,
    maxima: Array,
    ranked: Array,
    fast: bool,
    work: Array,
    other: Array,
) -> int:
    """Take in a tile of logits (rows, keys first … ): update top, floor and candidates of each row.

    Candidates are thinned out as they become many; after the last tile they become the support (``weigh``). The answer
    is 0, or if there is not enough room for a row's candidates, how much it takes.
    """
    rows, width = tile.shape
    if is_first:
        top[:], floor[:], count[:], settled[:] = -np.inf, -np.inf, 0, 0
    for r in range(rows):
        a, b = max(low[r] - first, 0), min(high[r] - first, width)
        if a >= b:
            continue
        chunks = chunk_maxima(tile[r], a, b, maxima)
        biggest = maxima[0]
        for c in range(chunks):
            biggest = max(biggest, maxima[c])
        if not biggest > floor[r]:
            continue
        top[r] = max(top[r], biggest)
        if count[r] == 0:
            found = bound(tile[r], a, b, maxima, chunks, biggest, k[r], epsilon, least, most, fast, work, other)
            floor[r] = max(floor[r], found)
        m = collect(tile[r], a, b, first, floor[r], maxima, chunks, index[r], value[r], count[r])
        if m < 0:
            return -m
        if not is_last and m > settled[r] + settled[r] // 4 + k[r] + 8:
            floor[r] = refined(value[r], m, floor[r], top[r], k[r], epsilon, least, most, ranked, fast, work, other)
            m = keep_above(index[r], value[r], m, floor[r])
            settled[r] = m
        count[r] = m
    if is_last:
        weigh(epsilon, least, most, k, top, floor, count, rates, ties, index, value, entropy, ranked, fast, work, other)
    return 0


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
def dot_and_add(x: Array, y: Array, weight: float, total: Array) -> float:
    """x·y; and total += weight·x, in the arrays' own precision."""
    dot, w = x.dtype.type(0), x.dtype.type(weight)
    for d in range(len(x)):
        dot += x[d] * y[d]
        total[d] += w * x[d]
    return float(dot)


@compiled
def add_both(weight: float, x: Array, x_total: Array, y: Array, y_total: Array) -> None:
    """x_total += weight·x and y_total += weight·y, in the arrays' own precision."""
    w = x.dtype.type(weight)
    for d in range(len(x)):
        x_total[d] += w * x[d]
        y_total[d] += w * y[d]


@compiled
def slopes(weight: Array, epsilon: float, u: Array, fast: bool, work: Array, other: Array) -> float:
    """u = w^(1−ε), which ∂w/∂z is made of, and its sum; ε = 0 stands for softmax over the support (top-k)."""
    m, total = len(weight), 0.0
    vectors = fast and epsilon != 0.0 and epsilon != 0.5 and epsilon != 1.0
    if vectors:
        for c in range(m):
            work[c] = max(weight[c], 1e-30)
        powers(work, other, m, 1.0 - epsilon)
    for c in range(m):
        w = weight[c]
        if epsilon == 0.0:
            u[c] = w
        elif epsilon == 0.5:
            u[c] = math.sqrt(w)
        elif epsilon == 1.0:
            u[c] = 1.0
        elif vectors:
            u[c] = work[c]
        else:
            u[c] = math.exp((1.0 - epsilon) * math.log(w)) if w > 0.0 else 0.0
        total += u[c]
    return total


@compiled
def backward(
    count: Array,
    index: Array,
    weight: Array,
    rates: Array,
    ties: Array,
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
    dz: Array,
    fast: bool,
    work: Array,
    other: Array,
) -> tuple[float, float, float]:
    """Gradients of a block of rows from their packed supports; adds to dk and dv; returns those in α, s_min and s_max.

    ∂w/∂z = s·(diag(u) − uuᵀ/Σu) with u = w^(1−ε). Where focus has its threshold on a key, ∂w/∂z = s·(I − w1ᵀ)·diag(u),
    and the keys of the threshold share minus the sum of it. Values first, then keys: each half of the work fits the
    caches better than both at once.
    """
    position, grad_alpha, grad_least, grad_most = 0, 0.0, 0.0, 0.0
    for r in range(len(count)):
        m, upstream = count[r] - max(ties[r], 0), grad_out[r]
        end = position + m
        total, mean = slopes(weight[position:end], epsilon, u, fast, work, other), 0.0
        for c in range(m):
            j, w = index[position + c], weight[position + c]
            dot = dot_and_add(upstream, v[j], w, dv[j])
            if grad_entropy[r] != 0.0 and w > 0.0:
                dot -= grad_entropy[r] * (math.log(w) + 1.0)
            g[c] = dot
            mean += dot * (w if ties[r] > 0 else u[c])
        if ties[r] <= 0 and total > 0.0:
            mean /= total
        factor, pull, tilt = scale * (rates[r] / epsilon if epsilon > 0.0 else 1.0), 0.0, 0.0
        for c in range(m):
            dz[position + c] = factor * u[c] * (g[c] - mean)
            pull += dz[position + c]
            tilt += weight[position + c] * (g[c] - mean)
        for c in range(end, position + count[r]):
            dz[c] = -pull / ties[r]
        if ties[r] < 0:
            grad_most += tilt / rates[r]
        elif ties[r] == 0 and epsilon > 0.0:
            grad_least += tilt / rates[r]
        if wants_alpha and m > 0:
            if ties[r] > 0:
                grad_alpha += slope_of_fitted(weight[position:end], g, mean, epsilon)
            else:
                grad_alpha += slope_in_alpha(weight[position:end], g, total, epsilon)
        position += count[r]
    position = 0
    for r in range(len(count)):
        dq[r, :] = 0.0
        for c in range(position, position + count[r]):
            add_both(dz[c], k[index[c]], dq[r], q[r], dk[index[c]])
        position += count[r]
    return grad_alpha, grad_least, grad_most


@compiled
def slope_of_fitted(p: Array, g: Array, mean: float, epsilon: float) -> float:
    """Σ g·∂p/∂α of one row of p = Δ^(1/ε)/S, the mean of g under p given."""
    result = 0.0
    for c in range(len(p)):
        if p[c] > 0.0:
            result -= p[c] * math.log(p[c]) * (g[c] - mean) / epsilon
    return result
