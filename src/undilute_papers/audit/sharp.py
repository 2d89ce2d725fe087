"""Which statements of the summary of "Softmax is not Enough" are true?  C1 to C8."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from undilute.rules import EntropyAdaptive, get
from undilute.rules.entropy import entropy, entropy_of_logits
from undilute.rules.scales.entropy_adaptive import PUBLISHED
from undilute.theory import adaptive, dispersion
from undilute.theory.dispersion import Bounds
from undilute_papers.audit.sources import SHARP
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement

ACCURACIES = {  # C5: % of the baseline and of adaptive temperature, as printed; used for the arithmetic of their gains
    16: (98.6, 98.6),
    64: (94.3, 94.5),
    256: (81.3, 82.1),
    1024: (53.8, 57.7),
    4096: (22.6, 24.9),
    16384: (12.4, 14.0),
}
SECONDARY = {128: (89.7, 89.9), 512: (70.1, 72.5), 2048: (35.7, 39.4)}  # C5: sizes that other copies of the table have
P_VALUES = {64: 0.002, 256: 2e-4, 1024: 1e-4, 4096: 0.02, 16384: 4e-3}  # C5, as printed


def _rows(evidence: Evidence, cases: int, n: int, largest_scale: float) -> Tensor:
    """(cases, n) logits: Gaussian rows of every scale, a third of them with one key apart from equal others."""
    z = torch.randn(cases, n, generator=evidence.rng, dtype=torch.float64)
    z[::3, 1:] = 0.0
    return largest_scale * torch.rand(cases, 1, generator=evidence.rng, dtype=torch.float64) * z


def _everything(z: Tensor) -> Tensor:
    return torch.ones_like(z, dtype=torch.bool)


def _double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _needle(n: int, gap: float) -> Tensor:
    z = torch.zeros(n, dtype=torch.float64)
    z[0] = gap
    return z


def _exponential_bounds(n: Tensor, spread: Tensor, temperature: Tensor) -> Bounds:
    """(1/n)e^(±δ/θ)."""
    return Bounds((-spread / temperature).exp() / n, (spread / temperature).exp() / n)


def _bounds_curve() -> Curve:
    n = torch.logspace(0.31, 5, 60, dtype=torch.float64)
    sharp = dispersion.weight_bounds(n, 5.69)
    lines: dict[str, Sequence[float]] = {
        "sharp upper": sharp.upper.tolist(),
        "printed upper": (math.exp(5.69) / n).clamp(max=1.0).tolist(),
        "uniform": (1 / n).tolist(),
        "sharp lower": sharp.lower.tolist(),
    }
    return Curve(n.tolist(), lines, x_label="number of keys n", y_label="weight, δ = 5.69", log_x=True, log_y=True)


@statement(
    "C1",
    SHARP,
    place="Lemma 2.1",
    verdict=Verdict.TRUE,
    title="Softmax coefficients of bounded logits are of order 1/n",
    claim="If all logits lie in an interval of length δ that does not depend on n, every softmax coefficient lies "
    "between (1/n)e^(−δ/θ) and (1/n)e^(δ/θ). (The formula is missing in the summary; this is the paper's as two "
    "copies give it.)",
    formula=r"\frac{1}{n} e^{-\delta/\theta} \le \alpha_k \le \frac{1}{n} e^{\delta/\theta}",
    correction="True. A sharp form is given; it never exceeds 1.",
    corrected_formula=r"\frac{1}{1 + (n-1) e^{\delta/\theta}} \le \alpha_k \le \frac{1}{1 + (n-1) e^{-\delta/\theta}}",
    proof="1/α_k = 1 + Σ e^((z_j − z_k)/θ) with n − 1 terms between e^(−δ/θ) and e^(δ/θ).",
    curve=_bounds_curve,
)
def coefficient_bounds(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor, Tensor], Bounds] = _exponential_bounds,
    corrected: Callable[[Tensor, Tensor, Tensor], Bounds] = dispersion.weight_bounds,
) -> None:
    outside: list[Tensor] = []
    inside: list[Tensor] = []
    attained: list[Tensor] = []
    for n in (2, 7, 64, 500):
        z = _rows(evidence, 1000, n, largest_scale=4.0)
        theta = 0.2 + 2 * torch.rand(1000, generator=evidence.rng, dtype=torch.float64)
        p, spread, size = (z / theta[:, None]).softmax(-1), dispersion.logit_spread(z), torch.tensor(float(n))
        for bounds, slack in ((printed(size, spread, theta), outside), (corrected(size, spread, theta), inside)):
            slack.append(torch.minimum(p.amin(-1) / bounds.lower - 1, 1 - p.amax(-1) / bounds.upper))
        attained.append(inside[-1][::3])
    evidence.holds("(1/n)e^(±δ/θ)", torch.cat(outside))
    evidence.holds("the sharp form", torch.cat(inside))
    evidence.holds("the sharp form is attained by one key apart", -torch.cat(attained).abs())
    large = _double(1e8), _double(5.0), _double(1.0)
    ratio = corrected(*large).upper / printed(*large).upper
    evidence.near("sharp over printed, n = 1e8: the constant is best possible", ratio, 1.0, within=1e-5)


def _distance_to_uniform(spread: Tensor, temperature: Tensor) -> Tensor:
    """Total variation between uniform and the softmax of a row half 0, half δ."""
    return (spread / (2 * temperature)).tanh() / 2


@statement(
    "C2",
    SHARP,
    place="Theorem 2.2",
    verdict=Verdict.FALSE,
    title="Coefficients converge to a uniform distribution",
    claim="In a Transformer over a finite vocabulary, the coefficients of every global attention head converge to a "
    "uniform distribution as the number of tokens grows.",
    formula=r"\alpha \to \left(\frac{1}{n}, \dots, \frac{1}{n}\right)",
    correction="The wording is the summary's. They disperse, but need not become uniform: with half of the logits "
    "ahead by δ the total variation from uniform is (1/2)tanh(δ/2θ) for every n. What holds: all coefficients are "
    "below ε once n > e^(δ/θ)/ε, and H/ln n tends to 1. It needs a finite vocabulary, continuous maps, bounded "
    "position information (not ALiBi's), θ > 0 and rows that see all n tokens.",
    corrected_formula=r"n > e^{\delta/\theta}/\varepsilon \Rightarrow \alpha_k < \varepsilon \text{ for all } k",
    proof="Compactness bounds the logits by numbers that do not depend on n; then Lemma 2.1, and A6.2 for the entropy. "
    "The half-and-half row is the counterexample to uniformity.",
)
def dispersion_is_not_uniformity(
    evidence: Evidence,
    distance: Callable[[Tensor, Tensor], Tensor] = _distance_to_uniform,
    corrected: Callable[[Tensor, Tensor], Tensor] = dispersion.dispersed_length,
) -> None:
    spread, one = _double(1.0, 5.69), _double(1.0)
    for n in (2, 1_000, 100_000):
        p = torch.where(torch.arange(n) % 2 == 0, spread[:, None], 0.0).softmax(-1)
        variation = (p - 1 / n).abs().sum(-1) / 2
        evidence.holds(f"half 0, half δ, n = {n:,}: distance from uniform", -(variation - distance(spread, one)).abs())
        evidence.breaks(f"it is below .1, n = {n:,}", 0.1 - distance(spread, one))
        least = 1 - dispersion.entropy_deficit_bound(spread) / math.log(n)
        evidence.holds(f"H/ln n is at least 1 − min(δ, δ²/8)/ln n, n = {n:,}", entropy(p) / math.log(n) - least)
        for i, (name, total, top) in enumerate((("1", ".231", "1.46"), ("5.69", ".497", "1.99"))):
            evidence.quoted(f"distance from uniform, δ = {name}, n = {n:,}", variation[i], total)
            evidence.quoted(f"n times the largest coefficient, δ = {name}, n = {n:,}", n * p[i].max(), top)
    epsilon = 0.02 + 0.9 * torch.rand(2500, generator=evidence.rng, dtype=torch.float64)
    delta = 3 * torch.rand(2500, generator=evidence.rng, dtype=torch.float64)
    length = corrected(epsilon, delta)
    position = torch.arange(int(length.max()))
    noise = delta[:, None] * torch.rand(2500, len(position), generator=evidence.rng, dtype=torch.float64)
    worst = torch.arange(2500)[:, None] % 2 == 0  # one key ahead by δ: the row that disperses last
    rows = torch.where(worst, torch.where(position == 0, delta[:, None], 0.0), noise)
    tops = [
        rows.masked_fill(position >= size[:, None], -torch.inf).softmax(-1).amax(-1) for size in (length, length - 1)
    ]
    evidence.holds("from that length on every coefficient is below ε", epsilon - tops[0], tolerance=0.0)
    evidence.holds("one key fewer, and one can reach it", (tops[1] - epsilon)[::2][length[::2] > 1], 1e-12)
    evidence.holds("it is no longer than e^(δ/θ)/ε + 1", delta.exp() / epsilon + 1 - length)
    for n in (100, 10_000):
        alibi = (-0.5 * torch.arange(n, dtype=torch.float64)).softmax(-1)
        evidence.near(f"ALiBi's unbounded bias, slope .5, n = {n:,}: largest", alibi[0], 1 - math.exp(-0.5), 1e-12)


@statement(
    "C3.1",
    SHARP,
    place="Proposition 3.1",
    verdict=Verdict.TRUE,
    title="The spread of logits is limited by the weights",
    claim="The logit spread is at most 2 σ_max(Q) σ_max(K) ‖y‖ max‖x_i‖. (The formula is missing in the summary; this "
    "is the paper's as two copies give it.)",
    formula=r"\delta \le 2 \, \sigma_{\max}(Q) \, \sigma_{\max}(K) \, \lVert y \rVert \, \max_i \lVert x_i \rVert",
    correction="True. Divide by √d if the logits are scaled by it.",
    proof="|⟨Qy, Kx⟩| is at most the product (Cauchy–Schwarz), and largest minus smallest at most twice the largest "
    "modulus. Tight for x and −x along the top singular vectors.",
)
def spread_from_weights(
    evidence: Evidence, bound: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = dispersion.spread_bound
) -> None:
    ratios = []
    for d, n in ((1, 2), (2, 8), (5, 20)):
        query, key = torch.randn(2, 1000, d, d, generator=evidence.rng, dtype=torch.float64).unbind()
        y = torch.randn(1000, d, generator=evidence.rng, dtype=torch.float64)
        x = torch.randn(1000, n, d, generator=evidence.rng, dtype=torch.float64)
        top = torch.linalg.svd(key)[2][::2, :1]  # (500, 1, d), the direction that K stretches most
        x[::2, :1], x[::2, 1:2] = 9 * top, -9 * top
        logits = ((query @ y[..., None]).mT @ key @ x.mT)[:, 0]  # (1000, n)
        sigma = [torch.linalg.matrix_norm(each, ord=2) for each in (query, key)]
        limit = bound(y.norm(dim=-1), x.norm(dim=-1).amax(-1), *sigma)
        ratios.append(dispersion.logit_spread(logits) / limit)
    evidence.holds("spread over its bound is at most 1", 1 - torch.cat(ratios))
    best = float(torch.cat(ratios[1:]).max())
    evidence.true("and comes close to 1 (our notes: .998)", best > 0.97, f"largest ratio {best:.4f}")
    pair = dispersion.logit_spread(_double(1.0, -1.0))
    evidence.near("x = ±1: spread", pair, float(bound(*_double(1.0, 1.0, 1.0, 1.0))), within=0.0)


@statement(
    "C3.2",
    SHARP,
    place="Proposition 3.1, consequence",
    verdict=Verdict.TRUE,
    title="Sharpness requires large weights",
    claim="To stay sharp as n grows, a head must increase its largest singular values.",
    formula=r"\delta \text{ must grow with } n",
    correction="True, and quantified: a coefficient of c among n needs the spread below, so the product of norms in "
    "Proposition 3.1 must be at least half of it.",
    corrected_formula=r"\alpha_k \ge c \Rightarrow \delta \ge \theta \ln\frac{c (n-1)}{1 - c}",
    proof="Solve the sharp upper bound of Lemma 2.1 for δ.",
)
def sharpness_needs_spread(
    evidence: Evidence, needed: Callable[[Tensor, Tensor, Tensor], Tensor] = dispersion.spread_to_hold
) -> None:
    slack, tight = [], []
    for n in (2, 10, 100):
        z = _rows(evidence, 1000, n, largest_scale=5.0)
        theta = 0.2 + 2 * torch.rand(1000, generator=evidence.rng, dtype=torch.float64)
        top = (z / theta[:, None]).softmax(-1).amax(-1).clamp(max=1 - 1e-9)
        slack.append(dispersion.logit_spread(z) - needed(top, torch.tensor(float(n)), theta))
        tight.append(slack[-1][::3][(z[::3, 0] > 0) & (top[::3] < 1 - 1e-6)])
    evidence.holds("no row holds its top coefficient with less", torch.cat(slack), 1e-6)
    evidence.holds("one key ahead of equal others holds it with exactly that", -torch.cat(tight).abs(), 1e-6)
    sizes = _double(1e2, 1e4, 1e6)
    evidence.holds("the need grows with n", needed(_double(0.5), sizes, _double(1.0)).diff() - 4.6)


def _polynomial(entropies: Tensor) -> Tensor:
    """The published polynomial, without any guard."""
    value = torch.zeros_like(entropies)
    for coefficient in PUBLISHED:
        value = value * entropies + coefficient
    return value


def _published_beta(entropies: Tensor) -> Tensor:
    return EntropyAdaptive().beta(entropies)


def _reversed_polynomial(entropies: Tensor) -> Tensor:
    """A port's mistake: the coefficients taken from the constant up."""
    value = torch.zeros_like(entropies)
    for coefficient in reversed(PUBLISHED):
        value = value * entropies + coefficient
    return value


