"""Can a row sharpen itself when it is too flat?  Adaptive temperature: softmax(β(H)·z), H the row's softmax entropy.

Veličković et al. 2024, arXiv:2410.01104. β(H) = max(polynomial(H), 1) where H > 0.5 nats, else 1. With the published
coefficients β > 1 exactly for 0.8486 < H < 5.9445 nats, that is 2.34 to 382 effective keys: above that the rule is
plain softmax again. (The guard H > 0.5 never acts with these coefficients.)

Lipschitz bound. With p = softmax(z), q = softmax(βz), the Jacobian is J_q·(β·I + β'(H)·z·∇Hᵀ), where
‖J_q‖ ≤ 1/2, (J_q·z)ᵢ = qᵢ(zᵢ − E_q z) and (∇H)ᵢ = −pᵢ(zᵢ − E_p z). Both vectors are bounded by the standard deviation
of the logits, so of log-probabilities, under their own softmax: at most √V(n) (and √V(n)/β), with
V(n) = ¼·log²(n − 1) + 1 the bound on the varentropy (Reeb & Wolf 2015). Hence L ≤ max β / 2 + max|β'|·V(n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.rules.base import Map, Rule, forward_of
from undilute.rules.maps.softmax import Softmax
from undilute.rules.parameters import number
from undilute.rules.registry import register
from undilute.rules.scales.of_entropy import OfEntropy, softmax_lipschitz

PUBLISHED = (-0.037, 0.481, -2.3, 4.917, -1.791)


class EntropyAdaptive(OfEntropy):
    """β(H) of the row's own softmax entropy H, in nats.

    Parameters
    ----------
    coefficients : of the polynomial, highest power first; the published ones by default
    min_entropy : rows with H at or below this keep β = 1

    Examples
    --------
    >>> import undilute as ud
    >>> round(ud.rules.EntropyAdaptive().beta(3.0), 4)
    2.25
    """

    min_entropy: float

    def __init__(self, coefficients: Sequence[float] = PUBLISHED, min_entropy: float = 0.5) -> None:
        super().__init__()
        if not isinstance(coefficients, Sequence) or len(coefficients) == 0:
            raise InvalidValue(f"coefficients = {coefficients!r}: must be a list of numbers, highest power first.")
        self.coefficients = tuple(number("coefficients", c) for c in coefficients)
        self._polynomial = np.poly1d(self.coefficients)
        self.hold("min_entropy", number("min_entropy", min_entropy))

    def at_entropy(self, entropy: Tensor) -> Tensor:
        value = torch.zeros_like(entropy)
        for coefficient in self.coefficients:
            value = value * entropy + coefficient
        return torch.where(entropy > self.min_entropy, value.clamp(min=1.0), 1.0)

    def bound(self, n: int) -> float:
        return self._largest(self._polynomial, n, lowest=1.0)

    def lipschitz(self, map: Map, n: int) -> float:
        if n == 1:
            return map.lipschitz(1)
        jumps = math.log(n) > self.min_entropy and self._polynomial(self.min_entropy) > 1.0 + 1e-9
        if jumps or forward_of(map) is not Softmax:
            return math.inf
        slope = self._largest(self._polynomial.deriv(), n, lowest=0.0)
        return softmax_lipschitz(self.bound(n), slope, n)

    def _largest(self, polynomial: np.poly1d, n: int, lowest: float) -> float:
        """Largest |polynomial| over the entropies a row of n keys can have and where β exceeds 1, or ``lowest``."""
        entropies = np.linspace(self.min_entropy, max(math.log(n), self.min_entropy), 4097)
        turning = np.asarray(polynomial.deriv().roots)
        inside = turning.real[(turning.imag == 0) & (turning.real > entropies[0]) & (turning.real < entropies[-1])]
        entropies = np.concatenate([entropies, inside])
        active = self._polynomial(entropies) >= 1.0
        return float(np.abs(polynomial(entropies[active])).max(initial=lowest))

    def extra_repr(self) -> str:
        return f"coefficients={self.coefficients}, {super().extra_repr()}"


@register("adaptive", formula="softmax(β(H)·z), H = entropy of softmax(z)", paper="arXiv:2410.01104")
def adaptive(coefficients: Sequence[float] = PUBLISHED, min_entropy: float = 0.5) -> Rule:
    return Rule(scale=EntropyAdaptive(coefficients, min_entropy))
