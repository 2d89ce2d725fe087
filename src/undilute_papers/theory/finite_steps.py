"""How far do attention weights move for a step of any size in the logits?  Exact, and the largest over all rows.

g(T, ε) = ‖softmax((l + εv)/T) − softmax(l/T)‖₂/ε for a unit v. Its supremum over l and v is
(√2/ε)·tanh(ε/(2√2·T)) ≤ min{1/(2T), √2/ε}. Proof: let p → p′ and let S hold the keys that gain. Every ratio p′ᵢ/pᵢ lies
in an interval [m, M] with log(M/m) = (max v − min v)ε/T ≤ √2·ε/T, so the log-odds of S rise by at most that much, and
p′(S) − p(S) ≤ tanh(√2·ε/(4T)). A vector of sum 0 whose positive part sums to t has ‖·‖₂ ≤ √2·t. Equality: two keys,
l = (−ε, ε)/(2√2), v = (1, −1)/√2, all other logits at −∞.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.theory.inputs import Array, numbers


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