def _beta_curve() -> Curve:
    entropies = torch.linspace(0, 7.5, 120, dtype=torch.float64)
    lines: dict[str, Sequence[float]] = {
        "β(H)": _published_beta(entropies).tolist(),
        "plain softmax": [1.0] * len(entropies),
    }
    return Curve(entropies.tolist(), lines, x_label="entropy H of the row, nats", y_label="factor on the logits")


@statement(
    "C4.1",
    SHARP,
    place="Adaptive Temperature, polynomial",
    verdict=Verdict.TRUE,
    title="The polynomial β(H) and where it acts",
    claim="β is a polynomial of degree 4 in the entropy, applied where it exceeds 1.",
    formula=r"\beta(H) = -0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791",
    correction="Entropy is in nats. β > 1 exactly for 0.848582 < H < 5.944521, that is for 2.336 to 381.66 effective "
    "keys, and it is at most 2.4214, at H = 4.4124. Highest power first: a known port reads the coefficients "
    "backwards.",
    corrected_formula=r"\beta > 1 \iff 0.848582 < H < 5.944521",
    proof="Roots of the polynomial minus 1, and of its derivative.",
    curve=_beta_curve,
)
def adaptive_polynomial(
    evidence: Evidence,
    beta: Callable[[Tensor], Tensor] = _published_beta,
    intervals: Callable[[], list[tuple[float, float]]] = adaptive.active_intervals,
    peak: Callable[[], tuple[float, float]] = adaptive.peak,
    port: Callable[[Tensor], Tensor] = _reversed_polynomial,
) -> None:
    vector = {1: "1.27", 2: "2.099", 3: "2.25", 4: "2.389", 5: "2.294", 5.5: "1.8466", 5.9: "1.1094", 6: "1"}
    for at, digits in vector.items():
        value = beta(_double(at))
        evidence.quoted(f"β({at})", value, digits)
    evidence.near("β(6) is 1 exactly", beta(_double(6.0)), 1.0, within=0.0)
    [(low, high)] = intervals()
    evidence.quoted("lower root", low, "0.848582")
    evidence.quoted("upper root", high, "5.944521")
    evidence.quoted("effective keys at the lower root", math.exp(low), "2.336")
    evidence.quoted("effective keys at the upper root", math.exp(high), "381.66")
    evidence.quoted("effective keys at 5.9, which is not the end", math.exp(5.9), "365")
    where, largest = peak()
    evidence.quoted("largest β", largest, "2.4214")
    evidence.quoted("entropy at which β is largest", where, "4.4124")
    grid = torch.linspace(0, 12, 24_001, dtype=torch.float64)
    acts = (beta(grid) > 1) == ((grid > low) & (grid < high))
    evidence.true(
        "β > 1 inside the interval and nowhere else, 24,001 entropies", acts.all(), f"{int(acts.sum()):,} agree"
    )
    evidence.holds("β is at most its largest value", largest - beta(grid))
    evidence.quoted("reversed coefficients at H = 2", port(_double(2.0)), "2.405")


