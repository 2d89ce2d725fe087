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

**Entmax**: J = diag(u) − uuᵀ/U with u = p^(2−α) on the support and U = Σu is U times softmax's Jacobian at u/U.

Any normaliser F(l)/ΣF and finite steps: ``undilute_papers.theory.normalisers`` and ``finite_steps``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from undilute.theory.dispersion import Bounds
from undilute.theory.inputs import Array, distribution, numbers

NEWTON_STEPS = 100  # a limit only: about log n steps are needed, see the module's docstring
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
    top, _, rest = set_apart(p)
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
    top, _, rest = set_apart(p)
    squares = rest.square()
    beside_top = squares.sum(-1)
    off_diagonal = 2 * top.squeeze(-1).square() * beside_top + (squares * (beside_top.unsqueeze(-1) - squares)).sum(-1)
    return ((p * complement(p)).square().sum(-1) + off_diagonal).sqrt() / T


def largest_entry(weights: Array, temperature: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """max |Jᵢⱼ| = max p(1 − p)/T.

    Parameters as in :func:`spectral_norm`; returns (...,).

    Examples
    --------
    >>> largest_entry([0.5, 0.5])
    tensor(0.2500, dtype=torch.float64)
    """
    p, T = distribution("weights", weights, visible), numbers("temperature", temperature, above=0.0)
    return (p * complement(p)).amax(-1) / T


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
    alone = 4 * (p * complement(p)).amax(-1)
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
    top, index, rest = set_apart(p, place)
    second = rest.amax(-1, keepdim=True)
    regular = (top > second) & (second > 0)
    distance = (second - rest) / (top - second).masked_fill(~regular, 1.0)
    share = torch.where(regular, second / (top + second), 0.5)
    nearness, product = torch.empty_like(distance), torch.empty_like(distance)
    for _ in range(NEWTON_STEPS):
        torch.add(distance, share, out=nearness)
        torch.div(share, nearness, out=nearness)  # s/(s + distance), between 0 and 1: nothing overflows
        R = torch.mul(rest, nearness, out=product).sum(-1, keepdim=True) / share
        slope = product.mul_(nearness).sum(-1, keepdim=True) / share  # −s·R′(s)
        growth = R * ((1 - share) * R / top - 1) / (share * R.square() / top + slope)
        growth = torch.where(regular, growth, 0.0)
        share = share * (1 + growth)
        if bool((growth <= enough).all()):
            break
    return _Secular(top, second, index, regular, share, rest, distance)


def set_apart(p: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The largest entry of each row, its place, and the row without it (0 there)."""
    index = p.argmax(-1, keepdim=True) if place is None else place
    top = p.gather(-1, index)
    return top, index, p.scatter(-1, index, 0.0)


def complement(p: Tensor) -> Tensor:
    """1 − p, with the heaviest key's taken as the sum of the others: a row may be 1 − 1e-30, 1e-30."""
    _, index, rest = set_apart(p)
    return (1 - p).scatter(-1, index, rest.sum(-1, keepdim=True))


def _least_imbalance(p: Tensor) -> Tensor:
    """min over signs of |Σ ±pᵢ| for rows (rows, k), k ≤ 16; the first sign is +."""
    sums = p[:, :1]
    for each in p[:, 1:].unbind(-1):
        sums = torch.cat([sums + each.unsqueeze(-1), sums - each.unsqueeze(-1)], -1)
    return sums.abs().amin(-1)


_MOVED = {
    "sensitivity": "finite_steps",
    "largest_sensitivity": "finite_steps",
    "sensitivity_cap": "finite_steps",
    "swap_distance": "finite_steps",
    "normaliser_spectral_norm": "normalisers",
    "normaliser_suprema": "normalisers",
    "projector_bound": "normalisers",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _MOVED:
            raise AttributeError(f"{__name__}.{name} has moved to undilute_papers.theory.{_MOVED[name]}.{name}.")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
