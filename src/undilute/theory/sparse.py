"""Why do sparse rules escape the dilution lemma?  Because a weight of exactly 0 is allowed; here is what follows.

α-entmax gives key i the weight pᵢ = [(α−1)zᵢ − τ]₊^(1/(α−1)), τ such that Σp = 1. Write ε = α − 1 > 0, let z₁ be the
top logit and w = p₁^ε. Then τ = εz₁ − w, and pᵢ = [w − ε(z₁ − zᵢ)]₊^(1/ε).

Lemma 1 of arXiv:2508.17821 bounds every weight by C₂/n for rules F(zᵢ)/ΣF on bounded logits, C₂ = max F/min F. Its
hypothesis is F > 0: each of n − 1 competitors takes a share that is bounded below. Entmax breaks just that. What does
not go away: entmax dilutes among keys that are as good as the top one (n equal logits get 1/n each), and if all the
competitors close in on the top as n grows, its weight falls to 0.

**1. Gap theorem.** p₁ = 1, whatever n, if and only if every other logit is at least 1/ε below z₁
(:func:`one_hot_gap`). Proof: with w = 1 each competitor has [1 − ε(z₁ − zᵢ)]₊ = 0 and the row sums to 1; τ is unique.
If one competitor is nearer, it has positive weight at w = 1, so the row would sum to more than 1, and w < 1.

**2. Floor.** If every competitor is at least g below the top, p₁ ≥ min(1, (εg)^(1/ε)), whatever n and wherever they
are (:func:`weight_floor`); no larger floor holds for every n. So every positive gap, not only 1/ε, holds a weight for
ever. Proof: lowering a logit lowers the sum, so w rises; the worst row has all n − 1 competitors at exactly g. There
w^(1/ε) + (n−1)[w − εg]₊^(1/ε) = 1 (:func:`needle_weight`). If εg < 1 then w > εg, for otherwise p₁ alone, at most
(εg)^(1/ε) < 1, would have to sum to 1. As n → ∞ the bracket, at most (n−1)^(−ε), tends to 0 and w → εg.
The gap at which the needle has weight c among n keys is (c^ε − ((1−c)/(n−1))^ε)/ε (:func:`gap_to_hold`): at most c^ε/ε
for every n. Its limit α → 1 is softmax's ln(c(n−1)/(1−c)), which has no bound.
Closed forms of the weight below the gap 1/ε: sparsemax (1 + (n−1)g)/n; α = 1.5 [((n−1)g + √(4n − (n−1)g²))/(2n)]².

**3. Lipschitz constant.** For 1 < α ≤ 2 the largest ‖∂p/∂z‖₂ over all logits of n ≥ 2 keys is
    L(n) = max(κ(2), κ(n)),   κ(k) = k(k−1)^(α−2) / (1 + (k−1)^((α−1)/(3−α)))^(3−α),   κ(2) = 2^(α−2),
reached at p = (1/2, 1/2, 0, …) or at one key with (n−1)^(2/(3−α)) times the weight of each other
(:func:`steepest_weights`). Sparsemax: 1. Always L(n) ≤ 1, and L(n) → 1. α = 1.5: 0.7071 up to n = 47.
All of this is proved; the tests check each step of the proof by numbers, and search for a counterexample.

*Reduction.* ∂p/∂z = diag(u) − uuᵀ/U, u = p^(2−α) on the support, so its norm is the maximum over unit v of
min_c Σuᵢ(vᵢ − c)². (u ≤ 1 gives L ≤ 1.) At α = 2 it is a projector, L = 1. Let α < 2. Every p of the simplex, a compact
set, belongs to some logits, and the sum is continuous and concave in p and convex in c: exchange, and maximise over p
by Hölder, which gives L = max_v min_c ‖v − c‖², the norm that of the exponent 2/ε. The dual of that quotient norm turns
it into
    L = max { ‖y‖₂²/‖y‖_r² : Σy = 0 },   r = 2/(3−α) ∈ (1, 2).   Let s = r − 1 ∈ (0, 1).

*Values of a maximum.* It has y = c·sgn(y)|y|^s + μ (Lagrange; the two gradients are independent, as y is not constant)
with c > 0 (multiply by y and sum); scale to c = 1, and flip signs so that μ ≥ 0. If μ = 0, y has k keys at 1, k at −1
and the rest at 0: the ratio (2k)^(1−2/r) is largest for k = 1, κ(2). Let μ > 0. h(y) = y − sgn(y)|y|^s takes the value
μ at one A > 1 and, if at all, at −B₁ and −B₂ with 0 < B₁ ≤ B₂ < 1 on either side of the place where h′ changes sign:
h′(A) > 0, and h′(B₂) > 0 > h′(B₁) unless B₁ = B₂. No yᵢ is 0, where |y|^r has no second derivative, so the second-order
condition applies: Σh′(yᵢ)vᵢ² ≤ 0 for all v ⟂ 1 and v ⟂ sgn(y)|y|^s. It forbids two keys of the same value where h′ > 0
(take v = 1 and −1 on them). So A, without which Σy < 0, occurs once, and B₂ ≠ B₁ at most once: y is
(A, −B₁, …, −B₁), which gives κ(n), or (A, −B₂, −B₁, …, −B₁) with m = (A − B₂)/B₁ keys at −B₁.

*The last is no maximum.* v = B₂ − B₁ at A, A + B₁ at B₂ and −(A + B₂)/m at each B₁ is admissible, because A^s = A − μ
and B^s = B + μ. For the same reason |y|h′(y) is linear, (1−s)(A + κ₀) and (1−s)(B − κ₀) with κ₀ = sμ/(1−s), so
B₁ < κ₀ < B₂, and Σh′v² is (1−s) times
    q = (1 + κ₀/A)(B₂ − B₁)² + (1 − κ₀/B₂)(A + B₁)² − (κ₀ − B₁)(A + B₂)²/(A − B₂).
Claim: q > 0. Take κ₀ as the unit and ω = μ/κ₀ = (1−s)/s, so that (1+ω)ln|x + ω| − ln|x| is the same at x = B₁, B₂ and
−A. Let e = B₂ − 1, f = 1 − B₁, t = (B₁ + ω)/(1 + ω).
 (a) A − B₂ > 2(1+ω): as (1+ω)ln(A − ω) − ln A rises with A, this says, with x = B₂ + 1 + ω, that
     (1+ω)artanh(1/x) < artanh((1+ω)/x), and artanh is convex.
 (b) ∫ (x−1)/(x(x+ω)) dx = 0 over [B₁, B₂]. The weight 1/(x(x+ω)) falls, and so does its ratio to 1/x; hence f ≤ e and
     −f − ln(1−f) ≤ e − ln(1+e), which gives f ≤ 2e/(2+e) for e < 2 (with that f the left side has the slope
     8e/((2−e)(2+e)²) in e, the right side e/(1+e), which is less); f < 1 always. Above 1 put x² for x(x+ω), below 1
     (x+ω)²: 1/t + ln t ≤ ln B₂ + 1/B₂ ≤ B₂ − ln B₂, and so t ≥ 1/B₂, since 1/t + ln t falls.
 (c) (A + B₂)²/(A − B₂) = 4B₂²/(A − B₂) + 4B₂ + (A − B₂), and by (a) f·4B₂²/(A − B₂) ≤ 2B₂²(1 − t), which by (b) is at
     most 2B₂²(1 − 1/B₂) = 2eB₂. What is left of q rises with A − B₂ from 2 on: its slope is
     2(A + B₁)e/(1+e) − (e+f)²/A² − f ≥ (8 − 4 − 2)e/(1+e). So put 2 for it:
         q ≥ (e+f)²(4+e)/(3+e) + e(e+4−f)²/(1+e) − f(4e+6) − 2eB₂,
     which falls with f: the first term's slope is below (8/3)(1+e). For e < 2 and f = 2e/(2+e) it is
     2e(48 + 30e + 5e² − 3e³ − e⁴)/((1+e)(2+e)²(3+e)) > 0. For e ≥ 2 and f = 1 it is 2B₂ − 4 − 8/(B₂(B₂+2)) > 0. ∎

**4. Support.** Sorted z₁ ≥ z₂ ≥ …, key k has positive weight if and only if Σ_{i<k} (ε(zᵢ − z_k))^(1/ε) < 1: put
τ = εz_k and see whether the row is too light (:func:`support_size`). Hence a key is out as soon as m keys lead it by
m^(−ε)/ε or more:
    |support| ≤ min over m of #{j : z_j > z_m − m^(−ε)/ε}   (:func:`support_bound`),
of which m = 1 is the reach of the top key, 1/ε. Sharp for each m: m equal keys a hair less ahead let the next one in.
For n independent N(0, σ²) logits let t solve n·E[ε(z − t)]₊^(1/ε) = 1. Then |support| / (n·P(z > t)) → 1 in probability
(:func:`gaussian_support`): both sums are over independent keys, with N = n·P(z > t) → ∞ their relative standard
deviations are O(1/√N), and to move t by ησ²/t multiplies both means by about e^(−η), so the threshold is that near. By
Mills' ratio N ~ (√(2 ln n)/(σε))^(1/ε)/Γ(1 + 1/ε): the support grows as a power of ln n (sparsemax √(2 ln n)/σ, α = 1.5
(4 ln n)/σ²), where softmax keeps all n.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.rules.forms import SOFTMAX
from undilute.rules.maps.entmax import Entmax
from undilute.theory.inputs import Array, numbers

HALVINGS = 64
TAIL = 12.0  # standard deviations beyond which a Gaussian counts for nothing
NODES = 400


def one_hot_gap(alpha: Array) -> Tensor:
    """The gap between the top logit and the next at which entmax gives the top key weight 1: 1/(α−1), whatever n.

    Parameters
    ----------
    alpha : above 1, any shape

    Returns
    -------
    The shape of ``alpha``

    Examples
    --------
    >>> one_hot_gap([1.5, 2.0])
    tensor([2., 1.], dtype=torch.float64)
    """
    return 1 / (numbers("alpha", alpha, above=1.0) - 1)


def weight_floor(gap: Array, alpha: Array) -> Tensor:
    """The weight the top key keeps at every n when all others are at least ``gap`` below: min(1, ((α−1)g)^(1/(α−1))).

    Parameters
    ----------
    gap : at least 0
    alpha : at least 1, broadcasts with ``gap``; the floor of softmax, α = 1, is 0

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> weight_floor(1.0, [1.0, 1.5, 2.0])
    tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """
    g, epsilon = numbers("gap", gap, at_least=0.0), numbers("alpha", alpha, at_least=1.0) - 1
    return (epsilon * g).clamp(max=1.0).pow(1 / epsilon.clamp(min=SOFTMAX))


def needle_weight(gap: Array, n: Array, alpha: Array) -> Tensor:
    """Entmax weight of one key that leads n − 1 equal competitors by ``gap``.

    Parameters
    ----------
    gap : at least 0
    n : at least 1
    alpha : at least 1; 1 is softmax, 1/(1 + (n−1)e^(−g)). All broadcast together.

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> needle_weight(1.0, [10, 1000, 100000], alpha=1.0)
    tensor([2.3197e-01, 2.7136e-03, 2.7182e-05], dtype=torch.float64)
    >>> needle_weight(1.0, [10, 1000, 100000], alpha=1.5)
    tensor([0.5305, 0.2776, 0.2527], dtype=torch.float64)
    """
    g, count, epsilon = torch.broadcast_tensors(
        numbers("gap", gap, at_least=0.0), numbers("n", n, at_least=1.0), numbers("alpha", alpha, at_least=1.0) - 1
    )
    softmax, epsilon = epsilon < SOFTMAX, epsilon.clamp(min=SOFTMAX)
    low, width = -count.log(), count.log()  # log of the weight lies in [−log n, 0]
    for _ in range(HALVINGS):
        width = width / 2
        log_weight = low + width
        lag = (-epsilon * g * (-epsilon * log_weight).exp()).clamp(min=-1.0).log1p() / epsilon
        light = log_weight.exp() * (1 + (count - 1) * lag.exp()) <= 1
        low = torch.where(light, log_weight, low)
    certain = (epsilon * g >= 1) | (count == 1)
    entmax = torch.where(certain, 1.0, low.exp())
    return torch.where(softmax, 1 / (1 + (count - 1) * (-g).exp()), entmax)


def gap_to_hold(weight: Array, n: Array, alpha: Array) -> Tensor:
    """The lead over n − 1 equal competitors that gives a key this weight: (c^(α−1) − ((1−c)/(n−1))^(α−1))/(α−1).

    Parameters
    ----------
    weight : c, at least 1/n and at most 1
    n : at least 2
    alpha : at least 1; 1 is softmax, ln(c(n−1)/(1−c)). All broadcast together.

    Returns
    -------
    Their common shape; never above c^(α−1)/(α−1) if α > 1

    Examples
    --------
    >>> gap_to_hold(0.5, [100, 10_000, 1_000_000], alpha=1.0)
    tensor([ 4.5951,  9.2102, 13.8155], dtype=torch.float64)
    >>> gap_to_hold(0.5, [100, 10_000, 1_000_000], alpha=1.5)
    tensor([1.2721, 1.4001, 1.4128], dtype=torch.float64)
    """
    c, count, epsilon = torch.broadcast_tensors(
        numbers("weight", weight, above=0.0), numbers("n", n, at_least=2.0), numbers("alpha", alpha, at_least=1.0) - 1
    )
    if (wrong := (c > 1) | (c * count < 1 - 1e-12)).any():
        raise InvalidValue(
            f"weight = {float(c[wrong][0]):g} of n = {float(count[wrong][0]):g}: a key that leads has from 1/n to 1."
        )
    log_c, log_other = c.log(), ((1 - c) / (count - 1)).log()
    stretched = epsilon.clamp(min=SOFTMAX)
    entmax = ((stretched * log_c).expm1() - (stretched * log_other).expm1()) / stretched
    return torch.where(epsilon < SOFTMAX, log_c - log_other, entmax)


def lipschitz_constant(alpha: float, n: int) -> float:
    """L(n), the largest ‖∂p/∂z‖₂ of α-entmax over all logits of n keys; theorem 3 of the module's docstring.

    Parameters
    ----------
    alpha : above 0 and not 1; above 2, L(n) is infinite for n > 2, and below 1 it is 2^(α−2)
    n : at least 1

    Returns
    -------
    A number, 1 for sparsemax

    Examples
    --------
    >>> [round(lipschitz_constant(1.5, n), 4) for n in (1, 2, 47, 48, 10**6)]
    [0.0, 0.7071, 0.7071, 0.7076, 0.9852]
    """
    return Entmax(alpha).lipschitz(n)


def steepest_weights(alpha: float, n: int) -> Tensor:
    """Weights at which α-entmax's Jacobian has the norm L(n), for 1 < α ≤ 2.

    Parameters
    ----------
    alpha : above 1, at most 2
    n : at least 2

    Returns
    -------
    (n,), with one heavy key against n − 1 equal ones, or (1/2, 1/2, 0, …), whichever is steeper

    Examples
    --------
    >>> steepest_weights(1.5, 3)
    tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    if not 1 < alpha <= 2:
        raise InvalidValue(f"alpha = {alpha:g}: must be above 1 and at most 2, where entmax has a finite constant.")
    if n < 2:
        raise InvalidValue(f"n = {n}: must be at least 2; one key always has weight 1.")
    weights = torch.zeros(n, dtype=torch.float64)
    if lipschitz_constant(alpha, n) <= lipschitz_constant(alpha, 2):
        weights[:2] = 0.5
        return weights
    ratio = (n - 1.0) ** (2 / (3 - alpha))
    weights[:] = 1 / (ratio + n - 1)
    weights[0] *= ratio
    return weights


