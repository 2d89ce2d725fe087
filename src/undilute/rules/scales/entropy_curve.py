"""How sharp should a row of a given entropy be?  Any rising curve will do: softmax(β(H)·z), β given by knots.

β(H) runs in straight lines through the knots (h₁, β₁), …, (h_K, β_K), with h increasing and 1 ≤ β₁ ≤ … ≤ β_K:
    β(H) = β₁ + Σₖ (βₖ₊₁ − βₖ)·clamp((H − hₖ) / (hₖ₊₁ − hₖ), 0, 1),
so β = β₁ up to h₁ and β = β_K from h_K on: it is defined for every entropy, never falls, and never raises a row's
entropy, since β ≥ 1. The knots are data: one curve for all heads or one per head, such as calibration writes.

Why. The published polynomial (``EntropyAdaptive``, arXiv:2410.01104) peaks at H = 4.4124 nats, falls from there and
switches off at 5.9445, about 382 effective keys. A head that dilutes over thousands of tokens is above that: the
flattest rows, which need it most, are left unchanged. Its monotone envelope max_{h ≤ H} β(h), the preset
"adaptive-monotone", follows the published curve up to its peak and holds 2.4214 from there on.

Lipschitz bound. As for ``EntropyAdaptive``, the Jacobian J_q·(β·I + β'(H)·z·∇Hᵀ) of softmax(β(H)·z) has a norm of at
most β/2 + |β'|·V(n), with V(n) = ¼·log²(n − 1) + 1 the bound on the varentropy. A row of n keys has an entropy between
0 and log n. There β ≤ β(log n), since it never falls, and |β'| is at most the steepest slope of a line that reaches
into (0, log n). The kinks do not matter: between them the bound holds, and the weights are continuous. So for softmax
L ≤ β(log n)/2 + max slope · V(n). If no line in reach has a slope, β is a constant factor of any map's own L.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.base import Map, Rule, forward_of
from undilute.rules.maps.softmax import Softmax
from undilute.rules.masked import broadcasts_to
from undilute.rules.parameters import finite, largest
from undilute.rules.registry import register
from undilute.rules.scales.entropy_adaptive import EntropyAdaptive
from undilute.rules.scales.of_entropy import OfEntropy, softmax_lipschitz

Knots = Sequence[float] | Sequence[Sequence[float]] | Tensor
KNOTS = 24  # of the published curve's envelope: within 0.003 of it


class EntropyCurve(OfEntropy):
    """β(H) in straight lines through knots; constant below the first and above the last.

    Parameters
    ----------
    entropies : (K,) or, one curve per head, (heads, K); in nats, increasing along K
    betas : the same shape; at least 1, never decreasing along K

    Both are lists of numbers or floating-point tensors; a ``torch.nn.Parameter`` is learned.

    Examples
    --------
    >>> import undilute as ud
    >>> curve = ud.rules.EntropyCurve(entropies=[1.0, 5.0], betas=[1.0, 3.0])
    >>> curve.beta(0.2), curve.beta(2.0), curve.beta(9.0)
    (1.0, 1.5, 3.0)
    """

    entropies: tuple[float, ...] | Tensor
    betas: tuple[float, ...] | Tensor

    def __init__(self, entropies: Knots, betas: Knots) -> None:
        super().__init__()
        for name, knots in (("entropies", entropies), ("betas", betas)):
            checked = _knots(name, knots)
            if isinstance(checked, Tensor):
                self.hold(name, checked)
            else:
                setattr(self, name, checked)
        _check(*(_exact(knots) for knots in (self.entropies, self.betas)))

    def at_entropy(self, entropy: Tensor) -> Tensor:
        h, beta = (self._over_rows(knots, entropy) for knots in (self.entropies, self.betas))
        width = h.diff(dim=-1).clamp(min=torch.finfo(h.dtype).tiny)  # knots that only rounding made equal are a step
        climbed = ((entropy[..., None] - h[..., :-1]) / width).clamp(0.0, 1.0)  # (..., rows, 1, K − 1)
        return beta[..., 0] + (beta.diff(dim=-1) * climbed).sum(-1)

    def _over_rows(self, knots: tuple[float, ...] | Tensor, entropy: Tensor) -> Tensor:
        """(K,), or (heads, 1, 1, K) if every head has its own, in the dtype of ``entropy``."""
        shaped = torch.as_tensor(knots, dtype=entropy.dtype, device=entropy.device)
        if shaped.dim() == 1:
            return shaped
        if not broadcasts_to((len(shaped), 1, 1), entropy.shape):
            raise InvalidTensor(
                f"the curve has knots for {len(shaped)} heads, which do not fit entropies of shape "
                f"{tuple(entropy.shape)}: must be (..., {len(shaped)}, rows, 1)."
            )
        return shaped[:, None, None]

    def for_rows(self, rows: slice, length: int) -> Self:
        return self  # knots are never given per row

    def for_heads(self, heads: slice | list[int], total: int) -> Self:
        own = self._shape()[:-1].numel()
        if own == 1:
            return self
        if own != total:
            raise InvalidTensor(f"the curve has knots for {own} heads, and there are {total}: both must be the same.")
        return self._with({name: knots[heads] for name, knots in self._held_tensors().items()})

    def bound(self, n: int) -> float:
        flattest = torch.full((*self._shape()[:-1], 1, 1), math.log(n), dtype=torch.float64)
        return largest(self.at_entropy(flattest))

    def lipschitz(self, map: Map, n: int) -> float:
        slope = self._steepest(n)
        if slope == 0.0:
            return super().lipschitz(map, n)
        return softmax_lipschitz(self.bound(n), slope, n) if forward_of(map) is Softmax else math.inf

    def _steepest(self, n: int) -> float:
        """The steepest slope of a line that reaches into (0, log n); 0 if none does."""
        h, beta = _exact(self.entropies), _exact(self.betas)
        within = h[..., :-1].clamp(min=0.0) < h[..., 1:].clamp(max=math.log(n))
        slopes = (beta.diff(dim=-1) / h.diff(dim=-1))[within]
        return float(slopes.max()) if slopes.numel() else 0.0

    def _shape(self) -> torch.Size:
        return self.entropies.shape if isinstance(self.entropies, Tensor) else torch.Size((len(self.entropies),))

    def extra_repr(self) -> str:
        sizes = " × ".join(map(str, self._shape()))
        return f"entropies=<{sizes} values>, betas=<{sizes} values>"


def _knots(name: str, given: Knots) -> tuple[float, ...] | Tensor:
    """Knots as a tensor if they came as one or differ by head, as plain numbers if they are a list of numbers."""
    tensor = given if isinstance(given, Tensor) else _tensor(name, given)
    finite(name, tensor)
    if tensor.dim() not in (1, 2) or tensor.numel() == 0:
        raise InvalidValue(
            f"{name} has shape {tuple(tensor.shape)}: must be (knots,) or (heads, knots), with at least one knot."
        )
    if isinstance(given, Tensor):
        return given
    return tuple(tensor.tolist()) if tensor.dim() == 1 else tensor.float()


def _tensor(name: str, given: object) -> Tensor:
    if not isinstance(given, Sequence):
        raise InvalidValue(f"{name} = {given!r}: must be a list of numbers or a tensor, one value per knot.")
    try:
        return torch.tensor(given, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError):
        raise InvalidValue(f"{name} = {given!r}: must be numbers, and as many for each head.") from None


def _exact(knots: tuple[float, ...] | Tensor) -> Tensor:
    """The knots in float64 and without gradient."""
    if isinstance(knots, Tensor):
        return knots.detach().double()
    return torch.tensor(knots, dtype=torch.float64, device="cpu")


def _check(entropies: Tensor, betas: Tensor) -> None:
    """Refuse knots that do not make a rising curve of β ≥ 1."""
    if entropies.shape != betas.shape:
        raise InvalidValue(
            f"entropies have shape {tuple(entropies.shape)} and betas {tuple(betas.shape)}: must be the same."
        )
    if entropies.is_meta or betas.is_meta:
        return
    if (pair := _smallest_step(entropies)) is not None and pair[1] <= pair[0]:
        raise InvalidValue(f"entropies hold {pair[1]:g} after {pair[0]:g}: each knot must be above the one before it.")
    if float(betas.min()) < 1.0:
        raise InvalidValue(
            f"betas hold {betas.min().item():g}: every value must be at least 1, which is plain softmax."
        )
    if (pair := _smallest_step(betas)) is not None and pair[1] < pair[0]:
        raise InvalidValue(f"betas hold {pair[1]:g} after {pair[0]:g}: a flatter row must never get a smaller β.")


def _smallest_step(knots: Tensor) -> tuple[float, float] | None:
    """The neighbours with the smallest step up, or the largest down; None if there is one knot alone."""
    steps = knots.diff(dim=-1).flatten()
    if not len(steps):
        return None
    at = int(steps.argmin())
    return float(knots[..., :-1].flatten()[at]), float(knots[..., 1:].flatten()[at])


def published_envelope() -> EntropyCurve:
    """max_{h ≤ H} β(h) of the published polynomial: its curve up to the peak, then the peak's value.

    Examples
    --------
    >>> round(published_envelope().beta(4.0), 2), round(published_envelope().beta(8.0), 4)
    (2.39, 2.4214)
    """
    published = EntropyAdaptive()
    polynomial = np.poly1d(published.coefficients)
    first, peak = _real(polynomial - 1.0)[0], max(_real(polynomial.deriv()), key=polynomial)
    entropies = first + (peak - first) * np.linspace(0.0, 1.0, KNOTS) ** 1.5  # closer where the curve bends most
    betas = np.maximum.accumulate([published.beta(float(each)) for each in entropies])
    return EntropyCurve(entropies.tolist(), betas.tolist())


def _real(polynomial: np.poly1d) -> list[float]:
    """The real roots, in order."""
    return sorted(float(root.real) for root in np.atleast_1d(polynomial.roots) if root.imag == 0)


@register(
    "adaptive-monotone", formula="softmax(β(H)·z), β(H) = max over h ≤ H of adaptive's β(h)", paper="arXiv:2410.01104"
)
def adaptive_monotone() -> Rule:
    return Rule(scale=published_envelope())