@statement(
    "C4.2",
    SHARP,
    place="Adaptive Temperature, conditions",
    verdict=Verdict.TRUE,
    title="Never increases the entropy",
    claim="The correction is applied only where H > 0.5 and β > 1, so that it never increases the entropy.",
    formula=r"H(\mathrm{softmax}(\beta z)) \le H(\mathrm{softmax}(z))",
    correction="True; and the largest weight stays where it was. The condition H > 0.5 changes nothing: the "
    "polynomial is at most .1503 there, so β > 1 already excludes it.",
    proof="dH/dβ = −β Var ≤ 0 (A8.1), and a positive factor keeps the order. The polynomial increases on [0, .5].",
)
def adaptive_conditions(
    evidence: Evidence,
    beta: Callable[[Tensor], Tensor] = _published_beta,
    polynomial: Callable[[Tensor], Tensor] = _polynomial,
) -> None:
    low = torch.linspace(0, 0.5, 5001, dtype=torch.float64)
    evidence.quoted("largest value of the polynomial on [0, .5]", polynomial(low).max(), ".1503")
    z = torch.cat([_rows(evidence, 10_000, 24, largest_scale=scale) for scale in (3.0, 12.0)])
    before = entropy_of_logits(z, _everything(z))
    factor = beta(before)
    evidence.holds("the condition H > .5 never changes β", -(factor - polynomial(before).clamp(min=1.0)).abs(), 0.0)
    sharpened = factor[:, None] * z
    after = entropy_of_logits(sharpened, _everything(z))
    evidence.holds("entropy does not increase", before - after)
    evidence.true(
        "it decreases in some rows", (before - after > 0.1).any(), f"by up to {float((before - after).max()):.2g}"
    )
    kept = sharpened.gather(-1, z.argmax(-1, keepdim=True))[:, 0] == sharpened.amax(-1)
    evidence.true("the largest weight stays where it was", kept.all(), f"in {int(kept.sum()):,} of {len(kept):,} rows")


