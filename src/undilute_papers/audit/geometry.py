"""Is what arXiv:2508.17821 says about the geometry of selected tokens true?  Theorem 2 and the 80 % ceiling.

Sampled figures of the audit's notes are compared with means over several draws, within the distance of the quoted draw
from the mean plus five standard errors. Set-ups that the notes leave open: weights (.4, .3, .2, .1) for the equilateral
cluster, δ = 0.98 for example (c) of Theorem 2, equal weights behind the heavy one for the sharp head.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from undilute_papers.audit.selection import lengths, normal, uniform, unit
from undilute_papers.audit.sources import LIMITS
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement
from undilute_papers.theory import distance, separability

Cap = Callable[..., Tensor]


def unordered_xi(weights: Tensor, separation: Tensor | float) -> Tensor:
    """ξᵢ for M = 1 if the double sum of equation (12) counts each pair once."""
    A, a2 = _others(weights), _others(weights.square())
    return (a2 + _largest_cosine(separation) * (A.square() - a2) / 2).clamp(min=0.0).sqrt()


def literal_xi(weights: Tensor, separation: Tensor | float) -> Tensor:
    """ξᵢ for M = 1 with “j ≠ k ≠ i” read to the letter, which leaves j = i in."""
    total = weights.sum(-1, keepdim=True)
    pairs = _others(weights * (total - weights))
    return (_others(weights.square()) + _largest_cosine(separation) * pairs).clamp(min=0.0).sqrt()


def printed_upper(weights: Tensor, radius: Tensor | float, separation: Tensor | float) -> Tensor:
    """Theorem 2, upper bound as printed, M = 1: (1/N) Σ exp(−(r−ξᵢ)²/16)."""
    r = torch.as_tensor(radius, dtype=torch.float64)[..., None]
    return (-(r - separability.xi(weights, separation)).square() / 16).exp().mean(-1)


def _largest_cosine(separation: Tensor | float) -> Tensor:
    """1 − δ²/2: unit vectors that are δ apart have no larger inner product."""
    return 1 - torch.as_tensor(separation, dtype=torch.float64)[..., None] ** 2 / 2


def _others(values: Tensor) -> Tensor:
    return values.sum(-1, keepdim=True) - values


# Data


def some_weights(rng: torch.Generator, count: int, size: int) -> Tensor:
    """Weights of selected tokens, from equal to one that dominates, with any total up to 1."""
    spread = 3 * uniform(rng, count, 1)
    spread[::4] = 0.0
    return (0.2 + 0.8 * uniform(rng, count, 1)) * (spread * normal(rng, count, size)).softmax(-1)


def to_context(weights: Tensor, x: Tensor) -> Tensor:
    """Xᵢ when every token given is selected."""
    every = torch.ones(x.shape[:-1], dtype=torch.bool)
    return separability.distances_to_context(weights, x, every)


def smallest_separation(x: Tensor) -> Tensor:
    """δ: the smallest distance between two of the vectors."""
    size = x.shape[-2]
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    return apart.masked_fill(torch.eye(size, dtype=torch.bool), torch.inf).amin((-2, -1))


def equilateral(size: int, separation: Tensor) -> Tensor:
    """Unit vectors of which any two are δ apart, from their Gram matrix: (..., size, size)."""
    off = (1 - separation**2 / 2)[..., None, None]
    gram = off + (1 - off) * torch.eye(size, dtype=torch.float64)
    factor: Tensor = torch.linalg.cholesky(gram)
    return factor


def separable(weights: Tensor, x: Tensor, radius: Tensor | float) -> Tensor:
    """N_s/N of the closed ball, every token given being selected."""
    return (to_context(weights, x) <= torch.as_tensor(radius)[..., None]).to(torch.float64).mean(-1)


# Theorem 2, lower bound


@statement(
    "B8.1",
    LIMITS,
    place="Theorem 2, lower bound, and equation (12)",
    verdict=Verdict.CONDITIONAL,
    title="Lower bound on the separable fraction",
    claim="With ξᵢ² = M² Σ αⱼ² + (M² − δ²/2) Σ αⱼαₖ, sums over the selected tokens except i, the expected separable "
    "fraction is at least 1 − (1/rN) Σ ξᵢ.",
    formula=r"\frac{E[N_s]}{N} \ge 1-\frac{1}{rN}\sum_i \xi_i",
    correction="True if the double sum runs over ordered pairs j ≠ k, both different from i. Counting each pair once "
    "makes it fail; letting j = i, as “j ≠ k ≠ i” can be read, keeps it true but loose (as long as δ ≤ √2·M). More is "
    "true: under Assumption 2 the distance Xᵢ never exceeds ξᵢ, so every i with ξᵢ ≤ r is counted, and each term may "
    "be clipped at 0.",
    corrected_formula=r"X_i \le \xi_i,\quad \xi_i^2 = M^2A_i^2-\frac{\delta^2}{2}(A_i^2-a_i^2),\quad "
    r"\frac{E[N_s]}{N} \ge \frac{1}{N}\sum_i\max(0,1-\xi_i/r)",
    proof="‖xⱼ−xₖ‖ ≥ δ means ⟨xⱼ, xₖ⟩ ≤ M² − δ²/2. Put that into Xᵢ² = Σ αⱼ²M² + Σ_{j≠k} αⱼαₖ⟨xⱼ, xₖ⟩, where every "
    "pair occurs twice. Then Markov's inequality, P(Xᵢ > r) ≤ E Xᵢ / r ≤ ξᵢ / r.",
)
def lower_bound(
    evidence: Evidence,
    ordered: Cap = separability.xi,
    unordered: Cap = unordered_xi,
    literal: Cap = literal_xi,
    bound: Cap = separability.fraction_lower_bound,
    certain: Cap = separability.certain_fraction,
) -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    cluster = equilateral(4, torch.tensor(0.3, dtype=torch.float64))
    X, xi, half = to_context(weights, cluster), ordered(weights, 0.3), unordered(weights, 0.3)
    quoted = ((".592", ".495"), (".691", ".586"), (".789", ".664"), (".887", ".734"))
    for i, (distance_, once) in enumerate(quoted):
        evidence.quoted(f"X of token {i + 1}, equilateral cluster, N = 4, δ = 0.3", X[i], distance_)
        evidence.quoted(f"ξ of token {i + 1}, ordered pairs", xi[i], distance_)
        evidence.quoted(f"ξ of token {i + 1}, each pair once", half[i], once)
    slack: dict[str, list[Tensor]] = {"ordered": [], "once": [], "literal": [], "bound": [], "certain": []}
    for size, dim in ((2, 3), (4, 4), (6, 8), (10, 32)):
        weights = some_weights(evidence.rng, 800, size)
        x = unit(normal(evidence.rng, 800, size, dim))
        x[::2] = unit(x[::2] + 2 * unit(normal(evidence.rng, 400, 1, dim)))
        x[::4, :, :size] = equilateral(size, 0.1 + uniform(evidence.rng, 200))
        x[::4, :, size:] = 0.0
        delta, X = smallest_separation(x), to_context(weights, x)
        slack["ordered"].append((ordered(weights, delta) - X).flatten())
        slack["once"].append((unordered(weights, delta) - X).flatten())
        slack["literal"].append((literal(weights, delta) - ordered(weights, delta))[delta <= math.sqrt(2)].flatten())
        r = X.mean(-1) * (0.5 + uniform(evidence.rng, 800)) + 1e-9
        counted = separable(weights, x, r + 1e-12)
        slack["certain"].append(counted - certain(weights, r - 1e-12, delta))
        slack["bound"].append(counted - bound(weights, r, delta))  # X ≤ ξ surely: no expectation needed
    evidence.holds("X ≤ ξ, ordered pairs: random and equilateral sets", torch.cat(slack["ordered"]))
    evidence.breaks("X ≤ ξ, each pair once (our notes: 7.9 % of samples exceed it)", torch.cat(slack["once"]))
    evidence.holds("ξ read to the letter is no smaller", torch.cat(slack["literal"]))
    evidence.true("and often larger", (torch.cat(slack["literal"]) > 0.01).any(), "by more than 0.01")
    evidence.holds("N_s ≥ #{i : ξᵢ ≤ r}, every sample", torch.cat(slack["certain"]))
    evidence.holds("N_s/N ≥ (1/N) Σ max(0, 1 − ξᵢ/r), every sample", torch.cat(slack["bound"]))
    far = bound(torch.full((10,), 0.1, dtype=torch.float64), 10.0, 0.98)
    evidence.quoted("that bound for ten equal weights, δ = 0.98, r = 10", far, ".932")
    alone = certain(torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64), 0.7, 0.3)
    evidence.near("certain fraction of the cluster at r = 0.7: two of four", alone, 0.5, 0.0)


@statement(
    "B8.2",
    LIMITS,
    place="Assumptions 1 and 2",
    verdict=Verdict.CONDITIONAL,
    title="Uniform and separated at once",
    claim="The embeddings are drawn uniformly from a sphere and any two of them are at least δ > 0 apart.",
    formula=r"x_i\sim U(S^{d-1}(M)),\quad \min_{i\ne j}\lVert x_i-x_j\rVert = \delta > 0",
    correction="Possible without independence: turn one separated set at random. But the theorem uses independence, "
    "which is not stated, and independent uniform points come arbitrarily close: no fixed δ exists. Under Assumption 1 "
    "with independence E Xᵢ² = M²aᵢ² exactly; Assumption 2 can be added as a condition of probability π, at the price "
    "of a factor 1/π.",
    corrected_formula=r"E[X_i^2]=M^2\sum_{j\ne i}\alpha_j^2,\quad P(\lVert x_1-x_2\rVert\le\delta)>0",
    proof="Two independent uniform points on the unit sphere of R³ are within δ with probability δ²/4. For the second "
    "moment: E⟨xⱼ, xₖ⟩ = 0 for j ≠ k. A random rotation makes every point uniform and keeps all distances.",
)
def assumptions(
    evidence: Evidence,
    close: Callable[[float], float] = lambda delta: delta**2 / 4,
    second_moment: Callable[[Tensor], Tensor] = lambda weights: _others(weights.square()),
) -> None:
    draws = 400_000
    x = unit(normal(evidence.rng, draws, 2, 3))
    apart = lengths(x[:, 0] - x[:, 1])
    for delta in (0.2, 0.5, 1.0):
        p = delta**2 / 4
        share = (apart <= delta).to(torch.float64).mean()
        evidence.near(
            f"P(two points of the sphere are within {delta:g})", share, close(delta), 6 * math.sqrt(p / draws)
        )
    ten = smallest_separation(unit(normal(evidence.rng, 2000, 10, 3)))
    evidence.breaks("any two of ten points are 0.2 apart, d = 3", ten - 0.2)
    weights = torch.tensor([0.5, 0.2, 0.1, 0.05, 0.05, 0.03, 0.02], dtype=torch.float64)
    squares = to_context(weights, unit(normal(evidence.rng, 4000, 7, 8))).square()
    error = (squares.mean(0) - second_moment(weights)) / (squares.std(0) / math.sqrt(4000))
    evidence.near("E Xᵢ² against M²aᵢ², in standard errors, largest of seven", error.abs().max(), 0.0, 6.0)
    weights = some_weights(evidence.rng, 500, 6)
    off = _all_signs(weights).square().mean(1) - second_moment(weights)
    evidence.holds("E Xᵢ² = M²aᵢ² in one dimension, every sign enumerated", -off.abs().flatten(), 1e-12)
    turned = (
        equilateral(3, torch.tensor(0.5, dtype=torch.float64))
        @ torch.linalg.qr(normal(evidence.rng, draws // 20, 3, 3)).Q
    )
    apart = smallest_separation(turned)
    evidence.near("three points turned at random: δ stays 0.5", (apart - 0.5).abs().max(), 0.0, 1e-12)
    second = turned[:, 0, :, None] * turned[:, 0, None, :]
    error = (second.mean(0) - torch.eye(3, dtype=torch.float64) / 3) / (second.std(0) / math.sqrt(len(second)))
    evidence.near("E xxᵀ = I/3 for each, in standard errors, largest", error.abs().max(), 0.0, 6.0)


# Theorem 2, upper bound


def _fraction_bounds() -> Curve:
    weights, axis = torch.full((16,), 1 / 16, dtype=torch.float64), [0.02 * k for k in range(1, 26)]
    x = unit(normal(torch.Generator().manual_seed(0), 1000, 16, 64))
    X, delta = to_context(weights, x), float(smallest_separation(x).mean())
    found = [separability.probability_bounds(weights, r, 64) for r in axis]
    return Curve(
        x=axis,
        lines={
            "simulated": [float((r - X >= 0).to(torch.float64).mean()) for r in axis],
            "printed upper": [float(printed_upper(weights, r, delta)) for r in axis],
            "corrected upper": [float(each.fraction_upper) for each in found],
            "corrected lower": [float(each.fraction_lower) for each in found],
        },
        x_label="r",
        y_label="E[N_s]/N, 16 equal weights, d = 64",
    )


@statement(
    "B9.1",
    LIMITS,
    place="Theorem 2, upper bound",
    verdict=Verdict.FALSE,
    title="Upper bound on the separable fraction",
    claim="The expected separable fraction is at most (1/N) Σ exp(−(r−ξᵢ)²/16M²).",
    formula=r"\frac{E[N_s]}{N} \le \frac{1}{N}\sum_i \exp\Bigl[-\frac{(r-\xi_i)^2}{16M^2}\Bigr]",
    correction="It fails for r > ξᵢ, where it falls again, and below: it is centred on ξᵢ, an upper bound of the mean, "
    "and not on the mean. Valid bounds for independent uniform vectors, fixed weights and fixed r are centred on "
    "mᵢ ≤ E Xᵢ ≤ M·aᵢ; undilute_papers.theory.separability takes the best of five from above and of four from below.",
    corrected_formula=r"P(X_i\le r) \le \min\left\{\frac{V}{V+(M^2a_i^2-r^2)^2},\ "
    r"e^{-(d-1)(m_i-r)^2/(2M^2a_i^2)},\ e^{-2(m_i-r)^2/(MA_i)^2},\ "
    r"\frac{1}{2} I_{(r/(Mb_i))^2}\Bigl(\frac{d-1}{2},\frac{1}{2}\Bigr)\right\}",
    proof="E Xᵢ² = M²aᵢ² and Var Xᵢ² = (2M⁴/d)(aᵢ⁴ − a4ᵢ) exactly: Cantelli. Xᵢ is aᵢ-Lipschitz on a product of "
    "spheres, which has log-Sobolev constant (d−1)/M². 0 ≤ Xᵢ ≤ M·Aᵢ: Hoeffding, as in the paper, around mᵢ, which "
    "Hölder's inequality keeps below E Xᵢ. The heaviest term is uniform on a sphere of which a ball covers a cap.",
    curve=_fraction_bounds,
)
def upper_bound(
    evidence: Evidence,
    printed: Cap = printed_upper,
    corrected: Callable[..., separability.ProbabilityBounds] = separability.probability_bounds,
) -> None:
    _printed_examples(evidence, printed)
    _corrected_examples(evidence, corrected)
    exact = [_three_tokens(evidence.rng, corrected, dim) for dim in (2, 3, 16, 128)]
    exact += [_signs(evidence.rng, corrected, size) for size in (2, 3, 5, 8)]
    evidence.holds("corrected upper bound per token: exact oracles", torch.cat([up for up, _ in exact]))
    evidence.holds("corrected lower bound per token: exact oracles", torch.cat([low for _, low in exact]))
    sampled = [_simulated(evidence.rng, corrected, size, dim) for size, dim in ((3, 4), (5, 2), (8, 16), (16, 48))]
    evidence.holds("corrected upper bound per token: simulation, 7 s.e.", torch.cat([up for up, _ in sampled]))
    evidence.holds("corrected lower bound per token: simulation, 7 s.e.", torch.cat([low for _, low in sampled]))
    slack = []
    for size, dim in ((2, 8), (5, 64), (10, 8), (30, 64)):
        weights, r = some_weights(evidence.rng, 250, size), 1.5 * uniform(evidence.rng, 250)
        slack.append(printed(weights, r, 0.0) - corrected(weights, r, dim).fraction_lower)
    evidence.breaks("printed upper ≥ proved lower bound (our notes: 320 of 1,000 fail)", torch.cat(slack))


def _printed_examples(evidence: Evidence, printed: Cap) -> None:
    one, two = torch.ones(1, dtype=torch.float64), torch.full((2,), 0.5, dtype=torch.float64)
    for label, weights, r, value in (("N = 1", one, 1.0, ".939"), ("N = 2, α = (.5, .5)", two, 1.0, ".9845")):
        x = unit(normal(evidence.rng, 200, len(weights), 8))
        evidence.near(f"true fraction, {label}, r = M", separable(weights, x, r).mean(), 1.0, 0.0)
        evidence.quoted(f"printed bound, {label}, r = M", printed(weights, r, 0.1), value)
    ten, delta = torch.full((10,), 0.1, dtype=torch.float64), torch.tensor(0.98, dtype=torch.float64)
    evidence.near("true fraction, N = 10, r = 10M", separable(ten, equilateral(10, delta), 10.0), 1.0, 0.0)
    evidence.quoted("printed bound, N = 10, r = 10M, δ = 0.98 (our choice)", printed(ten, 10.0, delta), ".0044")
    lower = separability.fraction_lower_bound(ten, 10.0, delta)
    evidence.quoted("printed lower bound, above the upper one", lower, ".932")
    weights, x = torch.full((101,), 1 / 101, dtype=torch.float64), unit(normal(evidence.rng, 40, 101, 64))
    delta = smallest_separation(x)
    evidence.near("mean ξ, N = 101, d = 64, uniform", separability.xi(weights, delta).mean(), 0.66, 0.025)
    evidence.near("mean X there", to_context(weights, x).mean(), 0.099, 0.0075)
    evidence.quoted("true fraction there, r = .2", separable(weights, x, 0.2).mean(), "1.000")
    evidence.near("printed bound there", printed(weights, 0.2, delta).mean(), 0.9869, 0.0015)
    weights, x = torch.full((16,), 1 / 16, dtype=torch.float64), unit(normal(evidence.rng, 400, 16, 64))
    delta = smallest_separation(x)
    evidence.quoted("true fraction, N = 16, d = 64, uniform, r = .35", separable(weights, x, 0.35).mean(), "1.000")
    evidence.near("printed bound there", printed(weights, 0.35, delta).mean(), 0.9973, 0.0008)


def _corrected_examples(evidence: Evidence, corrected: Callable[..., separability.ProbabilityBounds]) -> None:
    weights, x = torch.full((16,), 1 / 16, dtype=torch.float64), unit(normal(evidence.rng, 400, 16, 64))
    evidence.quoted("true fraction, N = 16, d = 64, uniform, r = .15", separable(weights, x, 0.15).mean(), "0.000")
    evidence.quoted("corrected upper bound there", corrected(weights, 0.15, 64).fraction_upper, ".0147")
    evidence.quoted("corrected lower bound, r = .35", corrected(weights, 0.35, 64).fraction_lower, ".9981")
    weights = torch.tensor([0.5, 0.2, 0.1, 0.05, 0.05, 0.03, 0.02], dtype=torch.float64)
    x = unit(normal(evidence.rng, 4000, 7, 32))
    evidence.near("true fraction, seven weights, d = 32, r = .3", separable(weights, x, 0.3).mean(), 0.1428, 3e-4)
    bounds = corrected(weights, 0.3, 32)
    evidence.quoted("corrected lower bound there", bounds.fraction_lower, ".1323")
    evidence.quoted("corrected upper bound there", bounds.fraction_upper, ".1429")


def _three_tokens(
    rng: torch.Generator, corrected: Callable[..., separability.ProbabilityBounds], dim: int
) -> tuple[Tensor, Tensor]:
    """Slacks against the exact law for N = 3: two uniform vectors' cosine c has (1+c)/2 ~ Beta((d−1)/2, (d−1)/2)."""
    from scipy.special import betainc

    weights, r = some_weights(rng, 700, 3), 1.2 * uniform(rng, 700)
    bounds = corrected(weights, r, dim)
    a2, product = _others(weights.square()), weights.roll(1, -1) * weights.roll(2, -1)
    half = ((r[:, None].square() - a2) / (4 * product) + 0.5).clamp(0.0, 1.0)
    p = torch.as_tensor(betainc((dim - 1) / 2, (dim - 1) / 2, half.numpy()))
    return (bounds.upper - p).flatten(), (p - bounds.lower).flatten()


