"""Which statements of the blog article on dilution are true?  A1 to A12, with its table recomputed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undilute.rules.entropy import entropy, entropy_of_logits
from undilute.theory import dispersion
from undilute_papers.audit.sources import BLOG
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement
from undilute_papers.theory import capacity

BITS = math.log(2.0)  # nats in a bit
GAP = 4.0 / 8.0  # of the article's code: scores 5 and 1, divided by √64


class TableRow(NamedTuple):
    """One line of the article's table: the relevant weight, the entropy in bits, "bits lost" (and e^H if computed)."""

    alpha: float
    entropy: float
    bits_lost: float
    effective_keys: float = math.nan


PRINTED = {  # as in the article
    5: TableRow(0.86224699, 1.02, 0.84),
    10: TableRow(0.76254272, 1.59, 1.22),
    50: TableRow(0.43876340, 3.64, 2.50),
    100: TableRow(0.28923680, 4.74, 3.24),
    500: TableRow(0.07561847, 7.11, 5.39),
    1_000: TableRow(0.03950614, 8.17, 6.35),
    5_000: TableRow(0.00812033, 10.50, 8.61),
    10_000: TableRow(0.00407753, 11.57, 9.64),
    100_000: TableRow(0.00040958, 14.40, 12.56),
}
RECOMPUTED = {  # what the article's code prints, with n_eff added: weight, entropy, "bits lost", n_eff
    5: ("0.29187513", "2.2874", "0.5454", "4.88"),
    10: ("0.15482810", "3.3009", "0.6307", "9.86"),
    50: ("0.03255208", "5.6390", "0.7027", "49.83"),
    100: ("0.01638095", "6.6414", "0.7120", "99.83"),
    500: ("0.00329317", "8.9653", "0.7195", "499.83"),
    1_000: ("0.00164765", "9.9655", "0.7204", "999.82"),
    5_000: ("0.00032970", "12.2877", "0.7212", "4999.82"),
    10_000: ("0.00016486", "13.2877", "0.7213", "9999.82"),
    100_000: ("0.00001649", "16.6096", "0.7213", "99999.8"),
}
IF_SCALED = (".931738", ".858486", ".527019", ".355461", ".098624", ".051821", ".010804", ".005431", ".000546")
IMPLIED = ("25.0", "28.9", "38.3", "40.3", "40.8", "41.1", "40.9", "40.9", "41.0")
SCORES = ((80.2, 37.1, 54), (84.7, 52.3, 38), (82.1, 48.6, 41))  # A9: % at 128K, % at 1M, printed drop in %


def table() -> dict[int, tuple[TableRow, TableRow]]:
    """Context size → (the line as printed, the line that the printed code gives).

    Examples
    --------
    >>> printed, recomputed = table()[1_000]
    >>> printed.alpha, round(recomputed.alpha, 8)
    (0.03950614, 0.00164765)
    """
    return {n: (PRINTED[n], run_printed_code(n)) for n in PRINTED}


def article_scores(n: int, relevant: float = 5.0 / 8.0, noise: float = 1.0 / 8.0) -> Tensor:
    """The scores of the article's demonstration: one relevant key, n − 1 of noise, all divided by √64."""
    scores = torch.full((n,), noise, dtype=torch.float64)
    scores[0] = relevant
    return scores


def run_printed_code(n: int, relevant: float = 5.0 / 8.0, noise: float = 1.0 / 8.0) -> TableRow:
    """``demonstrate_dilution`` of the article for one context size, line by line, 1e-12 included."""
    weights = article_scores(n, relevant, noise).softmax(-1)
    bits = float(-(weights * (weights + 1e-12).log2()).sum())
    bits_lost = math.log2(n) + math.log2(float(weights[0]) + 1e-12)
    return TableRow(float(weights[0]), bits, bits_lost, 2.0**bits)


def _softmax(z: Tensor) -> Tensor:
    return z.softmax(-1)


def _vanishing_gap(softmax: Callable[[Tensor], Tensor], dtype: torch.dtype) -> float:
    """The gap beyond which the smaller of two weights is exactly 0, by bisection."""
    low, high = 0.0, 2048.0
    for _ in range(60):
        middle = (low + high) / 2
        zero = float(softmax(torch.tensor([0.0, -middle], dtype=dtype))[-1]) == 0.0
        low, high = (low, middle) if zero else (middle, high)
    return low


def random_rows(evidence: Evidence, cases: int, n: int, largest_scale: float = 8.0) -> Tensor:
    """(cases, n) logits: Gaussian rows of every scale, and rows of two levels (one against all, half against half)."""
    z = torch.randn(cases, n, generator=evidence.rng, dtype=torch.float64)
    levels = torch.randint(1, n, (cases, 1), generator=evidence.rng) > torch.arange(n)
    two_level = torch.rand(cases, 1, generator=evidence.rng) < 0.3
    scale = largest_scale * torch.rand(cases, 1, generator=evidence.rng, dtype=torch.float64)
    return scale * torch.where(two_level, levels.to(torch.float64), z)


def needles(n: Tensor, gap: Tensor) -> Tensor:
    """Rows (cases, max n) with −inf beyond the n of each: one key ``gap`` above the others."""
    position = torch.arange(int(n.max()))
    z = torch.where(position == 0, gap[:, None], 0.0)
    return z.masked_fill(position >= n[:, None], -torch.inf)