def _adaptive_weights(z: Tensor) -> Tensor:
    weights: Tensor = get("adaptive")(z)
    return weights


@statement(
    "C4.3",
    SHARP,
    place="Adaptive Temperature and Max Retrieval",
    verdict=Verdict.CONDITIONAL,
    title="Sharpens rows that have dispersed",
    claim="Adaptive temperature counters dispersion at larger inputs.",
    formula=r"\mathrm{softmax}(\beta(H) z)",
    correction="Up to H = 5.944521 nats. Above, where dispersion is worst, it is plain softmax: a key 6 ahead goes "
    "from .283 to .973 among 1,024, and stays at .0897 among 4,096.",
    corrected_formula=r"H \ge 5.944521 \Rightarrow \beta = 1",
    proof="C4.1: the polynomial falls below 1 again.",
)
def adaptive_switches_off(evidence: Evidence, weigh: Callable[[Tensor], Tensor] = _adaptive_weights) -> None:
    for n, digits in ((1024, (".283", ".973")), (4096, (".0897", ".0897"))):
        z = _needle(n, 6.0)
        evidence.quoted(f"softmax weight of a key 6 ahead, n = {n:,}", z.softmax(-1)[0], digits[0])
        evidence.quoted(f"with adaptive temperature, n = {n:,}", weigh(z)[0], digits[1])
    z = _rows(evidence, 3000, 512, largest_scale=2.0)
    plain, weights = z.softmax(-1), weigh(z)
    high = entropy_of_logits(z, _everything(z)) > adaptive.switch_off_entropy()
    changed = (weights - plain).abs().amax(-1)
    evidence.holds("no change above the upper root", -changed[high], 1e-12)
    evidence.holds("a change below it", changed[~high] - 1e-9, tolerance=0.0)
    evidence.breaks("every row gets sharper", weights.amax(-1) - plain.amax(-1) - 1e-6, 1e-7)