def _all_signs(weights: Tensor) -> Tensor:
    """Xᵢ in one dimension for every choice of signs: (rows, 2^N, N)."""
    signs = 1 - 2 * torch.cartesian_prod(*[torch.arange(2.0, dtype=torch.float64)] * weights.shape[-1])
    terms = signs * weights[:, None, :]
    return (terms.sum(-1, keepdim=True) - terms).abs()


def _signs(
    rng: torch.Generator, corrected: Callable[..., separability.ProbabilityBounds], size: int
) -> tuple[Tensor, Tensor]:
    """Slacks against the exact law in one dimension, where the vectors are signs: all of them are enumerated."""
    weights, r = some_weights(rng, 150, size), uniform(rng, 150)
    bounds = corrected(weights, r, 1)
    X = _all_signs(weights)
    p = (r[:, None, None] - X >= 0).to(torch.float64).mean(1)
    return (bounds.upper - p).flatten(), (p - bounds.lower).flatten()


def _simulated(
    rng: torch.Generator,
    corrected: Callable[..., separability.ProbabilityBounds],
    size: int,
    dim: int,
    count: int = 250,
    samples: int = 400,
) -> tuple[Tensor, Tensor]:
    """Slacks of the bounds per token against simulated probabilities, allowing for sampling error."""
    weights = some_weights(rng, count, size)
    r = lengths(weights) * (0.3 + 1.4 * uniform(rng, count))
    x = unit(normal(rng, samples, size, dim))
    gram = x @ x.mT
    inner = torch.einsum("sij,cj->csi", gram, weights)  # ⟨xᵢ, s⟩
    whole = (inner * weights[:, None, :]).sum(-1, keepdim=True)
    squares = whole - 2 * weights[:, None, :] * inner + weights[:, None, :].square()
    p = (squares <= r[:, None, None].square()).to(torch.float64).mean(1)
    bounds = corrected(weights, r, dim)

    def error(q: Tensor) -> Tensor:  # Bernstein: exceeded with probability below 1e-10
        return 7 * (q * (1 - q) / samples).clamp(min=0.0).sqrt() + 8.5 / samples

    above = bounds.upper + error(bounds.upper) - p
    below = p + error(bounds.lower) - bounds.lower
    return above.flatten(), below.flatten()


