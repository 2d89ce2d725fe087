"""Section 2.3 and 3.3 of arXiv:2508.17821, how sensitive attention is to its logits: items B11 to B13."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from undilute.theory import jacobian
from undilute.theory.dispersion import Bounds
from undilute_papers.audit.sources import LIMITS
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement
from undilute_papers.theory import finite_steps, normalisers

Function = Callable[..., Tensor]
KEYS = 6  # of the rows on which dense matrices and enumeration check everything
ROWS = 2500


def _real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _uniform(rng: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=rng, dtype=torch.float64)


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def _logits(rng: torch.Generator, rows: int = ROWS, n: int = KEYS) -> Tensor:
    """Random logits of every spread; a third of the rows has its top two tied, a third nearly, to 1e-12 … 1."""
    z = _normal(rng, rows, n) * 10 ** _uniform(rng, -2, 1.5, rows, 1)
    tied, near = slice(0, rows // 3), slice(rows // 3, 2 * rows // 3)
    z[tied, 0] = z[tied, 1] = z[tied].amax(-1) + _uniform(rng, 0, 20, rows // 3)
    z[near, 0] = z[near].amax(-1)
    z[near, 1] = z[near, 0] - 10 ** _uniform(rng, -12, 0, len(z[near]))
    return z


def _normalisers(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """F(l) > 0 and F′(l) for five functions F at random logits, (5·500, KEYS)."""
    l = _normal(rng, 5, 500, KEYS) * 10 ** _uniform(rng, -1, 0.7, 5, 500, 1)
    linear = l[2].exp()  # F(l) = 1 + l at logits above −1
    values = [l[0].exp(), (2 * l[1]).exp(), linear, l[3].exp().log1p(), 1 + l[4] ** 2]
    slopes = [l[0].exp(), 2 * (2 * l[1]).exp(), torch.ones_like(linear), l[3].sigmoid(), 2 * l[4]]
    return torch.cat(values), torch.cat(slopes)


def _softmax_jacobian(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def _length(x: Tensor) -> Tensor:
    return x.square().sum(-1).sqrt()


def _signs() -> Tensor:
    """Every vector of KEYS signs, (KEYS, 2^KEYS)."""
    return torch.cartesian_prod(*[_real(-1, 1)] * KEYS).T


def _dense_norms(J: Tensor) -> jacobian.Norms:
    """Every norm of matrices (rows, KEYS, KEYS) by brute force."""
    size = J.abs()
    infinity = torch.maximum(size.sum(-1).amax(-1), size.sum(-2).amax(-1))
    to_one = (J @ _signs()).abs().sum(-2).amax(-1)
    return jacobian.Norms(
        torch.linalg.svdvals(J)[:, 0], J.square().sum((-1, -2)).sqrt(), size.amax((-1, -2)), infinity, to_one
    )


NORM_NAMES = ("spectral", "Frobenius", "largest entry", "∞→∞ and 1→1", "∞→1")


def _example(a: Tensor, epsilon: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The paper's two logit vectors, (0, …, 0, a, a + ε) and (0, …, 0, a + 2ε, a)."""
    zeros = torch.zeros(*a.shape, n - 2, dtype=torch.float64)
    return (
        torch.cat([zeros, torch.stack([a, a + epsilon], -1)], -1),
        torch.cat([zeros, torch.stack([a + 2 * epsilon, a], -1)], -1),
    )


def _printed_logit_distance(epsilon: Tensor) -> Tensor:
    return math.sqrt(5) * epsilon


@statement(
    "B11.1",
    LIMITS,
    place="Section 2.3, example",
    verdict=Verdict.TRUE,
    title="Distance of the two logit vectors",
    claim="The logits (0, …, 0, a, a + ε) and (0, …, 0, a + 2ε, a) are √5·ε apart, whatever a and the length.",
    formula=r"\lVert \ell^{(1)} - \ell^{(2)} \rVert_2 = \sqrt{5}\,\varepsilon",
    proof="Only the last two entries differ, by 2ε and ε.",
)
def example_logits(evidence: Evidence, printed: Function = _printed_logit_distance) -> None:
    a, epsilon = _uniform(evidence.rng, -5, 5, 2000), 10 ** _uniform(evidence.rng, -3, 1, 2000)
    for n in (2, 50):
        first, second = _example(a, epsilon, n)
        error = (_length(first - second) - printed(epsilon)).abs()
        evidence.holds(f"equality, {n} keys", -error, tolerance=1e-12)


def _printed_change(epsilon: Tensor, temperature: Tensor) -> Tensor:
    return math.sqrt(2) * epsilon / temperature


def _change(a: Tensor, epsilon: Tensor, temperature: Tensor, n: int) -> Tensor:
    first, second = (logits / temperature.unsqueeze(-1) for logits in _example(a, epsilon, n))
    return _length(first.softmax(-1) - second.softmax(-1))