def _uniform(evidence: Evidence, cases: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(cases, generator=evidence.rng, dtype=torch.float64)


def _sizes(evidence: Evidence, cases: int, low: int, high: int) -> Tensor:
    return torch.randint(low, high + 1, (cases,), generator=evidence.rng)


@statement(
    "A1",
    BLOG,
    place="The Softmax Function, properties 1 to 3",
    verdict=Verdict.TRUE,
    title="Softmax is positive, sums to 1 and is monotone",
    claim="Every softmax weight is positive, the weights of a row sum to 1, and a higher score gets a higher weight.",
    formula=r"\frac{e^{z_i}}{\sum_j e^{z_j}} > 0",
    correction="True in exact arithmetic. In floating point a weight is exactly 0 once its logit lies more than 745.1 "
    "(float64) or about 103.9 (float32) below the top one, and the sum is 1 up to n rounding errors.",
    proof="Exponentials are positive and increasing, and the denominator is the sum of the numerators. In floating "
    "point e^-g rounds to 0 below half the smallest subnormal number: g > 1075 ln 2 and 150 ln 2.",
)
def softmax_properties(evidence: Evidence, softmax: Callable[[Tensor], Tensor] = _softmax) -> None:
    z = random_rows(evidence, 3000, 64, largest_scale=60.0).sort(-1).values
    p = softmax(z)
    evidence.holds("weights are at least 0", p.amin(-1), tolerance=0.0)
    evidence.true("weights are above 0 up to a gap of 700", (p[z.amax(-1) - z.amin(-1) < 700] > 0).all(), "all of them")
    evidence.holds("the sum is 1 within n·eps", 64 * torch.finfo(p.dtype).eps - (p.sum(-1) - 1).abs(), tolerance=0.0)
    evidence.holds("a higher logit gets no less", p.diff(dim=-1), tolerance=0.0)
    evidence.quoted("gap beyond which a float64 weight is 0", _vanishing_gap(softmax, torch.float64), "745.1")
    single = _vanishing_gap(softmax, torch.float32)
    evidence.near("the same for float32 (our notes: about 103.9)", single, 103.9, within=0.1)


@statement(
    "A2.1",
    BLOG,
    place="Why Dilution Is Inevitable",
    verdict=Verdict.TRUE,
    title="The dilution law",
    claim="One relevant key whose score exceeds that of n − 1 equal noise keys by a fixed scaled gap ln R gets the "
    "weight R/(R + n − 1), which tends to 0.",
    formula=r"\alpha_* = \frac{R}{R + n - 1} \to 0",
    proof="Divide numerator and denominator of softmax by the exponential of the noise score.",
)
def dilution_law(evidence: Evidence, law: Callable[[Tensor, Tensor], Tensor] = dispersion.relevant_weight) -> None:
    n, gap = _sizes(evidence, 3000, 1, 400), _uniform(evidence, 3000, -5.0, 12.0)
    error = (law(n, gap) - needles(n, gap).softmax(-1)[:, 0]).abs()
    evidence.holds("law against softmax of the row itself", -error, tolerance=1e-12)
    far = law(torch.tensor([1e6, 1e9, 1e12]), torch.tensor(8.0))
    evidence.holds("weight falls from n = 1e6 to 1e9 and 1e12, R = e^8", -far.diff())
    evidence.near("weight at n = 1e12 for R = e^8", far[-1], math.exp(8.0) / 1e12, within=1e-15)


def _fixed_ratio(n: Tensor, gap: Tensor) -> Tensor:
    """The article's limit, for a gap that stays what it was at the first length."""
    return dispersion.relevant_weight(n, gap[..., :1])


@statement(
    "A2.2",
    BLOG,
    place="Why Dilution Is Inevitable",
    verdict=Verdict.CONDITIONAL,
    title="“No matter how relevant a token is”",
    claim="However relevant a token is, its weight goes to 0 as the context grows.",
    formula=r"\lim_{n \to \infty} \alpha_* = 0 \text{ for every } R",
    correction="True for a fixed R. A gap that grows like the logarithm of the length holds any weight c for ever.",
    corrected_formula=r"\frac{s_* - s_0}{\sqrt{d}} = \ln(n - 1) + \ln\frac{c}{1 - c} \Rightarrow \alpha_* = c",
    proof="Solve R/(R + n − 1) = c for ln R.",
)
def no_matter_how_relevant(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor], Tensor] = _fixed_ratio,
    corrected: Callable[[Tensor, Tensor], Tensor] = dispersion.gap_to_hold,
) -> None:
    lengths = torch.tensor([1e2, 1e4, 1e6], dtype=torch.float64)
    gaps = corrected(torch.tensor(0.5), lengths)
    for n, gap, digits in zip(lengths, gaps, ("4.595", "9.210", "13.816"), strict=True):
        evidence.quoted(f"gap that holds 0.5 at n = {int(n):,}", gap, digits)
    held = torch.stack(
        [article_scores(int(n), float(gap), 0.0).softmax(-1)[0] for n, gap in zip(lengths, gaps, strict=True)]
    )
    evidence.breaks("weights of a growing gap against the limit of a fixed one", printed(lengths, gaps) - held, 1e-3)
    n, c = _sizes(evidence, 3000, 2, 400), _uniform(evidence, 3000, 0.001, 0.999)
    error = (needles(n, corrected(c, n)).softmax(-1)[:, 0] - c).abs()
    evidence.holds("the gap holds the weight, random n and c", -error, tolerance=1e-12)


def _half(n: Tensor, gap: Tensor) -> Tensor:
    return torch.full_like(n * gap, 0.5)


def _share_of_n(n: Tensor, gap: Tensor) -> Tensor:
    return gap.exp() / n


def _doubling_curve() -> Curve:
    n = torch.logspace(0.5, 6, 60, dtype=torch.float64)
    exact = dispersion.doubling_ratio(n, 8.0)
    lines: dict[str, Sequence[float]] = {"exact, R = e^8": exact.tolist(), "printed": [0.5] * len(n)}
    return Curve(n.tolist(), lines, x_label="context size n", y_label="α(2n) / α(n)", log_x=True)


