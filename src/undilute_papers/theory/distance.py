"""How far are the tokens a head leaves out from what it selects?  d̃ = Σ_{i∉I} ‖αᵢxᵢ − s‖ with s = Σ_{j∈I} αⱼxⱼ.

Theorem 1 and Corollary 2 of Mudarisov et al. 2025, arXiv:2508.17821 (v1), corrected. Notation: vᵢ = αᵢxᵢ, x̄ = Σvᵢ,
A = Σ_{j∈I} αⱼ, L tokens of which N are selected (``top``), p = N/(L−1), d₁ = max_{i∉I, j∈I} ‖xᵢ − xⱼ‖.

A fixed set. With weights that sum to 1,
    d̃ ≤ (1−A)·d₁ + max_{j∈I}‖xⱼ‖ · Σ_{i∉I} |A − αᵢ|
for every set I; if I holds the N largest weights, αᵢ ≤ A, and the last sum is A(L−N) − (1−A), as printed.
Proof: vᵢ − s = Σ_{j∈I} αⱼ[(αᵢ/A)(xᵢ−xⱼ) − (1−αᵢ/A)xⱼ], so ‖vᵢ − s‖ ≤ αᵢd₁ + |A−αᵢ|·max‖xⱼ‖; sum over i ∉ I.
(A = 0 gives ‖vᵢ‖ ≤ αᵢ(d₁ + max‖xⱼ‖), the same.)

A set drawn uniformly from all sets of size N. With cᵢ = ‖(1+p)vᵢ − p·x̄‖,
    E = (1−N/L) Σᵢ cᵢ + ε,   0 ≤ ε ≤ (1−N/L) Σᵢ (√(cᵢ²+Vᵢ) − cᵢ) ≤ (1−N/L) Σᵢ Vᵢ/(2cᵢ),
    Vᵢ = p·(L−1−N)/(L−2) · Σ_{j≠i} ‖vⱼ − mean_{k≠i} vₖ‖²  ≤  p Σ_{j≠i} ‖vⱼ‖²     (Vᵢ = 0 if L = 2).
Proof: P(i∉I) = 1−N/L and P(j∈I | i∉I) = p, so given i∉I the vector Y = vᵢ − s has mean vᵢ − p(x̄−vᵢ), of norm cᵢ, and
total variance Vᵢ, that of a sample without replacement. Jensen gives cᵢ ≤ E‖Y‖ ≤ √E‖Y‖² = √(cᵢ²+Vᵢ) ≤ cᵢ + Vᵢ/(2cᵢ).
Replacing Vᵢ by its bound gives the paper's ε bound.

Corollary 2. With S = Σ‖vᵢ‖: |E − (1−N/L)·S| ≤ N(1−N/L)·S. Proof: |‖vᵢ−s‖ − ‖vᵢ‖| ≤ ‖s‖ ≤ Σ_{j∈I}‖vⱼ‖, and
Σᵢ P(i∉I) Σ_{j≠i} p‖vⱼ‖ = (1−N/L)·p·(L−1)·S. A one-hot row attains the upper end.

N = 0 gives E = S, N = L gives 0 (no token is left out). Every function takes L to be the number of tokens a row sees.
Rows that see fewer than ``top`` tokens select all of them. Time and memory are O(L·d) per row, except where stated:
take long contexts a few rows at a time.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.theory.inputs import Array, distribution, numbers

ENUMERABLE = 100_000  # subsets that the exact oracle goes through at most


@dataclass(frozen=True)
class ExpectedDistance:
    """E over uniformly drawn sets of N tokens: ``lower`` = main ≤ E ≤ ``upper`` = main + epsilon_sqrt.

    Attributes
    ----------
    main : (...,). The main term (1−N/L) Σ cᵢ
    centres : (..., L). cᵢ = ‖E[vᵢ − s | i ∉ I]‖
    variances : (..., L). Vᵢ, exact, without replacement
    epsilon_sqrt : (...,). (1−N/L) Σ (√(cᵢ²+Vᵢ) − cᵢ): finite always, the smallest of the three
    epsilon_variance : (...,). (1−N/L) Σ Vᵢ/(2cᵢ); infinite where a cᵢ is 0 and its Vᵢ is not
    epsilon_paper : (...,). The bound of the paper, with p·Σ_{j≠i}‖vⱼ‖² in place of Vᵢ
    """

    main: Tensor
    centres: Tensor
    variances: Tensor
    epsilon_sqrt: Tensor
    epsilon_variance: Tensor
    epsilon_paper: Tensor

    @property
    def lower(self) -> Tensor:
        return self.main

    @property
    def upper(self) -> Tensor:
        return self.main + self.epsilon_sqrt


def top_set(weights: Array, top: int, visible: Tensor | None = None) -> Tensor:
    """I_N: the ``top`` largest weights of each row; of equal ones the first.

    Parameters
    ----------
    weights : (..., L)
    top : the paper's N, 0 ≤ top ≤ L
    visible : (..., L) bool, optional

    Returns
    -------
    (..., L) bool

    Examples
    --------
    >>> top_set([0.2, 0.5, 0.2, 0.1], 2)
    tensor([ True,  True, False, False])
    """
    w = _weights(weights)
    visible = _seen(w, visible)
    _check_top(top, w.shape[-1])
    order = w.masked_fill(~visible, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    selected = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order[..., :top], True)
    return selected & visible


def context(weights: Array, x: Array, selected: Tensor, visible: Tensor | None = None) -> Tensor:
    """The context vector s = Σ_{i∈I} αᵢxᵢ, equation (6), of the selected tokens.

    Parameters as in :func:`selection_distance`.

    Returns
    -------
    (..., d)
    """
    w, points, seen = _rows(weights, x, visible)
    _check_mask("selected", selected, w.shape[-1])
    return (w.masked_fill(~(selected & seen), 0.0)[..., None, :] @ points).squeeze(-2)


def selection_distance(weights: Array, x: Array, selected: Tensor, visible: Tensor | None = None) -> Tensor:
    """d̃ = Σ_{i∉I} ‖αᵢxᵢ − s‖, equation (7).

    Parameters
    ----------
    weights : (..., L)
    x : (..., L, d) or (L, d): the vectors that are averaged
    selected : (..., L) bool: the set I, such as ``top_set(weights, N)``
    visible : (..., L) bool, optional: tokens that the row does not see count neither way

    Returns
    -------
    (...,); 0 when every token is selected

    Examples
    --------
    >>> import torch
    >>> selection_distance([0.1, 0.9], [[1.0], [1.0]], torch.tensor([True, False]))
    tensor(0.8000, dtype=torch.float64)
    """
    v, selected, left_out = _scaled(weights, x, selected, visible)
    lengths = _norm(v - context(weights, x, selected, visible)[..., None, :])
    return lengths.masked_fill(~left_out, 0.0).sum(-1)


def largest_cross_distance(
    x: Array, selected: Tensor, visible: Tensor | None = None, *, exact: bool = True, block: int = 256
) -> Tensor:
    """d₁ = max_{i∉I, j∈I} ‖xᵢ − xⱼ‖; 0 when one side is empty.

    Parameters
    ----------
    x : (..., L, d)
    selected : (..., L) bool
    visible : (..., L) bool, optional
    exact : True compares the most N selected tokens of any row with the L tokens, ``block`` at a time: O(N·L·d) time;
        False gives an upper bound in O(L·d), the sum of the two sides' largest distances from their common mean

    Returns
    -------
    (...,)

    Examples
    --------
    >>> import torch
    >>> largest_cross_distance([[0.0], [1.0], [3.0]], torch.tensor([True, False, False]))
    tensor(3., dtype=torch.float64)
    """
    points = numbers("x", x)
    seen = _seen(selected, visible)
    shape = torch.broadcast_shapes(points.shape[:-1], selected.shape, seen.shape)
    points = points.expand(*shape, points.shape[-1])
    seen = seen.expand(shape)
    selected, left_out = selected & seen, ~selected & seen
    if not exact:
        centre = (seen.to(points.dtype)[..., None, :] @ points) / seen.sum(-1).clamp(min=1)[..., None, None]
        reach = _norm(points - centre)
        far = reach.masked_fill(~selected, 0.0).amax(-1) + reach.masked_fill(~left_out, 0.0).amax(-1)
        return far.masked_fill(~selected.any(-1) | ~left_out.any(-1), 0.0)
    count = int(selected.sum(-1).max())
    first = selected.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :count]
    chosen = points.gather(-2, first[..., None].expand(*first.shape, points.shape[-1]))
    valid = selected.gather(-1, first)
    largest = points.new_zeros(selected.shape[:-1])
    for start in range(0, count, block):
        apart = torch.cdist(points, chosen[..., start : start + block, :], compute_mode="donot_use_mm_for_euclid_dist")
        pair = left_out[..., :, None] & valid[..., None, start : start + block]
        largest = torch.maximum(largest, apart.masked_fill(~pair, 0.0).amax((-2, -1)))
    return largest


def distance_bound(
    weights: Array, x: Array, selected: Tensor, visible: Tensor | None = None, *, exact: bool = True
) -> Tensor:
    """Theorem 1(1) for any set I: d̃ ≤ (1−A)·d₁ + max_{j∈I}‖xⱼ‖ · Σ_{i∉I} |A − αᵢ|.

    Parameters
    ----------
    weights : (..., L), rows that sum to 1 over what they see
    x, selected, visible : as in :func:`selection_distance`
    exact : how d₁ is found, see :func:`largest_cross_distance`; False keeps the bound valid, and linear in L

    Returns
    -------
    (...,); for an empty set Σαᵢ‖xᵢ‖, which is d̃ itself

    Examples
    --------
    >>> import torch
    >>> distance_bound([0.1, 0.9], [[1.0], [1.0]], torch.tensor([True, False]))
    tensor(0.8000, dtype=torch.float64)
    """
    alpha = distribution("weights", weights, visible)
    v, selected, left_out = _scaled(alpha, x, selected, visible)
    A = alpha.masked_fill(~selected, 0.0).sum(-1)
    off = (A[..., None] - alpha).abs().masked_fill(~left_out, 0.0).sum(-1)
    d1 = largest_cross_distance(x, selected, selected | left_out, exact=exact)
    lengths = _norm(numbers("x", x)).expand(selected.shape)
    bound = (1 - A) * d1 + lengths.masked_fill(~selected, 0.0).amax(-1) * off
    empty = _norm(v).masked_fill(~left_out, 0.0).sum(-1)
    return torch.where(selected.any(-1), bound, empty).masked_fill(~left_out.any(-1), 0.0)


def top_distance_bound(
    weights: Array, x: Array, top: int, visible: Tensor | None = None, *, exact: bool = True
) -> Tensor:
    """Theorem 1(1) as printed, for the N largest weights: (1−A)·d₁ + max_{j∈I}‖xⱼ‖ · [A(L−N) − (1−A)].

    Equal to :func:`distance_bound` on :func:`top_set`: there no weight outside exceeds A. Parameters as there.

    Returns
    -------
    (...,)

    Examples
    --------
    >>> top_distance_bound([0.25, 0.25, 0.25, 0.25], [[1.0], [1.0], [1.0], [1.0]], 2)
    tensor(0.5000, dtype=torch.float64)
    """
    alpha = distribution("weights", weights, visible)
    chosen = top_set(alpha, top, visible)
    if top == 0:
        return distance_bound(alpha, x, chosen, visible, exact=exact)
    _, selected, left_out = _scaled(alpha, x, chosen, visible)
    seen = selected | left_out
    A = alpha.masked_fill(~selected, 0.0).sum(-1)
    outside = left_out.sum(-1)
    lengths = _norm(numbers("x", x)).expand(selected.shape)
    longest = lengths.masked_fill(~selected, 0.0).amax(-1)
    bound = (1 - A) * largest_cross_distance(x, selected, seen, exact=exact) + longest * (A * outside - (1 - A))
    return bound.masked_fill(outside == 0, 0.0)


def expected_distance(weights: Array, x: Array, top: int, visible: Tensor | None = None) -> ExpectedDistance:
    """Theorem 1(2), corrected: E[d̃] over sets of ``top`` tokens drawn uniformly, as a main term and bounds on the rest.

    Parameters
    ----------
    weights : (..., L); need not sum to 1
    x : (..., L, d) or (L, d)
    top : the paper's N, 0 ≤ top ≤ L
    visible : (..., L) bool, optional

    Returns
    -------
    ExpectedDistance, whose ``lower`` and ``upper`` enclose E

    Examples
    --------
    Aligned vectors and uniform weights, where ε = 0 and E = (1−N/L)·|N−1|:

    >>> import torch
    >>> expected = expected_distance(torch.full((12,), 1 / 12), torch.ones(12, 1), 3)
    >>> round(float(expected.lower), 6)
    1.5
    """
    v, seen, L, N = _drawn(weights, x, top, visible)
    p = N / (L - 1).clamp(min=1)
    share = (1 - N / L.clamp(min=1)).clamp(min=0.0)
    total = v.sum(-2, keepdim=True)
    squares = v.square().sum(-1)
    centres = _norm((1 + p)[..., None, None] * v - p[..., None, None] * total).masked_fill(~seen, 0.0)
    variances = _variances(v, seen, L, N)
    second_moments = p[..., None] * (squares.sum(-1, keepdim=True) - squares).clamp(min=0.0) * (N < L)[..., None]
    return ExpectedDistance(
        main=share * centres.sum(-1),
        centres=centres,
        variances=variances,
        epsilon_sqrt=share * ((centres.square() + variances).sqrt() - centres).sum(-1),
        epsilon_variance=_halved_ratios(share, variances, centres, seen),
        epsilon_paper=_halved_ratios(share, second_moments, centres, seen),
    )


def corollary_range(weights: Array, x: Array, top: int, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Corollary 2, corrected: |E − (1−N/L)·S| ≤ N(1−N/L)·S, S = Σαᵢ‖xᵢ‖, as the two ends between which E lies.

    Parameters as in :func:`expected_distance`.

    Returns
    -------
    lower (...,), not below 0, and upper (...,)

    Examples
    --------
    >>> [round(float(end), 3) for end in corollary_range([1.0, 0.0, 0.0, 0.0], [[1.0]] * 4, 1)]
    [0.0, 1.5]
    """
    v, _, L, N = _drawn(weights, x, top, visible)
    S = _norm(v).sum(-1) * (1 - N / L.clamp(min=1))
    return S * (1 - N).clamp(min=0.0), S * (1 + N)


