"""Is what arXiv:2508.17821 says about the distance of selected tokens true?  Theorem 1, Corollary 2, critical N.

Set-ups that the audit's notes leave open were reconstructed: unit vectors in 64 dimensions, logits N(0, 1) and, for the
anisotropic case, a common mean of length 2 before normalising give every quoted figure for L = 1,024, N = 5. They were
single draws; here they are compared with means over eight draws, within one standard deviation of a single draw plus
five standard errors of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from undilute_papers.audit.sources import LIMITS
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement
from undilute_papers.theory import distance

MainTerm = Callable[[Tensor, Tensor, int], Tensor]
DIM = 64  # of the vectors wherever the source of a quoted figure does not say


def printed_bound(weights: Tensor, x: Tensor, selected: Tensor) -> Tensor:
    """Theorem 1(1) as printed: (1−A)·d₁ + max_{j∈I}‖xⱼ‖·[A(L−N) − (1−A)]."""
    A = weights.masked_fill(~selected, 0.0).sum(-1)
    longest = torch.where(selected, lengths(x), 0.0).amax(-1)
    left_out = (~selected).sum(-1)
    return (1 - A) * distance.largest_cross_distance(x, selected) + longest * (A * left_out - (1 - A))


def printed_main(weights: Tensor, x: Tensor, top: int) -> Tensor:
    """Theorem 1(2) as printed: ((L−N)/L) Σ ‖(αᵢ + N/(L−1))·xᵢ − x̄‖."""
    L = weights.shape[-1]
    mean = (weights[..., None] * x).sum(-2, keepdim=True)
    return (L - top) / L * lengths((weights + top / (L - 1))[..., None] * x - mean).sum(-1)


def printed_remainder(weights: Tensor, x: Tensor, top: int) -> Tensor:
    """The bound on ε as printed: ½(1−N/L) Σᵢ p Σ_{j≠i} αⱼ²‖xⱼ‖² / ‖αᵢxᵢ − p Σ_{j≠i} αⱼxⱼ‖, p = N/(L−1)."""
    L, v = weights.shape[-1], weights[..., None] * x
    p, total = top / (L - 1), torch.zeros_like(weights[..., 0])
    for i in range(L):
        others = torch.cat([v[..., :i, :], v[..., i + 1 :, :]], -2)
        total = total + p * others.square().sum((-2, -1)) / lengths(v[..., i, :] - p * others.sum(-2))
    return (1 - top / L) / 2 * total


def corrected_main(weights: Tensor, x: Tensor, top: int) -> Tensor:
    return distance.expected_distance(weights, x, top).main


def printed_sum(weights: Tensor, x: Tensor, top: int) -> Tensor:
    """Corollary 2(i) as printed: Σ ‖αᵢxᵢ‖, whatever N."""
    return (weights * lengths(x)).sum(-1)


# Data


def lengths(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norms


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def uniform(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=rng, dtype=torch.float64)


def heads(rng: torch.Generator, count: int, length: int, dim: int) -> tuple[Tensor, Tensor]:
    """Rows of weights and vectors of every kind: near-uniform to one-hot, isotropic to aligned, equal and far ones."""
    spread = 8 * uniform(rng, count, 1) ** 2
    spread[::5] = 0.0
    weights = (spread * normal(rng, count, length)).softmax(-1)
    weights[1::10] = torch.eye(length, dtype=torch.float64)[0]
    if length > 1:
        weights[2::10, 0] = 0.0
    weights = weights / weights.sum(-1, keepdim=True)
    x = normal(rng, count, length, dim) + 3 * uniform(rng, count, 1, 1) * normal(rng, count, 1, dim)
    x[3::7] = x[3::7, :1]  # all aligned
    x[4::7, 1:3] = -x[4::7, :1]  # opposed
    x[5::7, 0] *= 30.0  # one long vector
    return weights, x


def arbitrary_sets(rng: torch.Generator, count: int, length: int, top: int) -> Tensor:
    order = uniform(rng, count, length).argsort(-1)
    return torch.zeros(count, length, dtype=torch.bool).scatter(-1, order[:, :top], True)


def long_context(rng: torch.Generator, draws: int = 8, length: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
    """Weights from logits N(0, 1), isotropic unit vectors, and unit vectors around a common mean."""
    weights = normal(rng, draws, length).softmax(-1)
    x = unit(normal(rng, draws, length, DIM))
    return weights, x, unit(x + 2 * unit(normal(rng, draws, 1, DIM)))


def sampled_distance(weights: Tensor, x: Tensor, top: int, rng: torch.Generator, sets: int = 400) -> Tensor:
    """E by simulation: the mean of d̃ over sets of ``top`` tokens, the same sets for every row."""
    v = weights[..., None] * x
    chosen = torch.randint(v.shape[-2], (sets, top), generator=rng)
    ranked = chosen.sort(-1).values
    chosen = chosen[(ranked[:, 1:] > ranked[:, :-1]).all(-1)]  # without replacement
    s = v[:, chosen].sum(2)
    squares = v.square().sum(-1)[:, None, :] - 2 * s @ v.mT + s.square().sum(-1)[..., None]
    apart = squares.clamp(min=0.0).sqrt()
    inside = apart.gather(-1, chosen.expand(len(v), *chosen.shape)).sum(-1)
    return (apart.sum(-1) - inside).mean(-1)


def enumerated(rng: torch.Generator, count: int = 220) -> list[tuple[Tensor, Tensor, int, Tensor]]:
    """Weights, vectors, N and the exact E, over every N for several lengths: some 3,000 cases of every kind."""
    found = []
    for length, dim in ((2, 3), (5, 1), (7, 4)):
        for top in range(length + 1):
            weights, x = heads(rng, count, length, dim)
            found.append((weights, x, top, distance.enumerated_distance(weights, x, top)))
    return found


# Theorem 1(1)


@statement(
    "B3",
    LIMITS,
    place="Theorem 1(1)",
    verdict=Verdict.CONDITIONAL,
    title="Bound on the distance of a fixed set",
    claim="For a fixed (top-N) set of N tokens that carry the weight A, the summed distance of the other tokens from "
    "the context vector is at most (1−A)·d₁ + max‖x‖·[A(L−N) − (1−A)].",
    formula=r"\tilde d \le (1-A)\,d_1 + \max_{j\in I}\lVert x_j\rVert\,[A(L-N)-(1-A)]",
    correction="True, and attained, if the set holds the N largest weights, as the heading says. For any other fixed "
    "set A(L−N) − (1−A) has to be Σ |A − αᵢ| over the tokens left out. The weights must sum to 1 over the tokens "
    "counted: in row t of causal attention L is t.",
    corrected_formula=r"\tilde d \le (1-A)\,d_1 + \max_{j\in I}\lVert x_j\rVert \sum_{i\notin I} |A-\alpha_i|",
    proof="vᵢ − s = Σ_{j∈I} αⱼ[(αᵢ/A)(xᵢ−xⱼ) − (1−αᵢ/A)xⱼ]. The triangle inequality bounds its norm by "
    "αᵢ·d₁ + |A−αᵢ|·max‖xⱼ‖; sum over the tokens left out. A top-N set has αᵢ ≤ A, which removes the absolute value.",
)
def fixed_set(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor, Tensor], Tensor] = printed_bound,
    corrected: Callable[[Tensor, Tensor, Tensor], Tensor] = distance.distance_bound,
) -> None:
    weights, x = torch.tensor([0.1, 0.9], dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    first = torch.tensor([True, False])
    evidence.quoted("d̃ for α = (.1, .9), x = (1, 1), I = {1}", distance.selection_distance(weights, x, first), ".8")
    evidence.quoted("printed bound there", printed(weights, x, first), "-.8")
    evidence.near("corrected bound there", corrected(weights, x, first), 0.8, 1e-12)
    top_slack, any_slack, corrected_slack, ratios, difference = [], [], [], [], []
    for length, top in ((2, 1), (5, 1), (6, 3), (9, 4), (12, 2), (12, 11)):
        weights, x = heads(evidence.rng, 500, length, 4)
        best = distance.top_set(weights, top)
        some = arbitrary_sets(evidence.rng, 500, length, top)
        actual, bound = distance.selection_distance(weights, x, best), printed(weights, x, best)
        top_slack.append(bound - actual)
        ratios.append((actual / bound)[bound > 1e-9])
        difference.append(corrected(weights, x, best) - bound)
        actual = distance.selection_distance(weights, x, some)
        any_slack.append(printed(weights, x, some) - actual)
        corrected_slack.append(corrected(weights, x, some) - actual)
    evidence.holds("printed bound, top-N sets", torch.cat(top_slack))
    evidence.quoted("largest ratio d̃ / printed bound, top-N sets", torch.cat(ratios).max(), "1.000")
    evidence.breaks("printed bound, arbitrary sets (our notes: 319 of 3,000)", torch.cat(any_slack))
    evidence.holds("corrected bound, arbitrary sets", torch.cat(corrected_slack))
    evidence.near("corrected and printed bound agree on top-N sets", torch.cat(difference).abs().max(), 0.0, 1e-9)


# Theorem 1(2)


ISOTROPIC = (("E", 3.33, 0.28), ("corrected", 1.06, 0.04), ("printed", 53.9, 15.0))
COMMON_MEAN = (("E", 4.11, 0.35), ("corrected", 3.76, 0.07), ("printed", 907.5, 1.6))


def _main_terms() -> Curve:
    axis = [32, 64, 128, 256, 512, 1024, 2048]
    rows = [long_context(torch.Generator().manual_seed(L), 4, L) for L in axis]
    return Curve(
        x=axis,
        lines={
            "printed": [float(printed_main(w, x, 5).mean()) for w, _, x in rows],
            "corrected": [float(corrected_main(w, x, 5).mean()) for w, _, x in rows],
            "highest possible E": [float(distance.corollary_range(w, x, 5)[1].mean()) for w, _, x in rows],
        },
        x_label="L",
        y_label="main term, N = 5, common mean",
        log_x=True,
        log_y=True,
    )


@statement(
    "B4",
    LIMITS,
    place="Theorem 1(2), main term",
    verdict=Verdict.FALSE,
    title="Expected distance of a random set",
    claim="For a set of N tokens drawn uniformly, the expected distance is ((L−N)/L) Σ ‖(αᵢ + N/(L−1))xᵢ − x̄‖ plus a "
    "remainder.",
    formula=r"E = \frac{L-N}{L}\sum_i \lVert(\alpha_i+\tfrac{N}{L-1})x_i-\bar x\rVert + \varepsilon",
    correction="A misprint, it seems, with consequences: the weight must multiply both terms, and N/(L−1) the mean. As "
    "printed the term grows like L·‖x̄‖, while E stays below (1−N/L)(1+N) Σ α‖x‖ for every L. N = 0 gives Σ α‖x‖, N = "
    "L gives 0. (The sampled figures at L = 1,024 are from set-ups of ours and illustrate; the rest is exact.)",
    corrected_formula=r"E = \frac{L-N}{L}\sum_i \lVert(1+p)\alpha_i x_i - p\,\bar x\rVert + \varepsilon,\quad "
    r"p=\frac{N}{L-1},\ \varepsilon\ge 0",
    proof="P(i ∉ I) = (L−N)/L and P(j ∈ I | i ∉ I) = N/(L−1) = p, so the mean of αᵢxᵢ − s given i ∉ I is "
    "αᵢxᵢ − p(x̄ − αᵢxᵢ). The norm of the mean is at most the mean of the norm (Jensen), hence ε ≥ 0.",
    curve=_main_terms,
)
def random_set(
    evidence: Evidence,
    printed: MainTerm = printed_main,
    corrected: MainTerm = corrected_main,
    cap: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] = distance.corollary_range,
) -> None:
    cases = enumerated(evidence.rng)
    slack = torch.cat([E - corrected(w, x, top) for w, x, top, E in cases])
    evidence.holds("ε ≥ 0 up to rounding (our notes: −2e-15): exact enumeration", slack, tolerance=1e-12)
    fixed = torch.cat([E - corrected(w, x, top) for w, x, top, E in cases if top >= w.shape[-1] - 1])
    evidence.near("ε = 0 where the set is fixed by what it leaves out, N ≥ L−1", fixed.abs().max(), 0.0, 1e-12)
    evidence.holds("E ≤ (1−N/L)(1+N) Σ α‖x‖", torch.cat([cap(w, x, top)[1] - E for w, x, top, E in cases]))
    one_hot, same = torch.eye(7, dtype=torch.float64)[0], torch.ones(7, 1, dtype=torch.float64)
    attained = cap(one_hot, same, 3)[1] - distance.enumerated_distance(one_hot, same, 3)
    evidence.near("and one-hot weights attain it", attained, 0.0, 1e-12)
    weights, same = torch.full((12,), 1 / 12, dtype=torch.float64), torch.ones(12, 1, dtype=torch.float64)
    evidence.quoted("E, aligned, uniform, L = 12, N = 3", distance.enumerated_distance(weights, same, 3), "1.5")
    evidence.quoted("corrected there", corrected(weights, same, 3), "1.5")
    evidence.quoted("printed there", printed(weights, same, 3), "5.795")
    weights, isotropic, around_mean = long_context(evidence.rng)
    for name, x, quoted in (("isotropic", isotropic, ISOTROPIC), ("common mean", around_mean, COMMON_MEAN)):
        found = (sampled_distance(weights, x, 5, evidence.rng), corrected(weights, x, 5), printed(weights, x, 5))
        for value, (label, expected, within) in zip(found, quoted, strict=True):
            evidence.near(f"{label}, {name}, L = 1,024, N = 5", value.mean(), expected, within)
    short = [each[:, :512] for each in (weights, around_mean)]
    short[0] = short[0] / short[0].sum(-1, keepdim=True)
    growth = printed(weights, around_mean, 5).mean() / printed(short[0], short[1], 5).mean()
    evidence.near("printed main term at L = 1,024 over L = 512, common mean", growth, 2.0, 0.05)


# The remainder


@statement(
    "B5.1",
    LIMITS,
    place="Theorem 1(2), remainder",
    verdict=Verdict.TRUE,
    title="Bound on the remainder ε",
    claim="ε is at most ½(1−N/L) Σᵢ p Σ_{j≠i} ‖αⱼxⱼ‖² / ‖αᵢxᵢ − p Σ_{j≠i} αⱼxⱼ‖, p = N/(L−1).",
    formula=r"\varepsilon \le \frac{1}{2}\Bigl(1-\frac{N}{L}\Bigr)\sum_i "
    r"\frac{p\sum_{j\ne i}\alpha_j^2\lVert x_j\rVert^2}{c_i}",
    correction="True with the corrected main term, although it was derived for independent draws. The exact variance "
    "without replacement makes it sharper, and the square root keeps it finite where cᵢ = 0.",
    corrected_formula=r"\varepsilon \le \Bigl(1-\frac{N}{L}\Bigr)\sum_i \Bigl(\sqrt{c_i^2+V_i}-c_i\Bigr),\quad "
    r"V_i=\frac{p(1-p)}{L-2}\Bigl[(L-1)\sum_{j\ne i}\lVert v_j\rVert^2-\lVert\bar x-v_i\rVert^2\Bigr]",
    proof="Let Y = αᵢxᵢ − s given i ∉ I, with mean of norm c and variance V. E‖Y‖ ≤ √(E‖Y‖²) = √(c²+V) ≤ c + V/(2c). "
    "V is that of a sum drawn without replacement, at most p Σ ‖vⱼ‖², which gives the paper's bound.",
)
def remainder_bound(
    evidence: Evidence,
    paper: MainTerm = lambda w, x, top: distance.expected_distance(w, x, top).epsilon_paper,
    variance_form: MainTerm = lambda w, x, top: distance.expected_distance(w, x, top).epsilon_variance,
    sqrt_form: MainTerm = lambda w, x, top: distance.expected_distance(w, x, top).epsilon_sqrt,
    variances: MainTerm = lambda w, x, top: distance.expected_distance(w, x, top).variances,
) -> None:
    cases = enumerated(evidence.rng)
    for length in (5, 8):  # ‖Y‖ is constant here, which makes the square root exact
        orthonormal = torch.eye(length, dtype=torch.float64)
        weights = torch.full((1, length), 1 / length, dtype=torch.float64)
        for top in range(1, length):
            cases.append((weights, orthonormal, top, distance.expected_orthonormal(length, top)[None]))
    remainders = [E - corrected_main(w, x, top) for w, x, top, E in cases]
    for label, bound in (("paper's bound", paper), ("V/2c", variance_form), ("square root form", sqrt_form)):
        slack = [bound(w, x, top) - epsilon for (w, x, top, _), epsilon in zip(cases, remainders, strict=True)]
        evidence.holds(f"ε ≤ {label}, exact enumeration", torch.cat(slack).clamp(max=1e12))
    tight = torch.cat([sqrt_form(w, x, top) - e for (w, x, top, _), e in zip(cases, remainders, strict=True)][-11:])
    evidence.near("the square root form is exact for orthonormal vectors", tight.abs().max(), 0.0, 1e-12)
    weights, x = normal(evidence.rng, 300, 7).softmax(-1), normal(evidence.rng, 300, 7, 4)  # no cᵢ is 0
    errors = torch.cat([paper(weights, x, top) / printed_remainder(weights, x, top) - 1 for top in range(1, 7)])
    evidence.holds("paper's bound is the formula as printed", -errors.abs())
    weights, x = heads(evidence.rng, 300, 7, 4)
    off = [variances(weights, x, top) - _enumerated_variances(weights, x, top) for top in range(7)]
    scale = (weights[..., None] * x).square().sum((-2, -1))[:, None]
    error = max(float((each.abs() / scale).max()) for each in off)
    evidence.near("Vᵢ against enumeration, largest relative error (our notes: 2e-15)", error, 0.0, 2e-13)


def _enumerated_variances(weights: Tensor, x: Tensor, top: int) -> Tensor:
    """Variance of s given i ∉ I, over every set of N of the other tokens."""
    v, n = weights[..., None] * x, weights.shape[-1] - 1
    subsets = torch.combinations(torch.arange(n), top) if top else torch.zeros(1, 0, dtype=torch.long)
    indicator = torch.zeros(len(subsets), n, dtype=torch.float64).scatter(-1, subsets, 1.0)
    columns = []
    for i in range(n + 1):
        others = torch.cat([v[..., :i, :], v[..., i + 1 :, :]], -2)
        s = indicator @ others
        columns.append((s - s.mean(-2, keepdim=True)).square().sum(-1).mean(-1))
    return torch.stack(columns, -1)


@statement(
    "B5.2",
    LIMITS,
    place="after Theorem 1",
    verdict=Verdict.FALSE,
    title="The remainder ε is small unless weights are concentrated",
    claim="The remainder ε is small whenever the individual weights are not too concentrated.",
    formula=r"\varepsilon \ll E",
    correction="ε depends on the directions of the vectors, not on how concentrated the weights are: it is small only "
    "if the mean of αᵢxᵢ − s is much longer than its standard deviation. Isotropic vectors with near-uniform weights "
    "have a large ε: two thirds of E at L = 1,024, N = 5. A common mean makes it small. (The set-ups at L = 1,024 are "
    "ours and the figures illustrate; the orthonormal case is exact.)",
    corrected_formula=r"\varepsilon/E \to 1-\frac{1}{\sqrt{N+1}}\quad\text{for orthonormal vectors, uniform weights}",
    proof="Orthonormal vectors, uniform weights: E = (1−N/L)√(N+1) and cᵢ = √(1 + N²/(L−1))/L, so for L ≫ N² the share "
    "of ε in E is 1 − 1/√(N+1), 59 % at N = 5.",
)
def remainder_is_small(
    evidence: Evidence,
    expected: Callable[[Tensor, Tensor, int], distance.ExpectedDistance] = distance.expected_distance,
) -> None:
    weights, isotropic, around_mean = long_context(evidence.rng)
    E, bounds = sampled_distance(weights, isotropic, 5, evidence.rng), expected(weights, isotropic, 5)
    epsilon = E - bounds.main
    evidence.near("ε, near-uniform weights, isotropic vectors, L = 1,024, N = 5", epsilon.mean(), 2.26, 0.28)
    evidence.near("ε as a share of E", (epsilon / E).mean(), 0.68, 0.03)
    evidence.near("paper's bound on it", bounds.epsilon_paper.mean(), 11.2, 3.0)
    evidence.near("V/2c bound on it", bounds.epsilon_variance.mean(), 11.1, 3.0)
    evidence.near("square root bound on it", bounds.epsilon_sqrt.mean(), 2.85, 0.45)
    evidence.breaks("ε ≤ E/10", E / 10 - epsilon)
    evidence.holds("ε ≤ paper's bound", bounds.epsilon_paper - epsilon)
    E, bounds = sampled_distance(weights, around_mean, 5, evidence.rng), expected(weights, around_mean, 5)
    evidence.near("ε as a share of E, common mean", ((E - bounds.main) / E).mean(), 0.086, 0.05)
    weights = torch.full((256,), 1 / 256, dtype=torch.float64)
    main, exact = expected(weights, torch.eye(256, dtype=torch.float64), 5).main, distance.expected_orthonormal(256, 5)
    share = 1 - math.sqrt((1 + 25 / 255) / 6)
    evidence.near("orthonormal vectors, exactly uniform weights, L = 256", (exact - main) / exact, share, 1e-12)


# Corollary 2


@statement(
    "B6.1",
    LIMITS,
    place="Corollary 2(i)",
    verdict=Verdict.FALSE,
    title="Expected distance for N ≪ L",
    claim="For fixed N and growing L the expected distance approaches Σ ‖αᵢxᵢ‖.",
    formula=r"E \approx S = \sum_i \lVert\alpha_i x_i\rVert",
    correction="E depends on N as well. It lies within a factor 1 ± N of (1−N/L)·S; only N = 0 gives E = S always. "
    "Exactly: (1−N/L)√(N+1)·M for uniform weights on orthonormal vectors, (1−N/L)|N−1|·M for aligned ones, which is 0 "
    "at N = 1, and (1−N/L)(N+1)‖x₁‖ for one-hot weights; the claimed value is M each time.",
    corrected_formula=r"|E-(1-\tfrac{N}{L})S| \le N(1-\tfrac{N}{L})S",
    proof="|‖vᵢ−s‖ − ‖vᵢ‖| ≤ ‖s‖ ≤ Σ_{j∈I} ‖vⱼ‖; the mean of the right side, summed over i ∉ I, is "
    "(1−N/L)·p·(L−1)·S = N(1−N/L)·S.",
)
def corollary_small_sets(
    evidence: Evidence,
    printed: MainTerm = printed_sum,
    corrected: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] = distance.corollary_range,
    orthonormal: Callable[..., Tensor] = distance.expected_orthonormal,
    aligned: Callable[..., Tensor] = distance.expected_aligned,
    one_hot: Callable[..., Tensor] = distance.expected_one_hot,
) -> None:
    L, M = 8, 3.0
    weights, eye = torch.full((L,), 1 / L, dtype=torch.float64), M * torch.eye(L, dtype=torch.float64)
    same, first = M * torch.ones(L, 1, dtype=torch.float64), torch.eye(L, dtype=torch.float64)[0]
    families = (
        ("orthonormal vectors, uniform weights", orthonormal, weights, eye),
        ("aligned vectors, uniform weights", aligned, weights, same),
        ("one-hot weights", one_hot, first, same),
    )
    for name, oracle, w, x in families:
        off = [abs(float(oracle(L, N, M) - distance.enumerated_distance(w, x, N))) for N in range(L + 1)]
        evidence.near(f"closed form against enumeration, {name}, L = 8, every N", max(off), 0.0, 1e-12)
        claimed = torch.stack([printed(w, x, N) for N in range(3, 7)])
        evidence.near(f"claimed value, {name}, in units of M", claimed.mean() / M, 1.0, 1e-12)
        far = torch.stack([oracle(10**6, N, M) for N in range(3, 7)])
        slack = 0.1 * claimed - (far - claimed).abs()
        evidence.breaks(f"E within 10 % of the claim, {name}, L = 1,000,000, N = 3 … 6", slack)
    evidence.near("E, aligned vectors, uniform weights, N = 1", aligned(1024, 1), 0.0, 0.0)
    cases = enumerated(evidence.rng)
    ends = [corrected(w, x, top) for w, x, top, _ in cases]
    low = torch.cat([E - lower for (_, _, _, E), (lower, _) in zip(cases, ends, strict=True)])
    high = torch.cat([upper - E for (_, _, _, E), (_, upper) in zip(cases, ends, strict=True)])
    evidence.holds("corrected range, lower end, exact enumeration", low)
    evidence.holds("corrected range, upper end, exact enumeration", high)
    attained = corrected(first, same, 3)[1] - one_hot(L, 3, M)
    evidence.near("one-hot weights attain the upper end", attained, 0.0, 1e-12)


@statement(
    "B6.2",
    LIMITS,
    place="section 3.1, observation (i)",
    verdict=Verdict.FALSE,
    title="The distance scales linearly with L, as Corollary 2(i) predicts",
    claim="For N ≪ L the distance grows linearly with the length, exactly as Corollary 2(i) predicts.",
    formula=r"\sum_{i=1}^{L}\lVert\alpha_i x_i\rVert \propto L",
    correction="The sum is a weighted mean of norms, so it never exceeds max‖x‖, and E never exceeds 1 + N times that. "
    "Linear growth of the expectation is what the misprinted main term produces. (The measured distance of the top-N "
    "set may well grow, like A(L−N), if a few tokens keep their weight; the corollary does not predict it.)",
    corrected_formula=r"\sum_i \lVert\alpha_i x_i\rVert \le \max_i\lVert x_i\rVert,\quad "
    r"E \le (N+1)\max_i\lVert x_i\rVert",
    proof="The weights sum to 1; for E use the upper end of the corrected Corollary 2.",
)
def linear_growth(
    evidence: Evidence,
    predicted: MainTerm = printed_sum,
    misprinted: MainTerm = printed_main,
    corrected: MainTerm = corrected_main,
) -> None:
    short, long = long_context(evidence.rng, 6, 256), long_context(evidence.rng, 6, 2048)

    def exponent(form: MainTerm) -> float:
        ratio = form(long[0], long[2], 5).mean() / form(short[0], short[2], 5).mean()
        return math.log(float(ratio), 2048 / 256)

    evidence.near("exponent of L in Σ ‖αᵢxᵢ‖, unit vectors", exponent(predicted), 0.0, 1e-9)
    evidence.near("exponent of L in the misprinted main term, common mean", exponent(misprinted), 1.0, 0.05)
    evidence.near("exponent of L in the corrected main term, common mean", exponent(corrected), 0.0, 0.05)
    cases = enumerated(evidence.rng)
    slack = [lengths(x).amax(-1) - predicted(w, x, top) for w, x, top, _ in cases]
    evidence.holds("Σ ‖αᵢxᵢ‖ ≤ max‖x‖", torch.cat(slack))
    slack = [(1 + top) * lengths(x).amax(-1) - E for _, x, top, E in cases]
    evidence.holds("E ≤ (N+1)·max‖x‖, exact enumeration", torch.cat(slack))


@statement(
    "B6.3",
    LIMITS,
    place="Corollary 2(ii)",
    verdict=Verdict.TRUE,
    title="Expected distance for N → L",
    claim="When the selected set becomes the whole sequence, the expected distance tends to 0.",
    formula=r"N \to L:\ E \to 0",
    correction="True because no token is left out: an empty sum. It says nothing about N below L: at N = L−1 the last "
    "token can still be as far away as any.",
    corrected_formula=r"E \le (L-N)\,\frac{N+1}{L}\,S",
    proof="At N = L the sum over the tokens left out is empty. The bound is the upper end of Corollary 2, corrected.",
)
def corollary_full_set(
    evidence: Evidence,
    expected: Callable[[Tensor, Tensor, int], distance.ExpectedDistance] = distance.expected_distance,
) -> None:
    full, last = [], []
    for L in (1, 2, 5, 16):
        weights, x = heads(evidence.rng, 600, L, 3)
        bounds = expected(weights, x, L)
        full += [
            bounds.upper,
            bounds.epsilon_paper,
            distance.selection_distance(weights, x, distance.top_set(weights, L)),
        ]
        last.append((distance.enumerated_distance(weights, x, L - 1) - expected(weights, x, L - 1).upper).abs())
    evidence.holds("E and its bounds are 0 at N = L", -torch.cat(full).abs(), tolerance=0.0)
    evidence.holds("E is exact at N = L−1, against enumeration", -torch.cat(last))
    evidence.near("E at N = L−1, aligned, L = 1,000: not small", distance.expected_aligned(1000, 999), 0.998, 1e-12)


# The collapse


COLLAPSE = (64, 256, 1024, 4096)


def _half_selected() -> Curve:
    lines: dict[str, list[float]] = {"aligned, uniform": [], "isotropic, uniform": []}
    for L in COLLAPSE:
        weights, selected = torch.full((L,), 1 / L, dtype=torch.float64), torch.arange(L) < L // 2
        x = unit(normal(torch.Generator().manual_seed(L), L, DIM))
        lines["aligned, uniform"].append(float(distance.selection_distance(weights, torch.ones(L, 1), selected)))
        lines["isotropic, uniform"].append(float(distance.selection_distance(weights, x, selected)))
    return Curve(COLLAPSE, dict(lines), "L", "distance, N = L/2", log_x=True, log_y=True)


@statement(
    "B7",
    LIMITS,
    place="contribution 1, discussion, conclusions",
    verdict=Verdict.FALSE,
    title="Once N grows in proportion to L, the distance must collapse",
    claim="When the selected set is a fixed share of the sequence, the distance collapses to zero as L grows.",
    formula=r"N = cL:\ \tilde d \to 0",
    correction="With N = cL the distance grows: like c(1−c)L for aligned vectors and uniform weights, like √L for "
    "isotropic ones. So does the bound of Theorem 1, like A(L−N). Only L−N → 0 gives 0. (The isotropic set-ups are "
    "ours and the quoted figures single draws: they illustrate. The aligned case is exact.)",
    corrected_formula=r"\tilde d = (1-c)L\Bigl(c-\frac{1}{L}\Bigr)\quad\text{(aligned, uniform)}",
    proof="Aligned unit vectors, uniform weights: s has length c and each of the (1−c)L tokens left out 1/L, so the "
    "sum is (1−c)L(c − 1/L).",
    curve=_half_selected,
)
def collapse(
    evidence: Evidence,
    measured: Callable[[Tensor, Tensor, Tensor], Tensor] = distance.selection_distance,
    bound: Callable[[Tensor, Tensor, int], Tensor] = distance.top_distance_bound,
) -> None:
    quoted = (("15.5", 3.2, 11.0), ("63.5", 4.9, 23.0), ("255.5", 11.6, 69.0), ("1023.5", 27.1, 170.0))
    ends, law = [], []
    for L, (aligned, isotropic, sharp) in zip(COLLAPSE, quoted, strict=True):
        draws = 24
        flat = torch.full((draws, L), 1 / L, dtype=torch.float64)
        half = distance.top_set(flat, L // 2)
        distances = measured(flat, torch.ones(L, 1, dtype=torch.float64), half)
        evidence.quoted(f"d̃, aligned, uniform, L = {L:,}, N = L/2", distances[0], aligned)
        x = unit(normal(evidence.rng, draws, L, 16))  # 16 dimensions: the quoted draws scatter by as much
        away = measured(flat, x, half)
        law.append(away / (0.5 * math.sqrt(L / 2 + 1)))
        _like_one_draw(evidence, f"d̃, isotropic, uniform, L = {L:,}, N = L/2", away, isotropic)
        weights = (2 * normal(evidence.rng, draws, L)).softmax(-1)
        away = measured(weights, x, distance.top_set(weights, L // 2))
        _like_one_draw(evidence, f"d̃, isotropic, logits N(0, 4), L = {L:,}, top half", away, sharp)
        ends.append((float(distances[0]), float(away.mean())))
    evidence.true(
        "d̃ grows from L = 64 to 4,096", all(b > 4 * a for a, b in zip(*ends[::3], strict=True)), f"{ends[::3]}"
    )
    evidence.near("isotropic, uniform: d̃ over ½√(L/2 + 1), all lengths", torch.cat(law).mean(), 1.0, 0.13)
    slack = []
    for L in (6, 12):
        weights, x = heads(evidence.rng, 1200, L, 4)
        slack.append(bound(weights, x, L // 2) - measured(weights, x, distance.top_set(weights, L // 2)))
    evidence.holds("the bound of Theorem 1(1) at N = L/2", torch.cat(slack))
    flat, same = torch.full((2048,), 1 / 2048, dtype=torch.float64), torch.ones(2048, 1, dtype=torch.float64)
    evidence.near("that bound at L = 2,048, aligned, uniform, over A(L−N)", bound(flat, same, 1024) / 512, 1.0, 1e-3)
    evidence.near("d̃ at N = L", measured(flat, same, torch.ones(2048, dtype=torch.bool)), 0.0, 0.0)


def _like_one_draw(evidence: Evidence, label: str, draws: Tensor, quoted: float) -> None:
    """A figure that was one draw of a skewed quantity is within three standard deviations of fresh draws, in logs."""
    logs = draws.log()
    score = (math.log(quoted) - logs.mean()) / logs.std()
    evidence.near(
        f"{label}: {quoted:g} in standard deviations of a draw, mean {logs.mean().exp():.3g}", score, 0.0, 3.0
    )


# Critical N


def critical_distance(size: int, level: float) -> float:
    """Two-sample Kolmogorov–Smirnov, both samples of ``size``: reject above √(−ln(level/2)/2)·√(2/size)."""
    return math.sqrt(-math.log(level / 2) / 2) * math.sqrt(2 / size)


def largest_gap(a: Tensor, b: Tensor) -> float:
    """The two-sample Kolmogorov–Smirnov statistic: the largest difference of the two distribution functions."""
    both = torch.cat([a, b])
    counts = [(sample[:, None] <= both).to(torch.float64).mean(0) for sample in (a, b)]
    return float((counts[0] - counts[1]).abs().max())


@statement(
    "B14.1",
    LIMITS,
    place="section 3.1, observation (iii)",
    verdict=Verdict.FALSE,
    title="The critical N grows sub-linearly, as about 0.06 L",
    claim="The critical number of selected tokens grows sub-linearly with the length, as about 0.06 L.",
    formula=r"N_{crit} \approx 0.06\,L",
    correction="0.06 L is linear: sub-linear growth and a constant share of L exclude each other.",
    corrected_formula=r"N_{crit}(2L)/N_{crit}(L) = 2",
    proof="Doubling L doubles 0.06 L; sub-linear growth would need a ratio below 2 that stays below it.",
)
def sub_linear(evidence: Evidence, printed: Callable[[Tensor], Tensor] = lambda L: 0.06 * L) -> None:
    L = 2.0 ** torch.arange(5, 17, dtype=torch.float64)
    growth = printed(2 * L) / printed(L)
    evidence.breaks("growth by less than a factor 1.99 when L doubles, 32 to 65,536", 1.99 - growth)
    evidence.near("exponent of L", growth.log2().mean(), 1.0, 1e-9)


def _synthetic_heads(rng: torch.Generator, count: int, length: int = 256, dim: int = 16) -> tuple[Tensor, Tensor]:
    """Logits of spread U(0.5, 3), unit vectors around a common mean of length U(0, 1) before normalising."""
    weights = ((0.5 + 2.5 * uniform(rng, count, 1)) * normal(rng, count, length)).softmax(-1)
    mean = uniform(rng, count, 1, 1) * unit(normal(rng, count, 1, dim))
    return weights, unit(unit(normal(rng, count, length, dim)) + mean)


def _in_order(v: Tensor, order: Tensor, tops: tuple[int, ...]) -> Tensor:
    """d̃ of every head when the first N of ``order`` are selected, (heads, N's)."""
    ranked = v.gather(1, order[..., None].expand_as(v))
    sums = ranked.cumsum(1)
    columns = [lengths(ranked[:, N:] - sums[:, N - 1 : N]).sum(-1) for N in tops]
    return torch.stack(columns, -1)


def _distances(weights: Tensor, x: Tensor, tops: tuple[int, ...], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """d̃ of the top N, and its expectation for random sets of N by simulation, (heads, N's)."""
    v = weights[..., None] * x
    random = [_in_order(v, uniform(rng, *weights.shape).argsort(-1), tops) for _ in range(2)]
    return _in_order(v, weights.argsort(-1, descending=True), tops), torch.stack(random).mean(0)


def _first_alike(a: Tensor, b: Tensor, tops: tuple[int, ...], level: float = 0.01) -> float:
    """The smallest N at which the test does not tell the heads' two distances apart; infinite if there is none."""
    cut = critical_distance(len(a), level)
    return next((float(N) for k, N in enumerate(tops) if largest_gap(a[:, k], b[:, k]) <= cut), math.inf)


@statement(
    "B14.2",
    LIMITS,
    place="section 3.1, Figure 2(c); Algorithm 3, as a secondary copy of the appendix has it",
    verdict=Verdict.UNVERIFIED,
    title="The critical N is 6 % of L",
    claim="With at most 6 % of the tokens selected, the true and the expected distance of GPT-2's 144 heads can no "
    "longer be told apart by a Kolmogorov–Smirnov test (level 0.01 in the text, 0.05 in Algorithm 3).",
    formula=r"N_{crit} = \min\{N : \text{KS}(\tilde d, E)\ \text{does not reject}\}",
    correction="Not checked on GPT-2 here. The test cannot support it: the two samples are paired, head by head; not "
    "rejecting is not equality; the outcome depends on the number of heads; and both quantities are 0 at N = L: they "
    "must meet. On synthetic heads of length 256 the true expectation is met only at N = 240 (94 % of L; 250 with 600 "
    "heads), while the misprinted one crosses the distance at 9 to 13 % of L, where 36 heads cannot tell. A small "
    "critical share may be an artefact of the misprint: compute all three on GPT-2. The synthetic heads are ours, "
    "their spread and mean chosen so that these figures come out: they illustrate what the test can do, and prove "
    "nothing about GPT-2.",
    corrected_formula=r"D_{crit} = \sqrt{-\tfrac{1}{2}\ln(\alpha/2)}\,\sqrt{2/n}",
    proof="The test rejects when the largest difference of the two distribution functions exceeds the critical D, "
    "which falls like 1/√n. A constant shift of 0.12 in a uniform sample passes with 144 heads and fails with 600, "
    "although all pairs differ in the same direction. (Reduced here: 16 dimensions, logit spreads U(0.5, 3), "
    "a common mean of length U(0, 1), two random sets per head for E, a grid of five and seven N.)",
)
def critical_selection(
    evidence: Evidence, critical: Callable[[int, float], float] = critical_distance, misprinted: MainTerm = printed_main
) -> None:
    evidence.quoted("critical D, 144 heads, level 0.01", critical(144, 0.01), ".192")
    evidence.quoted("critical D, 144 heads, level 0.05", critical(144, 0.05), ".160")
    for count, alike in ((144, True), (600, False)):
        paired = torch.linspace(0, 1, count, dtype=torch.float64)
        gap = largest_gap(paired, paired + 0.12)
        passes = gap <= critical(count, 0.01)
        outcome = f"D = {gap:.3f}, critical {critical(count, 0.01):.3f}: {'not rejected' if passes else 'rejected'}"
        evidence.true(f"every one of {count} pairs differs by 0.12 of the range", passes == alike, outcome)
    weights, x = _synthetic_heads(evidence.rng, 600)
    late, early = (160, 192, 224, 240, 250), (8, 12, 16, 24, 32, 48, 64)
    true, expected = _distances(weights, x, late, evidence.rng)
    evidence.near(
        "critical N of 256, true expectation, 144 heads", _first_alike(true[:144], expected[:144], late), 240, 16
    )
    evidence.near("critical N of 256, true expectation, 600 heads", _first_alike(true, expected, late), 250, 10)
    v = weights[..., None] * x
    true = _in_order(v, weights.argsort(-1, descending=True), early)
    wrong = torch.stack([misprinted(weights, x, N) for N in early], -1)
    few = sorted(_first_alike(true[k : k + 36], wrong[k : k + 36], early) for k in range(0, 576, 36))
    evidence.near("critical N, misprinted expectation, 36 heads (quoted 24–32), lower quartile of 16", few[4], 28, 16)
    some = [_first_alike(true[k : k + 144], wrong[k : k + 144], early) for k in range(0, 576, 144)]
    evidence.true(
        "misprinted expectation, 144 heads: mostly never", some.count(math.inf) >= 2, f"first alike at {some}"
    )
    never = _first_alike(true, wrong, early)
    evidence.true("misprinted expectation, 600 heads: never", never == math.inf, f"first alike at {never}")