@statement(
    "A3",
    BLOG,
    place="The Decay Rate",
    verdict=Verdict.CONDITIONAL,
    title="Doubling the context halves the weight",
    claim="The weight of the relevant key behaves like R/n, so doubling the context roughly halves it.",
    formula=r"\alpha_* \approx \frac{R}{n}, \qquad \frac{\alpha_*(2n)}{\alpha_*(n)} \approx \frac{1}{2}",
    correction="Only for n much larger than R. For R > 1 the exact ratio lies between 1/2 and 1; R/n is too large by "
    "the share (R − 1)/n, and above 1 for n < R.",
    corrected_formula=r"\frac{\alpha_*(2n)}{\alpha_*(n)} = \frac{R + n - 1}{R + 2n - 1}",
    proof="Divide the law at 2n by the law at n. For R > 1 the ratio falls in n, from 1 − 1/(R + 1) at n = 1 to 1/2.",
    curve=_doubling_curve,
)
def doubling(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor], Tensor] = _half,
    approximation: Callable[[Tensor, Tensor], Tensor] = _share_of_n,
    corrected: Callable[[Tensor, Tensor], Tensor] = dispersion.doubling_ratio,
) -> None:
    lengths, gap = torch.tensor([5, 1e2, 1e3, 1e4, 1e5], dtype=torch.float64), torch.tensor(8.0, dtype=torch.float64)
    for n, digits in zip(lengths, (".998", ".969", ".799", ".565", ".507"), strict=True):
        evidence.quoted(f"ratio at n = {int(n):,}, R = e^8", corrected(n, gap), digits)
    evidence.breaks(
        "halving, to 5 %, at n = 5 … 1e5", 0.05 - (printed(lengths, gap) / corrected(lengths, gap) - 1).abs()
    )
    long = gap.exp() * torch.tensor([20.0, 1e3, 1e6], dtype=torch.float64)
    evidence.holds("halving, to 5 %, for n ≥ 20 R", 0.05 - (printed(long, gap) / corrected(long, gap) - 1).abs())
    evidence.breaks("R/n is a weight (at most 1)", 1 - approximation(lengths, gap))
    n, gaps = _sizes(evidence, 3000, 1, 200), _uniform(evidence, 3000, -3.0, 10.0)
    once, twice = needles(n, gaps).softmax(-1)[:, 0], needles(2 * n, gaps).softmax(-1)[:, 0]
    evidence.holds("exact ratio against softmax of both rows", -(corrected(n, gaps) - twice / once).abs(), 1e-12)
    ratio = (twice / once)[gaps > 0]
    evidence.holds("and between 1/2 and 1 for R > 1", torch.minimum(ratio - 0.5, 1 - ratio), tolerance=0.0)
    excess = approximation(n, gaps) / once - 1
    evidence.holds("R/n is off by the share (R − 1)/n", -(excess - (gaps.exp() - 1) / n).abs() / gaps.exp(), 1e-9)


def _implied_ratio(alpha: float, n: int) -> float:
    """The R at which the dilution law gives this weight."""
    return alpha * (n - 1) / (1 - alpha)


def _table_curve() -> Curve:
    rows = table()
    lines: dict[str, Sequence[float]] = {
        "printed": [printed.alpha for printed, _ in rows.values()],
        "the printed code": [computed.alpha for _, computed in rows.values()],
    }
    return Curve(list(rows), lines, x_label="context size n", y_label="weight", log_x=True, log_y=True)


@statement(
    "A4.1",
    BLOG,
    place="Numerical Demonstration, output",
    verdict=Verdict.FALSE,
    title="The table is not what the code prints",
    claim="The article's code prints the article's table: weight, entropy and bits lost at nine context sizes; at 100K "
    "tokens the relevant token gets 0.04 % of the attention.",
    formula=r"R = e^{(5 - 1)/\sqrt{64}}",
    correction="The code has R = e^0.5 = 1.649 and prints much smaller weights and larger entropies; every printed "
    "cell differs. At 100K tokens the weight is 0.00165 %. Taking 5 and 1 for scaled scores does not give the table "
    "either.",
    corrected_formula=r"\alpha_*(10^5) = \frac{e^{0.5}}{e^{0.5} + 99999} = 0.0000165",
    proof="Run the code.",
    curve=_table_curve,
)
def printed_table(evidence: Evidence, code: Callable[..., TableRow] = run_printed_code) -> None:
    rows = {n: code(n) for n in PRINTED}
    evidence.quoted("R of the printed code", _implied_ratio(rows[5].alpha, 5), "1.64872")
    names = ("weight", "entropy", "bits lost", "n_eff")
    for n, digits in RECOMPUTED.items():
        for name, value, printed in zip(names, rows[n], digits, strict=True):
            evidence.quoted(f"{name} at n = {n:,}, from the printed code", value, printed)
    for name, column, unit in (("weight", 0, 1e-8), ("entropy", 1, 1e-2), ("bits lost", 2, 1e-2)):
        off = [abs(rows[n][column] - PRINTED[n][column]) for n in PRINTED]
        wrong = sum(each > unit for each in off)
        evidence.true(f"printed {name} differs in every row", wrong == 9, f"in {wrong} of 9, by up to {max(off):.3g}")
    evidence.quoted("weight at n = 100,000, in % (printed: 0.04)", 100 * rows[100_000].alpha, "0.00165")
    for n, expected in zip(PRINTED, IF_SCALED, strict=True):
        value = code(n, 5.0, 1.0).alpha
        evidence.quoted(f"weight at n = {n:,} for scores 5 and 1 unscaled", value, expected)
        evidence.true(
            f"that is not the printed weight, n = {n:,}", abs(value - PRINTED[n].alpha) > 1e-8, f"{value:.6f}"
        )


