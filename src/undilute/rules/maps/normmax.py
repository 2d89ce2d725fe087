"""Can the lead that silences every other key be the same for every α?  α-normmax: p ∝ [z − τ]₊^(1/(α−1)).

Blondel, Martins & Niculae 2020, arXiv:1901.02324; as attention, Santos et al. 2024, arXiv:2402.13725. The weights
maximise ⟨p, z⟩ − ‖p‖_α. With d = [z − τ]₊, τ such that Σd^β = 1 and β = α/(α−1), they are p = d^(β−1)/Σd^(β−1), and
‖p‖_α = 1/Σd^(β−1). A lead of 1 takes all the weight, whatever α and n (entmax needs 1/(α−1)). α → 1 is the hard
maximum; the larger α, the more evenly the keys within reach share. α below 1 is refused: ‖p‖_α is concave there, so
that the maximum is at a corner, whatever a solver of the same equations returns.

Solved by entmax. e = d^β sums to 1 and is [z − τ]₊^β: entmax of z/ε with α − 1 replaced by ε = 1/β = 1 − 1/α. So
    p = e^(1/α) / Σe^(1/α),   e = entmax_{2−1/α}(z·α/(α−1)),
with entmax's solver and gradients, also in α. The default, α = 2, is entmax15 of 2z, in closed form on the sorted row.

Lipschitz constant for α ≤ 2. With r = p/d = p^(2−α)·‖p‖_α^(α−1) on the support,
    ∂p/∂z = (I − p1ᵀ)·diag(r)·(I − 1pᵀ)/(α−1),   so   vᵀ(∂p/∂z)v = ‖p‖_α^(α−1)·Σpᵢ^(2−α)cᵢ/(α−1),   c = (v − ⟨p, v⟩)².
By Hölder Σp^(2−α)c ≤ (Σpc)^(2−α)·(Σc)^(α−1). For unit v, Σpc is a variance of values at most √2 apart, so at most 1/2,
and Σc ≤ ‖I − 1pᵀ‖₂² = n‖p‖₂². Neither norm of p exceeds 1, so L(n) = 2^(α−2)·n^(α−1)/(α−1) will do. For α = 2 it is n,
and reached: the norm is k‖p‖₂³ with k keys in the support, which tends to n as the lead over n − 1 equal keys tends to
1 from below. For α < 2 the power of n is right (one key against n − 1 equal ones), the factor is not the smallest. For
α > 2, r has no bound at the edge of the support: no constant from n = 2 on.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from undilute.rules.base import Map
from undilute.rules.forms import SOFTMAX
from undilute.rules.maps.entmax import entmax_over, shaped_epsilon
from undilute.rules.masked import bounded, divide, masked_max
from undilute.rules.parameters import Number, above
from undilute.rules.registry import register


class Normmax(Map):
    """α-normmax.

    Parameters
    ----------
    alpha : > 1, one number or one per head; gradients flow into it

    Examples
    --------
    >>> import torch, undilute as ud
    >>> ud.rules.Rule(map=ud.rules.Normmax(2.0))(torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]))
    tensor([0.4761, 0.3254, 0.1746, 0.0239, 0.0000])
    """

    is_sparse = True

    alpha: Number

    def __init__(self, alpha: Number = 2.0) -> None:
        super().__init__()
        self.hold("alpha", above("alpha", alpha, 1.0, " (alpha → 1 is the hard maximum: use Hard)"))

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        excess = shaped_epsilon(self.alpha - 1.0, logits).clamp(min=SOFTMAX)  # a learned α stays above 1
        epsilon = 1 / (1 + 1 / excess)
        t = logits - masked_max(logits, visible).detach()  # changes nothing but the rounding
        e = entmax_over(bounded(t / epsilon), visible, epsilon)
        roots = e.masked_fill(e == 0, 1.0).pow(1 / (1 + excess)).masked_fill(e == 0, 0.0)
        return divide(roots, roots.sum(-1, keepdim=True))

    def at_length(self, n: Tensor) -> Self:
        return self

    def lipschitz(self, n: int) -> float:
        if n == 1:
            return 0.0
        return max(_constant(alpha, n) for alpha in torch.as_tensor(self.alpha).detach().double().unique().tolist())


def _constant(alpha: float, n: int) -> float:
    """L(n) of the module's docstring."""
    return math.inf if alpha > 2 else 2.0 ** (alpha - 2) * n ** (alpha - 1) / (alpha - 1)


@register("normmax", formula="[z − τ]₊^(1/(α−1)) / Σ", paper="arXiv:2402.13725")
def normmax(alpha: Number = 2.0) -> Map:
    return Normmax(alpha)
