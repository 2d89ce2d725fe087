"""How much attention can one key hold among n?  Bounds on softmax weights, and what it takes to keep a weight.

Everything rests on one formula. If one key leads n − 1 equal ones by a gap g at temperature θ, its weight is
    α* = R / (R + n − 1) = σ(g/θ − ln(n − 1)),   R = e^(g/θ),
which falls to 0 as n grows unless g/θ keeps up with ln(n − 1). Any row of softmax whose logits differ by at most δ
lies between the two extreme rows of this kind (one key δ below the rest, one key δ above the rest):
    1/(1 + (n−1)e^(δ/θ)) ≤ α_k ≤ 1/(1 + (n−1)e^(−δ/θ)).
Proof. 1/α_k = 1 + Σ_{j≠k} e^((z_j − z_k)/θ), and each of the n − 1 terms is between e^(−δ/θ) and e^(δ/θ). Both ends
are attained. The weaker (1/n)e^(±δ/θ) of the papers (Veličković et al., arXiv:2410.01104, Lemma 2.1; Mudarisov et
al., arXiv:2508.17821, Corollary 1) follows. The same proof with F(z_j)/F(z_k) in [F_min/F_max, F_max/F_min] gives
Lemma 1 of the latter for any F > 0; for F_min = 0 (ReLU, entmax and other sparse rules) the upper end is 1: nothing is
diluted by force.

Entropy. With z/θ of spread δ, 0 ≤ ln n − H ≤ min(δ, δ²/8). Proof. Let p_t = softmax(t·z/θ). Then
dH(p_t)/dt = −t·Var_t(z/θ), so ln n − H = ∫₀¹ t·Var_t dt ≤ δ²/8, because a variable on an interval of length δ has
variance at most δ²/4 (Popoviciu). And ln n − H = Σ p ln(n·p) ≤ max ln(n·p) ≤ δ, by the bound on the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.maps.softmax import softmax_over
from undilute.theory.inputs import Array, numbers


class Bounds(NamedTuple):
    """What a quantity lies between, ends included."""

    lower: Tensor
    upper: Tensor


def relevant_weight(n: Array, gap: Array, temperature: Array = 1.0) -> Tensor:
    """Weight of one key that leads n − 1 equal ones by ``gap``: R/(R + n − 1), R = e^(gap/temperature).

    Parameters
    ----------
    n : (...), number of keys, at least 1
    gap : (...), logit of the key minus the logit of the others
    temperature : (...), above 0

    Returns
    -------
    (...), float64. Computed from the logarithms: no gap overflows.

    Examples
    --------
    >>> relevant_weight([100, 10_000], gap=8.0)
    tensor([0.9679, 0.2297], dtype=torch.float64)
    """
    return torch.sigmoid(_scaled(numbers("gap", gap), temperature) - _competitors(n).log())


def doubling_ratio(n: Array, gap: Array, temperature: Array = 1.0) -> Tensor:
    """α*(2n)/α*(n) = (R + n − 1)/(R + 2n − 1): what is left of the weight when the context doubles.

    Between 1/2 and 1 for a gap of at least 0; near 1/2 only for n ≫ R.

    Parameters as in :func:`relevant_weight`; returns (...), float64.

    Examples
    --------
    >>> doubling_ratio([5, 100_000], gap=8.0)
    tensor([0.9983, 0.5073], dtype=torch.float64)
    """
    n, scaled = numbers("n", n, at_least=1.0), _scaled(numbers("gap", gap), temperature)
    return torch.exp(torch.logaddexp(scaled, (n - 1).log()) - torch.logaddexp(scaled, (2 * n - 1).log()))


def gap_to_hold(weight: Array, n: Array, temperature: Array = 1.0) -> Tensor:
    """Gap at which one key among n holds ``weight``: θ·(ln(n − 1) + ln(c/(1 − c))), the inverse of the dilution law.

    Parameters
    ----------
    weight : (...), c, strictly between 0 and 1
    n : (...), number of keys, at least 2
    temperature : (...), θ, above 0

    Returns
    -------
    (...), float64; negative if the key would hold the weight even from behind (c < 1/n).

    Examples
    --------
    >>> gap_to_hold(0.5, [100, 10_000, 1_000_000])
    tensor([ 4.5951,  9.2102, 13.8155], dtype=torch.float64)
    """
    n = numbers("n", n, at_least=2.0)
    return numbers("temperature", temperature, above=0.0) * ((n - 1).log() + _share("weight", weight).logit())


def spread_to_hold(weight: Array, n: Array, temperature: Array = 1.0) -> Tensor:
    """Smallest spread max z − min z with which any key of a softmax row can hold ``weight``.

    max(0, θ·ln(c(n − 1)/(1 − c))): necessary by the upper bound of :func:`weight_bounds`, and enough if the other
    n − 1 keys are equal.

    Parameters as in :func:`gap_to_hold`; returns (...), float64.

    Examples
    --------
    >>> spread_to_hold([0.05, 0.5, 0.9], 8192)
    tensor([ 6.0664,  9.0108, 11.2080], dtype=torch.float64)
    """
    return gap_to_hold(weight, n, temperature).clamp(min=0.0)


def scale_to_hold(weight: Array, n: Array, gap: Array) -> Tensor:
    """Factor 1/θ on the logits with which a key that leads n − 1 equal ones by ``gap`` holds ``weight``.

    Parameters
    ----------
    weight : (...), strictly between 0 and 1
    n : (...), number of keys, at least 2
    gap : (...), above 0, before the factor

    Returns
    -------
    (...), float64; 0 if it holds the weight at any scale.

    Examples
    --------
    >>> scale_to_hold(0.5, [100, 10_000], gap=6.0)
    tensor([0.7659, 1.5350], dtype=torch.float64)
    """
    return spread_to_hold(weight, n) / numbers("gap", gap, above=0.0)


def weight_bounds(n: Array, spread: Array, temperature: Array = 1.0) -> Bounds:
    """Sharp bounds on every weight of a softmax row: 1/(1 + (n−1)e^(±δ/θ)).

    Parameters
    ----------
    n : (...), number of keys a row sees, at least 1
    spread : (...), δ = largest minus smallest logit it sees, at least 0 (:func:`logit_spread`)
    temperature : (...), θ, above 0

    Returns
    -------
    lower, upper : (...), float64; both are attained, by a key δ below or above n − 1 equal ones.

    Examples
    --------
    >>> weight_bounds([1, 1024, 8192], spread=5.69).upper
    tensor([1.0000, 0.2243, 0.0349], dtype=torch.float64)
    """
    scaled = _scaled(numbers("spread", spread, at_least=0.0), temperature)
    competitors = _competitors(n).log()
    return Bounds(torch.sigmoid(-scaled - competitors), torch.sigmoid(scaled - competitors))


def general_weight_bounds(n: Array, smallest: Array, largest: Array) -> Bounds:
    """Lemma 1, sharp: bounds on F(z_k)/Σ F(z_j) when every F(z_j) is in [F_min, F_max].

    F_min/(F_min + (n−1)F_max) ≤ α_k ≤ F_max/(F_max + (n−1)F_min).

    Parameters
    ----------
    n : (...), number of keys, at least 1
    smallest, largest : (...), F_min ≥ 0 and F_max > 0, F_max ≥ F_min

    Returns
    -------
    lower, upper : (...), float64. With F_min = 0 they are 0 and 1 (n ≥ 2): a rule that can give exact zeros is not
    forced to dilute.

    Examples
    --------
    >>> general_weight_bounds(1000, smallest=1.0, largest=3.0)
    Bounds(lower=tensor(0.0003, dtype=torch.float64), upper=tensor(0.0030, dtype=torch.float64))
    >>> general_weight_bounds(1000, smallest=0.0, largest=3.0).upper
    tensor(1., dtype=torch.float64)
    """
    low, high = numbers("smallest", smallest, at_least=0.0), numbers("largest", largest, above=0.0)
    if (low > high).any():
        raise InvalidValue("smallest is above largest: must be the bounds F_min ≤ F_max of one function.")
    ratio, competitors = low / high, _competitors(n)
    alone = competitors == 0
    lower = torch.where(alone, 1.0, ratio / (ratio + competitors).masked_fill(alone & (ratio == 0), 1.0))
    return Bounds(lower, 1 / (1 + competitors * ratio))


def logit_spread(logits: Array, visible: Tensor | None = None) -> Tensor:
    """δ = largest minus smallest logit of each row, over what it sees.

    Parameters
    ----------
    logits : (..., n)
    visible : (..., n) bool; hidden logits may hold anything, −inf too

    Returns
    -------
    (...), float64; 0 for a row that sees nothing.

    Examples
    --------
    >>> logit_spread([[3.0, 1.0, -1.0]])
    tensor([4.], dtype=torch.float64)
    """
    z, visible = _rows(logits, visible)
    spread = z.masked_fill(~visible, -torch.inf).amax(-1) - z.masked_fill(~visible, torch.inf).amin(-1)
    return spread.clamp(min=0.0)


def dispersed_length(epsilon: Array, spread: Array, temperature: Array = 1.0) -> Tensor:
    """Number of keys from which every softmax weight is below ε, whatever the row: the sound part of Theorem 2.2.

    The smallest integer n > 1 + (1/ε − 1)·e^(δ/θ); the simpler n > e^(δ/θ)/ε is enough too. The weights need not
    become uniform: their ratios stay as far apart as e^(δ/θ).

    Parameters
    ----------
    epsilon : (...), strictly between 0 and 1
    spread : (...), δ, at least 0, the same for every n
    temperature : (...), θ, above 0

    Returns
    -------
    (...), float64; inf beyond the largest float.

    Examples
    --------
    >>> dispersed_length(0.5, spread=5.69)
    tensor(297., dtype=torch.float64)
    """
    share = _share("epsilon", epsilon)
    return (1 + (1 / share - 1) * _scaled(numbers("spread", spread, at_least=0.0), temperature).exp()).floor() + 1


def spread_bound(
    query_norm: Array, key_norm: Array, sigma_query: Array = 1.0, sigma_key: Array = 1.0, temperature: Array = 1.0
) -> Tensor:
    """Proposition 3.1: δ ≤ 2·σ_max(Q)·σ_max(K)·‖y‖·max‖x_i‖/θ for the logits ⟨Qy, Kx_i⟩/θ.

    Proof. |⟨Qy, Kx⟩| ≤ σ_max(Q)‖y‖·σ_max(K)‖x‖ (Cauchy–Schwarz), and max − min ≤ twice the largest modulus. Tight for
    x₁ = −x₂. With the σ left at 1 it is Corollary 1's 2Δ/T, Δ = ‖q‖·max‖k_j‖.

    Parameters
    ----------
    query_norm : (...), ‖y‖
    key_norm : (...), the largest ‖x_i‖, not that of one key
    sigma_query, sigma_key : (...), largest singular values of Q and K
    temperature : (...), θ: √d if the logits are scaled by 1/√d

    Returns
    -------
    (...), float64

    Examples
    --------
    >>> spread_bound(query_norm=3.0, key_norm=2.0, temperature=8.0)
    tensor(1.5000, dtype=torch.float64)
    """
    factors = {"query_norm": query_norm, "key_norm": key_norm, "sigma_query": sigma_query, "sigma_key": sigma_key}
    product = torch.tensor(2.0, dtype=torch.float64)
    for name, factor in factors.items():
        product = product * numbers(name, factor, at_least=0.0)
    return _scaled(product, temperature)


def entropy_deficit_bound(spread: Array, temperature: Array = 1.0) -> Tensor:
    """The most by which the entropy of softmax can stay below ln n: min(δ, δ²/8), δ the spread over the temperature.

    Parameters
    ----------
    spread : (...), at least 0
    temperature : (...), above 0

    Returns
    -------
    (...), float64, in nats; it does not depend on n.

    Examples
    --------
    >>> entropy_deficit_bound([0.5, 4.0, 20.0])
    tensor([ 0.0312,  2.0000, 20.0000], dtype=torch.float64)
    """
    scaled = _scaled(numbers("spread", spread, at_least=0.0), temperature)
    return torch.minimum(scaled, scaled.square() / 8)


def entropy_slope(logits: Array, scale: Array = 1.0, visible: Tensor | None = None) -> Tensor:
    """dH/ds for the entropy H of softmax(s·z): −s·Var(z), the variance under the weights; never above 0.

    Parameters
    ----------
    logits : (..., n)
    scale : (...), s = 1/temperature, at least 0
    visible : (..., n) bool

    Returns
    -------
    (...), float64, in nats

    Examples
    --------
    >>> entropy_slope([0.0, 1.0], scale=2.0)
    tensor(-0.2100, dtype=torch.float64)
    """
    z, visible = _rows(logits, visible)
    s = numbers("scale", scale, at_least=0.0)
    p = softmax_over(s[..., None] * z, visible)
    mean = (p * z).sum(-1, keepdim=True)
    return -s * (p * (z - mean).square()).sum(-1)


def effective_keys_bounds(n: Array, spread: Array, temperature: Array = 1.0) -> Bounds:
    """What e^H, the effective number of keys, lies between: max(1, n·e^(−min(δ, δ²/8))) and n.

    Parameters
    ----------
    n : (...), at least 1
    spread : (...), at least 0
    temperature : (...), above 0

    Returns
    -------
    lower, upper : (...), float64; for a fixed spread the lower one grows in proportion to n.

    Examples
    --------
    >>> effective_keys_bounds(1000, spread=0.5).lower
    tensor(969.2332, dtype=torch.float64)
    """
    n = numbers("n", n, at_least=1.0)
    lower = (n * (-entropy_deficit_bound(spread, temperature)).exp()).clamp(min=1.0)
    return Bounds(lower, n.expand_as(lower))


def ssmax_weight(n: Array, gap: Array, s: Array = 1.0) -> Tensor:
    """Weight of a key that leads n − 1 equal ones by ``gap`` under softmax(s·ln n·z): 1/(1 + (n−1)·n^(−s·gap)).

    Parameters
    ----------
    n : (...), at least 1
    gap : (...)
    s : (...), Scalable-Softmax's factor (arXiv:2501.19399)

    Returns
    -------
    (...), float64

    Examples
    --------
    >>> ssmax_weight([10, 1000, 1_000_000], gap=0.8)
    tensor([0.4121, 0.2009, 0.0594], dtype=torch.float64)
    """
    n = numbers("n", n, at_least=1.0)
    return torch.sigmoid(numbers("s", s) * numbers("gap", gap) * n.log() - (n - 1).log())


def ssmax_limit(gap: Array, s: Array = 1.0) -> Tensor:
    """What :func:`ssmax_weight` tends to as n grows: 1 if s·gap > 1, 1/2 if it is 1 (up to rounding), 0 below.

    Parameters
    ----------
    gap, s : (...)

    Returns
    -------
    (...), float64

    Examples
    --------
    >>> ssmax_limit([0.8, 1.0, 1.2])
    tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    exponent = numbers("s", s) * numbers("gap", gap)
    level = torch.isclose(exponent, torch.ones_like(exponent), rtol=1e-12, atol=0.0)
    return torch.where(level, 0.5, (exponent > 1).to(torch.float64))


def _rows(logits: Array, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits as float64, 0 where hidden, and which of them are seen."""
    z = torch.as_tensor(logits, dtype=torch.float64).detach()
    if z.ndim == 0 or z.shape[-1] == 0:
        raise InvalidTensor(f"logits have shape {tuple(z.shape)}: must be rows of at least one key, (..., n).")
    visible = torch.ones_like(z, dtype=torch.bool) if visible is None else visible.expand_as(z)
    return numbers("logits", z.masked_fill(~visible, 0.0)), visible


def _competitors(n: Array) -> Tensor:
    return numbers("n", n, at_least=1.0) - 1


def _scaled(value: Tensor, temperature: Array) -> Tensor:
    return value / numbers("temperature", temperature, above=0.0)


def _share(name: str, value: Array) -> Tensor:
    share = numbers(name, value, above=0.0)
    if (share >= 1).any():
        raise InvalidValue(f"{name} = {float(share[share >= 1].flatten()[0]):g}: must be strictly between 0 and 1.")
    return share