def _first_pass(z: Tensor, values: Tensor) -> Tensor:
    """What one pass over the logits leaves: their maximum, Σe, Σe·z and Σe·v; (..., 4)."""
    top = z.amax(-1, keepdim=True)
    e = (z - top).exp()
    return torch.stack([top[..., 0], e.sum(-1), (e * z).sum(-1), (e * values).sum(-1)], -1)


def _adaptive_output(z: Tensor, values: Tensor) -> Tensor:
    return (_adaptive_weights(z) * values).sum(-1)


@statement(
    "C4.4",
    SHARP,
    place="Highlights, practical value",
    verdict=Verdict.FALSE,
    title="Zero extra cost",
    claim="Adaptive temperature can be applied during inference at zero extra cost.",
    correction="It needs a second pass over the logits: β depends on the whole row, and what the first pass leaves "
    "(the maximum, Σe^z, Σe^z·z and Σe^z·v) does not determine Σe^(βz)·v.",
    proof="Add to the values a vector that is orthogonal to e^z but not to e^(βz): the first pass cannot tell the two "
    "rows apart, the outputs differ.",
)
def zero_extra_cost(
    evidence: Evidence,
    statistics: Callable[[Tensor, Tensor], Tensor] = _first_pass,
    output: Callable[[Tensor, Tensor], Tensor] = _adaptive_output,
) -> None:
    z = torch.randn(2000, 16, generator=evidence.rng, dtype=torch.float64)
    values, other = torch.randn(2, 2000, 16, generator=evidence.rng, dtype=torch.float64).unbind()
    e = z.softmax(-1)
    hidden = other - (other * e).sum(-1, keepdim=True) / e.square().sum(-1, keepdim=True) * e
    apart = (statistics(z, values) - statistics(z, values + hidden)).abs().amax(-1)
    evidence.holds("the first pass sees no difference", -apart, 1e-9)
    evidence.breaks("so the outputs are the same", 1e-3 - (output(z, values) - output(z, values + hidden)).abs())


def _streamed_entropy(z: Tensor, block: int) -> Tensor:
    """Entropy from blocks of keys, three numbers kept per row: m = max z, Z = Σe^(z−m), S = Σe^(z−m)·z."""
    top = torch.full(z.shape[:-1], -torch.inf, dtype=z.dtype)
    total, moment = torch.zeros_like(top), torch.zeros_like(top)
    for part in z.split(block, -1):
        new = torch.maximum(top, part.amax(-1))
        e, shrink = (part - new[..., None]).exp(), (top - new).exp()
        total = total * shrink + e.sum(-1)
        moment = moment * shrink + (e * part).sum(-1)
        top = new
    return top + total.log() - moment / total


@statement(
    "C4.5",
    SHARP,
    place="Adaptive Temperature, Flash Attention",
    verdict=Verdict.TRUE,
    title="The entropy can be streamed",
    claim="The entropy can be computed in a stream over the keys, with O(n) memory in all.",
    formula=r"H = m + \ln Z - \frac{1}{Z}\sum_i e^{z_i - m} z_i, \quad Z = \sum_i e^{z_i - m}",
    correction="True, with three numbers per row: the running maximum m, Z and Σe^(z−m)·z.",
    proof="Raising the maximum from m to m' multiplies both sums by e^(m−m').",
)
def streamed_entropy(evidence: Evidence, stream: Callable[[Tensor, int], Tensor] = _streamed_entropy) -> None:
    z = _rows(evidence, 2000, 96, largest_scale=20.0)
    expected = entropy_of_logits(z, _everything(z))
    for block in (1, 7, 96):
        evidence.holds(f"in blocks of {block} against the whole row", -(stream(z, block) - expected).abs(), 1e-9)
    rising = z.sort(-1).values
    evidence.holds("the maximum rising at every key", -(stream(rising, 1) - expected).abs(), 1e-9)


