"""Where does adaptive temperature act, and at which length does it switch itself off?

Veličković et al. 2024, arXiv:2410.01104: weights softmax(β(H)·z), H the entropy of softmax(z) in nats, β the larger of
1 and a polynomial of degree 4 (:class:`undilute.rules.EntropyAdaptive`). The polynomial exceeds 1 on one interval,
0.848582 < H < 5.944521; outside it the rule is plain softmax. So it sharpens rows of 2.34 to 381.66 effective keys, and
a row that disperses further, as all rows of bounded logits do, gets no help at all.

When does that happen? Let the competitors' logits be κρ with ρ uniform on [0, 1], the top one among them. As n grows
the weights become a density κe^(−κt)/(1 − e^(−κ)) over t = 1 − ρ, and
    H = ln n + h(κ),   h(κ) = 1 − ln κ + ln(1 − e^(−κ)) − κ/(e^κ − 1)  →  H ≈ ln(n/κ) + 1 for κ ≫ 1.
For evenly spaced logits z_i = −κi/n, i = 0 … n − 1, weights are a truncated geometric sequence and H is exact: with
a = κ/n,
    H = ln((1 − e^(−κ))/(1 − e^(−a))) + a/(e^a − 1) − κ/(e^κ − 1) = ln n + h(κ) + a²/24 + O(a⁴).
The rule switches off where H reaches the polynomial's upper root H*: n* ≈ κ·e^(H* − 1) = 140.4 κ. Exactly, with
g(a) = −ln(1 − e^(−a)) + a/(e^a − 1), H = g(κ/n) − g(κ), so n* = κ/a where g(a) = H* + g(κ). In u = ln a, g
is decreasing and convex (its slope is −(a/2)²/sinh²(a/2), which rises from −1 to 0) and above 1 − u, so Newton's method
started at u = 1 − H* − g(κ) climbs to the root without overshooting.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.rules.scales.entropy_adaptive import EntropyAdaptive
from undilute.theory.inputs import Array, numbers


class Peak(NamedTuple):
    """Where β is largest, and how large."""

    entropy: float
    beta: float


def active_intervals(rule: EntropyAdaptive | None = None) -> list[tuple[float, float]]:
    """The intervals of entropy, in nats, on which β > 1; on every other the rule is plain softmax.

    Parameters
    ----------
    rule : the published one by default

    Returns
    -------
    Pairs (low, high) in increasing order; the last ``high`` is inf if β > 1 for every large entropy.

    Examples
    --------
    >>> [(low, high)] = active_intervals()
    >>> round(low, 6), round(high, 6)
    (0.848582, 5.944521)
    """
    rule = rule or EntropyAdaptive()
    excess = np.poly1d(rule.coefficients) - 1.0
    floor = max(rule.min_entropy, 0.0)
    ends = [floor, *(root for root in _real_roots(excess) if root > floor), math.inf]
    intervals: list[tuple[float, float]] = []
    for low, high in itertools.pairwise(ends):
        middle = (low + high) / 2 if math.isfinite(high) else low + 1.0
        if excess(middle) <= 0:
            continue
        if intervals and intervals[-1][1] == low:  # a root of even order between them
            low = intervals.pop()[0]
        intervals.append((low, high))
    return intervals


def peak(rule: EntropyAdaptive | None = None) -> Peak:
    """The largest β, and the entropy at which it is reached.

    Parameters
    ----------
    rule : the published one by default

    Returns
    -------
    entropy, beta : numbers; (0, 1) for a rule that never acts, and an infinite β for one without an upper end.

    Examples
    --------
    >>> [round(each, 4) for each in peak()]
    [4.4124, 2.4214]
    """
    rule = rule or EntropyAdaptive()
    polynomial = np.poly1d(rule.coefficients)
    turning = _real_roots(polynomial.deriv())
    best = Peak(0.0, 1.0)
    for low, high in active_intervals(rule):
        if math.isinf(high) and polynomial.order > 0:
            return Peak(math.inf, math.inf)
        inside = [low, *([high] if math.isfinite(high) else []), *(each for each in turning if low < each < high)]
        best = max(best, *(Peak(each, float(polynomial(each))) for each in inside), key=lambda each: each.beta)
    return best


def switch_off_entropy(rule: EntropyAdaptive | None = None) -> float:
    """H*, the entropy in nats above which the rule is plain softmax; inf if it never is, 0 if it always is.

    Parameters
    ----------
    rule : the published one by default

    Returns
    -------
    A number: e^H* = 381.66 effective keys with the published coefficients.

    Examples
    --------
    >>> round(math.exp(switch_off_entropy()), 2)
    381.66
    """
    intervals = active_intervals(rule)
    return intervals[-1][1] if intervals else 0.0


def uniform_entropy(n: Array, kappa: Array) -> Tensor:
    """Entropy of softmax over n logits drawn uniformly from an interval of length κ, for n ≫ κ: ln n + h(κ).

    Parameters
    ----------
    n : (...), at least 1
    kappa : (...), above 0

    Returns
    -------
    (...), float64, in nats; ln(n/κ) + 1 up to about (1 + κ)e^(−κ)

    Examples
    --------
    >>> uniform_entropy(16384, kappa=90.0)
    tensor(6.2043, dtype=torch.float64)
    """
    n, kappa = numbers("n", n, at_least=1.0), numbers("kappa", kappa, above=0.0)
    return (n / kappa).log() + 1 - _geometric(kappa)


def even_entropy(n: Array, kappa: Array) -> Tensor:
    """Entropy of softmax over n evenly spaced logits, 0, −κ/n, …, −κ(n−1)/n, exactly.

    Parameters
    ----------
    n : (...), at least 1
    kappa : (...), above 0

    Returns
    -------
    (...), float64, in nats

    Examples
    --------
    >>> even_entropy([1, 2, 16384], kappa=90.0)
    tensor([0.0000e+00, 1.2881e-18, 6.2043e+00], dtype=torch.float64)
    """
    n, kappa = torch.broadcast_tensors(numbers("n", n, at_least=1.0), numbers("kappa", kappa, above=0.0))
    return (_geometric(kappa / n) - _geometric(kappa)).clamp(min=0.0)


def switch_off_length(kappa: Array, rule: EntropyAdaptive | None = None) -> Tensor:
    """n*, the number of evenly spaced competitors from which the rule is plain softmax; about 140.4 κ.

    Parameters
    ----------
    kappa : (...), above 0, the interval that the competitors' logits fill
    rule : the published one by default

    Returns
    -------
    (...), float64: :func:`even_entropy` at n* is H*

    Examples
    --------
    >>> switch_off_length([1.0, 10.0, 90.0])
    tensor([  397.4910,  1404.7340, 12636.2934], dtype=torch.float64)
    """
    kappa = numbers("kappa", kappa, above=0.0)
    level = _switch_off(rule) + _geometric(kappa)
    u = 1 - level
    for _ in range(40):
        half = u.exp() / 2
        u = u + (_geometric(u.exp()) - level) * (half.sinh() / half).square()
    return kappa * (-u).exp()


def switch_off_ratio(rule: EntropyAdaptive | None = None) -> float:
    """n*/κ for κ ≫ 1: e^(H* − 1), 140.4 with the published coefficients.

    Examples
    --------
    >>> round(switch_off_ratio(), 1)
    140.4
    """
    return math.exp(_switch_off(rule) - 1)


def effective_kappa(n: Array, entropy: Array) -> Tensor:
    """κ of the uniform competitors that would give a row of n keys this entropy: n·e^(1 − H).

    Parameters
    ----------
    n : (...), at least 1
    entropy : (...), in nats, at least 0

    Returns
    -------
    (...), float64; times :func:`switch_off_ratio` it is the length at which the rule will stop helping such rows.

    Examples
    --------
    >>> effective_kappa(16384, 5.44)
    tensor(193.2647, dtype=torch.float64)
    """
    return numbers("n", n, at_least=1.0) * (1 - numbers("entropy", entropy, at_least=0.0)).exp()


def _geometric(a: Tensor) -> Tensor:
    """g(a) = −ln(1 − e^(−a)) + a/(e^a − 1), the entropy of an endless geometric sequence of ratio e^(−a)."""
    return -torch.log(-torch.expm1(-a)) + a / torch.expm1(a)


def _switch_off(rule: EntropyAdaptive | None) -> float:
    level = switch_off_entropy(rule)
    if level == 0.0 or math.isinf(level):
        raise InvalidValue(f"the rule switches off at an entropy of {level:g}: must have one above 0 and finite.")
    return level


def _real_roots(polynomial: np.poly1d) -> list[float]:
    """Real roots in increasing order."""
    roots = np.asarray(polynomial.roots, dtype=complex)
    return sorted(float(each.real) for each in roots if abs(each.imag) < 1e-9 * max(1.0, abs(each)))