def support_size(logits: Array, alpha: Array, visible: Tensor | None = None) -> Tensor:
    """How many keys α-entmax gives positive weight, from the logits alone: exact, O(n log n) per row.

    Parameters
    ----------
    logits : (..., n)
    alpha : at least 1, broadcasts to (...); softmax, α = 1, keeps all
    visible : (..., n) bool

    Returns
    -------
    (...,) integers; 0 for a row that sees nothing

    Examples
    --------
    >>> support_size([3.0, 2.8, 2.3, 2.1, 0.0], alpha=[2.0, 1.5, 1.0])
    tensor([2, 4, 5])
    """
    ranked, seen, epsilon = _ranked(logits, alpha, visible)
    low, high = torch.zeros_like(seen), seen  # the keys of the ranks up to low are in, those from high on are not
    for _ in range(ranked.shape[-1].bit_length() + 1):
        middle = (low + high) // 2  # the rank in question, from 0
        level = ranked.gather(-1, middle.clamp(max=ranked.shape[-1] - 1))
        lead = (epsilon * (ranked - level)).clamp(min=0.0)  # those behind count for nothing
        inside = (lead.pow(1 / epsilon.clamp(min=SOFTMAX)).sum(-1, keepdim=True) < 1) | (epsilon < SOFTMAX)
        low = torch.where((middle < high) & inside, middle + 1, low)
        high = torch.where((middle < high) & ~inside, middle, high)
    return low.squeeze(-1)