def _entropy_with_offset(p: Tensor) -> Tensor:
    """−Σ p·log(p + 1e-9), as code for the method writes it."""
    return -(p * (p + 1e-9).log()).sum(-1)


def _exact_entropy(z: Tensor) -> Tensor:
    return entropy_of_logits(z, _everything(z))


@statement(
    "C4.6",
    SHARP,
    place="Adaptive Temperature, entropy in code",
    verdict=Verdict.CONDITIONAL,
    title="Entropy as −Σ p log(p + 1e-9)",
    claim="The entropy may be computed as −Σ p log(p + 1e-9). (Not in the summary, which has no code: this is how code "
    "for the method writes it.)",
    formula=r"-\sum_i p_i \log(p_i + 10^{-9})",
    correction="It is biased by −n·1e-9, and in half precision 1e-9 rounds to 0, so that a weight of 0 gives NaN. The "
    "form from the logits has neither fault.",
    corrected_formula=r"H = m + \ln Z - \frac{1}{Z}\sum_i e^{z_i - m} z_i",
    proof="log(p + ε) = log p + ε/p + …, and Σ p·ε/p = n·ε. The smallest half-precision number is 6e-8.",
)
def entropy_numerics(
    evidence: Evidence,
    printed: Callable[[Tensor], Tensor] = _entropy_with_offset,
    corrected: Callable[[Tensor], Tensor] = _exact_entropy,
) -> None:
    for n in (1_000, 30_000, 1_000_000):
        z = 0.1 * torch.randn(n, generator=evidence.rng, dtype=torch.float64)
        bias = printed(z.softmax(-1)) - corrected(z)
        evidence.near(f"bias over −n·1e-9, n = {n:,}", bias / (-n * 1e-9), 1.0, within=0.002)
        evidence.near(
            f"corrected, against the definition, n = {n:,}", corrected(z), float(entropy(z.softmax(-1))), 1e-9
        )
    rows = _rows(evidence, 2000, 64, largest_scale=10.0)
    error = (corrected(rows) - entropy(rows.softmax(-1))).abs()
    evidence.holds("corrected, against the definition, random rows", -error, 1e-9)
    half = torch.tensor([20.0, 0.0, 0.0]).softmax(-1).half()
    evidence.true("1e-9 is 0 in half precision", bool(torch.tensor(1e-9).half() == 0), "0")
    evidence.true("a weight of 0 gives NaN in half precision", printed(half).isnan(), f"{float(printed(half))}")
    evidence.near("corrected, same row", corrected(torch.tensor([20.0, 0.0, 0.0])), 0.0, within=1e-6)


def _gain(before: float, after: float) -> float:
    return after - before


@statement(
    "C5.1",
    SHARP,
    place="Max Retrieval, table",
    verdict=Verdict.FALSE,
    title="The improvement grows with the scale",
    claim="The improvement by adaptive temperature becomes more pronounced as the scale increases.",
    correction="By the table, the gain peaks at 1,024 (or between 1,024 and 2,048, where secondary copies have 3.7) "
    "and falls after it. The accuracies are the summary's; four of its sizes match two other copies. Used for this "
    "only.",
    proof="Subtract the rows of the table.",
)
def improvement_with_scale(evidence: Evidence, gain: Callable[[float, float], float] = _gain) -> None:
    gains = [gain(before, after) for before, after in ACCURACIES.values()]
    for n, value, digits in zip(ACCURACIES, gains, ("0", ".2", ".8", "3.9", "2.3", "1.6"), strict=True):
        evidence.quoted(f"gain in points at n = {n:,}", value, digits)
    for (n, (before, after)), digits in zip(SECONDARY.items(), (".2", "2.4", "3.7"), strict=True):
        evidence.quoted(f"gain at n = {n:,}, in a secondary copy", gain(before, after), digits)
    evidence.breaks("the gain grows from size to size", torch.tensor(gains).diff())


def _chance(classes: int) -> float:
    return 100 / classes


@statement(
    "C5.2",
    SHARP,
    place="Max Retrieval, table",
    verdict=Verdict.UNVERIFIED,
    title="Significant at every larger size",
    claim="The improvement is statistically significant at all out-of-distribution sizes.",
    correction="Not checked here: it needs the runs. The printed p-values, from 64 up, are below .05; the size 32 is "
    "missing in the summary, and a reader of the paper records significance from 64 up only. Chance is 10 %, so the "
    "12.4 and 14.0 % at 16,384 are close to guessing.",
    proof="Ten equally likely classes are guessed right once in ten times.",
)
def significance(evidence: Evidence, chance: Callable[[int], float] = _chance) -> None:
    evidence.holds("printed p-values are below .05", 0.05 - torch.tensor(list(P_VALUES.values())))
    evidence.quoted("chance with ten classes, in %", chance(10), "10")
    truth, guess = torch.randint(0, 10, (2, 200_000), generator=evidence.rng).unbind()
    right = 100 * (truth == guess).double().mean()
    evidence.near("guesses that are right, in %", right, chance(10), within=5 * 100 * math.sqrt(0.09 / 200_000))
    above = [each - chance(10) for each in ACCURACIES[16384]]
    evidence.quoted("baseline above chance at 16,384, points", above[0], "2.4")
    evidence.quoted("adaptive above chance at 16,384, points", above[1], "4.0")


