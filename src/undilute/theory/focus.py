"""Can one rule be sparse, length-adaptive and gradient-stable?  Focus is, but for a region of ties no rule escapes.

Focus (``undilute.rules.Focus``) is entmax_α(s·z) with s = min(max(s_K, s_min), s_max). Write ε = α − 1, a = 1/ε, e = 2
− α, z₁ ≥ z₂ ≥ … for the sorted logits, K < n, Δⱼ = zⱼ − z_{K+1} for j ≤ K, S = ΣΔⱼ^a, s_K = 1/(ε·S^ε), and let s_min ≤
s_max. These are the statements with the steps of their proofs, which docs/focus.md has at length.

**1. Sparse and length-adaptive.** The scale s_K is the smallest that leaves at most K keys. So whenever s_K ≤ s_max,
that is if the *lead* ‖Δ‖_a = S^ε (:func:`lead`) is at least 1/(ε·s_max) (:func:`tie_lead`), at most K keys have weight
and the top one has 1/K or more, whatever n; K equal keys have just that. It is enough that z₁ − z_{K+1} ≥ 1/(ε·s_max).
Proof: by theorem 4 of ``theory.sparse`` the key of rank k has weight at scale s if and only if Σ_{i<k}(εs(zᵢ − z_k))^a
< 1. For k = K + 1 the sum is (εs)^a·S, which rises with s to 1 at s_K. And ‖Δ‖_a ≥ Δ₁.
 - Where s = s_K, pⱼ = Δⱼ^a/S (:func:`fitted_weights`): neither scale nor shift of the logits counts, nor any key
   beyond rank K + 1. The threshold, in the logits' units, is the t with Σ(εs[zᵢ − t]₊)^a = 1. It rises with s and is
   z_{K+1} at s_K, so that of focus is max(t(s_min), min(z_{K+1}, t(s_max))).
 - Where s_K > s_max, the row is entmax at s_max: more than K keys have weight, all less than 1/(ε·s_max) below the
   top.
 - Plain entmax at s_max has no more keys and no lower floor on the same rows, and its Lipschitz constant,
   s_max·L(n), is no larger than the one below. What focus adds is that its scale is the *smallest* one that does it:
   every key that leads z_{K+1} keeps weight, and with it a gradient, where entmax at s_max gives all to the top key
   once that leads the next by 1/(ε·s_max).

**2. Gradient-stable.** ‖∂p/∂z‖₂ ≤ s_max·max(L(n), C(α, K)) wherever it exists, L(n) ≤ 1 that of theorem 3 of
``theory.sparse``, C = :func:`steepness`; rows of n ≤ K keys have s_min·L(n). And this is a Lipschitz constant.
Proof. Where s is a limit the Jacobian is s times entmax's. Where s = s_K, let u = p^e, U = Σu. From pⱼ = Δⱼ^a/S,
a·S^(−ε) = s_K and Δⱼ^(a−1)/S = uⱼ·S^(−ε),
    J = s_K·(I − p1ᵀ)·diag(u)·[I | −1]   (K × (K+1), the last column that of z_{K+1}; :func:`relative_jacobian`).
For a unit vector y and v = y − (p·y)1,
    ‖yᵀJ‖²/s_K² = Σuᵢ²vᵢ² + (b·y)²,   b = u − Up.
*First term.* Let x = max p. Σpv² = Var_p(y) is at most x, and at most 2x(1−x) if x ≥ 1/2 (Gershgorin). For e ≥ 1/2, u²
≤ x^(2e−1)·p, so the term is at most max_x 2x^(2e)(1−x) = A = 2(2e)^(2e)/(2e+1)^(2e+1). For e < 1/2, Hölder gives
(Σpv²)^(2e)·(Σv²)^(1−2e), where Σv² ≤ K·Σp², as I − 1pᵀ is a projector, and Σp² is at most x, and at most 1 − 2x(1−x)
if x ≥ 1/2. So A = K^(1−2e)·max over q ≤ 1/2 of q^(2e)(1−q)^(1−2e).
*Second term.* ‖b‖² = U²P − 2UQ + R, with P = Σp², Q = Σp^(1+e) and R = Σp^(2e), is largest at one key against K − 1
equal ones. For e = 0 it is k²P − k, k the number of keys with weight: at most K² − K. Let 0 < e ≤ 1/2. ‖b‖ = 0 if and
only if all keys with weight have the same; so c = UP − Q > 0 at a maximum (Chebyshev), and no key has weight 0 there:
mass δ moved to it gains 2c·δ^e − O(δ) or more. Lagrange: φ(pᵢ) = λ with φ(p) = 2ce·p^(e−1) + 2U²p − 2U(1+e)p^e +
2e·p^(2e−1), and
    φ′(p)·p^(1−e)/2 = −ce(1−e)/p − e(1−2e)·p^(e−1) − U(1+e)e + U²p^(1−e)
rises from −∞ to ∞: φ falls, then rises. So there are at most two values, and the higher one is one key's alone, since
two such keys, one raised and one lowered, leave U, P, Q and R alone at first order and gain by φ′ > 0 at second. For e
> 1/2 put Q^((2e−1)/e) ≥ R (Hölder) in R's place, and the same holds. Let B be the maximum.
So C² = A + B. For e ≤ 1/2 the least constant possible lies between √B and √(A + B); for α = 2 it is K = C, in the
limit p → (1, 0, …, 0). For K → ∞, C ~ K^ε·e^e/(1+e)^(1+e), √(4K/27) for α = 1.5. :func:`steepest` is the largest norm
of one key against one or K − 1 equal others. No search has found more; that there is none is a conjecture. C is proved.
*Lipschitz.* 1/s = min(max(ε‖Δ‖_a, 1/s_max), 1/s_min) is a Lipschitz function of z, as order statistics are. So focus
is locally Lipschitz, and differentiable but on a null set, with one of these Jacobians. On almost every segment the
bound holds at almost every point: integrate, and take limits. ∎

**3. A tie region is unavoidable.** Let a rule treat all keys alike (permutation-equivariant), sum to 1 and have the
Lipschitz constant L on rows of n keys. Then a row with at most K non-zero weights is at least √(1/K − 1/n)/L away from
every tie, in ℓ₂ (:func:`distance_needed`): at a tie all weights are 1/n, and Σw² ≥ 1/K for K weights that sum to 1.
Sharp: sparsemax at scale s, L = s, K keys that lead by 1/(Ks). Focus leaves its tie region in the direction of m ≤ K
equal leaders at √(m(1 − m/n))·m^(−ε)/(ε·s_max) (:func:`tie_exit`). Top-k is sparse next to a tie, and pays with L = ∞.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.rules.maps import focus as rule
from undilute.theory.inputs import Array, distribution, numbers

GRID = 4096  # of the weight off the top key, where the steepest row is looked for


def lead(logits: Array, K: int, alpha: Array) -> Tensor:
    """‖Δ‖_a = (Σ_{j≤K} (zⱼ − z_{K+1})^(1/(α−1)))^(α−1): how far the top K lead the next, and a row is from a tie.

    Parameters
    ----------
    logits : (..., n), n > K
    K : at least 1
    alpha : above 1 and at most 2, broadcasts to (...)

    Returns
    -------
    (...,)

    Examples
    --------
    >>> lead([0.4, 0.3, 0.0, -5.0], K=2, alpha=1.5)
    tensor(0.5000, dtype=torch.float64)
    """
    delta, epsilon = _leads(logits, K), _epsilon(alpha).unsqueeze(-1)
    widest = delta[..., :1]
    powers = (delta / widest.masked_fill(widest == 0, 1.0)).pow(1 / epsilon)
    return (widest * powers.sum(-1, keepdim=True).pow(epsilon)).squeeze(-1)  # as a norm: nothing overflows


def fitting_scale(logits: Array, K: int, alpha: Array) -> Tensor:
    """s_K = 1/((α−1)·lead): the smallest scale at which entmax leaves at most K keys; infinite at a tie.

    Parameters as in :func:`lead`; returns (...,).

    Examples
    --------
    >>> fitting_scale([0.4, 0.3, 0.0, -5.0], K=2, alpha=1.5)
    tensor(4., dtype=torch.float64)
    """
    return 1 / (_epsilon(alpha) * lead(logits, K, alpha))


def fitted_weights(logits: Array, K: int, alpha: Array) -> Tensor:
    """Δⱼ^a/S: the weights of the top K keys, heaviest first, at the scale s_K.

    Parameters as in :func:`lead`, not tied; returns (..., K).

    Examples
    --------
    >>> fitted_weights([0.4, 0.3, 0.0, -5.0], K=2, alpha=1.5)
    tensor([0.6400, 0.3600], dtype=torch.float64)
    """
    delta, epsilon = _leads(logits, K), _epsilon(alpha).unsqueeze(-1)
    if (delta[..., 0] == 0).any():
        raise InvalidValue(f"logits has a row whose top {K + 1} are equal: must not be tied, for s_K to be finite.")
    powers = (delta / delta[..., :1]).pow(1 / epsilon)
    return powers / powers.sum(-1, keepdim=True)


def tie_lead(alpha: Array, s_max: Array) -> Tensor:
    """1/((α−1)·s_max): the lead from which focus has at most K keys with weight, whatever n.

    Parameters
    ----------
    alpha : above 1 and at most 2
    s_max : positive, broadcasts with ``alpha``

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> tie_lead(1.5, 16.0)
    tensor(0.1250, dtype=torch.float64)
    """
    return 1 / (_epsilon(alpha) * numbers("s_max", s_max, above=0.0))


def weight_floor(k: int, n: Array, power: float = 0.0) -> Tensor:
    """1/K(n), K(n) = ⌈k·n^power⌉: the least weight of the top key outside the tie region.

    Parameters
    ----------
    k : at least 1
    n : at least 1, any shape
    power : at least 0 and below 1

    Returns
    -------
    The shape of ``n``

    Examples
    --------
    >>> weight_floor(16, [100, 10_000, 1_000_000])
    tensor([0.0625, 0.0625, 0.0625], dtype=torch.float64)
    >>> weight_floor(2, [100, 10_000, 1_000_000], power=0.25)
    tensor([0.1429, 0.0500, 0.0156], dtype=torch.float64)
    """
    return 1 / rule.Focus(k, power=power).kept(numbers("n", n, at_least=1.0))


def relative_jacobian(weights: Array, alpha: Array) -> Tensor:
    """(I − p1ᵀ)·diag(u)·[I | −1] with u = p^(2−α): focus's Jacobian where s = s_K, in units of s_K.

    Parameters
    ----------
    weights : (..., K), of the top K keys
    alpha : above 1 and at most 2, broadcasts to (...)

    Returns
    -------
    (..., K, K + 1): rows are weights, columns the logits z₁ to z_{K+1}

    Examples
    --------
    >>> relative_jacobian([0.75, 0.25], alpha=2.0)
    tensor([[ 0.2500, -0.7500,  0.5000],
            [-0.2500,  0.7500, -0.5000]], dtype=torch.float64)
    """
    p = distribution("weights", weights)
    u = _slopes(p, alpha)
    moved = torch.diag_embed(u) - p.unsqueeze(-1) * u.unsqueeze(-2)
    return torch.cat([moved, -moved.sum(-1, keepdim=True)], -1)


def relative_norm(weights: Array, alpha: Array) -> Tensor:
    """The spectral norm of :func:`relative_jacobian`: ‖∂p/∂z‖₂/s_K where s = s_K.

    Parameters as in :func:`relative_jacobian`; returns (...,).

    Examples
    --------
    >>> relative_norm([0.5, 0.5], alpha=1.5)
    tensor(0.7071, dtype=torch.float64)
    """
    return largest_norm(distribution("weights", weights), numbers("alpha", alpha))


def largest_norm(p: Tensor, alpha: Tensor) -> Tensor:
    """:func:`relative_norm` of weights (..., K) that sum to 1, without any check; gradients flow into them."""
    u = _slopes(p, alpha)
    squared, total = u * u, u.sum(-1, keepdim=True)
    spread = squared.sum(-1, keepdim=True) * p - squared  # (I − p1ᵀ)·diag(u²)·(I − 1pᵀ), without its diagonal
    b = u - total * p
    product = p.unsqueeze(-1) * spread.unsqueeze(-2) - squared.unsqueeze(-1) * p.unsqueeze(-2)
    product = product + torch.diag_embed(squared) + b.unsqueeze(-1) * b.unsqueeze(-2)
    eigenvalues: Tensor = torch.linalg.eigvalsh(product)
    return eigenvalues[..., -1].clamp(min=0.0).sqrt()


def steepness(alpha: float, K: int) -> float:
    """C(α, K) ≥ :func:`relative_norm` of any weights; theorem 2 of the module's docstring.

    Parameters
    ----------
    alpha : above 1 and at most 2
    K : at least 1

    Returns
    -------
    A number: K for sparsemax, 0 for K = 1

    Examples
    --------
    >>> [round(steepness(alpha, 16), 3) for alpha in (1.25, 1.5, 1.75, 2.0)]
    [0.73, 1.461, 4.269, 16.0]
    """
    _check(alpha, K)
    return rule.steepness(alpha, K)


def steepest(alpha: float, K: int) -> float:
    """The largest :func:`relative_norm` of one key against one or K − 1 equal others: conjectured to be that of any.

    Parameters as in :func:`steepness`; returns a number, at most C(α, K).

    Examples
    --------
    >>> [round(steepest(alpha, 16), 3) for alpha in (1.25, 1.5, 1.75, 2.0)]
    [0.595, 1.36, 4.175, 16.0]
    """
    _check(alpha, K)
    return max((_one_against_rest(alpha, k)[1] for k in {2, K} if k <= K and K > 1), default=0.0)


def steepest_weights(alpha: float, K: int) -> Tensor:
    """Weights whose :func:`relative_norm` is :func:`steepest`; for α = 2, which only has a limit, to rounding.

    Parameters
    ----------
    alpha : above 1 and at most 2
    K : at least 2

    Returns
    -------
    (K,), one key against K − 1 equal ones, or two keys alone

    Examples
    --------
    >>> steepest_weights(1.5, 5)
    tensor([0.7140, 0.0715, 0.0715, 0.0715, 0.0715], dtype=torch.float64)
    """
    _check(alpha, K)
    if K < 2:
        raise InvalidValue(f"K = {K}: must be at least 2; one key always has weight 1.")
    k = max((2, K), key=lambda k: _one_against_rest(alpha, k)[1])
    rest, _ = _one_against_rest(alpha, k)
    weights = torch.zeros(K, dtype=torch.float64)
    weights[0], weights[1:k] = 1 - rest, rest / (k - 1)
    return weights


def distance_from_tie(logits: Array) -> Tensor:
    """‖z − mean z‖₂: how far a row is from the nearest one with all logits equal.

    Parameters
    ----------
    logits : (..., n)

    Returns
    -------
    (...,)

    Examples
    --------
    >>> distance_from_tie([1.0, -1.0])
    tensor(1.4142, dtype=torch.float64)
    """
    z = numbers("logits", logits)
    distance: Tensor = torch.linalg.vector_norm(z - z.mean(-1, keepdim=True), dim=-1)
    return distance


def distance_needed(K: Array, n: Array, lipschitz: Array) -> Tensor:
    """√(1/K − 1/n)/L: how far from a tie any rule must be to give weight to at most K keys; theorem 3.

    Parameters
    ----------
    K : at least 1
    n : at least K
    lipschitz : L, positive; the rule treats all keys alike and its weights sum to 1. All broadcast together.

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> distance_needed(16, 1000, 1.0)
    tensor(0.2480, dtype=torch.float64)
    """
    kept, count = numbers("K", K, at_least=1.0), numbers("n", n, at_least=1.0)
    if (kept > count).any():
        raise InvalidValue(f"K = {float(kept.max()):g} of n = {float(count.min()):g} keys: must be at most n.")
    return (1 / kept - 1 / count).sqrt() / numbers("lipschitz", lipschitz, above=0.0)


def tie_exit(m: Array, n: Array, alpha: Array, s_max: Array) -> Tensor:
    """√(m(1 − m/n))·m^(1−α)/((α−1)·s_max): how far from a tie m ≤ K equal leaders leave focus's tie region.

    Parameters
    ----------
    m : at least 1
    n : above m
    alpha : above 1 and at most 2
    s_max : positive. All broadcast together.

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> tie_exit([1, 16], 1000, 1.5, 16.0)
    tensor([0.1249, 0.1240], dtype=torch.float64)
    """
    leaders, count = numbers("m", m, at_least=1.0), numbers("n", n, at_least=1.0)
    if (leaders >= count).any():
        raise InvalidValue(f"m = {float(leaders.max()):g} of n = {float(count.min()):g} keys: must be below n.")
    each = tie_lead(alpha, s_max) * leaders.pow(-_epsilon(alpha))
    return each * (leaders * (1 - leaders / count)).sqrt()


def _one_against_rest(alpha: float, k: int) -> tuple[float, float]:
    """The weight r off the top key at which one key against k − 1 equal ones is steepest, and the norm there.

    With x = 1 − r, h = k − 1, u₁ = x^e and u₂ = (r/h)^e the norm's square is
        (k/h)·(u₁²r² + h·u₂²x² + (u₁r − h·u₂x)²).
    """
    e, h = 2.0 - alpha, k - 1.0

    def squared(rest: Tensor) -> Tensor:
        top = 1 - rest
        first, other = top**e * rest, (rest / h) ** e * top
        norm: Tensor = k / h * (first.square() + h * other.square() + (first - h * other).square())
        return norm

    rest = torch.cat([torch.logspace(-15, 0, GRID, dtype=torch.float64), torch.tensor([1 - 1 / k])])
    rest = rest[rest <= 1 - 1 / k].sort().values
    for _ in range(3):
        best = int(squared(rest).argmax())
        low, high = float(rest[max(best - 1, 0)]), float(rest[min(best + 1, len(rest) - 1)])
        rest = torch.linspace(low, high, GRID, dtype=torch.float64)
    best = int(squared(rest).argmax())
    return float(rest[best]), math.sqrt(float(squared(rest)[best]))


def _leads(logits: Array, K: int) -> Tensor:
    """Δⱼ = zⱼ − z_{K+1}, j ≤ K, from the top down: (..., K)."""
    z = numbers("logits", logits)
    if K < 1 or z.ndim == 0 or z.shape[-1] <= K:
        raise InvalidValue(
            f"K = {K} for logits of shape {tuple(z.shape)}: must be at least 1 and below the keys of a row."
        )
    top = z.topk(K + 1, dim=-1).values
    return top[..., :-1] - top[..., -1:]


def _slopes(p: Tensor, alpha: Array) -> Tensor:
    """p^(2−α), 0 off the support."""
    positive = p > 0
    exponent = 1 - _epsilon(alpha).unsqueeze(-1)
    return p.masked_fill(~positive, 1.0).pow(exponent).masked_fill(~positive, 0.0)


def _epsilon(alpha: Array) -> Tensor:
    epsilon = numbers("alpha", alpha, above=1.0) - 1
    if (epsilon > 1).any():
        raise InvalidValue(
            f"alpha = {float(epsilon.max()) + 1:g}: must be at most 2, where entmax has a Lipschitz constant."
        )
    return epsilon


def _check(alpha: float, K: int) -> None:
    _epsilon(alpha)
    if K < 1:
        raise InvalidValue(f"K = {K}: must be at least 1.")
