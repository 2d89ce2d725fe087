"""How much do attention weights move when the logits move?  Exact norms of the Jacobian, in time linear in n.

Softmax at temperature T has the Jacobian J = (diag(p) − ppᵀ)/T, a covariance: vᵀJv = Var_p(v)/T. It is positive
semidefinite, so ‖J‖₂ is its largest eigenvalue.

**Spectral norm in O(n).** Let p₁ ≥ p₂ ≥ … be the sorted weights and T = 1. An eigenvalue λ that is no weight solves
1 = Σ pᵢ²/(pᵢ − λ); since Σp = 1 that is λ·Σ pᵢ/(pᵢ − λ) = 0. Subtracting a rank-one matrix interlaces, p₂ ≤ λ_max ≤ p₁.
If p₁ = p₂ then λ_max = p₁; if p₂ = 0 then J = 0. Otherwise put λ = p₂ + s(p₁ − p₂) and δᵢ = (p₂ − pᵢ)/(p₁ − p₂) ≥ 0:

    K(s) = (1 − s)/p₁ − 1/R(s) = 0,    R(s) = Σ_{i≥2} pᵢ/(s + δᵢ).

1/R is a weighted harmonic mean of increasing linear functions of s: increasing and concave. So K is decreasing and
convex, and Newton's method from any point left of the root climbs to it monotonically and converges quadratically: no
safeguard is needed. By convexity K·K′ falls to a quarter or less at each step, so of the order of log n steps are
enough. p₂/s ≤ R(s) ≤ (1 − p₁)/s brackets the root, p₂/(p₁ + p₂) ≤ s ≤ 1 − p₁, which starts Newton and gives bounds in
closed form (:func:`spectral_bounds`):

    2p₁p₂/(p₁ + p₂) ≤ λ_max ≤ p₁(1 − p₁ + p₂) ≤ min(p₁, 2p₁(1 − p₁)).

Written in s, nothing cancels: ties, gaps of 1e-16 and nearly one-hot rows keep their relative accuracy. The eigenvector
is pᵢ/(pᵢ − λ), that is p₁/(1 − s) at the top and −pᵢ/(s + δᵢ) elsewhere (:func:`worst_direction`).

**Suprema.** With q_k = Σpᵏ, ‖J‖_F² = q₂ − 2q₃ + q₂² ≤ q₂ − q₂² ≤ 1/4, because q₂² ≤ q₃ (Cauchy–Schwarz). So
‖J‖₂ ≤ ‖J‖_F ≤ 1/(2T), with equality at two equal atoms. The largest entry is max p(1 − p)/T ≤ 1/(4T) (the "classic"
quarter); row and column sums are at most max 2p(1 − p)/T ≤ 1/(2T); ‖J‖_{∞→1} = max_S 4p(S)(1 − p(S))/T ≤ 1/T, since for
a positive semidefinite J the bilinear form is largest on the diagonal, at signs x, where xᵀJx = Var_p(x)/T.

**Any normaliser** αᵢ = F(lᵢ)/ΣF: J = (diag(α) − ααᵀ)diag(g), g = (log F)′. The same bounds hold times max|g|. The exact
norm: with dᵢ = αᵢ²gᵢ², S = Σd and b = Sα − d, JJᵀ = diag(d) + (bbᵀ − ddᵀ)/S. Eliminate every key but the one of the
largest d (index 1), and then the positive pivot S + Σ_{i≥2} dᵢ²/(λ − dᵢ). ‖J‖₂² ≥ d₂, as one direction is subtracted
from diag(d) and one added. By Haynsworth's inertia formula, for λ > d₂, ‖J‖₂² > λ if and only if the 2 × 2 matrix that
is left has a positive eigenvalue. That matrix falls with λ in the Loewner order, so bisection finds the root
(:func:`normaliser_spectral_norm`).

**Entmax**: J = diag(u) − uuᵀ/U with u = p^(2−α) on the support and U = Σu is U times softmax's Jacobian at u/U.

**Finite steps.** g(T, ε) = ‖softmax((l + εv)/T) − softmax(l/T)‖₂/ε for a unit v. Its supremum over l and v is
(√2/ε)·tanh(ε/(2√2·T)) ≤ min{1/(2T), √2/ε}. Proof: let p → p′ and let S hold the keys that gain. Every ratio p′ᵢ/pᵢ lies
in an interval [m, M] with log(M/m) = (max v − min v)ε/T ≤ √2·ε/T, so the log-odds of S rise by at most that much, and
p′(S) − p(S) ≤ tanh(√2·ε/(4T)). A vector of sum 0 whose positive part sums to t has ‖·‖₂ ≤ √2·t. Equality: two keys,
l = (−ε, ε)/(2√2), v = (1, −1)/√2, all other logits at −∞.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.theory.dispersion import Bounds
from undilute.theory.inputs import Array, distribution, numbers

ROUNDING = 4 * torch.finfo(torch.float64).eps
NEWTON_STEPS = 100  # a limit only: about log n steps are needed, see the module's docstring
HALVINGS = 53 + 24  # float64's digits, and a bracket whose ends differ by a factor of at most 2n
ENUMERATED_KEYS = 16  # rows with this many positive weights or fewer: every subset is tried


class Norms(NamedTuple):
    """Norms of a Jacobian; ``infinity`` is both ∞→∞ (largest row sum) and 1→1 (largest column sum)."""

    spectral: Tensor
    frobenius: Tensor
    entry: Tensor
    infinity: Tensor
    infinity_to_one: Tensor


class _Secular(NamedTuple):
    """The secular equation of a row and its root: λ = second + share · gap. All (..., 1) except the last two."""

    top: Tensor
    second: Tensor
    place: Tensor  # where the top weight is
    regular: Tensor  # neither a tie at the top nor one-hot
    share: Tensor
    rest: Tensor  # (..., n), the weights with 0 at the top
    distance: Tensor  # (..., n), (second − pᵢ)/gap


def spectral_norm(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """‖(diag(p) − ppᵀ)/T‖₂, exact to rounding, O(n) per row.

    Parameters
    ----------
    weights : (..., n), rows that sum to 1
    temperature : positive, broadcasts to (...)
    visible : (..., n) bool, the keys each row sees; hidden weights count as absent

    Returns
    -------
    (...,)

    Examples
    --------
    >>> spectral_norm([[0.5, 0.5, 0.0], [0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    tensor([0.5000, 0.3344, 0.0000], dtype=torch.float64)
    """
    T = numbers("temperature", temperature, above=0.0)
    return largest_eigenvalue(distribution("weights", weights, visible)) / T


def spectral_bounds(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Bounds:
    """Bounds of :func:`spectral_norm` from the two largest weights: 2p₁p₂/(p₁ + p₂) and p₁(1 − p₁ + p₂), over T.

    Parameters as in :func:`spectral_norm`; returns Bounds of shape (...,), equal for a tie at the top, for two positive
    weights and for one.

    Examples
    --------
    >>> spectral_bounds([0.7, 0.2, 0.1])
    Bounds(lower=tensor(0.3111, dtype=torch.float64), upper=tensor(0.3500, dtype=torch.float64))
    """
    p, T = distribution("weights", weights, visible), numbers("temperature", temperature, above=0.0)
    top, _, rest = _set_apart(p)
    second = rest.amax(-1, keepdim=True)
    lower = 2 * top * second / (top + second)
    upper = top * (rest.sum(-1, keepdim=True) + second)
    return Bounds(lower.squeeze(-1) / T, upper.squeeze(-1) / T)


def worst_direction(weights: Array, visible: Tensor | None = None) -> Tensor:
    """The unit direction in logit space that moves the weights most: the top eigenvector of diag(p) − ppᵀ, O(n).

    Parameters as in :func:`spectral_norm`; returns (..., n), positive at the top weight, 0 where hidden. Where J = 0
    (one-hot) every direction is as good.

    Examples
    --------
    >>> worst_direction([0.7, 0.2, 0.1])
    tensor([ 0.7776, -0.6044, -0.1733], dtype=torch.float64)
    """
    root = _solve_secular(distribution("weights", weights, visible))
    ahead = torch.where(root.regular, root.top / (1 - root.share), 1.0)
    behind = torch.where(root.regular, root.rest / (root.share + root.distance), 0.0)
    tied = torch.zeros_like(behind).scatter(-1, root.rest.argmax(-1, keepdim=True), 1.0)
    behind = torch.where(root.top == root.second, tied, behind)
    return torch.nn.functional.normalize((-behind).scatter(-1, root.place, ahead), dim=-1)


def frobenius_norm(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """‖(diag(p) − ppᵀ)/T‖_F = √(q₂ − 2q₃ + q₂²)/T with q_k = Σpᵏ, summed so that nothing cancels.

    Parameters as in :func:`spectral_norm`; returns (...,).

    Examples
    --------
    >>> frobenius_norm([0.5, 0.5])
    tensor(0.5000, dtype=torch.float64)
    """
    p, T = distribution("weights", weights, visible), numbers("temperature", temperature, above=0.0)
    top, _, rest = _set_apart(p)
    squares = rest.square()
    beside_top = squares.sum(-1)
    off_diagonal = 2 * top.squeeze(-1).square() * beside_top + (squares * (beside_top.unsqueeze(-1) - squares)).sum(-1)
    return ((p * _complement(p)).square().sum(-1) + off_diagonal).sqrt() / T


def largest_entry(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """max |Jᵢⱼ| = max p(1 − p)/T.

    Parameters as in :func:`spectral_norm`; returns (...,).

    Examples
    --------
    >>> largest_entry([0.5, 0.5])
    tensor(0.2500, dtype=torch.float64)
    """
    p, T = distribution("weights", weights, visible), numbers("temperature", temperature, above=0.0)
    return (p * _complement(p)).amax(-1) / T


def infinity_norm(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """‖J‖_{∞→∞} = ‖J‖_{1→1} = max 2p(1 − p)/T: the largest row sum, and column sum, of |J|.

    Parameters as in :func:`spectral_norm`; returns (...,).

    Examples
    --------
    >>> infinity_norm([0.5, 0.5])
    tensor(0.5000, dtype=torch.float64)
    """
    return 2 * largest_entry(weights, temperature, visible)


def infinity_to_one_norm(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Bounds:
    """‖J‖_{∞→1} = max_S 4p(S)(1 − p(S))/T: how much total weight moves when every logit moves by at most 1.

    Finding the best S is a subset-sum problem. It is solved exactly (lower = upper) for rows in which one weight is at
    least 1/2, and for rows of at most 16 positive weights, by enumeration. Otherwise lower is 1 − D², with D the
    difference of two sides filled greedily, heaviest first, and upper is 1; both over T.

    Parameters as in :func:`spectral_norm`; returns Bounds of shape (...,).

    Examples
    --------
    >>> infinity_to_one_norm([1 / 3, 1 / 3, 1 / 3]).upper
    tensor(0.8889, dtype=torch.float64)
    """
    p, T = distribution("weights", weights, visible), numbers("temperature", temperature, above=0.0)
    ranked = p.sort(-1, descending=True).values
    imbalance = torch.zeros_like(ranked[..., 0])
    for each in ranked.unbind(-1):
        imbalance = (imbalance - each).abs()
    lower, upper = 1 - imbalance.square(), torch.ones_like(imbalance)
    few = (p > 0).sum(-1) <= ENUMERATED_KEYS
    if few.any():
        exact = 1 - _least_imbalance(ranked[few][:, :ENUMERATED_KEYS]).square()
        lower, upper = lower.masked_scatter(few, exact), upper.masked_scatter(few, exact)
    heavy = ranked[..., 0] >= 0.5
    alone = 4 * (p * _complement(p)).amax(-1)
    return Bounds(torch.where(heavy, alone, lower) / T, torch.where(heavy, alone, upper) / T)


def suprema(temperature: Array = 1.0) -> Norms:
    """The largest value of each norm of softmax's Jacobian over all logits; each is reached at p = (1/2, 1/2).

    Parameters
    ----------
    temperature : positive, any shape

    Returns
    -------
    Norms: 1/(2T), 1/(2T), 1/(4T), 1/(2T), 1/T

    Examples
    --------
    >>> suprema(0.5).spectral
    tensor(1., dtype=torch.float64)
    """
    T = numbers("temperature", temperature, above=0.0)
    return Norms(1 / (2 * T), 1 / (2 * T), 1 / (4 * T), 1 / (2 * T), 1 / T)


def entmax_spectral_norm(
    weights: Array, alpha: Array, temperature: Array = 1.0, visible: Tensor | None = None
) -> Tensor:
    """‖diag(u) − uuᵀ/U‖₂/T with u = p^(2−α) on the support, U = Σu: exact for α-entmax, O(n) per row.

    Parameters
    ----------
    weights : (..., n), what entmax gave; exact zeros are off the support
    alpha : at least 1, broadcasts to (...); 1 is softmax, 2 is sparsemax
    temperature, visible : as in :func:`spectral_norm`

    Returns
    -------
    (...,)

    Examples
    --------
    >>> entmax_spectral_norm([0.5, 0.3, 0.2, 0.0], alpha=2.0)
    tensor(1., dtype=torch.float64)
    """
    p, T = distribution("weights", weights, visible), numbers("temperature", temperature, above=0.0)
    exponent = 2 - numbers("alpha", alpha, at_least=1.0).unsqueeze(-1)
    log_u = (exponent * p.clamp(min=torch.finfo(p.dtype).tiny).log()).masked_fill(p == 0, -torch.inf)
    return log_u.logsumexp(-1).exp() * largest_eigenvalue(log_u.softmax(-1)) / T


def normaliser_spectral_norm(weights: Array, log_slopes: Array, visible: Tensor | None = None) -> Tensor:
    """‖(diag(α) − ααᵀ)diag(g)‖₂ for weights α = F(l)/ΣF and g = (log F)′(l): exact to rounding, O(n) per row.

    Parameters
    ----------
    weights : (..., n), rows that sum to 1
    log_slopes : (..., n), F′(l)/F(l); of either sign
    visible : (..., n) bool

    Returns
    -------
    (...,)

    Examples
    --------
    >>> normaliser_spectral_norm([0.5, 0.5], [1.0, 1.0])  # softmax at T = 1
    tensor(0.5000, dtype=torch.float64)
    """
    p, g = _normaliser(weights, log_slopes, visible)
    unit = g.abs().amax(-1, keepdim=True)
    d = (p * g / unit.masked_fill(unit == 0, 1.0)).square()
    first, index, rest = _set_apart(d)
    first_weight, other_weights = p.gather(-1, index), p.scatter(-1, index, 0.0)
    rest_sum, second = rest.sum(-1, keepdim=True), rest.amax(-1, keepdim=True)
    total = first + rest_sum
    b_first = first_weight * rest_sum - first * other_weights.sum(-1, keepdim=True)
    b = total * other_weights - rest

    def exceeded(excess: Tensor) -> Tensor:
        """Is ‖J‖₂² above λ = second + excess?"""
        towards = 1 / (excess + (second - rest))
        beyond = rest_sum + (rest.square() * towards).sum(-1, keepdim=True)
        pivot, crossed = first + beyond, (b * rest * towards).sum(-1, keepdim=True)
        x = first * beyond / pivot - (second + excess)
        y = b_first - first * crossed / pivot
        z = (b.square() * towards).sum(-1, keepdim=True) - total - crossed.square() / pivot
        return (x > 0) | (z > 0) | (x * z < y.square())

    low = torch.zeros_like(second)
    width = (2 * (d * _complement(p).square()).sum(-1, keepdim=True) - second).clamp(min=0.0)  # ‖J‖_F² or more
    for _ in range(HALVINGS):
        width = width / 2
        low = torch.where(exceeded(low + width), low + width, low)
        if bool((width <= ROUNDING / 8 * (second + low)).all()):
            break
    return ((second + low).sqrt() * unit).squeeze(-1)


def normaliser_suprema(log_slopes: Array, visible: Tensor | None = None) -> Norms:
    """Bounds on every norm of (diag(α) − ααᵀ)diag(g), whatever the weights: softmax's suprema times max|g|.

    Parameters
    ----------
    log_slopes : (..., n), g = F′(l)/F(l)
    visible : (..., n) bool

    Returns
    -------
    Norms of shape (...,): max|g| times 1/2, 1/2, 1/4, 1/2, 1

    Examples
    --------
    >>> normaliser_suprema([1.0, -3.0]).entry
    tensor(0.7500, dtype=torch.float64)
    """
    g = numbers("log_slopes", log_slopes)
    steepest = (g if visible is None else g.masked_fill(~visible, 0.0)).abs().amax(-1)
    return Norms(*(steepest * each for each in suprema()))


def projector_bound(values: Array, slopes: Array, visible: Tensor | None = None) -> Tensor:
    """max|F′|·√n·‖α‖₂/ΣF ≥ ‖J‖₂, with equality when F′ is the same everywhere.

    Proof: J = (I − α1ᵀ)diag(F′)/ΣF, and I − α1ᵀ is a projector of norm √n·‖α‖₂, that of its complement α1ᵀ (n ≥ 2).

    Parameters
    ----------
    values : (..., n), F(l), positive
    slopes : (..., n), F′(l)
    visible : (..., n) bool; n is the number of keys a row sees

    Returns
    -------
    (...,)

    Examples
    --------
    >>> projector_bound([3.0, 1.0], [1.0, 1.0])
    tensor(0.2795, dtype=torch.float64)
    """
    F, slope = torch.broadcast_tensors(numbers("values", values, at_least=0.0), numbers("slopes", slopes))
    seen = torch.ones_like(F, dtype=torch.bool) if visible is None else visible.expand_as(F)
    F, slope = F.masked_fill(~seen, 0.0), slope.masked_fill(~seen, 0.0)
    if (F.sum(-1) <= 0).any():
        raise InvalidValue("values has a row that sums to 0: must be positive for at least one visible key.")
    n = seen.sum(-1)
    bound: Tensor = slope.abs().amax(-1) * (n * F.square().sum(-1)).sqrt() / F.sum(-1).square()
    return bound.masked_fill(n == 1, 0.0)


def sensitivity(
    logits: Array, direction: Array, epsilon: Array, temperature: Array = 1.0, visible: Tensor | None = None
) -> Tensor:
    """g(T, ε) = ‖softmax((l + εv)/T) − softmax(l/T)‖₂/ε for the unit vector v along ``direction``.

    Small steps are evaluated by :func:`small_change`, so nothing cancels as ε → 0.

    Parameters
    ----------
    logits, direction : (..., n); a direction of any length but 0
    epsilon, temperature : positive, broadcast to (...)
    visible : (..., n) bool

    Returns
    -------
    (...,)

    Examples
    --------
    >>> sensitivity([0.0, 0.0], [1.0, -1.0], epsilon=1e-9)
    tensor(0.5000, dtype=torch.float64)
    """
    l, v = torch.broadcast_tensors(numbers("logits", logits), numbers("direction", direction))
    if visible is not None:
        l, v = l.masked_fill(~visible, -torch.inf), v.masked_fill(~visible, 0.0)
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    if (length == 0).any():
        raise InvalidValue("direction has a row of zeros: must point somewhere among the visible keys.")
    step = numbers("epsilon", epsilon, above=0.0).unsqueeze(-1)
    T = numbers("temperature", temperature, above=0.0).unsqueeze(-1)
    p, x = (l / T).softmax(-1), v / length * step / T
    small, large = small_change(p, x.clamp(-1.0, 1.0)), (l / T + x).softmax(-1) - p
    moved = torch.where(x.abs().amax(-1, keepdim=True) <= 1.0, small, large)
    distance: Tensor = torch.linalg.vector_norm(moved, dim=-1)
    return distance / step.squeeze(-1)


def small_change(p: Tensor, x: Tensor) -> Tensor:
    """softmax(z + x) − softmax(z) as p·(e^x − 1 − m)/(1 + m), m = Σp(e^x − 1): nothing cancels for small steps.

    Parameters
    ----------
    p : (..., n), softmax(z)
    x : (..., n), steps of about 1 at most, without any check; overwritten

    Returns
    -------
    (..., n), in p's own precision
    """
    grown = x.expm1_()
    mean = (p * grown).sum(-1, keepdim=True)
    return grown.sub_(mean).mul_(p).div_(1 + mean)


def mean_square_sensitivity(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """E‖Jv‖² = ‖J‖_F²/n over directions v uniform on the unit sphere of the n visible keys (E vvᵀ = I/n).

    Parameters as in :func:`spectral_norm`; returns (...,). Compare with spectral_norm², which is what the worst
    direction reaches.

    Examples
    --------
    >>> mean_square_sensitivity([0.5, 0.5, 0.0, 0.0])
    tensor(0.0625, dtype=torch.float64)
    """
    squared = frobenius_norm(weights, temperature, visible).square()
    n = torch.as_tensor(weights).shape[-1] if visible is None else visible.sum(-1)
    return squared / n


def largest_sensitivity(epsilon: Array, temperature: Array = 1.0) -> Tensor:
    """sup over logits and unit directions of g(T, ε) = (√2/ε)·tanh(ε/(2√2·T)); proof in the module's docstring.

    Parameters
    ----------
    epsilon, temperature : positive, broadcast together

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> largest_sensitivity([0.1, 10.0])
    tensor([0.4998, 0.1412], dtype=torch.float64)
    """
    step, T = numbers("epsilon", epsilon, above=0.0), numbers("temperature", temperature, above=0.0)
    return math.sqrt(2) / step * (step / (2 * math.sqrt(2) * T)).tanh()


def sensitivity_cap(epsilon: Array, temperature: Array = 1.0) -> Tensor:
    """min{1/(2T), √2/ε}: the two regimes of :func:`largest_sensitivity`, which it bounds.

    Parameters
    ----------
    epsilon, temperature : positive, broadcast together

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> sensitivity_cap(0.1, [10.0, 0.01])
    tensor([ 0.0500, 14.1421], dtype=torch.float64)
    """
    step, T = numbers("epsilon", epsilon, above=0.0), numbers("temperature", temperature, above=0.0)
    return torch.minimum(1 / (2 * T), math.sqrt(2) / step)


def swap_distance(epsilon: Array, temperature: Array = 1.0) -> Tensor:
    """‖softmax(l/T) − softmax(l′/T)‖₂ for two keys l = (a, a + ε), l′ = (a + 2ε, a), all others at −∞.

    (tanh(ε/T) + tanh(ε/(2T)))/√2: (3√2/4)·ε/T for ε ≪ T, √2 for ε ≫ T, while ‖l − l′‖₂ = √5·ε.

    Parameters
    ----------
    epsilon, temperature : positive, broadcast together

    Returns
    -------
    Their common shape

    Examples
    --------
    >>> swap_distance([0.001, 1.0, 100.0])
    tensor([1.0607e-03, 8.6529e-01, 1.4142e+00], dtype=torch.float64)
    """
    ratio = numbers("epsilon", epsilon, above=0.0) / numbers("temperature", temperature, above=0.0)
    return (ratio.tanh() + (ratio / 2).tanh()) / math.sqrt(2)


def largest_eigenvalue(p: Tensor, place: Tensor | None = None) -> Tensor:
    """λ_max of diag(p) − ppᵀ for rows p (..., n) that sum to 1, in p's own precision and without any check.

    Parameters
    ----------
    p : (..., n)
    place : (..., 1), index of the largest weight of each row, if it is known
    """
    root = _solve_secular(p, place)
    eigenvalue = root.second + root.share * (root.top - root.second)
    return torch.where(root.regular, eigenvalue, root.second).squeeze(-1)


def _solve_secular(p: Tensor, place: Tensor | None = None) -> _Secular:
    """Newton's method on K(s) of the module's docstring, for every row at once."""
    enough = torch.finfo(p.dtype).eps ** 0.5 / 4  # steps shrink quadratically: the one after this is below rounding
    top, index, rest = _set_apart(p, place)
    second = rest.amax(-1, keepdim=True)
    regular = (top > second) & (second > 0)
    distance = (second - rest) / (top - second).masked_fill(~regular, 1.0)
    share = torch.where(regular, second / (top + second), 0.5)
    nearness = torch.empty_like(distance)
    for _ in range(NEWTON_STEPS):
        torch.add(distance, share, out=nearness)
        torch.div(share, nearness, out=nearness)  # s/(s + distance), between 0 and 1: nothing overflows
        R = _dot(rest, nearness) / share
        slope = _dot(rest, nearness.square_()) / share  # −s·R′(s)
        growth = R * ((1 - share) * R / top - 1) / (share * R.square() / top + slope)
        growth = torch.where(regular, growth, 0.0)
        share = share * (1 + growth)
        if bool((growth <= enough).all()):
            break
    return _Secular(top, second, index, regular, share, rest, distance)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(..., n) and (..., n) → (..., 1): the product of each row with its partner."""
    return (a.unsqueeze(-2) @ b.unsqueeze(-1)).squeeze(-1)


def _set_apart(p: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The largest entry of each row, its place, and the row without it (0 there)."""
    index = p.argmax(-1, keepdim=True) if place is None else place
    top = p.gather(-1, index)
    return top, index, p.scatter(-1, index, 0.0)


def _complement(p: Tensor) -> Tensor:
    """1 − p, with the heaviest key's taken as the sum of the others: a row may be 1 − 1e-30, 1e-30."""
    _, index, rest = _set_apart(p)
    return (1 - p).scatter(-1, index, rest.sum(-1, keepdim=True))


def _least_imbalance(p: Tensor) -> Tensor:
    """min over signs of |Σ ±pᵢ| for rows (rows, k), k ≤ 16; the first sign is +."""
    sums = p[:, :1]
    for each in p[:, 1:].unbind(-1):
        sums = torch.cat([sums + each.unsqueeze(-1), sums - each.unsqueeze(-1)], -1)
    return sums.abs().amin(-1)


def _normaliser(weights: Array, log_slopes: Array, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    p, g = distribution("weights", weights, visible), numbers("log_slopes", log_slopes)
    if g.shape[-1:] != p.shape[-1:]:
        raise InvalidTensor(
            f"log_slopes of shape {tuple(g.shape)} for weights {tuple(p.shape)}: must have one per key."
        )
    p, g = torch.broadcast_tensors(p, g)
    return p, g if visible is None else g.masked_fill(~visible, 0.0)