@statement(
    "C6",
    SHARP,
    place="Logit Spread δ in Practical Transformers, table",
    verdict=Verdict.UNVERIFIED,
    title="Mean logit spread 5.69 in Gemma 2B",
    claim="In Gemma 2B the logit spread is 5.69 on average, so dispersion sets in early.",
    correction="The table is found in the summary alone; we use the mean for its consequence only. A row of that "
    "spread gives no key more than .224 among 1,024 and .035 among 8,192, and at most .5 from 297 keys on.",
    corrected_formula=r"\alpha_k \le \frac{1}{1 + (n-1) e^{-5.69}}",
    proof="The sharp form of Lemma 2.1.",
)
def gemma_spread(evidence: Evidence, bounds: Callable[[Tensor, Tensor], Bounds] = dispersion.weight_bounds) -> None:
    spread = _double(5.69)
    for n, digits, cases in ((1024, ".224", 500), (8192, ".035", 100), (297, ".5", 1500)):
        cap = bounds(_double(n), spread).upper
        evidence.quoted(f"largest possible weight at n = {n:,}", cap, digits)
        evidence.near(
            f"a key 5.69 ahead of equal others has it, n = {n:,}", _needle(n, 5.69).softmax(-1)[0], float(cap), 1e-12
        )
        z = torch.rand(cases, n, generator=evidence.rng, dtype=torch.float64).pow(8)
        z = 5.69 * (z - z.amin(-1, keepdim=True)) / (z.amax(-1, keepdim=True) - z.amin(-1, keepdim=True))
        evidence.holds(f"random rows of that spread stay below, n = {n:,}", cap - z.softmax(-1).amax(-1))
    evidence.near("keys from which the cap is below .5", dispersion.dispersed_length(0.5, spread), 297.0, within=0.0)


def _influence(n: int, spread: Tensor) -> Tensor:
    """The most that the output of softmax attention can move when one key and its value change; ‖v‖ ≤ 1."""
    return 4 * dispersion.weight_bounds(n, spread).upper


@statement(
    "C7",
    SHARP,
    place="Highlights, theoretical contribution",
    verdict=Verdict.UNVERIFIED,
    title="The first rigorous proof",
    claim="This is the first work to prove rigorously that softmax attention disperses.",
    correction="The summary's claim of priority, which we do not repeat: to our knowledge Hahn (2020) and Chiang and "
    "Cholak (2022) have results that one input changes the output of softmax attention by O(1/n). That kind of result "
    "is what is checked here.",
    corrected_formula=r"\lVert o - o' \rVert \le \frac{4}{1 + (n-1) e^{-\delta/\theta}} \max_i \lVert v_i \rVert",
    proof="Let r be the output over the other n − 1 keys. o = (1 − α)r + αv and o' = (1 − α')r + α'v', so o − o' = "
    "α(v − r) − α'(v' − r); both α are below the cap and both differences at most 2 max‖v‖.",
)
def influence_of_one_input(evidence: Evidence, bound: Callable[[int, Tensor], Tensor] = _influence) -> None:
    for n in (2, 20, 200):
        z = 2.0 * torch.rand(1000, n, generator=evidence.rng, dtype=torch.float64)
        z[::2], z[::2, 0] = 0.0, 2.0
        z[:, 1] = 0.0
        values = torch.nn.functional.normalize(
            torch.randn(1000, n, 2, generator=evidence.rng, dtype=torch.float64), dim=-1
        )
        values[::4, 1:] = -values[::4, :1]
        changed, others = values.clone(), z.clone()
        changed[:, 0] = -changed[:, 0]
        others[1::2, 0] = 2.0 * torch.rand(500, generator=evidence.rng, dtype=torch.float64)
        moved = (z.softmax(-1)[..., None] * values - others.softmax(-1)[..., None] * changed).sum(-2).norm(dim=-1)
        evidence.holds(
            f"one changed key moves the output by at most the bound, n = {n}", bound(n, _double(2.0)) - moved
        )
        evidence.true(
            f"some move it by a quarter of that, n = {n}",
            (moved > bound(n, _double(2.0)) / 4).any(),
            f"{float(moved.max()):.3g}",
        )
    shares = torch.stack([n * bound(n, _double(2.0)) for n in (10**3, 10**5, 10**7)])
    evidence.near("n times the bound tends to 4e^δ", shares[-1] / (4 * math.exp(2)), 1.0, within=1e-5)


