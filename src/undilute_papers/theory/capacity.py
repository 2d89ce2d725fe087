"""How much can a head tell, and how many heads does it take?  Information of attention weights, and coverage.

Three different numbers are called the information of a row of weights α over n keys:
- the surprisal −ln α_k of one key;
- the capacity deficit ln n − H(α) = Σ α ln(n·α) = KL(α‖uniform), how far the row is from looking everywhere alike;
- the pointwise gain ln(n·α_k) over a uniform row: positive for a key that stands out, and not a loss.
For one key that leads n − 1 equal ones by a gap g, with R = e^g: the gain is below g, and the deficit is
    α·g − ln(1 + (R − 1)/n) = (R ln R − R + 1)/n + O(1/n²).

None of them limits what a head outputs: a one-hot row has H = 0 and hands on its value whole. What holds: if J is a
random index and the output depends on J (and on things independent of J), I(J; output) ≤ H(J) ≤ ln n. And an output of
d numbers of b bits has at most d·b bits.

Coverage. If H heads each catch a token with probability p independently, at least one does with 1 − (1 − p)^H. Without
independence only p ≤ coverage ≤ min(1, H·p) is certain (one head alone; the union bound); both ends are attained.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.entropy import entropy
from undilute.theory.dispersion import Bounds, relevant_weight
from undilute.theory.inputs import Array, distribution, numbers


def surprisal(weight: Array) -> Tensor:
    """−ln α, in nats: what it tells to learn that a reader who follows the weights looked at this key.

    Parameters
    ----------
    weight : (...), 0 to 1

    Returns
    -------
    (...), float64; inf for a weight of 0

    Examples
    --------
    >>> surprisal([1.0, 0.5])
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    return -_probability("weight", weight).log().clamp(max=0.0) + 0.0


