"""How much do the weights F(lᵢ)/ΣF of any normaliser move when the logits move?  Exact norms, and bounds.

Let αᵢ = F(lᵢ)/ΣF. Then J = (diag(α) − ααᵀ)diag(g), g = (log F)′. The bounds of ``undilute.theory.jacobian`` hold times
max|g|. The exact norm: with dᵢ = αᵢ²gᵢ², S = Σd and b = Sα − d, JJᵀ = diag(d) + (bbᵀ − ddᵀ)/S. Eliminate every key but
the one of the largest d (index 1), and then the positive pivot S + Σ_{i≥2} dᵢ²/(λ − dᵢ). ‖J‖₂² ≥ d₂, as one direction
is subtracted from diag(d) and one added. By Haynsworth's inertia formula, for λ > d₂, ‖J‖₂² > λ if and only if the 2 ×
2 matrix that is left has a positive eigenvalue. That matrix falls with λ in the Loewner order, so bisection finds the
root (:func:`normaliser_spectral_norm`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.theory.inputs import Array, distribution, numbers
from undilute.theory.jacobian import Norms, complement, set_apart, suprema

ROUNDING = 4 * torch.finfo(torch.float64).eps
HALVINGS = 53 + 24  # float64's digits, and a bracket whose ends differ by a factor of at most 2n


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
    first, index, rest = set_apart(d)
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
    width = (2 * (d * complement(p).square()).sum(-1, keepdim=True) - second).clamp(min=0.0)  # ‖J‖_F² or more
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


def _normaliser(weights: Array, log_slopes: Array, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    p, g = distribution("weights", weights, visible), numbers("log_slopes", log_slopes)
    if g.shape[-1:] != p.shape[-1:]:
        raise InvalidTensor(
            f"log_slopes of shape {tuple(g.shape)} for weights {tuple(p.shape)}: must have one per key."
        )
    p, g = torch.broadcast_tensors(p, g)
    return p, g if visible is None else g.masked_fill(~visible, 0.0)
