"""Which statements of Mudarisov et al. on vanishing weights, head coverage and length-aware softmax are true?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from undilute.rules import get
from undilute.theory import dispersion
from undilute.theory.dispersion import Bounds
from undilute_papers.audit.sources import LIMITS
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement
from undilute_papers.theory import capacity

NORMALISERS: dict[str, Callable[[Tensor], Tensor]] = {
    "e^l": torch.exp,
    "e^(l/3)": lambda l: (l / 3).exp(),
    "1 + l²": lambda l: 1 + l.square(),
    "softplus": torch.nn.functional.softplus,
    "elu + 1": lambda l: torch.nn.functional.elu(l) + 1,
    "sigmoid": torch.sigmoid,
}


def _constants_over_length(length: int, smallest: Tensor, largest: Tensor) -> Bounds:
    """C1/L and C2/L with the constants of the proof, C1 = F_min/F_max and C2 = F_max/F_min."""
    return Bounds(smallest / largest / length, largest / smallest / length)


def _slack(bounds: Bounds, weights: Tensor) -> Tensor:
    """By how much the weights of each row, (..., n), stay inside the bounds, relative to the bound."""
    lower, upper = bounds
    return torch.minimum(weights.amin(-1) / lower - 1, 1 - weights.amax(-1) / upper)


@statement(
    "B1",
    LIMITS,
    place="Lemma 1",
    verdict=Verdict.TRUE,
    title="Every length-independent normaliser gives weights of order 1/L",
    claim="If F is smooth and positive, does not depend on the length L, and the logits stay in [−a, a], then every "
    "weight F(l)/ΣF lies between C1/L and C2/L with constants that do not depend on L.",
    formula=r"\frac{C_1}{L} \le \alpha_i \le \frac{C_2}{L}",
    correction="True (continuity is enough), with C1 = F_min/F_max and C2 = F_max/F_min over [−a, a]; a sharp form is "
    "given. Positivity carries the lemma: if F can be 0, as for ReLU and sparse rules, C2 is infinite and a weight can "
    "stay 1 at every L.",
    corrected_formula=r"\frac{F_{\min}}{F_{\min} + (L-1) F_{\max}} \le \alpha_i"
    r" \le \frac{F_{\max}}{F_{\max} + (L-1) F_{\min}}",
    proof="1/α_i = 1 + Σ F(l_j)/F(l_i), and each of the L − 1 ratios is between F_min/F_max and F_max/F_min. Both ends "
    "of the sharp form are attained by one logit against L − 1 equal ones.",
)
def positive_normalisers(
    evidence: Evidence,
    printed: Callable[[int, Tensor, Tensor], Bounds] = _constants_over_length,
    corrected: Callable[[int, Tensor, Tensor], Bounds] = dispersion.general_weight_bounds,
) -> None:
    loose, sharp, attained = [], [], []
    for normaliser, length in itertools.product(NORMALISERS.values(), (2, 5, 100)):
        logits = 3 * (2 * torch.rand(250, length, generator=evidence.rng, dtype=torch.float64) - 1)
        logits[::2, 0] *= 3 / logits[::2, 0].abs()  # at an end of the interval
        logits[::5, 1:] = -logits[::5, :1]  # one against all
        values = normaliser(logits)
        ends = values.amin(-1), values.amax(-1)
        weights = values / values.sum(-1, keepdim=True)
        loose.append(_slack(printed(length, *ends), weights))
        sharp.append(_slack(corrected(length, *ends), weights))
        attained.append(sharp[-1][::10])
    evidence.holds("C1/L and C2/L", torch.cat(loose))
    evidence.holds("the sharp form", torch.cat(sharp))
    evidence.holds("the sharp form is attained by one against all", -torch.cat(attained).abs())
    for length in (10, 1_000, 100_000):
        top = torch.tensor(math.e), torch.tensor(1 / math.e)
        evidence.near(
            f"sharp over printed upper bound, L = {length:,}",
            corrected(length, top[1], top[0]).upper / printed(length, top[1], top[0]).upper,
            length / (math.exp(2) + length - 1),
            within=1e-6,
        )
        relu = torch.relu(torch.cat([torch.ones(1), -torch.ones(length - 1)])).to(torch.float64)
        bound = corrected(length, relu.min(), relu.max()).upper
        evidence.near(f"ReLU: largest weight, L = {length:,}", relu.max() / relu.sum(), float(bound), within=0.0)


def _corollary(length: int, product: Tensor, temperature: Tensor) -> Bounds:
    """(1/L)e^(±2Δ/T)."""
    return Bounds((-2 * product / temperature).exp() / length, (2 * product / temperature).exp() / length)


@statement(
    "B2",
    LIMITS,
    place="Corollary 1",
    verdict=Verdict.CONDITIONAL,
    title="Softmax weights between e^(−2Δ/T)/L and e^(2Δ/T)/L",
    claim="Softmax weights of the logits ⟨q, k_j⟩/T lie between (1/L)e^(−2Δ/T) and (1/L)e^(2Δ/T), Δ = ‖q‖·‖k‖.",
    formula=r"\frac{1}{L} e^{-2\Delta/T} \le \alpha_i \le \frac{1}{L} e^{2\Delta/T}, \quad"
    r" \Delta = \lVert q \rVert \lVert k \rVert",
    correction="‖k‖ must be the largest of all keys' norms; with the norm of another key it fails. Sharper: the spread "
    "δ ≤ 2Δ of the logits instead of 2Δ, and the sharp form of Lemma 1.",
    corrected_formula=r"\frac{1}{1 + (L-1) e^{\delta/T}} \le \alpha_i \le \frac{1}{1 + (L-1) e^{-\delta/T}}",
    proof="|⟨q, k_j⟩| ≤ ‖q‖ max‖k_j‖, so logits differ by at most 2Δ; then Lemma 1 with F = exp.",
)
def softmax_weights(
    evidence: Evidence,
    printed: Callable[[int, Tensor, Tensor], Bounds] = _corollary,
    corrected: Callable[[int, Tensor, Tensor], Bounds] = dispersion.weight_bounds,
) -> None:
    one = torch.tensor(1.0, dtype=torch.float64)
    keys = torch.tensor([0.1, 10.0, 0.1, 0.1], dtype=torch.float64)
    weight = keys.softmax(-1)[1]
    evidence.quoted("q = 1, k = (.1, 10, .1, .1): weight 2", weight, ".99985")
    with_first = printed(4, keys[0], one).upper
    evidence.quoted("printed bound with the norm of key 1", with_first, ".305")
    evidence.breaks("the bound with the norm of key 1", (with_first - weight)[None])
    loose, sharp, tight = [], [], []
    for length, cases in ((2, 1500), (8, 1500), (200, 2000)):
        query = torch.randn(cases, 1, 4, generator=evidence.rng, dtype=torch.float64)
        vectors = torch.randn(cases, length, 4, generator=evidence.rng, dtype=torch.float64)
        vectors[::4, :1], vectors[::4, 1:] = query[::4], -query[::4]  # one key along the query, all others against it
        temperature = 0.3 + 3 * torch.rand(cases, generator=evidence.rng, dtype=torch.float64)
        logits = (query * vectors).sum(-1)
        weights = (logits / temperature[:, None]).softmax(-1)
        product = query.norm(dim=-1)[:, 0] * vectors.norm(dim=-1).amax(-1)
        loose.append(_slack(printed(length, product, temperature), weights))
        sharp.append(_slack(corrected(length, dispersion.logit_spread(logits), temperature), weights))
        tight.append(sharp[-1][::4])
    evidence.holds("printed, with the largest norm", torch.cat(loose))
    evidence.holds("sharp form, with the spread", torch.cat(sharp))
    evidence.holds("sharp form is attained", -torch.cat(tight).abs())


@statement(
    "B15.1",
    LIMITS,
    place="Discussion, geometric bound",
    verdict=Verdict.TRUE,
    title="Three heads at 0.8 cover 99 %",
    claim="If each head separates a share p of the tokens, H independent heads cover 1 − (1 − p)^H; for p = 0.8, three "
    "heads cover 99 %.",
    formula=r"1 - (1 - p)^H",
    correction="The arithmetic is right: 0.992, and three is the smallest number; p = 0.7 needs four.",
    proof="A token is missed by all of H independent heads with probability (1 − p)^H.",
)
def head_coverage(
    evidence: Evidence,
    coverage: Callable[[Tensor, Tensor], Tensor] = capacity.coverage,
    needed: Callable[[Tensor, Tensor], Tensor] = capacity.heads_needed,
) -> None:
    p, target = torch.tensor([0.8, 0.7], dtype=torch.float64), torch.tensor(0.99, dtype=torch.float64)
    evidence.quoted("coverage at p = .8, H = 3", coverage(p[0], torch.tensor(3)), ".992")
    evidence.quoted("heads needed for .99 at p = .8", needed(p, target)[0], "3")
    evidence.quoted("heads needed for .99 at p = .7", needed(p, target)[1], "4")
    caught = torch.rand(200_000, 3, generator=evidence.rng, dtype=torch.float64) < 0.8
    error = 5 * math.sqrt(0.992 * 0.008 / 200_000)
    evidence.near("share caught by three simulated heads", caught.any(-1).double().mean(), 0.992, within=error)
    chance = torch.rand(3000, generator=evidence.rng, dtype=torch.float64).clamp(0.01, 0.99)
    goal = torch.rand(3000, generator=evidence.rng, dtype=torch.float64).clamp(max=0.999)
    heads = needed(chance, goal)
    evidence.holds("that many heads are enough", coverage(chance, heads) - goal, 1e-12)
    evidence.holds("and one fewer is not", (goal - coverage(chance, (heads - 1).clamp(min=0.0)))[heads > 0], 0.0)


@statement(
    "B15.2",
    LIMITS,
    place="Discussion, geometric bound",
    verdict=Verdict.CONDITIONAL,
    title="Heads taken as independent, with common targets",
    claim="Assuming that the heads of a layer are independent, together they cover up to 1 − (1 − p)^H.",
    formula=r"P(\text{some head}) = 1 - (1 - p)^H",
    correction="Independence is an assumption, and the paper says so; that all heads look for one set of tokens is "
    "another. Neither is tested. Without them the coverage is only known to lie between p and min(1, Hp).",
    corrected_formula=r"p \le P(\text{some head}) \le \min(1, H p)",
    proof="At least one head's share, at most the sum (union bound). Identical heads attain the first, heads that "
    "never catch the same token the second.",
)
def dependent_heads(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor], Tensor] = capacity.coverage,
    corrected: Callable[[Tensor, Tensor], Bounds] = capacity.coverage_bounds,
) -> None:
    heads = torch.tensor(3)
    patterns = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3)), dtype=torch.float64)  # (8, 3)
    orders = torch.tensor(list(itertools.permutations(range(3))))  # (6, 3)
    places = (patterns[:, orders] * torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).sum(-1).long()  # (8, 6)
    law = torch.rand(3000, 8, generator=evidence.rng, dtype=torch.float64) ** 8
    law = (law / law.sum(-1, keepdim=True))[:, places].mean(-1)  # every head catches the same share
    p, covered = law @ patterns[:, 0], 1 - law[:, 0]
    bounds = corrected(p, heads)
    evidence.holds(
        "coverage between p and min(1, Hp), random joint laws",
        torch.minimum(covered - bounds.lower, bounds.upper - covered),
    )
    off = (printed(p, heads) - covered).abs()
    evidence.breaks("the printed coverage, to 5 points", 0.05 - off)
    same, apart = torch.tensor(0.8, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    evidence.quoted("printed coverage at p = .8, H = 3", printed(same, heads), ".992")
    caught = patterns.sum(-1)  # by how many heads
    for label, p, law, end in (
        ("identical heads at p = .8", same, torch.where(caught == 3, 0.8, 0.2) * (caught % 3 == 0), 0),
        ("heads that never agree at p = .3", apart, torch.where(caught == 1, 0.3, 0.1) * (caught <= 1), 1),
    ):
        evidence.near(f"{label}: share of each", (law @ patterns.to(law.dtype)).mean(), float(p), within=1e-6)
        evidence.near(f"{label}: coverage, the bound", 1 - law[0], float(corrected(p, heads)[end]), within=1e-6)


def _ssmax_curve() -> Curve:
    n = torch.logspace(0.31, 6, 60, dtype=torch.float64)
    lines: dict[str, Sequence[float]] = {
        f"s·gap = {gap}": dispersion.ssmax_weight(n, gap).tolist() for gap in (0.8, 1.0, 1.2)
    }
    return Curve(n.tolist(), lines, x_label="number of keys n", y_label="largest weight", log_x=True)


@statement(
    "B16",
    LIMITS,
    place="Discussion, length-aware rescales",
    verdict=Verdict.CONDITIONAL,
    title="Scalable-Softmax keeps the largest weight roughly constant",
    claim="Scaling the logits by log L keeps the largest attention weight roughly constant as the sequence grows.",
    formula=r"\alpha_{\max}(L) \approx \text{const} \text{ for } \mathrm{softmax}(s \ln L \cdot z)",
    correction="Only if s times the gap is exactly 1 (the weight tends to 1/2). Above 1 it tends to 1, below 1 to 0.",
    corrected_formula=r"\alpha_{\max} = \frac{1}{1 + (L-1) L^{-s\,\mathrm{gap}}} \to 0, \; \frac{1}{2}, \; 1",
    proof="e^(s ln L gap) = L^(s gap), against L − 1 competitors.",
    curve=_ssmax_curve,
)
def scalable_softmax(
    evidence: Evidence,
    weight: Callable[[Tensor, Tensor], Tensor] = dispersion.ssmax_weight,
    limit: Callable[[Tensor], Tensor] = dispersion.ssmax_limit,
) -> None:
    sizes = torch.tensor([1e1, 1e3, 1e6], dtype=torch.float64)
    below = weight(sizes, torch.tensor(0.8, dtype=torch.float64))
    for n, value, digits in zip(sizes, below, (".41", ".20", ".06"), strict=True):
        evidence.quoted(f"weight at n = {int(n):,}, s·gap = .8", value, digits)
    evidence.breaks("the weight changes by less than .1 from n = 10 to 1e6", 0.1 - (below[-1:] - below[0]).abs())
    exponents = torch.tensor([0.8, 1.0, 1.2], dtype=torch.float64)
    far = weight(torch.tensor(1e200, dtype=torch.float64), exponents)
    for exponent, value, end in zip(exponents.tolist(), far, limit(exponents), strict=True):
        evidence.near(f"weight at n = 1e200, s·gap = {exponent}", value, float(end), within=1e-9)
    expected = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    evidence.near("limits 0, 1/2 and 1", (limit(exponents) - expected).abs().max(), 0.0, within=0.0)
    n = torch.randint(1, 200, (2000,), generator=evidence.rng)
    gap = 4 * torch.rand(2000, generator=evidence.rng, dtype=torch.float64) - 1
    position = torch.arange(200)
    logits = torch.where(position == 0, gap[:, None], 0.0).masked_fill(position >= n[:, None], -torch.inf)
    direct = get("ssmax", s=1.0)(logits)[:, 0]
    evidence.holds("closed form against the rule itself", -(weight(n, gap) - direct).abs(), 1e-12)