@statement(
    "A4.2",
    BLOG,
    place="Numerical Demonstration, output",
    verdict=Verdict.FALSE,
    title="No relevance ratio gives the table",
    claim="The columns of the printed table belong together: one R gives the weights, and the weights give the "
    "entropies and bits lost.",
    formula=r"R = \frac{\alpha_* (n - 1)}{1 - \alpha_*}",
    correction="The printed weights imply R from 25.0 to 41.1, and neither the printed entropies nor the printed bits "
    "lost follow from the printed weights in any row.",
    proof="Invert the dilution law row by row; compute the entropy of one weight α and n − 1 equal ones.",
)
def table_columns(
    evidence: Evidence,
    implied: Callable[[float, int], float] = _implied_ratio,
    deficit: Callable[[Tensor, Tensor], Tensor] = capacity.needle_deficit,
) -> None:
    ratios = {n: implied(row.alpha, n) for n, row in PRINTED.items()}
    for (n, ratio), digits in zip(ratios.items(), IMPLIED, strict=True):
        evidence.quoted(f"R implied by the printed weight at n = {n:,}", ratio, digits)
    uncertain = max(implied(row.alpha + 5e-9, n) - ratios[n] for n, row in PRINTED.items())
    apart = ratios[100_000] - ratios[5]
    evidence.true(
        "no R fits the first and the last row", apart > 2 * uncertain, f"{apart:.3g} apart, ± {uncertain:.2g}"
    )
    gaps = torch.tensor(list(ratios.values()), dtype=torch.float64).log()
    deficits = deficit(torch.tensor(list(ratios), dtype=torch.float64), gaps) / BITS
    entropies = {n: math.log2(n) - float(each) for n, each in zip(ratios, deficits, strict=True)}
    bits = {n: math.log2(n * row.alpha) for n, row in PRINTED.items()}
    evidence.quoted("entropy implied at n = 100,000 (printed: 14.40)", entropies[100_000], "16.608")
    evidence.quoted("bits lost implied at n = 100,000 (printed: 12.56)", bits[100_000], "5.356")
    off = torch.tensor([[entropies[n] - row.entropy, bits[n] - row.bits_lost] for n, row in PRINTED.items()])
    evidence.true(
        "both columns disagree with the weights in every row",
        (off.abs() > 0.01).all(),
        f"by {off.abs().min():.2g} at least",
    )
    direct = torch.tensor([ratios[5], 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    evidence.near("entropy at n = 5 from the weights themselves", entropies[5], float(entropy(direct)) / BITS, 1e-12)


@statement(
    "A4.3",
    BLOG,
    place="Numerical Demonstration, comment in the code",
    verdict=Verdict.FALSE,
    title="“Noise tokens have random scores”",
    claim="The noise tokens of the demonstration have random scores around a mean.",
    correction="They are constant: every noise token has the score 1/√64, and the run is deterministic.",
    proof="np.full fills with one number; nothing in the function draws one.",
)
def noise_is_constant(evidence: Evidence, scores: Callable[[int], Tensor] = article_scores) -> None:
    for n in PRINTED:
        noise = scores(n)[1:]
        evidence.near(f"spread of the noise scores, n = {n:,}", noise.max() - noise.min(), 0.0, within=0.0)
        evidence.near(f"their value, n = {n:,}", noise[0], 0.125, within=0.0)


def _bits_lost(alpha: Tensor, n: Tensor) -> Tensor:
    return n.log2() + alpha.log2()


@statement(
    "A5",
    BLOG,
    place="Numerical Demonstration, column “Bits lost”",
    verdict=Verdict.FALSE,
    title="“Bits lost” is not a loss",
    claim="The bits lost to dilution are log2 n + log2 α, the information capacity that is wasted.",
    formula=r"\log_2 n + \log_2 \alpha_*",
    correction="The expression is the pointwise gain of the key over a uniform row: it lies between 0 and log2 R "
    "(0.7213 in the article's code, so it cannot reach 12.56), and it rises with attention on the key. A loss would be "
    "the surprisal of the key, or the capacity deficit log2 n − H.",
    corrected_formula=r"\log_2 n - H = \mathrm{KL}(\alpha \Vert u) \approx \frac{R \ln R - R + 1}{n \ln 2}",
    proof="log2 n + log2 α = log2(α/(1/n)) and n·α = nR/(R + n − 1) increases in n from 1 to R. The deficit is "
    "α ln R − ln(1 + (R − 1)/n); expand in 1/n.",
)
def bits_lost(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor], Tensor] = _bits_lost,
    gain: Callable[[Tensor, Tensor], Tensor] = capacity.pointwise_gain,
    deficit: Callable[[Tensor, Tensor], Tensor] = capacity.needle_deficit,
) -> None:
    n, gap = _sizes(evidence, 3000, 2, 300).to(torch.float64), _uniform(evidence, 3000, 0.01, 12.0)
    p = needles(n, gap).softmax(-1)
    alpha = p[:, 0]
    evidence.holds("it is the gain over 1/n", -(printed(alpha, n) - gain(alpha, n) / BITS).abs(), 1e-12)
    evidence.holds("it is above 0", printed(alpha, n), tolerance=0.0)
    evidence.holds("it is below log2 R", gap / BITS - printed(alpha, n))
    more = dispersion.relevant_weight(n, gap + 0.1)
    evidence.holds("more attention on the key raises it", printed(more, n) - printed(alpha, n))
    evidence.quoted("log2 R of the article's code", GAP / BITS, "0.7213")
    evidence.breaks("the printed 12.56 is below log2 R", torch.tensor([GAP / BITS - 12.56]))
    direct = n.log() - entropy(p)
    evidence.holds("deficit ln n − H, in closed form", -(deficit(n, gap) - direct).abs(), 1e-12)
    size, ratio = torch.tensor([1e5, 1e7], dtype=torch.float64), math.exp(GAP)
    limit = (ratio * GAP - ratio + 1) / size
    evidence.near(
        "deficit over (R ln R − R + 1)/n at n = 1e5", (deficit(size, torch.tensor(GAP)) / limit)[0], 1.0, 1e-4
    )


@statement(
    "A6.1",
    BLOG,
    place="The Entropy Connection",
    verdict=Verdict.TRUE,
    title="Entropy approaches its maximum in the demonstration",
    claim="As the context grows, the entropy of the weights approaches log2 n.",
    formula=r"\log_2 n - H(\alpha) \to 0",
    proof="For one key with a fixed ratio R against n − 1 equal ones the deficit is (R ln R − R + 1)/n + O(1/n²) nats.",
)
def entropy_approaches_maximum(
    evidence: Evidence, deficit: Callable[[Tensor, Tensor], Tensor] = capacity.needle_deficit
) -> None:
    sizes = torch.tensor(list(PRINTED), dtype=torch.float64)
    deficits = deficit(sizes, torch.tensor(GAP)) / BITS
    evidence.quoted("log2 n − H at n = 5", deficits[0], "3.5e-2")
    evidence.quoted("log2 n − H at n = 100,000", deficits[-1], "2.5e-6")
    evidence.holds("it falls from row to row", -deficits.diff(), tolerance=0.0)
    for n, value in zip(PRINTED, deficits, strict=True):
        direct = math.log2(n) - float(entropy(article_scores(n).softmax(-1))) / BITS
        evidence.near(f"against the weights themselves, n = {n:,}", value, direct, within=1e-12)