def expected_orthonormal(length: Array, top: Array, norm: Array = 1.0) -> Tensor:
    """E, exactly, for uniform weights on orthogonal vectors of length ``norm``: (1−N/L)·√(N+1)·M."""
    L, N, M = _lengths(length, top, norm)
    return (1 - N / L) * (N + 1).sqrt() * M


def expected_aligned(length: Array, top: Array, norm: Array = 1.0) -> Tensor:
    """E, exactly, for uniform weights on equal vectors of length ``norm``: (1−N/L)·|N−1|·M; 0 at N = 1."""
    L, N, M = _lengths(length, top, norm)
    return (1 - N / L) * (N - 1).abs() * M


def expected_one_hot(length: Array, top: Array, norm: Array = 1.0) -> Tensor:
    """E, exactly, when all weight is on one token, whose vector has length ``norm``: (1−N/L)·(N+1)·M."""
    L, N, M = _lengths(length, top, norm)
    return (1 - N / L) * (N + 1) * M


def enumerated_distance(weights: Array, x: Array, top: int) -> Tensor:
    """E[d̃], exactly, by going through all L-choose-N sets: an oracle for small L.

    Parameters
    ----------
    weights : (..., L)
    x : (..., L, d) or (L, d)
    top : N, with at most 100,000 sets of that size

    Returns
    -------
    (...,)

    Examples
    --------
    >>> enumerated_distance([0.25, 0.25, 0.25, 0.25], [[1.0]] * 4, 3)
    tensor(0.5000, dtype=torch.float64)
    """
    v, _, _, _ = _drawn(weights, x, top, None)
    length = v.shape[-2]
    count = math.comb(length, top)
    if count > ENUMERABLE:
        raise InvalidValue(
            f"top = {top} of {length} tokens has {count:,} sets: at most {ENUMERABLE:,} can be enumerated; "
            "expected_distance bounds the same quantity at any length."
        )
    total = v.new_zeros(v.shape[:-2])
    for chosen in itertools.combinations(range(length), top):
        left_out = [i for i in range(length) if i not in chosen]
        s = v[..., list(chosen), :].sum(-2, keepdim=True)
        total += _norm(v[..., left_out, :] - s).sum(-1)
    return total / count