@statement(
    "B9.2",
    LIMITS,
    place="after Theorem 2, and section 3.2",
    verdict=Verdict.FALSE,
    title="The upper bound decays rapidly, and is tight at 80 %",
    claim="Once r is below ξᵢ the exponential upper bound decays rapidly; it tracks the measured maxima closely, and "
    "so limits the separable fraction to about 80 %.",
    formula=r"\exp\Bigl[-\frac{(r-\xi_i)^2}{16M^2}\Bigr] \approx 0.8",
    correction="ξᵢ never exceeds M, so for 0 < r ≤ ξᵢ the printed bound stays above exp(−1/16) = 0.9394. To reach 0.8 "
    "it needs |r − ξᵢ| = 1.89 M, which only r > ξᵢ allows, where the bound does not hold.",
    corrected_formula=r"0<r\le\xi_i\ \Rightarrow\ \exp\Bigl[-\frac{(r-\xi_i)^2}{16M^2}\Bigr] \ge e^{-1/16}",
    proof="ξᵢ ≤ M·Aᵢ ≤ M because the weights sum to at most 1, so 0 ≤ ξᵢ − r < M.",
)
def vacuous(evidence: Evidence, printed: Cap = printed_upper) -> None:
    evidence.quoted("smallest value for r ≤ ξ", printed(torch.ones(1, dtype=torch.float64), 1.0, 0.0), ".9394")
    slack = []
    for size in (2, 5, 20):
        weights, delta = some_weights(evidence.rng, 1000, size), uniform(evidence.rng, 1000)
        r = separability.xi(weights, delta).amin(-1) * uniform(evidence.rng, 1000)
        slack.append(printed(weights, r, delta) - math.exp(-1 / 16))
    evidence.holds("printed bound ≥ exp(−1/16) for r ≤ ξ", torch.cat(slack))
    low, high = 0.0, 8.0  # N = 1 has ξ = 0, so r is |r − ξ|
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if printed(torch.ones(1, dtype=torch.float64), middle, 0.0) > 0.8 else (low, middle)
    evidence.quoted("|r − ξ| / M at which the printed bound is 0.8", low, "1.89")


