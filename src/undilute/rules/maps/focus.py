"""Can one rule be sparse, hold its weight at any length and have a bounded gradient?  Focus: entmax of bounded support.

Let z₁ ≥ z₂ ≥ … be a row's visible logits, ε = α − 1, a = 1/ε, K < n. With Δⱼ = zⱼ − z_{K+1} and S = Σ_{j≤K} Δⱼ^a,
    s_K = 1 / (ε·S^ε)
is the scale at which α-entmax has its threshold exactly at z_{K+1}: the smallest one that leaves at most K keys. Focus
takes it, within limits:
    weights = entmax_α(s·z),   s = min(max(s_K, s_min), s_max);   rows of n ≤ K keys take s_min.
Three regimes follow. Where s = s_K the weights are Δⱼ^a/S, whatever the logits' scale and shift. Where s_K < s_min the
row is sparse enough as it is, and this is plain entmax. Where s_K > s_max, so Σ Δⱼ^a < (ε·s_max)^(−a), the top K + 1
logits are almost tied, where a rule with a bounded gradient cannot choose: entmax with s_max.

Outside the last, at most K keys have any weight, so the top one has 1/K or more, however long the row. The Jacobian is
s·(diag(u) − uuᵀ/U) with u = p^(2−α), U = Σu where s is a limit, and where it is s_K
    s_K·(I − p1ᵀ)·diag(u)·[I | −1],   the last column being that of z_{K+1}.
So its norm is at most s_max·max(L(n), C(α, K)), whatever the logits: L(n) ≤ 1 is entmax's constant, C is ``steepness``.
Statements and proofs: ``undilute.theory.focus``.

A scale and a map in one file, because the scale is read off the map's own order statistics: it multiplies z − z₁, not
z, which would lose the small differences that it is made for.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from undilute.errors import InvalidValue
from undilute.rules.base import Map
from undilute.rules.forms import SOFTMAX, SparseForm
from undilute.rules.maps.entmax import Entmax, entmax_over, shaped_epsilon
from undilute.rules.masked import bounded, divide, masked_max, working_dtype
from undilute.rules.parameters import Number, above, count, largest, number, per_head
from undilute.rules.registry import register

GRID = 8192  # of the top weight, where C is looked for


class Focus(Map):
    """Entmax that keeps at most K keys of a row, at a scale of its own between two limits.

    Parameters
    ----------
    k : K, how many keys may have weight in any row but a tied one
    alpha : above 1 and at most 2, one number or one per head
    s_min : positive, one number or one per head; scales of rows that are sparse enough, and of those of n ≤ K
    s_max : positive, one number or one per head; if it is below s_min, it is what counts in rows of n > K
    power : K grows as ⌈k·n^power⌉, 0 ≤ power < 1; 0 is a constant K

    Gradients flow into alpha, s_min and s_max.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> rule = ud.rules.Rule(map=ud.rules.Focus(k=2))
    >>> rule(torch.tensor([0.4, 0.3, 0.2, 0.1, 0.1]))
    tensor([0.8000, 0.2000, 0.0000, 0.0000, 0.0000])
    >>> rule(torch.tensor([0.4, 0.3, 0.2, 0.1, 0.1]) * 5 + 7)
    tensor([0.8000, 0.2000, 0.0000, 0.0000, 0.0000])
    """

    is_sparse = True

    alpha: Number
    s_min: Number
    s_max: Number

    def __init__(
        self, k: int = 16, alpha: Number = 1.5, s_min: Number = 1.0, s_max: Number = 16.0, power: float = 0.0
    ) -> None:
        super().__init__()
        self.k = count("k", k)
        self.power = number("power", power)
        if not 0.0 <= self.power < 1.0:
            raise InvalidValue(f"power = {power!r}: must be at least 0 and below 1, so that K/n falls with n.")
        self.hold("alpha", above("alpha", alpha, 1.0, " and at most 2"))
        if largest(alpha) > 2.0:
            raise InvalidValue(f"alpha = {largest(alpha):g}: must be at most 2, where entmax has a Lipschitz constant.")
        self.hold("s_min", above("s_min", s_min, 0.0))
        self.hold("s_max", above("s_max", s_max, 0.0))

    @property
    def epsilon(self) -> Number:
        """α − 1."""
        return self.alpha - 1.0

    def kept(self, n: Tensor) -> Tensor:
        """K for rows of n visible keys, whole numbers in the shape of ``n``."""
        if self.power == 0.0:
            return torch.full_like(n, self.k)
        grown = self.k * n.to(torch.float64).clamp(min=1).pow(self.power)
        return (grown - 1e-9).ceil().to(n.dtype)  # 2·16^0.5 is 8, whatever its last bit says

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        epsilon = shaped_epsilon(self.epsilon, logits).clamp(min=SOFTMAX)  # a learned α stays above 1
        least, most = (self._limit(name, logits) for name in ("s_min", "s_max"))
        n = visible.sum(-1, keepdim=True)
        K = self.kept(n)
        t = (logits - masked_max(logits, visible)).masked_fill(~visible, 0.0)
        level = self._next_best(t, visible, K)
        fitting = scale_for(t, visible, level, epsilon)
        tied = (fitting > most) & (n > K)
        scale = torch.where(n > K, fitting.clamp(min=least).clamp(max=most), least)
        return entmax_over(bounded(scale * t), visible & (tied | (n <= K) | ~(t <= level)), epsilon)

    def as_sparse(self) -> SparseForm:
        return SparseForm(self.epsilon, self.kept, self.s_min, self.s_max)

    def at_length(self, n: Tensor) -> Self | None:
        return self if self.power == 0.0 else None

    def _next_best(self, t: Tensor, visible: Tensor, K: Tensor) -> Tensor:
        """The (K+1)-th largest visible logit of each row (..., 1), without gradient; −inf for rows of n ≤ K keys."""
        z, keys = t.detach().masked_fill(~visible, -torch.inf), t.shape[-1]
        ranked = z.topk(min(self.k + 1, keys) if self.power == 0.0 else keys).values
        return ranked.gather(-1, K.clamp(max=ranked.shape[-1] - 1))

    def _limit(self, name: str, logits: Tensor) -> Tensor:
        return torch.as_tensor(per_head(name, getattr(self, name), logits), dtype=logits.dtype, device=logits.device)

    def lipschitz(self, n: int) -> float:
        K, alphas = int(self.kept(torch.tensor(n))), torch.as_tensor(self.alpha).detach().unique().tolist()
        if n <= K:
            return largest(self.s_min) * max(Entmax(alpha).lipschitz(n) for alpha in alphas)
        return largest(self.s_max) * max(max(Entmax(alpha).lipschitz(n), steepness(alpha, K)) for alpha in alphas)

    def extra_repr(self) -> str:
        return f"k={self.k}, {super().extra_repr()}, power={self.power:g}"


def scale_for(t: Tensor, visible: Tensor, level: Tensor, epsilon: Tensor) -> Tensor:
    """s_K: the scale at which entmax of the visible logits has its threshold at ``level``.

    Parameters
    ----------
    t : (..., keys), finite
    visible : (..., keys) bool
    level : (..., 1), one of the row's own logits; the gradient reaches all keys that stand there
    epsilon : α − 1, broadcasts to (..., 1)

    Returns
    -------
    (..., 1), infinite where no logit is above the level

    Examples
    --------
    >>> t = torch.tensor([0.4, 0.3, 0.0, -5.0])
    >>> scale_for(t, t > -torch.inf, torch.tensor([0.0]), torch.tensor(0.5))
    tensor([4.])
    """
    at_level = visible & (t == level)
    next_best = divide((t * at_level).sum(-1, keepdim=True), at_level.sum(-1, keepdim=True))  # equal keys move it alike
    lead = (t - next_best).masked_fill(~visible, 0.0).clamp(min=0.0)
    widest = lead.amax(-1, keepdim=True)
    tied = widest <= torch.finfo(t.dtype).tiny / epsilon
    powers = (lead / widest.masked_fill(tied, 1.0)).pow(1 / epsilon).sum(-1, keepdim=True).masked_fill(tied, 1.0)
    norm = widest.masked_fill(tied, 1.0) * powers.pow(epsilon)  # S^ε, as a norm: nothing overflows
    return (1 / (epsilon * norm)).masked_fill(tied, torch.inf)


class LearnableFocus(Focus):
    """Focus whose limits are learned, one pair per head, as their logarithms.

    Parameters
    ----------
    num_heads : of the layer that owns it
    k, alpha, s_min, s_max, power : where it starts, as in ``Focus``
    """

    def __init__(
        self,
        num_heads: int,
        k: int = 16,
        alpha: Number = 1.5,
        s_min: float = 1.0,
        s_max: float = 16.0,
        power: float = 0.0,
    ) -> None:
        start = Focus(k, alpha, number("s_min", s_min), number("s_max", s_max), power)
        nn.Module.__init__(self)
        self.k, self.power = start.k, start.power
        self.hold("alpha", start.alpha)
        for name, limit in (("log_s_min", s_min), ("log_s_max", s_max)):
            self.hold(name, nn.Parameter(torch.full((num_heads,), math.log(limit))))

    @property
    def s_min(self) -> Tensor:  # type: ignore[override]
        return _exp(self.log_s_min)

    @property
    def s_max(self) -> Tensor:  # type: ignore[override]
        return _exp(self.log_s_max)


def _exp(log: Tensor | nn.Module) -> Tensor:
    assert isinstance(log, Tensor)
    return log.to(working_dtype(log.dtype)).exp()


def steepness(alpha: float, K: int) -> float:
    """C(α, K): where s = s_K, ‖∂p/∂z‖₂ ≤ s_K·C. Exact for α = 2, where C = K; 0.38·√K to leading order for α = 1.5.

    C² = A + B. With e = 2 − α, A bounds the part at a fixed scale and B the part through s_K: it is the largest
    U²·Σp² − 2U·Q + R over weights p of one key against K − 1 equal ones, U = Σp^e, Q = Σp^(1+e), R = Σp^(2e), for
    which e > 1/2 takes the bound Q^((2e−1)/e). Proof: ``undilute.theory.focus``.

    Examples
    --------
    >>> [round(steepness(1.5, K), 2) for K in (1, 2, 16, 64)]
    [0.0, 0.76, 1.46, 2.9]
    >>> steepness(2.0, 16)
    16.0
    """
    if K == 1:
        return 0.0
    e, others = 2.0 - alpha, K - 1.0

    def pull(rest: Tensor) -> Tensor:
        top = 1.0 - rest
        U = top**e + others ** (1 - e) * rest**e
        Q = top ** (1 + e) + others**-e * rest ** (1 + e)
        R = Q ** (2 - 1 / e) if e > 0.5 else top ** (2 * e) + others ** (1 - 2 * e) * rest ** (2 * e)
        pulled: Tensor = U * U * (top * top + rest * rest / others) - 2 * U * Q + R
        return pulled

    rest = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-15, 0, GRID, dtype=torch.float64)])
    rest = rest[rest <= 1 - 1 / K]
    best = int(pull(rest).argmax())
    near = rest[max(best - 1, 0)], rest[min(best + 1, len(rest) - 1)]
    refined = torch.linspace(float(near[0]), float(near[1]), GRID, dtype=torch.float64)
    return math.sqrt(_spread(e, K) + float(torch.maximum(pull(rest).amax(), pull(refined).amax())))


def _spread(e: float, K: int) -> float:
    """A of ``steepness``: at least ‖(I − p1ᵀ)·diag(p^e)‖₂², whatever the weights p of K keys."""
    if e >= 0.5:
        return 2 * math.pow(2 * e, 2 * e) / math.pow(2 * e + 1, 2 * e + 1)
    q = min(2 * e, 0.5)
    return math.pow(q, 2 * e) * math.pow(K * (1 - q), 1 - 2 * e)


@register(
    "focus",
    formula="entmax(s·z) with s such that at most K keys have weight, s_min ≤ s ≤ s_max",
    paper="Undilute, docs/focus.md",
    learnable=lambda embed_dim, num_heads: LearnableFocus(num_heads),
)
def focus(k: int = 16, alpha: Number = 1.5, s_min: Number = 1.0, s_max: Number = 16.0, power: float = 0.0) -> Map:
    return Focus(k, alpha, s_min, s_max, power)