def _needle_deficit_limit(n: Tensor, spread: Tensor) -> Tensor:
    """(R ln R − R + 1)/n: the deficit as the demonstration suggests it, R = e^spread."""
    return (spread.exp() * (spread - 1) + 1) / n


def _deficit_curve() -> Curve:
    spread = torch.linspace(0.05, 16, 80, dtype=torch.float64)
    half = math.log(2) - entropy(torch.stack([torch.zeros_like(spread), spread], -1).softmax(-1))
    lines: dict[str, Sequence[float]] = {
        "bound min(δ, δ²/8)": dispersion.entropy_deficit_bound(spread).tolist(),
        "half against half, every n": half.tolist(),
        "one against n − 1, n = 10,000": capacity.needle_deficit(10_000, spread).tolist(),
    }
    return Curve(spread.tolist(), lines, x_label="logit spread δ", y_label="ln n − H")


@statement(
    "A6.2",
    BLOG,
    place="The Entropy Connection",
    verdict=Verdict.CONDITIONAL,
    title="Attention becomes more uniform as the context grows",
    claim="In general, entropy increases towards its maximum with the context: attention becomes more uniform.",
    formula=r"\log_2 n - H(\alpha) \to 0",
    correction="The deficit stays bounded, by a number that depends on the logit spread alone, but need not vanish: "
    "with half of the keys ahead by δ it is the same for every n.",
    corrected_formula=r"0 \le \ln n - H \le \min(\delta, \delta^2/8)",
    proof="ln n − H is the integral of t·Var_t(z) over t from 0 to 1, where Var_t is the variance of the logits under "
    "softmax(t z), at most δ²/4. And ln n − H = Σ p ln(n p) ≤ δ because p ≤ e^δ/n.",
    curve=_deficit_curve,
)
def entropy_deficit(
    evidence: Evidence,
    printed: Callable[[Tensor, Tensor], Tensor] = _needle_deficit_limit,
    corrected: Callable[[Tensor], Tensor] = dispersion.entropy_deficit_bound,
) -> None:
    slack, deficits = [], []
    for n, cases in ((2, 5000), (3, 5000), (16, 5000), (200, 5000)):
        z = random_rows(evidence, cases, n, largest_scale=6.0)
        deficits.append(math.log(n) - entropy_of_logits(z, torch.ones_like(z, dtype=torch.bool)))
        slack.append(corrected(dispersion.logit_spread(z)) - deficits[-1])
    evidence.holds("deficit is at least 0", torch.cat(deficits))
    evidence.holds("deficit is at most min(δ, δ²/8)", torch.cat(slack))
    small = torch.tensor(0.01, dtype=torch.float64)
    level = math.log(2) - float(entropy(torch.stack([small, -small]).div(2).softmax(-1)))
    evidence.near("deficit over the bound: halves 0.01 apart", level / float(corrected(small)), 1.0, within=1e-4)
    size = torch.tensor(1e300, dtype=torch.float64)
    wide = size.log() + 5
    top = capacity.needle_deficit(size, wide) / corrected(wide)
    evidence.near("deficit over the bound: one key 696 ahead of 1e300", top, 1.0, within=0.02)
    spread = torch.tensor([1.0, 3.0, 6.0], dtype=torch.float64)
    for n in (2, 100, 100_000):
        halves = torch.where(torch.arange(n) % 2 == 0, spread[:, None], 0.0)
        deficit = math.log(n) - entropy(halves.softmax(-1))
        evidence.near(f"half against half 3 apart, n = {n:,}", deficit[1], math.log(2) - _binary_entropy(3.0), 1e-9)
        if n == 100_000:
            evidence.breaks(
                "the deficit vanishes like (R ln R − R + 1)/n", printed(torch.tensor(float(n)), spread) - deficit
            )


def _binary_entropy(gap: float) -> float:
    p = 1 / (1 + math.exp(gap))
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


@statement(
    "A7.1",
    BLOG,
    place="The Entropy Connection, effective number of tokens",
    verdict=Verdict.TRUE,
    title="Effective number of tokens",
    claim="A row attends to effectively 2^H tokens (H in bits); for H = 14.4 that is about 21,619.",
    formula=r"n_{\mathrm{eff}} = 2^{H(\alpha)}",
    proof="A definition: k equal weights give k. The arithmetic is right.",
)
def effective_number(evidence: Evidence, effective: Callable[[Tensor], Tensor] = capacity.effective_keys) -> None:
    evidence.quoted("2^14.4", 2.0**14.4, "21,618.8")
    equal = torch.tril(torch.ones(64, 64, dtype=torch.float64))
    size = torch.arange(1, 65, dtype=torch.float64)
    evidence.holds("k equal weights give k", -(effective(equal / size[:, None]) - size).abs(), 1e-10)
    p = random_rows(evidence, 3000, 32).softmax(-1)
    bits = -(p * p.clamp(min=1e-300).log2()).sum(-1)
    evidence.holds("2 to the entropy in bits", -(effective(p) - 2**bits).abs(), 1e-9)
    evidence.holds("between 1 and n", torch.minimum(effective(p) - 1, 32 - effective(p)))


@statement(
    "A7.2",
    BLOG,
    place="The Entropy Connection, effective number of tokens",
    verdict=Verdict.FALSE,
    title="About 21,619 of 100K tokens",
    claim="With 100K tokens the model spreads its attention over about 21K of them.",
    formula=r"n_{\mathrm{eff}}(10^5) \approx 21619",
    correction="The entropy put in, 14.4 bits, is that of the printed table (A4.1). The article's code gives 16.61 "
    "bits.",
    corrected_formula=r"n_{\mathrm{eff}}(10^5) = 99999.8",
    proof="Compute the entropy of the weights of the code.",
)
def effective_number_of_the_example(
    evidence: Evidence, printed: float = 21_619.0, effective: Callable[[Tensor], Tensor] = capacity.effective_keys
) -> None:
    value = effective(article_scores(100_000).softmax(-1))
    evidence.quoted("effective tokens at n = 100,000", value, "99,999.8")
    evidence.breaks("the printed number, to 1 %", torch.tensor([0.01 - abs(float(value) / printed - 1)]))
    evidence.near("the printed number is 2^14.4", printed, 2.0**14.4, within=0.5)