def support_bound(logits: Array, alpha: Array, visible: Tensor | None = None) -> Tensor:
    """min over m of #{j : z_j > z_m − m^(1−α)/(α−1)} ≥ the size of α-entmax's support.

    Parameters as in :func:`support_size`; returns (...,) integers.

    Examples
    --------
    >>> support_bound([3.0, 2.8, 2.3, 2.1, 0.0], alpha=[2.0, 1.5, 1.0])
    tensor([2, 4, 5])
    """
    ranked, seen, epsilon = _ranked(logits, alpha, visible)
    m = torch.arange(1, ranked.shape[-1] + 1, dtype=torch.float64)
    reach = torch.where(epsilon < SOFTMAX, torch.inf, m.pow(-epsilon) / epsilon.clamp(min=SOFTMAX))
    behind = -(ranked - reach)
    within = torch.searchsorted((-ranked).contiguous(), behind.contiguous())  # how many z > z_m − reach
    return torch.minimum(within, seen).amin(-1)


def gaussian_support(n: Array, alpha: Array, spread: Array = 1.0) -> Tensor:
    """To leading order, the size of α-entmax's support on n independent N(0, spread²) logits.

    It is n·P(z > t), t the threshold at which n·E[(α−1)(z − t)]₊^(1/(α−1)) = 1.

    Parameters
    ----------
    n : at least 1
    alpha : above 1
    spread : positive, the logits' standard deviation. All broadcast together.

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> gaussian_support([1e3, 1e6, 1e9], alpha=1.5)
    tensor([16.9021, 40.0843, 65.0639], dtype=torch.float64)
    """
    count, epsilon, sigma = torch.broadcast_tensors(
        numbers("n", n, at_least=1.0), numbers("alpha", alpha, above=1.0) - 1, numbers("spread", spread, above=0.0)
    )
    low = -(2**epsilon) / (epsilon * sigma)  # of t/σ: there half the keys, those with z > 0, count 2 or more
    width = (2 * count.log()).sqrt() + TAIL - low
    for _ in range(HALVINGS):
        width = width / 2
        heavy = count.log() + _log_moment(low + width, epsilon, sigma) >= 0
        low = torch.where(heavy, low + width, low)
    kept: Tensor = (count.log() + torch.special.log_ndtr(-low)).exp()
    return kept.clamp(min=1.0)