def _asymptotic_entropy(n: Tensor, kappa: Tensor) -> Tensor:
    return (n / kappa).log() + 1


def _competitors_curve() -> Curve:
    n = torch.logspace(2, 5, 60, dtype=torch.float64)
    kappas = (10.0, 90.0, 190.0)
    lines: dict[str, Sequence[float]] = {f"κ = {kappa:g}": adaptive.even_entropy(n, kappa).tolist() for kappa in kappas}
    lines["adaptive temperature switches off"] = [adaptive.switch_off_entropy()] * len(n)
    return Curve(n.tolist(), lines, x_label="number of keys n", y_label="entropy, nats", log_x=True)


@statement(
    "C8",
    SHARP,
    place="Lemma 2.1 as an explanation of Max Retrieval",
    verdict=Verdict.CONDITIONAL,
    title="Dispersion explained by the bounded spread",
    claim="Trained retrieval heads disperse because the spread of their logits is bounded.",
    formula=r"\alpha_k \le \frac{1}{n} e^{\delta/\theta}",
    correction="True only in the limit. Heads trained for max retrieval have spreads of 80 to 90 (our trial runs, not "
    "recomputed here), for which the bound says nothing at any real n. They disperse because competitors crowd near "
    "the top: with logits κ·uniform(0, 1) the largest weight is about κ/n and H about ln(n/κ) + 1, so adaptive "
    "temperature switches off at n* = 140.4 κ.",
    corrected_formula=r"H \approx \ln\frac{n}{\kappa} + 1, \qquad n_* = e^{H_* - 1} \kappa = 140.4 \, \kappa",
    proof="The weights become a density proportional to e^(−κt) over t in [0, 1], whose differential entropy is 1 − "
    "ln κ up to terms of order κe^(−κ); evenly spaced logits give a truncated geometric sequence, whose entropy is "
    "exact.",
    curve=_competitors_curve,
)
def competitor_density(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor, Tensor], Bounds] = _exponential_bounds,
    approximation: Callable[[Tensor, Tensor], Tensor] = _asymptotic_entropy,
    entropy_of_even: Callable[[Tensor, Tensor], Tensor] = adaptive.even_entropy,
    length: Callable[[Tensor], Tensor] = adaptive.switch_off_length,
) -> None:
    kappa, n = _double(90.0), _double(16384.0)
    vacuous = printed(n, _double(80.0), _double(1.0)).upper
    evidence.true("the printed bound at δ = 80, n = 16,384 exceeds 1", vacuous > 1e30, f"{float(vacuous):.2g}")
    evidence.quoted("ln(n/κ) + 1 at κ = 90, n = 16,384", approximation(n, kappa), "6.204")
    z = 90 * torch.rand(25, 16384, generator=evidence.rng, dtype=torch.float64)
    p = z.softmax(-1)
    drawn, error = entropy(p).mean(), 5 * 0.037 / 5  # 0.037: standard deviation of one draw
    evidence.near("mean entropy of 25 random rows", drawn, float(approximation(n, kappa)), within=error)
    evidence.near("the same, against our notes' 6.197", drawn, 6.197, within=0.05)
    evidence.near("largest weight over κ/n, mean", p.amax(-1).mean() / (90 / 16384), 1.0, within=0.1)
    for k, size in ((0.3, 50), (5.0, 400), (90.0, 3000)):
        even = (-k / size * torch.arange(size, dtype=torch.float64)).softmax(-1)
        exact = entropy_of_even(_double(size), _double(k))
        evidence.near(f"entropy of {size:,} evenly spaced logits, κ = {k:g}", exact, float(entropy(even)), within=1e-9)
    many = 10 + 490 * torch.rand(2000, generator=evidence.rng, dtype=torch.float64)
    reached = entropy_of_even(length(many), many)
    evidence.holds("at the switch-off length H is the upper root", -(reached - adaptive.switch_off_entropy()).abs())
    evidence.quoted("n*/κ for large κ", length(_double(1e4)) / 1e4, "140.4")
    evidence.quoted("e^(H* − 1)", adaptive.switch_off_ratio(), "140.4")
    trained = adaptive.effective_kappa(n, _double(5.44))
    evidence.quoted("κ of rows of entropy 5.44 among 16,384", trained, "193")
    evidence.quoted("their switch-off length, in thousands", length(trained) / 1000, "27")
    for factor, expected in ((0.8, True), (1.25, False)):
        size = round(factor * float(length(_double(30.0))))
        rows = 30 * torch.rand(64, size, generator=evidence.rng, dtype=torch.float64)
        acts = (_published_beta(_exact_entropy(rows)) > 1).double().mean()
        label = f"share of random rows still sharpened at {factor} n*, κ = 30"
        evidence.near(label, acts, float(expected), within=0.2)