@statement(
    "A8.1",
    BLOG,
    place="Temperature Scaling",
    verdict=Verdict.TRUE,
    title="Lower temperature focuses",
    claim="Dividing the scores by a smaller temperature concentrates the weights: the entropy falls.",
    formula=r"\alpha_i = \frac{e^{z_i/\tau}}{\sum_j e^{z_j/\tau}}",
    correction="Sharpened: with β = 1/τ the entropy falls at the rate β times the variance of the scores.",
    corrected_formula=r"\frac{dH}{d\beta} = -\beta \, \mathrm{Var}_\beta(z) \le 0",
    proof="H = ln Z − β E z, d ln Z/dβ = E z and dE z/dβ = Var z.",
)
def temperature_focuses(
    evidence: Evidence, slope: Callable[[Tensor, Tensor], Tensor] = dispersion.entropy_slope
) -> None:
    z = random_rows(evidence, 2000, 24, largest_scale=3.0)
    beta = _uniform(evidence, 2000, 0.1, 3.0)
    seen = torch.ones_like(z, dtype=torch.bool)
    step = 1e-4

    def at(b: Tensor) -> Tensor:
        return entropy_of_logits(b[:, None] * z, seen)

    outer = (at(beta + 2 * step) - at(beta - 2 * step)) / (4 * step)
    inner = (at(beta + step) - at(beta - step)) / (2 * step)
    numerical = (4 * inner - outer) / 3  # Richardson: the error is of order step⁴
    evidence.holds(
        "formula against finite differences, 8 digits (our notes' row: −1.93680222 both ways)",
        -(slope(z, beta) - numerical).abs(),
        5e-9,
    )
    evidence.holds("the slope is never above 0", -slope(z, beta), tolerance=0.0)
    evidence.holds("halving the temperature lowers the entropy", at(beta) - at(2 * beta))