def _log_moment(x: Tensor, epsilon: Tensor, sigma: Tensor) -> Tensor:
    """log E[εσ(y − x)]₊^(1/ε), y standard normal: Gauss–Legendre over the part of the line where the density counts."""
    nodes, weights = _legendre()
    start, stop = x.clamp(min=-TAIL), x.clamp(min=0.0) + TAIL
    half = ((stop - start) / 2).unsqueeze(-1)
    y = start.unsqueeze(-1) + half * (1 + nodes)
    log_density = -y.square() / 2 - math.log(2 * math.pi) / 2
    log_excess = ((epsilon * sigma).unsqueeze(-1) * (y - x.unsqueeze(-1))).log() / epsilon.unsqueeze(-1)
    return (log_excess + log_density + (half * weights).log()).logsumexp(-1)


@cache
def _legendre() -> tuple[Tensor, Tensor]:
    from numpy.polynomial.legendre import leggauss

    nodes, weights = leggauss(NODES)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


def _ranked(logits: Array, alpha: Array, visible: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Logits from the top down, 0 at the top, hidden ones last at −inf; how many are seen and α − 1, both (..., 1)."""
    z, epsilon = numbers("logits", logits), numbers("alpha", alpha, at_least=1.0).unsqueeze(-1) - 1
    seen = torch.ones_like(z, dtype=torch.bool) if visible is None else visible.expand_as(z)
    ranked = z.masked_fill(~seen, -torch.inf).sort(-1, descending=True).values
    top = ranked[..., :1].masked_fill(ranked[..., :1] == -torch.inf, 0.0)
    shape = torch.broadcast_shapes(z.shape[:-1], epsilon.shape[:-1])
    ranked = (ranked - top).expand(*shape, -1)
    return ranked, seen.sum(-1, keepdim=True).expand(*shape, -1), epsilon.expand(*shape, -1)