# The ceiling


def _measured_fractions() -> Curve:
    axis = [1, 2, 4, 8, 16, 32, 64, 128]
    rng = torch.Generator().manual_seed(0)
    weights = normal(rng, 256).softmax(-1)
    isotropic = unit(normal(rng, 256, 64))
    kinds = {
        "orthonormal": torch.eye(256, dtype=torch.float64),
        "isotropic, d = 64": isotropic,
        "common mean": unit(isotropic + unit(normal(rng, 1, 64))),
    }
    lines = {
        name: [float(separability.separable_fraction(weights, x, N).fraction) for N in axis]
        for name, x in kinds.items()
    }
    return Curve(axis, dict(lines), "N", "separable fraction, L = 256", log_x=True)


INDEPENDENT = (  # N, quoted, tolerance for the mean of four draws
    (1, 1.0, 0.0),
    (2, 1.0, 0.16),
    (4, 1.0, 0.16),
    (8, 1.0, 0.16),
    (16, 0.97, 0.16),
    (32, 0.79, 0.33),
    (64, 0.61, 0.27),
    (128, 0.47, 0.22),
    (512, 0.30, 0.11),
)


@statement(
    "B10.1",
    LIMITS,
    place="contribution 2, section 3.2, conclusions",
    verdict=Verdict.FALSE,
    title="No more than about 80 % of the selected tokens can be distinguished",
    claim="Even with ideal spherical embeddings, softmax attention cannot separate more than about 80 % of the top-N "
    "tokens.",
    formula=r"\frac{N_s}{N} \lesssim 0.8",
    correction="Not a theorem: the measured fraction takes any value. Orthonormal vectors separate all tokens for "
    "every N; independent uniform ones between 17 % and all, depending on N and d; with a common mean 97 % or more. "
    "(Apart from the orthonormal case, which is exact, the set-ups are ours and the figures single draws: they "
    "illustrate, and a mean over a few fresh draws is only required to be near them.)",
    corrected_formula=r"x\ \text{orthonormal}:\ X_i^2=\lVert s\rVert^2-\alpha_i^2 < \lVert s\rVert^2+\alpha_j^2\ "
    r"\Rightarrow\ \frac{N_s}{N}=1",
    proof="For orthonormal vectors a selected token has Xᵢ² = ‖s‖² − αᵢ², any other ‖s‖² + αⱼ², so the ball that "
    "reaches the nearest of the others holds every selected token.",
    curve=_measured_fractions,
)
def ceiling(
    evidence: Evidence, fraction: Callable[..., separability.Separability] = separability.separable_fraction
) -> None:
    eye, weights = torch.eye(64, dtype=torch.float64), (2 * normal(evidence.rng, 40, 64)).softmax(-1)
    every = torch.stack([fraction(weights, eye, N).fraction for N in range(1, 65)])
    evidence.holds("orthonormal vectors, L = 64, 40 rows, every N: fraction 1", every.flatten() - 1, tolerance=0.0)
    weights, eye = normal(evidence.rng, 1024).softmax(-1), torch.eye(1024, dtype=torch.float64)
    large = torch.stack([fraction(weights, eye, N).fraction for N in (16, 512)])
    evidence.near("orthonormal vectors, L = 1,024: smallest fraction", large.min(), 1.0, 0.0)
    weights, x = normal(evidence.rng, 4, 1024).softmax(-1), unit(normal(evidence.rng, 4, 1024, 768))
    for N, quoted, within in INDEPENDENT:
        value = fraction(weights, x, N).fraction.mean()
        evidence.near(f"N_s/N, independent, d = 768, N = {N}", value, quoted, within)
    around = unit(x[:2] + unit(normal(evidence.rng, 2, 1, 768)))  # cosine 0.5 between any two
    kept = torch.stack([fraction(weights[:2], around, N).fraction.mean() for N in (8, 64, 512)])
    evidence.near("smallest N_s/N, cosine 0.5, d = 768 (quoted: at least .97)", kept.min(), 0.97, 0.1)
    weights, x = normal(evidence.rng, 16, 1024).softmax(-1), unit(normal(evidence.rng, 16, 1024, 64))
    low = torch.stack([fraction(weights, x, N).fraction.mean() for N in (8, 128, 512)])
    evidence.near("largest N_s/N for N ≥ 8, independent, d = 64", low.max(), 0.59, 0.3)
    evidence.near("smallest N_s/N for N ≥ 8, independent, d = 64", low.min(), 0.17, 0.07)


