"""Can irrelevant keys get exactly zero?  α-entmax: [(α−1)z − τ]₊^(1/(α−1)), τ such that the row sums to 1.

Peters, Niculae & Martins 2019, arXiv:1905.05702; α = 2 is sparsemax (arXiv:1602.02068), α → 1 is softmax, 1.5 the usual
choice. Below 1 the same formula has 1/(α−1) < 0: every key has weight, and far keys fall off as a power of their
distance, (1 + (1−α)·d)^(−1/(1−α)), where softmax has e^(−d). The weights maximise ⟨p, z⟩ plus Tsallis' entropy
(1 − Σp^α)/(α(α−1)), which is concave for every α > 0; at 0 it has no value where a weight is 0.

α = 2 and 1.5 solve for τ in closed form on the sorted row. Any other α bisects the logarithm ℓ of the top weight in
[−log n, 0]: with ε = α − 1 and t = z − max z, p = exp(ℓ + log1p(ε·t·e^(−εℓ)) / ε), which stays accurate as ε → 0 from
either side, where it becomes softmax. For α well above 2 the rule is ill-conditioned (it is not Lipschitz, see below):
in float32 expect errors up to 1e-4 at α = 3 to 4 and 1e-2 from 5 on; use float64 there.

Gradient. On the support let u = p^(2−α) and U = Σu. Then ∂p/∂z = diag(u) − uuᵀ/U, and with l = log p, r = −εl,
H = −Σpl, e₁(r) = e^r − 1, e₂(r) = e^r − 1 − r, D = Σp·e₁, E = Σp·e₂:
    ∂p/∂α = (p/U)·[(E − e₂)/ε² − (l·D + H·e₁)/ε],
which is Correia et al.'s formula (arXiv:1909.00015) rearranged so that nothing cancels as ε → 0.

Lipschitz constant for 1 < α ≤ 2. ‖∂p/∂z‖₂ is the maximum over unit v ⟂ 1 of min_c Σᵢ uᵢ(vᵢ − c)²; maximised over p
(Hölder and minimax) it is max_v min_c ‖v − c‖²_q, q = 2/(α−1). Over vectors v with one entry against k − 1 equal ones
that is κ(k) = k / ((1 + ρ)^e·((k−1)^e·ρ^−e + k − 1)) with e = 2 − α, ρ = (k−1)^−((1−e)/(1+e)). κ falls, then rises, so
L(n) = max(κ(2), κ(n)), κ(2) = 2^(α−2): sparsemax 1; α = 1.5 0.707 up to n = 47, then rising to 1. That no other v
does better is proved in ``undilute.theory.sparse``. For α > 2, u has no bound: two keys of vanishing weight make the
norm infinite, so L is finite only for n = 2.

For α ≤ 1 it is κ(2) = 2^(α−2) at every n. A symmetric matrix's norm is at most its largest absolute row sum, here
2uᵢR/(uᵢ + R) with R = Σ_{j≠i} uⱼ. As 2 − α ≥ 1, R ≤ (1 − pᵢ)^(2−α), so this is at most the harmonic mean of p^(2−α) at
pᵢ and 1 − pᵢ, which is largest at pᵢ = 1/2; two equal keys far above the rest come arbitrarily near.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from undilute.errors import InvalidValue
from undilute.rules.base import Map
from undilute.rules.forms import SOFTMAX, SparseForm
from undilute.rules.masked import count_visible, divide, masked_max, working_dtype
from undilute.rules.parameters import Number, above, largest, per_head
from undilute.rules.registry import register


class Entmax(Map):
    """α-entmax.

    Parameters
    ----------
    alpha : > 0 and not 1, one number or one per head; above 1 it is sparse, below 1 dense; gradients flow into it

    Examples
    --------
    >>> import torch, undilute as ud
    >>> ud.rules.Rule(map=ud.rules.Entmax(2.0))(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    >>> ud.rules.Rule(map=ud.rules.Entmax(0.5))(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.4821, 0.3500, 0.1679])
    """

    alpha: Number

    def __init__(self, alpha: Number = 1.5) -> None:
        super().__init__()
        self.hold("alpha", _checked(alpha))

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return largest(self.alpha) > 1.0

    @property
    def epsilon(self) -> Number:
        """α − 1, taken before any rounding: α may be 1 + 1e-9."""
        return self.alpha - 1.0

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return entmax_over(logits, visible, shaped_epsilon(self.epsilon, logits))

    def as_sparse(self) -> SparseForm:
        return SparseForm(self.epsilon)

    def at_length(self, n: Tensor) -> Self:
        return self

    def lipschitz(self, n: int) -> float:
        alpha = largest(self.alpha)
        if n == 1:
            return 0.0
        if alpha > 2:
            return max(2.0, 2.0 ** (alpha - 2)) if n == 2 else math.inf
        if alpha <= 1:
            return math.pow(2.0, alpha - 2)
        return max(_one_against_rest(alpha, 2), _one_against_rest(alpha, n))


def _checked(alpha: Number) -> Number:
    """``alpha`` if all of it is finite, above 0 and other than 1, else a clear error."""
    but = " other than 1 (alpha = 1 is softmax: use Softmax)"
    checked = above("alpha", alpha, 0.0, but)
    if isinstance(checked, Tensor) and not checked.is_meta and bool((checked == 1.0).any()):
        raise InvalidValue(f"alpha holds 1.0: every value must be a finite number > 0{but}.")
    if not isinstance(checked, Tensor) and checked == 1.0:
        raise InvalidValue(f"alpha = {alpha!r}: must be a finite number > 0{but}.")
    return checked


class LearnableEntmax(Entmax):
    """α-entmax with one learned α per head, 1 < α < 2: α = 1 + σ(a), a starts at 0, so α at 1.5 (arXiv:1909.00015)."""

    def __init__(self, num_heads: int) -> None:
        nn.Module.__init__(self)
        self.hold("alpha_logit", nn.Parameter(torch.zeros(num_heads)))

    @property
    def epsilon(self) -> Tensor:
        logit = self.alpha_logit
        assert isinstance(logit, Tensor)
        return torch.sigmoid(logit.to(working_dtype(logit.dtype)))

    @property
    def alpha(self) -> Tensor:  # type: ignore[override]
        return 1.0 + self.epsilon


def shaped_epsilon(epsilon: Number, logits: Tensor) -> Tensor:
    """α − 1 as a tensor that broadcasts over ``logits``, kept from 0: a learned α that comes to 1 is softmax there, and
    its gradient takes it further."""
    if not isinstance(epsilon, Tensor):  # a number that torch can still read while it traces a model
        epsilon = math.copysign(max(abs(epsilon), SOFTMAX), epsilon)
        return torch.as_tensor(epsilon, dtype=logits.dtype, device=logits.device)
    shaped = torch.as_tensor(per_head("alpha", epsilon, logits), dtype=logits.dtype, device=logits.device)
    nearest = torch.where(shaped < 0, -SOFTMAX, SOFTMAX)
    return torch.where(shaped.abs() < SOFTMAX, shaped + (nearest - shaped).detach(), shaped)


def entmax_over(logits: Tensor, visible: Tensor, epsilon: Tensor) -> Tensor:
    """α-entmax of the visible logits (..., keys), α − 1 = ``epsilon`` ≠ 0 (..., 1); exactly 0 elsewhere."""
    p: Tensor = _Entmax.apply(logits, visible, epsilon)  # type: ignore[no-untyped-call]
    return p


def _one_against_rest(alpha: float, k: int) -> float:
    """κ(k) of the module's docstring."""
    e, rest = 2.0 - alpha, k - 1.0
    rho = math.pow(rest, -(1 - e) / (1 + e))
    return k / (math.pow(1 + rho, e) * (math.pow(rest / rho, e) + rest))