def _variances(v: Tensor, seen: Tensor, L: Tensor, N: Tensor) -> Tensor:
    """Vᵢ from deviations from the mean of all vectors: Σ_{j≠i}‖vⱼ − mean_{k≠i}vₖ‖² = Σ‖uⱼ‖² − ‖uᵢ‖²·L/(L−1)."""
    mean = v.sum(-2, keepdim=True) / L.clamp(min=1)[..., None, None]
    u = (v - mean).square().sum(-1).masked_fill(~seen, 0.0)
    scatter = (u.sum(-1, keepdim=True) - u * (L / (L - 1).clamp(min=1))[..., None]).clamp(min=0.0)
    rest = (L - 1).clamp(min=1)
    factor = N / rest * (L - 1 - N).clamp(min=0.0) / (L - 2).clamp(min=1)
    return (factor[..., None] * scatter).masked_fill(~seen, 0.0)


def _halved_ratios(share: Tensor, squares: Tensor, centres: Tensor, seen: Tensor) -> Tensor:
    """(1−N/L)·Σ squares/(2c), with 0/0 = 0."""
    ratios = (squares / (2 * centres)).masked_fill((squares == 0) | ~seen, 0.0)
    return (share * ratios.sum(-1)).masked_fill(share == 0, 0.0)