def pointwise_gain(weight: Array, n: Array) -> Tensor:
    """ln(n·α), in nats: how much more weight than 1/n a key gets.

    Parameters
    ----------
    weight : (...), 0 to 1
    n : (...), number of keys, at least 1

    Returns
    -------
    (...), float64; 0 for α = 1/n, −inf for α = 0

    Examples
    --------
    >>> pointwise_gain([0.25, 0.5], 4)
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    return numbers("n", n, at_least=1.0).log() - surprisal(weight)


def capacity_deficit(weights: Array, visible: Tensor | None = None) -> Tensor:
    """ln n − H(α) = KL(α‖uniform) in nats, n the number of keys a row sees.

    Parameters
    ----------
    weights : (..., n), rows that sum to 1
    visible : (..., n) bool

    Returns
    -------
    (...), float64; between 0 (uniform) and ln n (one-hot)

    Examples
    --------
    >>> capacity_deficit([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])
    tensor([0.0000, 1.3863], dtype=torch.float64)
    """
    p = distribution("weights", weights, visible)
    n = p.shape[-1] if visible is None else visible.expand_as(p).sum(-1, keepdim=True)
    return (p * (p * n).masked_fill(p == 0, 1.0).log()).sum(-1).clamp(min=0.0)


def effective_keys(weights: Array, visible: Tensor | None = None) -> Tensor:
    """e^H: how many equally weighted keys a row is worth.

    Parameters
    ----------
    weights : (..., n), rows that sum to 1
    visible : (..., n) bool

    Returns
    -------
    (...), float64; between 1 (one-hot) and n (uniform). Many is spread out: it is not a capacity.

    Examples
    --------
    >>> effective_keys([0.5, 0.5, 0.0])
    tensor(2., dtype=torch.float64)
    """
    return entropy(distribution("weights", weights, visible)).exp()


def needle_deficit(n: Array, gap: Array, temperature: Array = 1.0) -> Tensor:
    """Capacity deficit of one key that leads n − 1 equal ones by ``gap``, in closed form: α·g − ln(1 + (e^g − 1)/n).

    Parameters
    ----------
    n : (...), at least 1
    gap : (...), any sign
    temperature : (...), above 0; g = gap / temperature

    Returns
    -------
    (...), float64, in nats; about (R ln R − R + 1)/n for n ≫ R = e^g

    Examples
    --------
    >>> needle_deficit([5, 100_000], gap=4.0, temperature=8.0)
    tensor([2.3946e-02, 1.7564e-06], dtype=torch.float64)
    """
    alpha = relevant_weight(n, gap, temperature)
    n, g = numbers("n", n, at_least=1.0), numbers("gap", gap) / numbers("temperature", temperature)
    log_mean = torch.where(g < 600, torch.log1p(torch.expm1(g.clamp(max=600)) / n), g - n.log())
    return (alpha * g - log_mean).clamp(min=0.0)


def mutual_information(joint: Array) -> Tensor:
    """I(J; Y) of a joint distribution, in nats; at most H(J), whatever Y is.

    Parameters
    ----------
    joint : (..., n, m), P(J = j, Y = y), every table summing to 1

    Returns
    -------
    (...), float64

    Examples
    --------
    >>> mutual_information([[0.5, 0.0], [0.0, 0.5]]).exp()
    tensor(2., dtype=torch.float64)
    """
    table = numbers("joint", joint, at_least=0.0)
    if table.ndim < 2:
        raise InvalidTensor(f"joint has shape {tuple(table.shape)}: must be tables of probabilities, (..., n, m).")
    table = distribution("joint", table.flatten(-2)).reshape(table.shape)
    independent = table.sum(-1, keepdim=True) * table.sum(-2, keepdim=True)
    ratio = (table / independent.masked_fill(table == 0, 1.0)).masked_fill(table == 0, 1.0)
    return (table * ratio.log()).sum((-2, -1)).clamp(min=0.0)


def output_capacity(dimension: Array, bits: Array) -> Tensor:
    """d·b: the bits that an output of d numbers of b bits can hold, whatever the weights.

    Parameters
    ----------
    dimension : (...), d, at least 1
    bits : (...), b, at least 1

    Returns
    -------
    (...), float64

    Examples
    --------
    >>> output_capacity(64, 16)
    tensor(1024., dtype=torch.float64)
    """
    return numbers("dimension", dimension, at_least=1.0) * numbers("bits", bits, at_least=1.0)


def coverage(probability: Array, heads: Array) -> Tensor:
    """1 − (1 − p)^H: share of the tokens that at least one of H independent heads catches.

    Parameters
    ----------
    probability : (...), p, 0 to 1: share that one head catches
    heads : (...), H, at least 0

    Returns
    -------
    (...), float64

    Examples
    --------
    >>> coverage(0.8, [1, 2, 3])
    tensor([0.8000, 0.9600, 0.9920], dtype=torch.float64)
    """
    p, heads = torch.broadcast_tensors(_probability("probability", probability), numbers("heads", heads, at_least=0.0))
    missed = torch.where(heads == 0, 0.0, heads * torch.log1p(-p))  # 0 · ln 0 is 0: no head catches nothing
    return -torch.expm1(missed)


def coverage_bounds(probability: Array, heads: Array) -> Bounds:
    """What the coverage lies between if nothing is known about how the heads depend on each other.

    Parameters
    ----------
    probability : (...), p, 0 to 1
    heads : (...), H, at least 1

    Returns
    -------
    lower, upper : (...), float64: p (every head catches the same tokens) and min(1, H·p) (never the same)

    Examples
    --------
    >>> coverage_bounds(0.3, 2)
    Bounds(lower=tensor(0.3000, dtype=torch.float64), upper=tensor(0.6000, dtype=torch.float64))
    """
    p, heads = torch.broadcast_tensors(_probability("probability", probability), numbers("heads", heads, at_least=1.0))
    return Bounds(p, (heads * p).clamp(max=1.0))


def heads_needed(probability: Array, target: Array) -> Tensor:
    """Smallest H with 1 − (1 − p)^H ≥ target, for independent heads.

    Parameters
    ----------
    probability : (...), p, 0 to 1
    target : (...), 0 to 1

    Returns
    -------
    (...), float64, whole numbers; inf where no number is enough (p = 0, or target = 1 with p < 1)

    Examples
    --------
    >>> heads_needed([0.7, 0.8], 0.99)
    tensor([4., 3.], dtype=torch.float64)
    """
    p, target = torch.broadcast_tensors(_probability("probability", probability), _probability("target", target))
    estimate = (torch.log1p(-target) / torch.log1p(-p)).ceil()
    estimate = torch.where(p == 1, 1.0, estimate).masked_fill((p == 0) | ((target == 1) & (p < 1)), torch.inf)
    estimate = torch.where(target == 0, 0.0, estimate)
    fewer = (estimate - 1).clamp(min=0.0)  # where rounding of the logarithms asked for one too many
    return torch.where(
        estimate.isfinite() & (coverage(p, torch.nan_to_num(fewer, posinf=0.0)) >= target), fewer, estimate
    )


def _probability(name: str, value: Array) -> Tensor:
    p = numbers(name, value, at_least=0.0)
    if (p > 1).any():
        raise InvalidValue(f"{name} = {float(p[p > 1].flatten()[0]):g}: must be between 0 and 1.")
    return p
