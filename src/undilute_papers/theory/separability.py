"""How many of the selected tokens can a ball around the context vector hold?  N_s = #{i ∈ I : ‖αᵢxᵢ − s‖ ≤ r}.

Theorem 2 of Mudarisov et al. 2025, arXiv:2508.17821 (v1), corrected. For i ∈ I, the set of N selected tokens,
Xᵢ = ‖s − αᵢxᵢ‖ = ‖Σ_{j∈I, j≠i} αⱼxⱼ‖. Leaving i out: Aᵢ = Σαⱼ, aᵢ² = Σαⱼ², a4ᵢ = Σαⱼ⁴, bᵢ = max αⱼ. M = ‖xⱼ‖.

Under Assumption 2 (‖xⱼ − xₖ‖ ≥ δ) alone, with no randomness:
    Xᵢ ≤ ξᵢ,   ξᵢ² = M²Aᵢ² − (δ²/2)(Aᵢ² − aᵢ²),
because ⟨xⱼ, xₖ⟩ = M² − ‖xⱼ−xₖ‖²/2 ≤ M² − δ²/2 in each of the ORDERED pairs of Xᵢ² = Σα²M² + Σ_{j≠k} αⱼαₖ⟨xⱼ, xₖ⟩. So
every i with ξᵢ ≤ r is counted, and by Markov E[N_s]/N ≥ (1/N) Σ max(0, 1 − ξᵢ/r), the paper's bound clipped per term.

Under Assumption 1 (xⱼ independent and uniform on the sphere of radius M in R^d), with α and r fixed:
    E Xᵢ² = μ = M²aᵢ²,   Var Xᵢ² = V = (2M⁴/d)(aᵢ⁴ − a4ᵢ),
    mᵢ = M·aᵢ / √(1 + (2/d)(1 − a4ᵢ/aᵢ⁴)) ≤ E Xᵢ ≤ M·aᵢ          (Hölder: E X ≥ (E X²)^{3/2} / (E X⁴)^{1/2}).
P(Xᵢ ≤ r) is at most
    V / (V + (μ−r²)²)                      for r < M·aᵢ: Cantelli for Xᵢ²
    exp(−(d−1)(mᵢ−r)² / (2M²aᵢ²))          for r < mᵢ: log-Sobolev on a product of spheres, Xᵢ is aᵢ-Lipschitz
    exp(−2(mᵢ−r)² / (M·Aᵢ)²)               for r < mᵢ: Hoeffding, 0 ≤ Xᵢ ≤ M·Aᵢ
    ½·I_{(r/Mbᵢ)²}((d−1)/2, ½)             for r < M·bᵢ: the heaviest term is uniform on a sphere of radius M·bᵢ, of
                                           which a ball of radius r covers at most a cap of this measure
    0                                      for r < M(2bᵢ−Aᵢ): triangle inequality
and at least
    1                                      for r ≥ M·Aᵢ
    1 − M²aᵢ²/r²                           Markov for Xᵢ²
    1 − V / (V + (r²−μ)²)                  for r > M·aᵢ: Cantelli
    1 − exp(−(d−1)(r−M·aᵢ)² / (2M²aᵢ²))    for r > M·aᵢ: log-Sobolev.
N = 1: Xᵢ = 0. N = 2: Xᵢ = M·α_other exactly. The two assumptions exclude each other; if Assumption 2 is a condition of
probability π under Assumption 1, then P(·|condition) ≤ P/π.

Time and memory are O(N) per row for the bounds, O(L·d) for what is measured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.theory.inputs import Array, numbers
from undilute_papers.theory.distance import context, top_set


class ProbabilityBounds(NamedTuple):
    """Bounds on P(Xᵢ ≤ r) for each selected token, (..., N), and on E[N_s]/N, their mean, (...,)."""

    lower: Tensor
    upper: Tensor
    fraction_lower: Tensor
    fraction_upper: Tensor


class Separability(NamedTuple):
    """The metric of the paper's section 3.2, measured.

    Attributes
    ----------
    fraction : (...,). N_s/N
    separable : (...,). N_s
    radius : (...,). r
    intruders : (...,). Tokens that were not selected and are in the ball all the same
    """

    fraction: Tensor
    separable: Tensor
    radius: Tensor
    intruders: Tensor


def distances_to_context(weights: Array, x: Array, selected: Tensor, visible: Tensor | None = None) -> Tensor:
    """Xᵢ = ‖s − αᵢxᵢ‖ of every token, selected or not.

    Parameters
    ----------
    weights : (..., L)
    x : (..., L, d) or (L, d)
    selected : (..., L) bool: the set I_N
    visible : (..., L) bool, optional; tokens that the row does not see are infinitely far

    Returns
    -------
    (..., L)

    Examples
    --------
    >>> import torch
    >>> distances_to_context([0.6, 0.4], [[1.0, 0.0], [0.0, 1.0]], torch.tensor([True, False]))
    tensor([0.0000, 0.7211], dtype=torch.float64)
    """
    s = context(weights, x, selected, visible)
    v = numbers("weights", weights)[..., None] * numbers("x", x)
    lengths: Tensor = torch.linalg.vector_norm(v - s[..., None, :], dim=-1)
    return lengths if visible is None else lengths.masked_fill(~visible, torch.inf)


def separable_fraction(
    weights: Array,
    x: Array,
    top: int,
    radius: Array | None = None,
    *,
    strict: bool = True,
    visible: Tensor | None = None,
) -> Separability:
    """N_s/N: the share of the ``top`` heaviest tokens that lie in the ball of ``radius`` around their context vector.

    Parameters
    ----------
    weights : (..., L)
    x : (..., L, d) or (L, d)
    top : the paper's N, 1 ≤ top ≤ L; rows that see fewer tokens select all of them
    radius : (...,), optional. By default the paper's: the distance of the nearest token that was not selected, which
        is infinite, and the fraction 1, when all are selected
    strict : the ball is open, Xᵢ < r. The closed ball of the paper, with its own radius, contains the nearest token
        that was not selected, which it is meant to exclude: ``intruders`` counts it
    visible : (..., L) bool, optional. Hidden tokens would otherwise sit at distance ‖s‖ and set the radius

    Returns
    -------
    Separability; a row that sees nothing has fraction NaN

    Examples
    --------
    >>> import torch
    >>> separable_fraction([0.5, 0.3, 0.2], torch.eye(3), 2).fraction
    tensor(1., dtype=torch.float64)
    """
    if top < 1:
        raise InvalidValue(f"top = {top}: must be at least 1 selected token, or N_s/N has no meaning.")
    selected = top_set(weights, top, visible)
    X = distances_to_context(weights, x, selected, visible)
    selected = selected.expand(X.shape)
    left_out = ~selected & X.isfinite()
    nearest = X.masked_fill(~left_out, torch.inf).amin(-1)
    r = nearest
    if radius is not None:
        r, _ = torch.broadcast_tensors(numbers("radius", radius, at_least=0.0), nearest)
    margin = r[..., None] - X  # −∞, or NaN if r is infinite too, for tokens that are not seen
    inside = margin > 0 if strict else margin >= 0
    count = (inside & selected).sum(-1)
    N = selected.sum(-1).to(torch.float64)
    return Separability(count / N, count, r, (inside & left_out).sum(-1))


def xi(weights: Array, separation: Array, norm: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """ξᵢ, equation (12) over ordered pairs: the most that Xᵢ can be when any two xⱼ are ``separation`` apart.

    Parameters
    ----------
    weights : (..., N): the weights of the selected tokens
    separation : (...,): δ, the minimum distance of Assumption 2
    norm : (...,): M, the length of every xⱼ
    visible : (..., N) bool, optional: which entries of ``weights`` are selected tokens

    Returns
    -------
    (..., N)

    Examples
    --------
    >>> xi([0.4, 0.3, 0.2, 0.1], separation=0.3)
    tensor([0.5917, 0.6909, 0.7892, 0.8869], dtype=torch.float64)
    """
    alpha = _selected_weights(weights, visible)
    delta = numbers("separation", separation, at_least=0.0)[..., None]
    M = numbers("norm", norm, above=0.0)[..., None]
    A, a2 = _others(alpha), _others(alpha.square())
    pairs = (A.square() - a2).clamp(min=0.0)
    return ((M * A).square() - delta.square() / 2 * pairs).clamp(min=0.0).sqrt()


def fraction_lower_bound(
    weights: Array, radius: Array, separation: Array, norm: Array = 1.0, visible: Tensor | None = None
) -> Tensor:
    """Theorem 2, lower bound on E[N_s]/N, clipped per term: (1/N) Σ max(0, 1 − ξᵢ/r). Parameters as in :func:`xi`.

    Returns
    -------
    (...,)

    Examples
    --------
    >>> fraction_lower_bound([0.5, 0.5], radius=1.0, separation=0.1)
    tensor(0.5000, dtype=torch.float64)
    """
    r = numbers("radius", radius, above=0.0)[..., None]
    return _mean((1 - xi(weights, separation, norm, visible) / r).clamp(min=0.0), visible)


def certain_fraction(
    weights: Array, radius: Array, separation: Array, norm: Array = 1.0, visible: Tensor | None = None
) -> Tensor:
    """The deterministic form of Theorem 2: N_s/N ≥ #{i : ξᵢ ≤ r}/N, whatever the vectors. Parameters as in :func:`xi`.

    Returns
    -------
    (...,); never less than :func:`fraction_lower_bound`, since max(0, 1 − ξ/r) ≤ 1[ξ ≤ r]

    Examples
    --------
    >>> certain_fraction([0.4, 0.3, 0.2, 0.1], radius=0.7, separation=0.3)
    tensor(0.5000, dtype=torch.float64)
    """
    r = numbers("radius", radius, at_least=0.0)[..., None]
    return _mean((xi(weights, separation, norm, visible) <= r).to(torch.float64), visible)


def probability_bounds(
    weights: Array,
    radius: Array,
    dim: int,
    norm: Array = 1.0,
    *,
    condition: float = 1.0,
    visible: Tensor | None = None,
) -> ProbabilityBounds:
    """Theorem 2, corrected: P(Xᵢ ≤ r) for vectors drawn independently and uniformly from a sphere.

    The smallest of the upper and the largest of the lower bounds in the docstring of this module.

    Parameters
    ----------
    weights : (..., N): the weights of the selected tokens
    radius : (...,): r, fixed in advance (a radius taken from the same vectors is not covered)
    dim : d
    norm : (...,): M
    condition : π, the probability of an event that the vectors are conditioned on, such as Assumption 2
    visible : (..., N) bool, optional: which entries of ``weights`` are selected tokens; 0 for the others

    Returns
    -------
    ProbabilityBounds

    Examples
    --------
    >>> import torch
    >>> bounds = probability_bounds(torch.full((16,), 1 / 16), radius=0.15, dim=64)
    >>> round(float(bounds.fraction_upper), 4)
    0.0147
    """
    if dim < 1:
        raise InvalidValue(f"dim = {dim}: must be the dimension of the vectors, at least 1.")
    if not 0 < condition <= 1:
        raise InvalidValue(f"condition = {condition:g}: must be a probability above 0 and at most 1.")
    alpha = _selected_weights(weights, visible)
    # in units of M, which changes nothing: P(X ≤ r) depends on r/M only
    r = (numbers("radius", radius, at_least=0.0) / numbers("norm", norm, above=0.0))[..., None]
    A, a2, a4, b = _others(alpha), _others(alpha.square()), _others(alpha.square().square()), _largest_other(alpha)
    certain = r >= A
    upper = _upper(r, A, a2, a4, b, dim).masked_fill(certain, 1.0)
    lower = _lower(r, a2, a4, dim).masked_fill(certain, 1.0)
    upper = (upper / condition).clamp(max=1.0)
    lower = (1 - (1 - lower) / condition).clamp(min=0.0)
    if visible is not None:
        lower, upper = lower.masked_fill(~visible, 0.0), upper.masked_fill(~visible, 0.0)
    return ProbabilityBounds(lower, upper, _mean(lower, visible), _mean(upper, visible))


def _upper(r: Tensor, A: Tensor, a2: Tensor, a4: Tensor, b: Tensor, dim: int) -> Tensor:
    """The smallest upper bound on P(X ≤ r), in units of M."""
    a, V = a2.sqrt(), _variance(a2, a4, dim)
    m = a / (1 + V / a2.square().masked_fill(a2 == 0, 1.0)).sqrt()
    below_root, below_mean = r.square() < a2, r < m
    short = torch.where(below_mean, m - r, 0.0)
    bounds = [
        (V / (V + (a2 - r.square()).square())).masked_fill(~below_root, 1.0),
        (-(dim - 1) * short.square() / (2 * a2)).exp().masked_fill(~below_mean, 1.0),
        (-2 * short.square() / A.square()).exp().masked_fill(~below_mean, 1.0),
        _cap(r / b, dim).masked_fill(~(r < b), 1.0),
        torch.where(r < 2 * b - A * (1 + 1e-12), 0.0, 1.0),
    ]
    return torch.stack(torch.broadcast_tensors(*bounds)).amin(0)


def _lower(r: Tensor, a2: Tensor, a4: Tensor, dim: int) -> Tensor:
    """The largest lower bound on P(X ≤ r), in units of M."""
    V, squared = _variance(a2, a4, dim), r.square()
    beyond = squared > a2
    excess = torch.where(beyond, r - a2.sqrt(), 0.0)
    bounds = [
        1 - a2 / squared,
        1 - V / (V + (squared - a2).square()),
        1 - (-(dim - 1) * excess.square() / (2 * a2)).exp(),
    ]
    return torch.stack(torch.broadcast_tensors(*bounds)).amax(0).masked_fill(~beyond, 0.0)


def _variance(a2: Tensor, a4: Tensor, dim: int) -> Tensor:
    """Var X² in units of M⁴."""
    return 2 / dim * (a2.square() - a4).clamp(min=0.0)


def _cap(sine: Tensor, dim: int) -> Tensor:
    """Share of the sphere in R^d that a cap of angular radius arcsin(sine) ≤ π/2 covers."""
    from scipy.special import betainc

    if dim == 1:
        return torch.full_like(sine, 0.5)  # two points, of which the ball holds at most one
    share = betainc((dim - 1) / 2, 0.5, sine.clamp(0.0, 1.0).nan_to_num(1.0).square().numpy())
    return torch.as_tensor(share / 2, dtype=torch.float64)


def _others(values: Tensor) -> Tensor:
    """Σ_{j≠i} of each row, from both sides, so that nothing cancels: exact for two entries."""
    zero = torch.zeros_like(values[..., :1])
    before = torch.cat([zero, values[..., :-1]], -1).cumsum(-1)
    after = torch.cat([values[..., 1:], zero], -1).flip(-1).cumsum(-1).flip(-1)
    return before + after


def _largest_other(values: Tensor) -> Tensor:
    """max_{j≠i} of each row; 0 for a row of one."""
    if values.shape[-1] == 1:
        return torch.zeros_like(values)
    two = values.topk(2, dim=-1)
    places = torch.arange(values.shape[-1]).expand(values.shape)
    return torch.where(places == two.indices[..., :1], two.values[..., 1:], two.values[..., :1])


def _selected_weights(weights: Array, visible: Tensor | None) -> Tensor:
    alpha = numbers("weights", weights, at_least=0.0)
    if alpha.ndim == 0 or alpha.shape[-1] == 0:
        raise InvalidTensor(f"weights has shape {tuple(alpha.shape)}: must be the selected tokens' weights, (..., N).")
    return alpha if visible is None else alpha.masked_fill(~visible, 0.0)


def _mean(values: Tensor, visible: Tensor | None) -> Tensor:
    """Over the selected tokens; NaN where there are none."""
    if visible is None:
        return values.mean(-1)
    return values.masked_fill(~visible, 0.0).sum(-1) / visible.sum(-1)