@statement(
    "B10.2",
    LIMITS,
    place="section 3.2; Algorithm 4, as a secondary copy of the appendix has it",
    verdict=Verdict.FALSE,
    title="“Every non-selected token lies outside the ball”",
    claim="With r the smallest distance of a non-selected token from s, every non-selected token lies outside B_r(s), "
    "and N_s/N measures how well the head separates.",
    formula=r"r=\min_{i\notin I_N}\lVert s-\alpha_i x_i\rVert\ \Rightarrow\ \alpha_j x_j\notin B_r(s),\ j\notin I_N",
    correction="The nearest non-selected token lies on the sphere, and the closed ball contains it: use the open ball. "
    "The metric has further degeneracies: it is 1 for N = 1 and N = L whatever the vectors; s contains the selected "
    "vectors themselves; a perfectly selective head scores worst, 1/N; r depends on the data, so Theorem 2 does not "
    "apply; repeated tokens mean δ = 0; tokens hidden by a causal mask sit at ‖s‖ and must be left out.",
    corrected_formula=r"N_s=\#\{i\in I_N: \lVert\alpha_i x_i-s\rVert < r\}",
    proof="The minimum is attained, so the attaining token has distance r. A head with weight 0.97 on one token has s "
    "almost equal to that token's vector, and every other token, selected or not, at a distance close to ‖s‖. (The "
    "example of that head is ours, and chosen to show the worst case.)",
)
def degenerate_metric(
    evidence: Evidence,
    fraction: Callable[..., separability.Separability] = separability.separable_fraction,
    xi: Cap = separability.xi,
) -> None:
    weights, x = (2 * normal(evidence.rng, 700, 24)).softmax(-1), unit(normal(evidence.rng, 700, 24, 6))
    closed = torch.cat([fraction(weights, x, N, strict=False).intruders for N in (1, 3, 8, 20)])
    evidence.breaks("closed ball without intruders", -closed.to(torch.float64))
    evidence.near("fewest intruders in the closed ball, 2,800 cases", closed.min(), 1.0, 0.0)
    opened = torch.cat([fraction(weights, x, N).intruders for N in (1, 3, 8, 20)])
    evidence.holds("open ball without intruders", -opened.to(torch.float64))
    x[:, -20:] = x[:, -1:]
    weights[:, -20:], weights[:, :4] = 0.01, 0.2
    evidence.quoted("most intruders with repeated tokens", fraction(weights, x, 4, strict=False).intruders.max(), "20")
    repeated = smallest_separation(x).max()
    evidence.near("ξ with repeated tokens, δ = 0, over M·Aᵢ", xi(weights[0], repeated)[0], 0.8, 1e-9)
    ends = torch.cat([fraction(weights, x, N).fraction for N in (1, 24)])
    evidence.near("fraction at N = 1 and at N = L, smallest", ends.min(), 1.0, 0.0)
    _sharp_head(evidence, fraction)
    _hidden_tokens(evidence, fraction)