class _Entmax(torch.autograd.Function):
    """p from z, with the exact gradients of the module's docstring; differentiable twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, visible: Tensor, epsilon: Tensor) -> Tensor:
        return _solve(z, visible, epsilon)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[2])
        ctx.save_for_forward(output, inputs[2])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        p, epsilon = ctx.saved_tensors
        l, u, total = _slopes(p, epsilon)
        grad_z = u * (g - divide((u * g).sum(-1, keepdim=True), total))
        if not ctx.needs_input_grad[2]:
            return grad_z, None, None
        return grad_z, None, (g * _slope_in_alpha(p, l, total, epsilon)).sum_to_size(epsilon.shape)

    @staticmethod
    def jvp(ctx: Any, dz: Tensor, _: None, depsilon: Tensor | None) -> Tensor:
        p, epsilon = ctx.saved_tensors
        l, u, total = _slopes(p, epsilon)
        dp = u * (dz - divide((u * dz).sum(-1, keepdim=True), total))
        return dp if depsilon is None else dp + depsilon * _slope_in_alpha(p, l, total, epsilon)


def _slopes(p: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p (0 off the support), u = p^(1−ε) (0 off it) and Σu."""
    support = ~(p == 0)
    l = p.masked_fill(~support, 1.0).log()
    u = ((1.0 - epsilon) * l).exp().masked_fill(~support, 0.0)
    return l, u, u.sum(-1, keepdim=True)