def printed_demo(scores: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """``attention_with_temperature`` of the article: largest weight and entropy in bits, 1e-12 included."""
    weights = (scores / temperature).softmax(-1)
    return weights.amax(-1), -(weights * (weights + 1e-12).log2()).sum(-1)


def demo_scores(noise: Tensor) -> Tensor:
    scores = noise * 0.5
    scores[..., 0] = 3.0
    return scores


@statement(
    "A8.2",
    BLOG,
    place="Temperature Scaling, code",
    verdict=Verdict.TRUE,
    title="The temperature demonstration",
    claim="With 1,000 scores of standard deviation 0.5 and one of 3.0, lower temperatures raise the largest weight and "
    "lower the entropy, and a very low one leaves nothing to the others.",
    correction="True as a tendency; the code is unseeded, so it has no numbers of its own. The seeds are ours: the "
    "figures are means, smallest and largest values over 200 of them, and illustrate what a run of the code prints. "
    "Its 1e-12 inside the logarithm makes a one-hot row's entropy slightly negative: clamp it at 0.",
    proof="A8.1; the numbers are computed for NumPy's generators 0 to 199, a choice of ours, and for 200 fresh draws. "
    "(Our notes have .01832 and 9.762 for two of the largest values, from other seeds.)",
)
def temperature_demo(evidence: Evidence, demo: Callable[[Tensor, float], tuple[Tensor, Tensor]] = printed_demo) -> None:
    seeds = np.stack([np.random.default_rng(seed).standard_normal(1000) for seed in range(200)])
    fixed = demo_scores(torch.from_numpy(seeds))
    fresh = demo_scores(torch.randn(200, 1000, generator=evidence.rng, dtype=torch.float64))
    quoted: dict[float, tuple[tuple[str, str, str], tuple[str, str, str]]] = {
        2.0: ((".00433", ".00420", ".00442"), ("9.917", "", "")),
        1.0: ((".01745", ".01649", ".01831"), ("9.741", "9.717", "9.761")),
        0.5: ((".1974", ".180", ".218"), ("8.140", "8.042", "8.252")),
        0.1: ((".999994", "", ""), ("1e-4", "", "")),
    }
    for tau, digits in quoted.items():
        named = zip(("largest weight", "entropy"), demo(fixed, tau), demo(fresh, tau), digits, strict=True)
        for name, values, drawn, printed in named:
            statistics = (values.mean(), values.min(), values.max())
            for what, value, each in zip(("mean", "smallest", "largest"), statistics, printed, strict=True):
                if each:
                    evidence.quoted(f"{what} {name} at τ = {tau}, seeds 0 to 199", value, each)
            if tau >= 0.5:
                error = 5 * float(values.std()) * math.sqrt(2 / 200)
                evidence.near(f"mean {name} at τ = {tau}, 200 fresh draws", drawn.mean(), float(values.mean()), error)
                inside = ((drawn >= values.min()) & (drawn <= values.max())).double().mean()  # 0.99 on average
                evidence.near(f"share of the fresh draws with {name} in that range, τ = {tau}", inside, 1.0, 0.1)
    largest, bits = demo(fresh, 0.01)
    evidence.quoted("median largest weight at τ = 0.01, fresh", largest.median(), "1.000000")
    evidence.true(
        "median entropy at τ = 0.01 is below 0: prints as -0.00",
        f"{bits.median():.2f}" == "-0.00",
        f"{bits.median():.2g}",
    )
    evidence.near("and 0 once clamped", bits.median().clamp(min=0.0), 0.0, within=0.0)


def _drop(before: float, after: float) -> float:
    return 100 * (1 - after / before)


@statement(
    "A9.1",
    BLOG,
    place="The Connection to Real-World Performance, table",
    verdict=Verdict.UNVERIFIED,
    title="RULER accuracies at 128K and 1M",
    claim="Three models lose 54, 38 and 41 % of their RULER accuracy between 128K and 1M tokens.",
    correction="The drops follow from the printed accuracies. We could not confirm the accuracies themselves "
    "(a secondary copy of the benchmark has 94.4 % for Gemini 1.5 Pro at 128K, and to our knowledge Claude 3.5 has a "
    "window of 200K): we use them for this arithmetic only, and they are not data of this library.",
    proof="1 − after/before.",
)
def benchmark_drops(evidence: Evidence, drop: Callable[[float, float], float] = _drop) -> None:
    for before, after, printed in SCORES:
        evidence.quoted(f"drop from {before} to {after} %", drop(before, after), str(printed))


def _root(factor: float) -> float:
    return math.sqrt(1 / factor)


def _exponent(ratio: float, factor: float) -> float:
    """e with ratio = factor^(−e)."""
    return -math.log(ratio) / math.log(factor)


@statement(
    "A9.2",
    BLOG,
    place="The Connection to Real-World Performance",
    verdict=Verdict.FALSE,
    title="Accuracy falls like the square root of 1/8",
    claim="As n grows eightfold, accuracy drops roughly as the square root of 1/8, as the theory predicts.",
    formula=r"\frac{\mathrm{accuracy}(8n)}{\mathrm{accuracy}(n)} \approx \sqrt{1/8}",
    correction="The article's own figures have ratios of .463, .617 and .592, exponents of .371, .232 and .252 instead "
    "of .5; and its theory, a weight like 1/n, would give .125, not a square root.",
    proof="Arithmetic on the printed figures; nothing else depends on them.",
)
def square_root_law(
    evidence: Evidence,
    printed: Callable[[float], float] = _root,
    exponent: Callable[[float, float], float] = _exponent,
) -> None:
    evidence.quoted("square root of 1/8", printed(8.0), ".354")
    evidence.quoted("1/8", 1 / 8, ".125")
    ratios = [after / before for before, after, _ in SCORES]
    for ratio, digits, power in zip(ratios, (".463", ".617", ".592"), (".371", ".232", ".252"), strict=True):
        evidence.quoted("ratio of the printed accuracies", ratio, digits)
        evidence.quoted("exponent of n (claimed: .5)", exponent(ratio, 8.0), power)
    off = torch.tensor([ratio / printed(8.0) - 1 for ratio in ratios])
    evidence.true(
        "every ratio is off by more than 25 %", (off > 0.25).all(), f"by {100 * float(off.min()):.0f} % at least"
    )


def _findable(heads: int, weights: Tensor) -> Tensor:
    return heads * entropy(weights).exp()


@statement(
    "A10",
    BLOG,
    place="Multi-Head Attention Doesn’t Solve It",
    verdict=Verdict.FALSE,
    title="Findable tokens grow much slower than n",
    claim="The tokens that h heads can find, h times the effective number per head, grow much slower than n.",
    formula=r"n_{\mathrm{findable}} = h \, n_{\mathrm{eff}} \ll n",
    correction="For a bounded logit spread the effective number grows in proportion to n, and h times it can exceed n. "
    "And a large effective number is the failure, not the capacity.",
    corrected_formula=r"n \, e^{-\min(\delta, \delta^2/8)} \le n_{\mathrm{eff}} \le n",
    proof="Exponentiate the bound on the entropy deficit (A6.2).",
)
def findable_tokens(
    evidence: Evidence,
    printed: Callable[[int, Tensor], Tensor] = _findable,
    corrected: Callable[[int, Tensor], dispersion.Bounds] = dispersion.effective_keys_bounds,
) -> None:
    sizes = (100, 1_000, 10_000, 100_000)
    share = torch.stack([printed(1, article_scores(n).softmax(-1)) / n for n in sizes])
    evidence.quoted("effective tokens over n, n = 1,000", share[1], ".99982")
    evidence.breaks("64 heads find fewer than n tokens", 1 - 64 * share)
    evidence.breaks("the share falls as n grows", -share.diff())
    slack = []
    for n, cases in ((2, 1500), (16, 1500), (200, 1500)):
        z = random_rows(evidence, cases, n, largest_scale=4.0)
        bounds, value = corrected(n, dispersion.logit_spread(z)), printed(1, z.softmax(-1))
        slack += [value / bounds.lower - 1, bounds.upper / value - 1]
    evidence.holds("effective number between the corrected bounds", torch.cat(slack))
    halves = torch.where(torch.arange(1000) % 2 == 0, 0.005, -0.005).to(torch.float64)
    share, least = printed(1, halves.softmax(-1)) / 1000, corrected(1000, dispersion.logit_spread(halves)).lower / 1000
    evidence.near(
        "ln of the share over ln of its bound, halves 0.01 apart", share.log() / least.log(), 1.0, within=1e-3
    )


def _largest_entropy(n: int) -> float:
    return math.log2(n)


@statement(
    "A11.1",
    BLOG,
    place="The Fundamental Inequality, second part",
    verdict=Verdict.TRUE,
    title="Entropy is at most log2 n",
    claim="The entropy of the weights over n tokens is at most log2 n bits.",
    formula=r"H(\alpha) \le \log_2 n",
    proof="log2 n − H is the Kullback–Leibler divergence from uniform, which is not negative.",
)
def entropy_limit(evidence: Evidence, limit: Callable[[int], float] = _largest_entropy) -> None:
    slack = []
    for n in (2, 3, 17, 128):
        p = random_rows(evidence, 1000, n).softmax(-1)
        slack.append(limit(n) - entropy(p) / BITS)
        evidence.near(
            f"reached by equal weights, n = {n}", entropy(torch.ones(n, dtype=torch.float64)) / BITS, limit(n), 1e-9
        )
    evidence.holds("entropy in bits is at most log2 n", torch.cat(slack))


def _entropy_in_bits(weights: Tensor) -> Tensor:
    return entropy(weights) / BITS


@statement(
    "A11.2",
    BLOG,
    place="The Fundamental Inequality, first part",
    verdict=Verdict.FALSE,
    title="Information extracted is at most the entropy of the weights",
    claim="A head extracts at most H(α) bits.",
    formula=r"\text{information extracted} \le H(\alpha)",
    correction="A one-hot row has H = 0 and hands on its value whole, 128 bits if that is 16 bytes; by the claim, more "
    "spread would be more information. What holds concerns which token was read: for a random index J, the output "
    "tells at most H(J) about J.",
    corrected_formula=r"I(J; \text{output}) \le H(J) \le \log_2 n",
    proof="I(J; Y) = H(J) − H(J|Y), and conditional entropy is not negative.",
)
def information_extracted(
    evidence: Evidence,
    printed: Callable[[Tensor], Tensor] = _entropy_in_bits,
    corrected: Callable[[Tensor], Tensor] = capacity.mutual_information,
) -> None:
    focused = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    copied = torch.eye(256, dtype=torch.float64) / 256  # one byte of the value, and the byte that comes out
    byte = corrected(copied) / BITS
    evidence.near("bits about 16 random bytes that a one-hot row hands on", 16 * byte, 128.0, within=1e-9)
    evidence.near("entropy of the one-hot row", printed(focused), 0.0, within=0.0)
    evidence.breaks("information is at most the entropy of the weights", (printed(focused) - 16 * byte)[None])
    prior = random_rows(evidence, 3000, 8, largest_scale=4.0).softmax(-1)
    channel = torch.rand(3000, 8, 5, generator=evidence.rng, dtype=torch.float64) ** 6
    joint = prior[..., None] * channel / channel.sum(-1, keepdim=True)
    told = corrected(joint)
    evidence.holds("I(J; output) ≤ H(J), random channels", entropy(prior) - told)
    evidence.holds("I(J; output) ≥ 0", told)
    by_parts = entropy(prior) + entropy(joint.sum(-2)) - entropy(joint.flatten(-2))
    evidence.holds("I = H(J) + H(Y) − H(J, Y)", -(told - by_parts).abs(), 1e-9)
    evidence.holds(
        "equality if the output names the index", -(corrected(torch.diag_embed(prior)) - entropy(prior)).abs(), 1e-9
    )


def _capacity_of_positions(n: int) -> float:
    return math.log2(n)


@statement(
    "A11.3",
    BLOG,
    place="The Fundamental Inequality, conclusion",
    verdict=Verdict.FALSE,
    title="The information gap grows without bound",
    claim="Attention supplies O(log n) bits and a task may need O(n): the gap grows to infinity, so context rot is "
    "inevitable.",
    formula=r"O(n) - O(\log n) \to \infty",
    correction="An upper bound on what is needed proves nothing: the need must be at least proportional to n. And the "
    "supply is not log2 n: an output of d numbers of b bits carries up to d·b bits, at any n.",
    corrected_formula=r"\text{bits of an output} \le d \, b",
    proof="d numbers of b bits take 2^(db) values, and a one-hot row copies any of them. Retrieving one of ten classes "
    "from n items needs log2 10 bits for every n: its need is O(n), and its gap does not grow.",
)
def information_gap(
    evidence: Evidence,
    printed: Callable[[int], float] = _capacity_of_positions,
    corrected: Callable[[int, int], Tensor] = capacity.output_capacity,
) -> None:
    levels = torch.arange(16, dtype=torch.float64)  # b = 4 bits
    values = torch.cartesian_prod(levels, levels, levels)  # d = 3
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64)
    outputs = weights[0] * values + weights[1] * values.flip(0)
    bits = math.log2(len(outputs.unique(dim=0)))
    evidence.near("bits of a one-hot row's output, d = 3, b = 4, n = 2", bits, float(corrected(3, 4)), within=0.0)
    evidence.breaks("output carries at most log2 n bits", torch.tensor([printed(2) - bits]))
    sizes = (2, 10**3, 10**6, 10**9)
    head = float(corrected(64, 16))
    evidence.breaks(
        "a head of 64 half-precision numbers has log2 n bits", torch.tensor([printed(n) - head for n in sizes])
    )
    gaps = torch.tensor([math.log2(10) - printed(n) for n in sizes])
    evidence.breaks("a need that is O(n) leaves a growing gap: one class of ten", gaps.diff())