@statement(
    "B11.2",
    LIMITS,
    place="Section 2.3, example",
    verdict=Verdict.FALSE,
    title="Change of the weights in the two-logit example",
    claim="Between the two logit vectors the weights change by about √2·ε/T.",
    formula=r"\lVert \alpha^{(1)} - \alpha^{(2)} \rVert_2 \sim \sqrt{2}\,\frac{\varepsilon}{T}",
    correction="Where the two keys hold all the weight, the change is (tanh(ε/T) + tanh(ε/2T))/√2: (3√2/4)·ε/T = "
    "1.0607·ε/T for ε ≪ T, and √2, without the factor ε/T, for ε ≫ T. The printed value exceeds the Lipschitz cap "
    "(√5/2)·ε/T. With the other L − 2 logits at 0, two keys hold all the weight only if a/T ≫ ln L.",
    corrected_formula=r"\frac{1}{\sqrt{2}}\left(\tanh\frac{\varepsilon}{T} + \tanh\frac{\varepsilon}{2T}\right) "
    r"\approx \frac{3\sqrt{2}}{4}\,\frac{\varepsilon}{T}",
    proof="With two keys α₁ is a logistic function of the difference of the logits, which goes from −ε/T to 2ε/T; both "
    "weights move by (tanh(ε/T) + tanh(ε/2T))/2, in opposite directions. The Jacobian's norm is at most 1/(2T) "
    "(B13.1), so no pair √5·ε apart can change by more than √5·ε/(2T).",
)
def example_weights(
    evidence: Evidence, printed: Function = _printed_change, corrected: Function = finite_steps.swap_distance
) -> None:
    T, ratio = 10 ** _uniform(evidence.rng, -2, 1, 2000), 10 ** _uniform(evidence.rng, -4, 2, 2000)
    epsilon, one = ratio * T, _real(1.0)
    cap = math.sqrt(5) / 2
    evidence.quoted("corrected, ε = 10⁻⁶·T, per ε/T", corrected(_real(1e-6), one) * 1e6, "1.0607")
    evidence.near("the same against 3√2/4", corrected(_real(1e-6), one) * 1e6, 3 * math.sqrt(2) / 4, 1e-10)
    evidence.near("corrected, ε = 100·T, against √2", corrected(_real(100.0), one), math.sqrt(2), 1e-12)
    evidence.quoted("Lipschitz cap per ε/T, √5/2", cap, "1.118")
    leading = (50 + ratio) * T  # a: the 8 other keys get e⁻⁵⁰
    error = _change(leading, epsilon, T, 10) - corrected(epsilon, T)
    evidence.holds("corrected = change of the weights, 10 keys", -error.abs(), tolerance=1e-12)
    evidence.breaks("printed ≤ Lipschitz cap", cap * epsilon / T - printed(epsilon, T))
    evidence.breaks("printed ≤ Corollary 3's own cap", math.sqrt(5) / 4 * epsilon / T - printed(epsilon, T))
    gap = (_change(leading, epsilon, T, 10) - printed(epsilon, T)).abs() / printed(epsilon, T)
    evidence.holds("printed misses by a quarter or more, everywhere", gap - 0.25)
    a = _uniform(evidence.rng, 0, 10, 2000)
    evidence.holds("change ≤ Lipschitz cap, any a, 50 keys", cap * epsilon / T - _change(a, epsilon, T, 50))
    diluted = _change(_real(5.0), _real(1e-5), one, 1000) / 1e-5
    evidence.quoted("change per ε/T with L = 1000, a = 5, T = 1", diluted, "0.251")


def _printed_first_term(values: Tensor, slopes: Tensor, n: Tensor | None = None) -> Tensor:
    """‖F′‖·(1/(L·min F) + ‖F‖/(L²·min F²)) with the paper's ‖·‖, a maximum; for n < L only the first n count."""
    L = torch.tensor(values.shape[-1]) if n is None else n
    hidden = torch.arange(values.shape[-1]) >= L.unsqueeze(-1)
    least = values.masked_fill(hidden, torch.inf).amin(-1)
    most, steepest = values.masked_fill(hidden, 0.0).amax(-1), slopes.masked_fill(hidden, 0.0).abs().amax(-1)
    return steepest * (1 / (L * least) + most / (L * least) ** 2)


