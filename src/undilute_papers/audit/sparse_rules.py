"""What sparse rules do where the dilution lemma does not reach: our own statements U1 to U4."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from undilute.rules import Entmax, Rule
from undilute.theory import jacobian, sparse
from undilute_papers.audit.sources import UNDILUTE
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement

Function = Callable[..., Tensor]
ALPHAS = (1.2, 1.5, 1.75, 2.0, 3.0)


def _real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _uniform(rng: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=rng, dtype=torch.float64)


def _led(gap: Tensor, behind: Tensor) -> Tensor:
    """Rows (rows, n) whose first key leads by ``gap`` (rows,), the others ``behind`` ≥ 0 (rows, n − 1) further back."""
    return torch.cat([torch.zeros(len(behind), 1, dtype=torch.float64), -gap.unsqueeze(-1) - behind], -1)


def _behind(rng: torch.Generator, rows: int, n: int) -> Tensor:
    """How far behind the least gap each competitor is: scattered, or (a third of the rows) all exactly at it."""
    further = _uniform(rng, 0, 1, rows, n - 1) * 10 ** _uniform(rng, -3, 1, rows, 1)
    further[: rows // 3] = 0
    return further


def _first_weight(alpha: float, logits: Tensor) -> Tensor:
    weights: Tensor = Rule(map=Entmax(alpha))(logits)
    return weights[..., 0]


def _weight_curve() -> Curve:
    n = torch.logspace(0.5, 6, 50, dtype=torch.float64)
    named = {"softmax": 1.0, "entmax α = 1.25": 1.25, "entmax α = 1.5": 1.5, "sparsemax": 2.0}
    lines: dict[str, Sequence[float]] = {
        name: sparse.needle_weight(_real(0.8), n, _real(alpha)).tolist() for name, alpha in named.items()
    }
    return Curve(n.tolist(), lines, "keys n", "weight of a key that leads by 0.8", log_x=True, log_y=True)


@statement(
    "U1",
    UNDILUTE,
    place="theory/sparse.py",
    verdict=Verdict.TRUE,
    title="A gap of 1/(α−1) holds all the weight at every length",
    claim="α-entmax gives the top key weight exactly 1, for every number n of keys, if and only if every other logit "
    "is at least 1/(α−1) below it. Lemma 1 of arXiv:2508.17821 does not apply, because its hypothesis F > 0 fails: "
    "softmax at the same gap loses its weight like 1/n.",
    formula=r"\ell_1 - \ell_j \ge \frac{1}{\alpha - 1} \ \forall j \ne 1 \;\Leftrightarrow\; p_1 = 1",
    proof="p = [(α−1)(ℓ − ℓ₁) + w]₊^{1/(α−1)} with w = p₁^{α−1}. At w = 1 such competitors get 0 and the row sums "
    "to 1. A nearer competitor gets more than 0 at w = 1, so the row would sum to more than 1, and w is smaller.",
)
def gap_theorem(evidence: Evidence, gap: Callable[[Tensor], Tensor] = sparse.one_hot_gap) -> None:
    for alpha in ALPHAS:
        held, short = [], []
        for n in (2, 64, 2048):
            rows = 300 if n < 100 else 20
            behind, least = _behind(evidence.rng, rows, n), gap(_real(alpha)).expand(rows)
            held.append(_first_weight(alpha, _led(least, behind)))
            behind[torch.arange(rows), torch.randint(n - 1, (rows,), generator=evidence.rng)] = 0
            short.append(_first_weight(alpha, _led(0.99 * least, behind)))
        evidence.holds(f"α = {alpha:g}: weight 1 at the gap", -(torch.cat(held) - 1).abs(), tolerance=1e-11)
        evidence.holds(f"α = {alpha:g}: less than 1 at 0.99 of it", 1 - torch.cat(short) - 1e-12, tolerance=0.0)
    lengths = _real(1e2, 1e4, 1e6)
    softmax = sparse.needle_weight(gap(_real(1.5)), lengths, _real(1.0))
    evidence.holds("softmax at the same gap: below e^gap/n", gap(_real(1.5)).exp() / lengths - softmax, tolerance=0.0)


@statement(
    "U2",
    UNDILUTE,
    place="theory/sparse.py",
    verdict=Verdict.TRUE,
    title="Every positive gap holds a weight at every length",
    claim="If every other logit is at least g below the top one, α-entmax gives the top key at least "
    "((α−1)g)^{1/(α−1)}, at most 1, for every n; no larger floor holds for every n. The lead needed for a weight c "
    "among n keys is (c^{α−1} − ((1−c)/(n−1))^{α−1})/(α−1), bounded in n; softmax's, its limit α → 1, grows like ln n.",
    formula=r"p_1 \ge \min\left\{1, ((\alpha - 1) g)^{1/(\alpha - 1)}\right\}, \qquad "
    r"g_n(c) = \frac{c^{\alpha-1} - \left(\frac{1-c}{n-1}\right)^{\alpha-1}}{\alpha - 1}",
    proof="Lowering a logit raises w = p₁^{α−1}, so n − 1 competitors at exactly g are the worst case. There "
    "w^{1/(α−1)} + (n−1)[w − (α−1)g]₊^{1/(α−1)} = 1, so w > (α−1)g if (α−1)g < 1, and the bracket tends to 0 as n "
    "grows.",
    curve=_weight_curve,
)
def weight_floor(
    evidence: Evidence,
    floor: Function = sparse.weight_floor,
    weight: Function = sparse.needle_weight,
    gap: Function = sparse.gap_to_hold,
) -> None:
    for alpha in ALPHAS:
        at, slack, excess, error = _real(alpha), [], [], []
        for n in (2, 30, 1000):
            rows = 300 if n < 100 else 60
            g = _uniform(evidence.rng, 0, 1.2 / (alpha - 1), rows)
            p, worst = _first_weight(alpha, _led(g, _behind(evidence.rng, rows, n))), weight(g, _real(n), at)
            slack.append(p - floor(g, at))
            excess.append(p - worst)
            error.append((p - worst)[: rows // 3].abs())  # the rows with all competitors at the gap
        evidence.holds(f"α = {alpha:g}: floor", torch.cat(slack))
        rounding = 1e-9 if alpha <= 2 else 1e-5  # above 2 entmax is not Lipschitz
        evidence.holds("equal competitors are the worst", torch.cat(excess), tolerance=rounding)
        evidence.holds("the weight among them", -torch.cat(error), tolerance=rounding)
        g, lengths = _uniform(evidence.rng, 0.05, 0.95 / (alpha - 1), 500), 10 ** _uniform(evidence.rng, 0.5, 4, 500)
        endless, c = weight(g, _real(1e200), at), weight(g, lengths, at)
        evidence.holds("the floor is the limit n → ∞", -(endless - floor(g, at)).abs(), tolerance=1e-6)
        evidence.holds("the lead for a weight", -(gap(c, lengths, at) - g).abs(), tolerance=1e-6)
        evidence.holds("the lead is bounded in n", c ** (alpha - 1) / (alpha - 1) - gap(c, lengths, at))
        p, g = _descend(evidence.rng, alpha)
        evidence.holds("after gradient descent", p - weight(g, _real(12), at))
    held = gap(_real(0.5), _real(100), _real(1.0))
    evidence.quoted("softmax's lead for weight 1/2, n = 100", held, "4.595")


def _descend(rng: torch.Generator, alpha: float, n: int = 12) -> tuple[Tensor, Tensor]:
    """Top weights, and gaps, after gradient descent on the places of the competitors, which stay behind the gap."""
    rows = 40
    g = _uniform(rng, 0.1, 0.9 / (alpha - 1), rows)
    x = torch.randn(rows, n - 1, generator=rng, dtype=torch.float64).requires_grad_()
    for _ in range(25):
        p = _first_weight(alpha, _led(g, x.square()))
        (slope,) = torch.autograd.grad(p.sum(), x)
        x = (x - slope).detach().requires_grad_()
    return _first_weight(alpha, _led(g, x.detach().square())), g


def _climb(rng: torch.Generator, alpha: float, n: int, rows: int = 40) -> Tensor:
    """Weights (rows, n) after a fixed-point ascent on the Jacobian's norm.

    The norm is Σ u(v − c)² with u = p^(2−α), v the top eigenvector and c its mean under u; at a maximum over p,
    p ∝ u(v − c)². Each step goes half way there in the logarithm.
    """
    log_p = 3 * torch.randn(rows, n, generator=rng, dtype=torch.float64)
    for _ in range(60):
        log_p = log_p.log_softmax(-1).clamp(min=-60.0)
        u = ((2 - alpha) * log_p).exp()
        v = jacobian.worst_direction(u / u.sum(-1, keepdim=True))
        c = (u * v).sum(-1, keepdim=True) / u.sum(-1, keepdim=True)
        log_p = (log_p + (u * (v - c).square()).clamp(min=1e-30).log()) / 2
    return log_p.softmax(-1)


def _smooth_weights(rng: torch.Generator, rows: int, n: int) -> Tensor:
    """Weights of every spread; a quarter each with the top two tied, with zeros, with one against the rest."""
    z = torch.randn(rows, n, generator=rng, dtype=torch.float64) * 10 ** _uniform(rng, -1, 1, rows, 1)
    z[: rows // 4, :2] = z[: rows // 4].amax(-1, keepdim=True) + 1
    z[rows // 4 : rows // 2, n // 2 + 1 :] = -torch.inf
    z[rows // 2 : 3 * rows // 4] = 0
    z[rows // 2 : 3 * rows // 4, 0] = _uniform(rng, 0, 6, len(z[rows // 2 : 3 * rows // 4]))
    return z.softmax(-1)


def _dense_norm(p: Tensor, alpha: float) -> Tensor:
    u = torch.where(p > 0, p ** (2 - alpha), 0.0)
    J = torch.diag_embed(u) - u.unsqueeze(-1) * u.unsqueeze(-2) / u.sum(-1)[:, None, None]
    eigenvalues: Tensor = torch.linalg.eigvalsh(J)
    return eigenvalues[:, -1]


@statement(
    "U3",
    UNDILUTE,
    place="theory/sparse.py",
    verdict=Verdict.TRUE,
    title="Lipschitz constant of α-entmax",
    claim="For 1 < α ≤ 2 the largest spectral norm of α-entmax's Jacobian over all logits of n keys is "
    "max(2^{α−2}, κ(n)): 1 for sparsemax; for α = 1.5, 0.7071 up to n = 47, then rising to 1.",
    formula=r"L(n) = \max\left\{2^{\alpha-2}, \kappa(n)\right\}, \qquad "
    r"\kappa(n) = \frac{n (n-1)^{\alpha-2}}{\left(1 + (n-1)^{(\alpha-1)/(3-\alpha)}\right)^{3-\alpha}}",
    proof="By minimax, Hölder and duality L is the maximum of ‖y‖₂²/‖y‖_r² over Σy = 0, r = 2/(3−α). A maximum has at "
    "most three values; the second-order condition leaves (1, −1, 0, …), one against n − 1 equal ones, and a "
    "three-valued family, on which the second-order condition fails too. In full in theory/sparse.py.",
)
def lipschitz(
    evidence: Evidence,
    constant: Callable[[float, int], float] = sparse.lipschitz_constant,
    norm: Function = jacobian.entmax_spectral_norm,
) -> None:
    for alpha in (1.1, 1.3, 1.5, 1.8, 2.0):
        slack, error, climbed, reached = [], [], [], []
        for n in (2, 3, 20, 100):
            L, p = constant(alpha, n), _smooth_weights(evidence.rng, 120, n)
            norms = norm(p, _real(alpha))
            slack.append(L - norms)
            error.append((norms[::4] - _dense_norm(p[::4], alpha)).abs())
            climbed.append(L - norm(_climb(evidence.rng, alpha, n), _real(alpha)))
            reached.append(L - norm(sparse.steepest_weights(alpha, n), _real(alpha)).reshape(1))
        evidence.holds(f"α = {alpha:g}: norm ≤ L(n)", torch.cat(slack))
        evidence.holds("O(n) norm = dense eigenvalue", -torch.cat(error), tolerance=1e-12)
        evidence.holds("norm ≤ L(n) after ascent", torch.cat(climbed))
        evidence.near(
            "the ascent gets to L(n), n = 2, 3, 20, 100", sum(float(each.amin()) for each in climbed), 0, 0.02
        )
        evidence.holds("L(n) is reached", -torch.cat(reached).abs(), tolerance=1e-12)
    evidence.quoted("α = 1.5, n = 47", constant(1.5, 47), "0.7071")
    evidence.true(
        "α = 1.5: rises after n = 47", constant(1.5, 48) > constant(1.5, 47), f"{constant(1.5, 48):.4f} at 48"
    )
    evidence.quoted("sparsemax, n = 1000", constant(2.0, 1000), "1.000")


@statement(
    "U4",
    UNDILUTE,
    place="theory/sparse.py",
    verdict=Verdict.TRUE,
    title="How many keys α-entmax keeps",
    claim="The key of rank k has positive weight exactly if Σ_{i<k} ((α−1)(ℓᵢ − ℓ_k))^{1/(α−1)} < 1. Hence a key is "
    "out once m keys lead it by m^{1−α}/(α−1). For n independent N(0, σ²) logits the support grows only like a "
    "power of ln n.",
    formula=r"|\mathrm{supp}| \le \min_m \#\left\{j : \ell_j > \ell_{(m)} - \frac{m^{1-\alpha}}{\alpha - 1}\right\}, "
    r"\qquad |\mathrm{supp}| \sim \frac{1}{\Gamma\left(1 + \frac{1}{\alpha-1}\right)} "
    r"\left(\frac{\sqrt{2 \ln n}}{\sigma (\alpha - 1)}\right)^{1/(\alpha - 1)}",
    proof="Put the threshold at ℓ_k: the key is in exactly if the row is then too light. If m keys lead by h the sum "
    "is at least m((α−1)h)^{1/(α−1)}. Gaussian logits: both the sum and the count above a level are sums over "
    "independent keys with relative deviation O(N^{−1/2}), N the expected count.",
)
def support(
    evidence: Evidence,
    size: Function = sparse.support_size,
    bound: Function = sparse.support_bound,
    growth: Function = sparse.gaussian_support,
) -> None:
    for alpha in (1.3, 1.5, 2.0):
        at, error, slack, gain = _real(alpha), [], [], []
        for n in (8, 100, 1000):
            rows = 400 if n < 1000 else 50
            z = torch.randn(rows, n, generator=evidence.rng, dtype=torch.float64)
            z = z * 10 ** _uniform(evidence.rng, -2, 1, rows, 1)
            counted, limit = (Rule(map=Entmax(alpha))(z) > 0).sum(-1), bound(z, at)
            reach = (z > z.amax(-1, keepdim=True) - sparse.one_hot_gap(at)).sum(-1)
            error.append((size(z, at) - counted).abs().double())
            slack.append((limit - counted).double())
            gain.append((reach - limit).double())
        evidence.holds(f"α = {alpha:g}: size = number of keys with weight", -torch.cat(error))
        evidence.holds("support ≤ bound", torch.cat(slack))
        evidence.holds("bound ≤ keys in reach of the top one", torch.cat(gain))
        for m in (1, 2, 7):  # m equal keys, then one a hair nearer than the bound's reach, one a hair further
            lead = m ** (1 - alpha) / (alpha - 1)
            z = torch.cat([torch.zeros(2, m), _real(-lead * (1 - 1e-6), -lead * (1 + 1e-6)).unsqueeze(-1)], -1)
            sharp = bool((size(z, at) == torch.tensor([m + 1, m])).all() and (bound(z, at) == size(z, at)).all())
            evidence.true(f"α = {alpha:g}: bound sharp at m = {m}", sharp, f"support {size(z, at).tolist()}")
    n, spread, at = 4096, _real(0.2), _real(1.5)
    z = torch.randn(100, n, generator=evidence.rng, dtype=torch.float64) * spread
    law = float(growth(_real(n), at, spread))
    evidence.near(f"α = 1.5, σ = 0.2, n = {n:,}: mean support", size(z, at).double().mean(), law, 0.05 * law)
    last = growth(_real(1e300), at) / (4 * 300 * math.log(10))
    evidence.near("growth against (4 ln n)/σ², n = 10³⁰⁰", last, 1.0, 0.03)