def _sharp_head(evidence: Evidence, fraction: Callable[..., separability.Separability]) -> None:
    weights = torch.full((1024,), 0.03 / 1023, dtype=torch.float64)
    weights[0] = 0.97
    x = unit(normal(evidence.rng, 1024, 64))
    x[1:] = x[1:][(x[1:] @ x[0]).argsort()]  # the light tokens that get selected point away from the heavy one
    for N, quoted in ((8, ".125"), (32, ".031")):
        found = fraction(weights, x, N)
        evidence.quoted(f"N_s/N of a head with weight .97 on one token, N = {N}", found.fraction, quoted)
        s = distance.context(weights, x, distance.top_set(weights, N))
        evidence.near("r/‖s‖ there", found.radius / lengths(s), 0.99999, 8e-6)


def _hidden_tokens(evidence: Evidence, fraction: Callable[..., separability.Separability]) -> None:
    weights, x = torch.tensor([0.6, 0.4, 0.0, 0.0], dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    x[1] = -1.0
    seen = torch.tensor([True, True, False, False])
    evidence.near("two opposed tokens, N = 2, hidden ones counted", fraction(weights, x, 2).fraction, 0.0, 0.0)
    evidence.near("hidden ones left out", fraction(weights, x, 2, visible=seen).fraction, 1.0, 0.0)