def _drawn(weights: Array, x: Array, top: int, visible: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v (..., L, d), what is seen (..., L), and L and N of each row as float64 (...,)."""
    w = _weights(weights)
    _check_top(top, w.shape[-1])
    v, seen, _ = _scaled(w, x, _seen(w, visible), visible)
    L = seen.sum(-1).to(torch.float64)
    return v, seen, L, L.clamp(max=float(top))


def _scaled(weights: Array, x: Array, selected: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """v = αx (..., L, d), zero where a row does not see; the selected and the left-out tokens it sees (..., L)."""
    w, points, seen = _rows(weights, x, visible)
    _check_mask("selected", selected, w.shape[-1])
    v = w.masked_fill(~seen, 0.0)[..., None] * points
    shape = torch.broadcast_shapes(v.shape[:-1], selected.shape)
    return v.expand(*shape, v.shape[-1]), (selected & seen).expand(shape), (~selected & seen).expand(shape)


def _rows(weights: Array, x: Array, visible: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (..., L), vectors (..., L, d) and what is seen (..., L), checked."""
    w, points = _weights(weights), numbers("x", x)
    if points.ndim < 2 or points.shape[-2] != w.shape[-1]:
        raise InvalidTensor(
            f"x has shape {tuple(points.shape)} and weights {tuple(w.shape)}: x must be (..., L, d) with one vector "
            f"per weight, L = {w.shape[-1]}."
        )
    return w, points, _seen(w, visible)


def _norm(v: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(v, dim=-1)
    return norm


def _weights(weights: Array) -> Tensor:
    w = numbers("weights", weights)
    if w.ndim == 0 or w.shape[-1] == 0:
        raise InvalidTensor(f"weights has shape {tuple(w.shape)}: must be rows of at least one weight, (..., L).")
    return w


def _seen(like: Tensor, visible: Tensor | None) -> Tensor:
    if visible is None:
        return torch.ones_like(like, dtype=torch.bool)
    _check_mask("visible", visible, like.shape[-1])
    return visible


def _check_mask(name: str, mask: Tensor, length: int) -> None:
    if mask.dtype != torch.bool or mask.shape[-1:] != (length,):
        raise InvalidTensor(
            f"{name} has dtype {mask.dtype} and shape {tuple(mask.shape)}: must be bool, (..., {length})."
        )


def _check_top(top: int, length: int) -> None:
    if not 0 <= top <= length:
        raise InvalidValue(f"top = {top}: must be a number of selected tokens between 0 and {length}.")


def _lengths(length: Array, top: Array, norm: Array) -> tuple[Tensor, Tensor, Tensor]:
    L, N, M = numbers("length", length, at_least=1), numbers("top", top, at_least=0), numbers("norm", norm, at_least=0)
    if (N > L).any():
        raise InvalidValue(f"top = {float(N.max()):g}: must not exceed length = {float(L.min()):g}.")
    return L, N, M