def _one_large(n: Tensor, kappa: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """F(l) = 1 + l with one F = κ and n − 1 of 1, in rows of ``width``: F, F′ and which keys exist."""
    values = torch.ones(*n.shape, width, dtype=torch.float64)
    values[..., 0] = kappa
    return values, torch.ones_like(values), torch.arange(width) < n.unsqueeze(-1)


@statement(
    "B12.1",
    LIMITS,
    place="Lemma 2, first term of (13)",
    verdict=Verdict.CONDITIONAL,
    title="Bound on the Jacobian of any normaliser",
    claim="For weights F(lᵢ)/ΣF the Jacobian's norm is at most ‖F′‖(1/(L·min F) + ‖F‖/(L²·min F²)), where ‖F‖ and ‖F′‖ "
    "are largest values over the keys.",
    formula=r"\lVert \nabla_l \alpha \rVert_2 \le \lVert F' \rVert \left( \frac{1}{L \min_j F(l_j)} + "
    r"\frac{\lVert F \rVert}{L^2 \min_j F(l_j)^2} \right)",
    correction="True for the largest entry, and, loosely, for softmax's spectral norm. False for the spectral norm of "
    "other F: F(l) = 1 + l with one F = κ and the rest 1 exceeds it from L = 38 on, by √L/8 in the long run. With "
    "g = (log F)′: the spectral and Frobenius norms are at most max|g|/2, entries max|g|/4, row and column sums "
    "max|g|/2, ∞→1 max|g|; and ‖J‖₂ ≤ max|F′|·√L·‖α‖₂/ΣF.",
    corrected_formula=r"\lVert J \rVert_2 \le \lVert J \rVert_F \le \frac{1}{2} \max_j |g_j|, \qquad "
    r"\lVert J \rVert_2 \le \frac{\max |F'| \sqrt{L}\, \lVert \alpha \rVert_2}{\sum_j F(l_j)}",
    proof="J = (diag α − ααᵀ)diag(g). With q_k = Σαᵏ, ‖diag α − ααᵀ‖_F² = q₂ − 2q₃ + q₂² ≤ q₂ − q₂² ≤ 1/4, since q₂² ≤ "
    "q₃ by Cauchy–Schwarz; equality only at two equal weights. Second bound: J = (I − α1ᵀ)diag(F′)/ΣF, and the "
    "projector I − α1ᵀ has the norm √L·‖α‖₂ of its complement. Entries: |F′ⱼ|(δᵢⱼ/ΣF + Fᵢ/(ΣF)²).",
)
def lemma_2(
    evidence: Evidence,
    printed: Function = _printed_first_term,
    corrected: Callable[[Tensor], jacobian.Norms] = normalisers.normaliser_suprema,
    projector: Function = normalisers.projector_bound,
    exact: Function = normalisers.normaliser_spectral_norm,
) -> None:
    values, slopes = _normalisers(evidence.rng)
    tied = _logits(evidence.rng).clamp(-30, 30).exp()
    values, slopes = torch.cat([values, tied]), torch.cat([slopes, tied])
    alpha, g = values / values.sum(-1, keepdim=True), slopes / values
    found = _dense_norms(_softmax_jacobian(alpha) * g.unsqueeze(-2))
    scale = g.abs().amax(-1)
    evidence.holds("printed, entrywise, F general", (printed(values, slopes) - found.entry) / scale)
    evidence.holds("printed, spectral norm, softmax", (printed(tied, tied) - found.spectral[-ROWS:]) / scale[-ROWS:])
    for name, bound, norm in zip(NORM_NAMES, corrected(g), found, strict=True):
        evidence.holds(f"corrected, {name} norm, F general", (bound - norm) / scale)
    two = _dense_norms(_softmax_jacobian(_real(0.5, 0.5, 0, 0, 0, 0).unsqueeze(0)))
    for name, bound, norm in zip(NORM_NAMES, corrected(torch.ones(1, KEYS)), two, strict=True):
        evidence.near(f"corrected is reached at (1/2, 1/2), {name}", bound / norm, 1.0, 1e-12)
    evidence.holds("√L·‖α‖ bound, F general", (projector(values, slopes) - found.spectral) / scale)
    evidence.holds("O(n) norm = dense norm", -(exact(alpha, g) - found.spectral).abs() / scale, tolerance=1e-12)
    _affine_counterexample(evidence, printed, projector, exact)


def _affine_counterexample(evidence: Evidence, printed: Function, projector: Function, exact: Function) -> None:
    L, kappa = torch.tensor([1024]), _real(1024)
    F, slope, _ = _one_large(L, kappa, 1024)
    norm = exact(F / F.sum(-1, keepdim=True), slope / F)
    evidence.quoted("F = 1 + l, L = κ = 1024: exact norm", norm, "0.00782")
    evidence.near("the same by √L·‖α‖/ΣF", projector(F, slope) / norm, 1.0, 1e-12)
    evidence.quoted("the same: printed bound", printed(F, slope), "0.00195")
    evidence.quoted("the same: too small by a factor", norm / printed(F, slope), "4.0")
    L, kappa = torch.meshgrid(torch.arange(2, 41), torch.arange(1, 61), indexing="ij")
    F, slope, seen = _one_large(L, kappa.double(), 40)
    ratio = projector(F, slope, seen) / printed(F, slope, L)
    evidence.quoted(
        "first length at which some κ breaks the printed bound", 2 + (ratio > 1).any(-1).int().argmax(), "38"
    )
    evidence.quoted("the κ that breaks it most there", 1 + ratio[38 - 2].argmax(), "15")
    evidence.breaks("printed, spectral norm, F = 1 + l", 1 - ratio)
    L, kappa = torch.tensor([2**18]), _real(2**18)
    F, slope, _ = _one_large(L, kappa, 2**18)
    growth = projector(F, slope) / printed(F, slope) / (math.sqrt(2**18) / 8)
    evidence.near("factor against √L/8, L = κ = 2¹⁸", growth, 1.0, 1e-4)


def _printed_square_root(temperature: Tensor) -> Tensor:
    return math.sqrt(2) * torch.ones_like(temperature)


def _finite_steps(rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, directions, step lengths and temperatures; half the rows step across a tie of two keys."""
    l, v = _logits(rng), _normal(rng, ROWS, KEYS)
    T, epsilon = 10 ** _uniform(rng, -2, 1, ROWS), 10 ** _uniform(rng, -3, 1, ROWS)
    half = ROWS // 2
    l[:half] = -60 * T[:half, None]
    l[:half, 0], l[:half, 1] = -epsilon[:half] / 8**0.5, epsilon[:half] / 8**0.5
    l[:half, :2] += 60 * T[:half, None] + epsilon[:half, None]
    v[:half] = _real(1, -1, 0, 0, 0, 0)
    return l, v, epsilon, T


@statement(
    "B12.2",
    LIMITS,
    place="Lemma 2, second term of (13)",
    verdict=Verdict.FALSE,
    title="√2 as a bound on the Jacobian",
    claim="The norm of the Jacobian of any normaliser is at most √2.",
    formula=r"\lVert \nabla_l \alpha \rVert_2 \le \sqrt{2}",
    correction="√2 bounds the distance between two weight vectors, not a derivative: a step of length ε changes the "
    "weights by at most √2, so the quotient by at most √2/ε, which grows without limit as ε → 0. The Jacobian of "
    "softmax at (1/2, 1/2) has norm 1/(2T).",
    corrected_formula=r"\frac{\lVert \alpha' - \alpha \rVert_2}{\varepsilon} \le \min\left\{\frac{1}{2T}, "
    r"\frac{\sqrt{2}}{\varepsilon}\right\}",
    proof="Two probability vectors are at most √2 apart. For the derivative take logits (0, 0) and T < 1/(2√2).",
)
def square_root_cap(
    evidence: Evidence, printed: Function = _printed_square_root, corrected: Function = finite_steps.sensitivity_cap
) -> None:
    temperatures = 10 ** _uniform(evidence.rng, -3, -1, 500)
    norms = jacobian.spectral_norm(_logits(evidence.rng, 500).softmax(-1), temperatures)
    evidence.breaks("printed, softmax at T from 0.001 to 0.1", printed(temperatures) - norms)
    tie = jacobian.spectral_norm(_real(0.5, 0.5), _real(0.1))
    evidence.breaks("printed at two equal logits, T = 0.1 (norm 5)", printed(_real(0.1)) - tie)
    largest = _real(0.35, 0.36)  # on either side of 1/(2√2) = 0.3536
    slack = printed(largest) - jacobian.spectral_norm(_real(0.5, 0.5), largest)
    evidence.true("printed fails below T = 1/(2√2), holds above", slack[0] < 0 < slack[1], f"slacks {slack.tolist()}")
    l, v, epsilon, T = _finite_steps(evidence.rng)
    g = finite_steps.sensitivity(l, v, epsilon, T)
    evidence.holds("corrected, finite steps", corrected(epsilon, T) / g.clamp(min=1e-300) - 1)
    closest = (g / corrected(epsilon, T)).amax()
    evidence.near("corrected is approached (ratio)", closest, 1.0, 1e-3)


def _printed_softmax_law(temperature: Tensor) -> Tensor:
    return 1 / (4 * temperature)


def _softmax_first_term(spread: Tensor, n: int, temperature: Tensor) -> Tensor:
    """(1/T)(k/L + k²/L²) with k = e^(δ/T)."""
    k = (spread / temperature).exp()
    return (k / n + (k / n) ** 2) / temperature


@statement(
    "B12.3",
    LIMITS,
    place="Contribution 3, Corollary 3 from Lemma 2",
    verdict=Verdict.FALSE,
    title="What Lemma 2 gives for softmax",
    claim="Specialised to softmax, the bound of Lemma 2 becomes 1/(4T).",
    formula=r"\lVert F' \rVert \left( \frac{1}{L \min F} + \frac{\lVert F \rVert}{L^2 \min F^2} \right) = \frac{1}{4T}",
    correction="It becomes (1/T)(k/L + k²/L²) with k = e^{δ/T}, δ the spread of the logits: far below 1/(4T) for equal "
    "logits at large L (there it is right, and 1/(4T) loose), and exponentially above it for spread logits.",
    corrected_formula=r"\frac{1}{T} \left( \frac{k}{L} + \frac{k^2}{L^2} \right), \qquad k = e^{\delta / T}",
    proof="F = e^{l/T}, F′ = F/T, so ‖F′‖/min F = k/T and ‖F′‖·‖F‖/min F² = k²/T.",
)
def lemma_2_for_softmax(
    evidence: Evidence,
    first_term: Function = _printed_first_term,
    printed: Function = _printed_softmax_law,
    corrected: Function = _softmax_first_term,
) -> None:
    l = _uniform(evidence.rng, -1, 1, ROWS, KEYS) * _uniform(evidence.rng, 0, 3, ROWS, 1)
    T = 10 ** _uniform(evidence.rng, -0.5, 1, ROWS)
    F = (l / T.unsqueeze(-1)).exp()
    term = first_term(F, F / T.unsqueeze(-1))
    expected = corrected(l.amax(-1) - l.amin(-1), KEYS, T)
    evidence.holds("first term = (1/T)(k/L + k²/L²)", -(term / expected - 1).abs(), tolerance=1e-12)
    evidence.breaks("first term ≤ 1/(4T)", printed(T) - term)
    equal = torch.ones(1, 1024, dtype=torch.float64)
    evidence.breaks("first term ≥ 1/(4T), equal logits, L = 1024", first_term(equal, equal) - printed(_real(1.0)))
    evidence.near("1/(4T) over the first term there", printed(_real(1.0)) / first_term(equal, equal), 256, 0.5)


@statement(
    "B12.4",
    LIMITS,
    place="Section 2.3, after Lemma 2",
    verdict=Verdict.FALSE,
    title="A vanishing F as a cause of sensitivity",
    claim="Because the bound grows when any F(lⱼ) tends to 0, sharply peaked normalisers have large Jacobian norms.",
    formula=r"\min_j F(l_j) \to 0 \;\Rightarrow\; \lVert \nabla_l \alpha \rVert \to \infty",
    correction="The growth is the bound's, not the Jacobian's. The norm is at most max|(log F)′|/2 however small "
    "min F is; for softmax, 1/(2T). As the weaker of two logits falls the bound explodes and the norm tends to 0.",
    corrected_formula=r"\lVert \nabla_l \alpha \rVert_2 \le \frac{1}{2} \max_j |(\log F)'(l_j)|",
    proof="B12.1. For softmax on two keys ‖J‖ = 2p(1 − p)/T, which falls as p leaves 1/2.",
)
def vanishing_values(
    evidence: Evidence,
    printed: Function = _printed_first_term,
    corrected: Callable[[Tensor], jacobian.Norms] = normalisers.normaliser_suprema,
) -> None:
    falling = torch.stack([torch.zeros(40), -torch.linspace(0, 20, 40)], -1).double()
    F = falling.exp()
    bound, norm = printed(F, F), jacobian.spectral_norm(falling.softmax(-1))
    evidence.holds("printed bound grows as the weaker logit falls", bound.diff() / bound[:-1], tolerance=0.0)
    evidence.holds("the norm falls meanwhile", -norm.diff(), tolerance=0.0)
    evidence.true("bound over norm at a gap of 20", bound[-1] / norm[-1] > 1e20, f"{float(bound[-1] / norm[-1]):.2g}")
    values, slopes = _normalisers(evidence.rng)
    vanishing = 10 ** _uniform(evidence.rng, -12, 0, len(values))
    values[:, 0], slopes[:, 0] = vanishing, vanishing * _uniform(evidence.rng, -1, 1, len(values))
    alpha, g = values / values.sum(-1, keepdim=True), slopes / values
    norms, scale = _dense_norms(_softmax_jacobian(alpha) * g.unsqueeze(-2)).spectral, g.abs().amax(-1)
    evidence.holds("corrected, one F down to 1e-12", (corrected(g).spectral - norms) / scale)
    tie = normalisers.normaliser_spectral_norm(_real(1, 1, 1e-30) / 2, _real(1, 1, 1))
    evidence.near("corrected is reached, F = (1, 1, 1e-30)", corrected(_real(1, 1, 1)).spectral / tie, 1.0, 1e-12)


def _printed_corollary(temperature: Tensor) -> Tensor:
    return (1 / (4 * temperature)).clamp(max=math.sqrt(2))


def _climb(rng: torch.Generator, n: int = 5, rows: int = 64, steps: int = 80) -> Tensor:
    """Logits after gradient ascent on vᵀ(diag p − ppᵀ)v, v the top eigenvector of the moment."""
    l = _normal(rng, rows, n)
    for _ in range(steps):
        p = l.softmax(-1)
        v = torch.linalg.eigh(_softmax_jacobian(p)).eigenvectors[..., -1]
        deviation = (v - (p * v).sum(-1, keepdim=True)).square()
        l = l + 4 * p * (deviation - (p * deviation).sum(-1, keepdim=True))
    return l


@statement(
    "B13.1",
    LIMITS,
    place="Corollary 3",
    verdict=Verdict.FALSE,
    title="Norm of softmax's Jacobian",
    claim="The norm of softmax's Jacobian at temperature T is at most 1/(4T), and at most √2.",
    formula=r"\lVert \nabla_l \alpha \rVert_2 \le \min\left\{\frac{1}{4T}, \sqrt{2}\right\}",
    correction="Spectral and Frobenius norm: at most 1/(2T), reached at (1/2, 1/2). The largest entry: 1/(4T), the "
    "'classic' quarter. Row and column sums: max 2p(1−p)/T ≤ 1/(2T). ∞→1: max 4p(S)(1−p(S))/T ≤ 1/T. None has a cap "
    "that is free of T. From the two largest weights: 2p₁p₂/(p₁+p₂) ≤ T‖J‖₂ ≤ p₁(1−p₁+p₂).",
    corrected_formula=r"\lVert J \rVert_2 \le \lVert J \rVert_F \le \frac{1}{2T}, \qquad "
    r"\max_{i,j} |J_{ij}| \le \frac{1}{4T}",
    proof="TJ = diag p − ppᵀ; ‖TJ‖_F² = q₂ − 2q₃ + q₂² ≤ q₂ − q₂² ≤ 1/4 with q_k = Σpᵏ. The bounds from two weights "
    "bracket the root of the secular equation Σp/(p − λ) = 0 (theory/jacobian.py).",
)
def corollary_3(
    evidence: Evidence,
    printed: Function = _printed_corollary,
    corrected: Callable[[Tensor], jacobian.Norms] = jacobian.suprema,
    exact: Function = jacobian.spectral_norm,
    bounds: Callable[..., Bounds] = jacobian.spectral_bounds,
    sums: Function = jacobian.infinity_norm,
    to_one: Callable[..., Bounds] = jacobian.infinity_to_one_norm,
) -> None:
    tie = _real(0, 0, -50)
    for temperature, norm, cap in ((1.0, 0.5, "0.25"), (0.1, 5.0, "1.414"), (0.01, 50.0, "1.414")):
        at = _real(temperature)
        found = exact((tie / at).softmax(-1).unsqueeze(0), at)
        evidence.near(f"logits (0, 0, −50), T = {temperature:g}: norm", found, norm, 1e-12)
        evidence.quoted(f"T = {temperature:g}: printed cap", printed(at), cap)
        evidence.breaks(f"printed, T = {temperature:g}", printed(at) - found)
    T = 10 ** _uniform(evidence.rng, -2, 1, ROWS)
    p = (_logits(evidence.rng) / T.unsqueeze(-1)).softmax(-1)
    dense = _dense_norms(_softmax_jacobian(p))
    for name, cap_of, norm_of in zip(NORM_NAMES, corrected(T), dense, strict=True):
        evidence.holds(f"corrected, {name}", cap_of * T - norm_of)
    half = _dense_norms(_softmax_jacobian(_real(0.5, 0.5, 0, 0, 0, 0).unsqueeze(0)))
    for name, cap_of, norm_of in zip(NORM_NAMES, corrected(_real(1.0)), half, strict=True):
        evidence.near(f"corrected is reached at (1/2, 1/2), {name}", cap_of / norm_of, 1.0, 1e-12)
    evidence.holds("O(n) norm = dense eigenvalue", -(exact(p, T) * T - dense.spectral).abs(), tolerance=1e-12)
    evidence.holds("max 2p(1−p) = largest row and column sum", -(sums(p) - dense.infinity).abs(), tolerance=1e-12)
    error = (torch.stack(to_one(p)) - dense.infinity_to_one).abs().amax(0)
    evidence.holds("max 4p(S)(1−p(S)) = ∞→1 norm, every sign tried", -error, tolerance=1e-12)
    low, high = bounds(p)
    ranked = p.sort(-1, descending=True).values
    evidence.holds("2p₁p₂/(p₁+p₂) ≤ T‖J‖", dense.spectral - low)
    evidence.holds("T‖J‖ ≤ p₁(1−p₁+p₂)", high - dense.spectral)
    evidence.holds("interlacing p₂ ≤ T‖J‖", low - ranked[:, 1])
    evidence.holds("T‖J‖ ≤ min(p₁, max 2p(1−p))", torch.minimum(ranked[:, 0], dense.infinity) - high)
    climbed = exact(_climb(evidence.rng).softmax(-1), _real(1.0))
    evidence.holds("corrected after gradient ascent", corrected(_real(1.0)).spectral - climbed)
    evidence.near("the ascent's best norm, T = 1", climbed.amax(), 0.5, 0.02)


def _optimised(rng: torch.Generator, epsilon: float, temperature: float, starts: int = 24) -> Tensor:
    """The largest g(T, ε) that L-BFGS finds over logits and directions of three keys, from random starts."""
    from scipy.optimize import minimize

    start = _normal(rng, starts, 5)  # two logits in units of T, the third being 0, and a direction
    start[:, 0] -= 45  # one key starts, and may stay, out of reach

    def measured(x: Tensor) -> Tensor:
        l, v = torch.nn.functional.pad(x[:, :2], (0, 1)), torch.nn.functional.normalize(x[:, 2:], dim=-1)
        return _length((l + epsilon / temperature * v).softmax(-1) - l.softmax(-1)) / epsilon

    def loss(flat: object) -> tuple[float, object]:
        x = torch.as_tensor(flat).view(-1, 5).requires_grad_()
        total = -measured(x).sum()
        (slope,) = torch.autograd.grad(total, x)
        return float(total.detach()), slope.flatten().numpy()

    def ascended(x: Tensor) -> Tensor:
        found = minimize(loss, x.flatten().numpy(), jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-12})
        return torch.as_tensor(found.x).view(-1, 5)

    together = ascended(start)
    return measured(ascended(together[measured(together).argmax()])).amax()


def _sensitivity_curve() -> Curve:
    T = torch.logspace(-3, 1, 60, dtype=torch.float64)
    lines: dict[str, Sequence[float]] = {
        f"supremum, ε = {e:g}": finite_steps.largest_sensitivity(_real(e), T).tolist() for e in (1e-3, 0.1, 10.0)
    }
    printed = {"printed min{1/(4T), √2}": _printed_corollary(T).tolist()}
    return Curve(T.tolist(), lines | printed, "temperature T", "g(T, ε)", log_x=True, log_y=True)


@statement(
    "B13.2",
    LIMITS,
    place="Section 3.3 and Figure 4",
    verdict=Verdict.FALSE,
    title="Bound on finite differences",
    claim="The finite difference g(T, ε) = ‖α(l + εv) − α(l)‖/ε, ‖v‖ = 1, is bounded by min{1/(4T), √2}.",
    formula=r"g(T, \varepsilon) \le \min\left\{\frac{1}{4T}, \sqrt{2}\right\}",
    correction="The exact supremum over logits and directions is (√2/ε)·tanh(ε/(2√2·T)), at most 1/(2T) and √2/ε.",
    corrected_formula=r"\sup g(T, \varepsilon) = \frac{\sqrt{2}}{\varepsilon} \tanh \frac{\varepsilon}{2\sqrt{2}\,T} "
    r"\le \min\left\{\frac{1}{2T}, \frac{\sqrt{2}}{\varepsilon}\right\}",
    proof="The log-odds of the keys that gain rise by at most (max v − min v)ε/T ≤ √2·ε/T, so the weight they gain is "
    "at most tanh(√2·ε/(4T)), and a vector of sum 0 with positive part t has norm at most √2·t. Two keys symmetric "
    "about a tie reach it.",
    curve=_sensitivity_curve,
)
def finite_differences(
    evidence: Evidence,
    printed: Function = _printed_corollary,
    corrected: Function = finite_steps.largest_sensitivity,
    cap: Function = finite_steps.sensitivity_cap,
) -> None:
    for temperature, step, value in ((1.0, 0.1, "0.499792"), (0.1, 0.1, "4.801582"), (1.0, 10.0, "0.141181")):
        best, formula = _optimised(evidence.rng, step, temperature), corrected(_real(step), _real(temperature))
        evidence.quoted(f"largest g found, T = {temperature:g}, ε = {step:g}", best, value)
        evidence.near("found / formula", best / formula, 1.0, 1e-9)
    l, v, epsilon, T = _finite_steps(evidence.rng)
    g = finite_steps.sensitivity(l, v, epsilon, T)
    evidence.holds("corrected, any logits and directions", 1 - g / corrected(epsilon, T))
    reached = (g / corrected(epsilon, T))[: ROWS // 2]
    evidence.holds("corrected is reached across a tie", reached - 1, tolerance=1e-6)
    evidence.holds("supremum ≤ min{1/(2T), √2/ε}", 1 - corrected(epsilon, T) / cap(epsilon, T))
    extremes = corrected(_real(1e-6, 1e6), _real(1.0)) / cap(_real(1e-6, 1e6), _real(1.0))
    evidence.holds("both regimes of the cap are reached", extremes - 1)
    evidence.breaks("printed", printed(T) - g)


def _two_key_norm(temperature: Tensor) -> Tensor:
    """‖J‖ at logits (0, 1): sech²(1/2T)/(2T)."""
    x = 1 / (2 * temperature)
    return x / x.cosh().square()


def _two_key_curve() -> Curve:
    T = torch.logspace(-1, 1, 60, dtype=torch.float64)
    lines: dict[str, Sequence[float]] = {
        "norm at logits (0, 1)": _two_key_norm(T).tolist(),
        "envelope 1/(2T)": (1 / (2 * T)).tolist(),
    }
    return Curve(T.tolist(), lines, "temperature T", "‖J‖₂", log_x=True, log_y=True)


@statement(
    "B13.3",
    LIMITS,
    place="Section 2.3, after Corollary 3",
    verdict=Verdict.FALSE,
    title="Sharper softmax, larger Jacobian",
    claim="A smaller temperature inflates the Jacobian's norm, like 1/T.",
    formula=r"T \downarrow \;\Rightarrow\; \lVert \nabla_l \alpha \rVert_2 \uparrow",
    correction="For fixed logits without a tie at the top the norm tends to 0 as T → 0: at (0, 1) it is "
    "sech²(1/2T)/(2T), largest at T = 0.6479. 1/(2T) is an envelope, reached only where two keys tie.",
    corrected_formula=r"\lVert J \rVert_2 = \frac{1}{2T}\,\mathrm{sech}^2 \frac{1}{2T} \quad (\ell = (0, 1))",
    proof="With two keys ‖J‖ = 2p(1−p)/T and p(1−p) = sech²(1/2T)/4, exponentially small in 1/T. In general "
    "T‖J‖ ≤ 2p₁(1−p₁), and 1 − p₁ falls like e^{−gap/T}.",
    curve=_two_key_curve,
)
def sharper_is_steeper(
    evidence: Evidence, exact: Function = jacobian.spectral_norm, corrected: Function = _two_key_norm
) -> None:
    def norm(T: Tensor) -> Tensor:
        return exact((_real(0, 1) / T.unsqueeze(-1)).softmax(-1), T)

    steepest = 0.75  # x = 1/(2T) at the maximum of x·sech²x: 2x·tanh x = 1, by Newton
    for _ in range(20):
        slope = math.tanh(steepest) + steepest / math.cosh(steepest) ** 2
        steepest -= (steepest * math.tanh(steepest) - 0.5) / slope
    best = _real(1 / (2 * steepest))
    evidence.quoted("norm at T = 10", norm(_real(10.0)), "0.0499")
    evidence.quoted("the temperature of the largest norm", best, "0.6479")
    evidence.quoted("norm there", norm(best), "0.4477")
    evidence.quoted("norm at T = 0.1", norm(_real(0.1)), "9.1e-4")
    evidence.quoted("norm at T = 0.01", norm(_real(0.01)), "7.44e-42")  # 200·e⁻¹⁰⁰; our notes had 6e-42, a slip
    T = 10 ** _uniform(evidence.rng, -2, 1, 2000)
    evidence.holds("norm = sech²(1/2T)/(2T)", -(norm(T) / corrected(T) - 1).abs(), tolerance=1e-11)
    evidence.holds("no temperature gives more", norm(best) - norm(T))
    rising = norm(torch.logspace(1, -2, 200, dtype=torch.float64)).diff()
    evidence.breaks("the norm grows as T falls", rising)
    z = _logits(evidence.rng)
    norms = exact((z / T[:1].unsqueeze(-1)).softmax(-1), T[:1])
    evidence.holds("envelope 1/(2T)", 1 / (2 * T[0]) - norms)
    spread = _normal(evidence.rng, 500, KEYS)
    spread[:, 0] = spread.amax(-1) + 1
    cold = exact((spread / 0.01).softmax(-1), _real(0.01))
    evidence.holds("top leads by 1, T = 0.01: norm below 10⁻³⁸", 1e-38 - cold, tolerance=0.0)


@statement(
    "B13.4",
    LIMITS,
    place="Section 3.3; Algorithm 5, as a secondary copy of the appendix has it",
    verdict=Verdict.FALSE,
    title="Random directions as a measure of the norm",
    claim="The finite difference along a unit direction (drawn at random, by Algorithm 5) approximates the norm of the "
    "Jacobian.",
    formula=r"g(T, \varepsilon) \approx \lVert \nabla_l \alpha \rVert_2, \qquad \Delta\ell \ \mathrm{random}",
    correction="A random direction sees the average, not the largest, singular value: E‖Jv‖² = ‖J‖_F²/L. For a tie of "
    "two keys among L = 1024 the norm is 0.5 and the mean random g is 0.0125, 40 times less. So Figure 4 cannot test "
    "Corollary 3; the worst direction, in O(n), can.",
    corrected_formula=r"\mathbb{E} \lVert J v \rVert_2^2 = \frac{\lVert J \rVert_F^2}{L}",
    proof="E vvᵀ = I/L for v uniform on the sphere, so E vᵀJᵀJv = tr(JᵀJ)/L. For the tie ‖Jv‖ = |v₁ − v₂|·√2/4 and "
    "E|v₁ − v₂| = √2·Γ(L/2)/(√π·Γ((L+1)/2)).",
)
def random_directions(
    evidence: Evidence,
    corrected: Function = jacobian.mean_square_sensitivity,
    spectral: Function = jacobian.spectral_norm,
    worst: Function = jacobian.worst_direction,
) -> None:
    L = 1024
    logits = torch.full((L,), -60.0, dtype=torch.float64)
    logits[:2] = 0
    p = logits.softmax(-1)
    mean = 0.5 * math.exp(math.lgamma(L / 2) - math.lgamma((L + 1) / 2)) / math.sqrt(math.pi)
    evidence.quoted("tie of two among 1024: norm", spectral(p), "0.5")
    evidence.quoted("mean ‖Jv‖ over random directions", mean, "0.0125")
    evidence.quoted("norm over that mean", float(spectral(p)) / mean, "40")
    v = _normal(evidence.rng, 2000, L)
    g = finite_steps.sensitivity(logits, v, _real(1e-6))
    error = 5 * float(g.std()) / math.sqrt(len(g))
    evidence.near("the same mean, sampled", g.mean(), mean, error)
    squares = g.square()
    error = 5 * float(squares.std()) / math.sqrt(len(g))
    evidence.near("mean g², sampled, against ‖J‖_F²/L", squares.mean(), float(corrected(p)), error)
    evidence.breaks("random g ≥ half the norm", g - spectral(p) / 2)
    evidence.near("g along the worst direction", finite_steps.sensitivity(logits, worst(p), _real(1e-6)), 0.5, 1e-9)
    rows = _logits(evidence.rng).softmax(-1)
    basis = torch.linalg.qr(_normal(evidence.rng, ROWS, KEYS, KEYS)).Q
    average = (_softmax_jacobian(rows) @ basis).square().sum((-1, -2)) / KEYS  # of ‖Jv‖² over a random basis: exact
    evidence.holds("‖J‖_F²/L = mean over a basis", -(corrected(rows) - average).abs(), tolerance=1e-14)
    evidence.holds("‖J‖_F²/L ≤ ‖J‖₂²", spectral(rows).square() - corrected(rows))
    direction = worst(rows)
    moved = _length((_softmax_jacobian(rows) @ direction.unsqueeze(-1)).squeeze(-1))
    evidence.holds("the worst direction reaches the norm", -(moved - spectral(rows)).abs(), tolerance=1e-12)


@statement(
    "B13.5",
    LIMITS,
    place="Section 3.3",
    verdict=Verdict.FALSE,
    title="Why a smaller step measures a larger gradient",
    claim="Smaller ε gives larger finite differences because the sharpest logits dominate the variation.",
    formula=r"\varepsilon \downarrow \;\Rightarrow\; g(T, \varepsilon) \uparrow",
    correction="The order comes from the cap √2/ε: the numerator cannot exceed √2, so a long step must measure little. "
    "Sharp logits show the opposite order: without a tie, a short step measures almost nothing and a longer one more.",
    corrected_formula=r"g(T, \varepsilon) \le \frac{\sqrt{2}}{\varepsilon} \tanh \frac{\varepsilon}{2\sqrt{2}\,T}",
    proof="tanh(x)/x falls with x, so the supremum falls with ε at every T. At a gap of 20T the derivative is of order "
    "e⁻²⁰/T, while a step of 10T along (−1, 1)/√2 narrows the gap to 6T.",
)
def smaller_steps(
    evidence: Evidence,
    corrected: Function = finite_steps.largest_sensitivity,
    measured: Function = finite_steps.sensitivity,
) -> None:
    T = 10 ** _uniform(evidence.rng, -3, 1, 2000)
    suprema = torch.stack([corrected(_real(epsilon), T) for epsilon in (1e-3, 0.1, 10.0)])
    evidence.holds("the supremum falls with ε at every T", (suprema[:-1] - suprema[1:]) * T, tolerance=1e-12)
    capped = corrected(_real(0.1, 10.0), _real(1e-3)) * _real(0.1, 10.0) / math.sqrt(2)
    evidence.holds("at T = 0.001 it is √2/ε", -(capped - 1).abs(), tolerance=1e-12)
    steps = _real(1e-3, 0.1, 10.0)
    tied = measured(torch.zeros(3, 2), _real(1, -1).expand(3, 2), steps)
    evidence.holds("two equal logits, not sharp: g falls with ε", -tied.diff(), tolerance=0.0)
    sharp = measured(_real(0, -20).expand(3, 2), _real(-1, 1).expand(3, 2), steps)
    evidence.breaks("a gap of 20: g falls with ε", -sharp.diff())
    l, v, epsilon, temperatures = _finite_steps(evidence.rng)
    bound = corrected(epsilon, temperatures)
    evidence.holds("g ≤ supremum", 1 - measured(l, v, epsilon, temperatures) / bound)