def _normalised_linear(scores: Tensor) -> Tensor:
    return scores / scores.sum(-1, keepdim=True)


@statement(
    "A12",
    BLOG,
    place="Implications, 4",
    verdict=Verdict.CONDITIONAL,
    title="Linear attention avoids dilution",
    claim="Linear attention does not use softmax and so avoids dilution.",
    correction="Not if it is normalised: its weights are F(z)/ΣF(z) with positive bounded F, and dilute like 1/n (a "
    "score of 3 among ones gets 3/(n + 2)). True of unnormalised, gated or hard variants.",
    corrected_formula=r"\alpha_i \le \frac{F_{\max}}{F_{\max} + (n - 1) F_{\min}}",
    proof="Lemma 1 of Mudarisov et al. (B1) asks for positive bounded F, not for the exponential.",
)
def linear_attention(
    evidence: Evidence,
    weigh: Callable[[Tensor], Tensor] = _normalised_linear,
    corrected: Callable[[int, Tensor, Tensor], dispersion.Bounds] = dispersion.general_weight_bounds,
) -> None:
    tops = []
    for n in (10, 1_000, 100_000):
        scores = torch.ones(n, dtype=torch.float64)
        scores[0] = 3.0
        tops.append(weigh(scores)[0])
        evidence.near(f"score 3 among ones, n = {n:,}", tops[-1], 3 / (n + 2), within=1e-12)
        bound = corrected(n, torch.tensor(1.0), torch.tensor(3.0)).upper
        evidence.near(f"corrected bound, n = {n:,}", bound, 3 / (n + 2), within=1e-12)
    evidence.breaks("the weight does not fall as n grows", torch.stack(tops).diff())
    n = 32
    queries, keys = torch.randn(2, 3000, n, 6, generator=evidence.rng, dtype=torch.float64).unbind()
    features = torch.nn.functional.elu
    scores = ((features(queries[:, :1]) + 1) * (features(keys) + 1)).sum(-1)
    p, bounds = weigh(scores), corrected(n, scores.amin(-1), scores.amax(-1))
    inside = torch.minimum(p.amin(-1) - bounds.lower, bounds.upper - p.amax(-1))
    evidence.holds("elu + 1 features: weights between the corrected bounds", inside)