def _slope_in_alpha(p: Tensor, l: Tensor, total: Tensor, epsilon: Tensor) -> Tensor:
    """∂p/∂α on the support; l = log p, total = Σ p^(2−α)."""
    r = -epsilon * l
    e1, e2 = r.expm1(), _exp_beyond_first_order(r)
    H = -(p * l).sum(-1, keepdim=True)
    D = (p * e1).sum(-1, keepdim=True)
    E = (p * e2).sum(-1, keepdim=True)
    return divide(p * ((E - e2) / epsilon**2 - (l * D + H * e1) / epsilon), total)


def _exp_beyond_first_order(r: Tensor) -> Tensor:
    """e^r − 1 − r, accurate for small r too."""
    small = r.abs() < 0.05
    s = r.masked_fill(~small, 0.0)
    series = s * s / 2 * (1 + s / 3 * (1 + s / 4 * (1 + s / 5 * (1 + s / 6 * (1 + s / 7 * (1 + s / 8))))))
    return torch.where(small, series, r.expm1() - r)


def _solve(z: Tensor, visible: Tensor, epsilon: Tensor) -> Tensor:
    t = z - masked_max(z, visible)  # ≤ 0 where visible, 0 at the top
    t = t.masked_fill(~visible, -torch.inf)
    if bool((epsilon == 1.0).all()):
        p = _sparsemax(t)
    elif bool((epsilon == 0.5).all()):
        p = _entmax15(t)
    else:
        p = _bisect(t, count_visible(visible, z.dtype), epsilon)
    return p.masked_fill(~visible, 0.0)


def _sparsemax(t: Tensor) -> Tensor:
    """[t − τ]₊ with τ = (Σ_{top k} t − 1)/k, k the largest with 1 + k·t_(k) > Σ_{top k} t."""
    x = t.clamp(min=-2.0)  # τ ≥ −1: what lies below never enters the support
    ranked = x.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    sums = ranked.cumsum(-1)
    k = (1 + rank * ranked > sums).sum(-1, keepdim=True).clamp(min=1)
    tau = (sums.gather(-1, k - 1) - 1) / k
    d = (x - tau).clamp(min=0.0)
    tau = tau + (d.sum(-1, keepdim=True) - 1) / (d > 0).sum(-1, keepdim=True)  # one Newton step: rounding of sums
    return (x - tau).clamp(min=0.0)


def _entmax15(t: Tensor) -> Tensor:
    """[t/2 − τ]₊² with τ = mean − √((1 − ss)/k) over the top k, ss their sum of squared deviations."""
    x = (t / 2).clamp(min=-2.0)  # τ ≥ −1: what lies below never enters the support
    ranked = x.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    mean = ranked.cumsum(-1) / rank
    mean_square = (ranked * ranked).cumsum(-1) / rank
    candidates = mean - (1 / rank - (mean_square - mean * mean)).clamp(min=0.0).sqrt()
    k = (candidates <= ranked).sum(-1, keepdim=True).clamp(min=1)
    tau = candidates.gather(-1, k - 1)
    for _ in range(2):  # Newton steps on Σ[x − τ]₊² = 1: rounding of sums
        d = (x - tau).clamp(min=0.0)
        tau = tau + ((d * d).sum(-1, keepdim=True) - 1) / (2 * d.sum(-1, keepdim=True))
    return (x - tau).clamp(min=0.0).square()


def _bisect(t: Tensor, n: Tensor, epsilon: Tensor) -> Tensor:
    """exp(ℓ + log1p(ε·t·e^(−εℓ))/ε), the logarithm ℓ of the top weight found by bisection, for any ε ≠ 0."""
    reach = epsilon * t.clamp(min=-torch.finfo(t.dtype).max / 4)

    def weights(top: Tensor) -> Tensor:
        stretch = (-epsilon * top).exp().clamp(max=torch.finfo(t.dtype).max)
        return (top + (reach * stretch).clamp(min=-1.0).log1p() / epsilon).exp()

    width = n.log() + torch.zeros_like(epsilon)
    low = -width
    for _ in range(56 if t.dtype == torch.float64 else 28):
        width = width / 2
        too_light = weights(low + width).sum(-1, keepdim=True) <= 1
        low = torch.where(too_light, low + width, low)
    p = weights(low)
    return p / p.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)


@register("sparsemax", formula="[z − τ]₊", paper="arXiv:1602.02068")
def sparsemax() -> Map:
    return Entmax(2.0)


@register("entmax15", formula="[z/2 − τ]₊²", paper="arXiv:1905.05702")
def entmax15() -> Map:
    return Entmax(1.5)


@register(
    "entmax",
    formula="[(α−1)z − τ]₊^(1/(α−1))",
    paper="arXiv:1905.05702",
    learnable=lambda embed_dim, num_heads: LearnableEntmax(num_heads),
)
def entmax(alpha: Number = 1.5) -> Map:
    return Entmax(alpha)
