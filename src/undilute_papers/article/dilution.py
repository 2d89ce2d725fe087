"""How fast does the weight of one relevant token fall?  The blog article's table, recomputed, and the law behind it.

One token leads n − 1 equal ones by a scaled gap g. Softmax gives it
    α*(n) = 1/(1 + (n − 1)·e^(−g)) = R/(R + n − 1),   R = e^g,
and g = ln(n − 1) holds one half. The article prints a table of α*, the entropy H in bits and "bits lost" beside the
code that is to print it; its scores 5 and 1 are divided by √64, so g = 0.5. Read as logits that are scaled already,
g = 4. Neither gives the printed table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.report.result import Chart, Comparison, Result, Row, Series
from undilute.rules.parameters import count, number
from undilute.theory import dispersion
from undilute_papers.audit import blog
from undilute_papers.report.comparisons import compared
from undilute_papers.reproduction.experiment import Experiment, option
from undilute_papers.theory import capacity

SCALED_GAP = 4.0  # 5 − 1, if these are logits already
PRINTED_SHARE = 0.04  # % of the attention at 100K tokens, in the article's text
PRINTED_EFFECTIVE = 21_619  # tokens, in the article's text
HELD = (0.1, 0.5, 0.9)
LARGEST_GAP = 100.0  # wider than any head's logits that we have seen


@dataclass(frozen=True)
class Dilution(Experiment):
    """The article's table, and the weight over n for any gap."""

    id = "dilution"
    source = "Blog article “Softmax Attention and the Dilution Problem”, Numerical Demonstration"
    shows = "how the weight of one relevant token falls as the context grows"
    quick_minutes = 0.1
    full_minutes = 0.1

    gaps: tuple[float, ...] = option((0.5, 4.0, 8.0, 12.0), "Scaled gaps, in nats, to draw the law for.")
    longest: int = option(1_000_000, "Largest number of tokens to draw the law for.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gaps:
            raise InvalidValue("gaps is empty: must be at least one number, such as 0.5,4,8.")
        for gap in self.gaps:
            if not 0 <= number("gap", gap) <= LARGEST_GAP:
                raise InvalidValue(f"gap = {gap:g}: must be from 0 to {LARGEST_GAP:g}.")
        if count("longest", self.longest) < 100_000:
            raise InvalidValue(f"longest = {self.longest}: must be at least 100,000, the last line of the table.")

    def run(self, progress: Progress = quiet) -> Result:
        """The printed lines, what the printed code gives, and the law.

        Examples
        --------
        >>> result = Dilution().run()
        >>> [comparison.verdict for comparison in result.comparisons].count("agrees"), len(result.comparisons)
        (3, 33)
        """
        progress(0.0, "the article's table")
        lines = _lines()
        progress(0.6, "the law for general gaps")
        law, held = _law(self.gaps, self.longest), _gaps_to_hold(self.longest)
        table = _table_comparisons()
        comparisons = [*_claims(lines, self.gaps), *_text_comparisons(lines), *table]
        charts = [_weights_chart(lines), _law_chart(law, self.gaps), _gap_chart(held), _entropy_chart(lines)]
        tables = {"table": lines, "law": law, "gap to hold a weight": held}
        progress(1.0, "done")
        return self.result(_findings(table, lines, self.gaps, self.longest), comparisons, tables, charts)


def _lines() -> list[Row]:
    """Each line of the article's table: printed, from the printed code, and for logits that are scaled already."""
    lines: list[Row] = []
    for n, (printed, computed) in blog.table().items():
        scaled = blog.run_printed_code(n, 5.0, 1.0)
        lines.append(
            {
                "n": n,
                "weight printed": printed.alpha,
                "weight": computed.alpha,
                "entropy printed, bits": printed.entropy,
                "entropy, bits": computed.entropy,
                "bits lost printed": printed.bits_lost,
                "bits lost": computed.bits_lost,
                "effective tokens": computed.effective_keys,
                "R implied by the printed weight": float(dispersion.gap_to_hold(printed.alpha, n).exp()),
                "weight, R = e^4": scaled.alpha,
                "entropy, R = e^4, bits": scaled.entropy,
                "effective tokens, R = e^4": scaled.effective_keys,
            }
        )
    return lines


def _column(rows: list[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows]  # type: ignore[arg-type]


def _sizes(longest: int) -> list[int]:
    """1, 2, 5, 10, … up to ``longest``, which is always the last."""
    decades = range(len(str(longest)))
    return [each for k in decades for m in (1, 2, 5) if (each := m * 10**k) < longest] + [longest]


def _law(gaps: tuple[float, ...], longest: int) -> list[Row]:
    rows: list[Row] = []
    sizes = torch.tensor(_sizes(longest), dtype=torch.float64)
    for gap in gaps:
        weights = dispersion.relevant_weight(sizes, gap)
        effective = (sizes.log() - capacity.needle_deficit(sizes, gap)).exp()
        for n, weight, keys in zip(sizes.tolist(), weights.tolist(), effective.tolist(), strict=True):
            rows.append({"gap": gap, "n": int(n), "weight": weight, "effective tokens": keys})
    return rows


def _gaps_to_hold(longest: int) -> list[Row]:
    sizes = [n for n in _sizes(longest) if n > 1]
    return [
        {"n": n, **{f"gap to hold {c:g}": float(dispersion.gap_to_hold(c, n)) for c in HELD}, "ln n": math.log(n)}
        for n in sizes
    ]


# ---------------------------------------------------------------- printed and computed


def _table_comparisons() -> list[Comparison]:
    """Every printed figure, within half a unit of its last digit."""
    made = []
    for n, (printed, computed) in blog.table().items():
        made += [
            compared(f"weight of the relevant token, n = {n:,}", printed.alpha, computed.alpha, 5e-9),
            compared(f"entropy in bits, n = {n:,}", printed.entropy, computed.entropy, 5e-3),
            compared(f"“bits lost”, n = {n:,}", printed.bits_lost, computed.bits_lost, 5e-3),
        ]
    return made


def _text_comparisons(lines: list[Row]) -> list[Comparison]:
    """The two figures of the article's text."""
    last = lines[-1]
    share, effective = 100 * float(last["weight"] or 0), float(last["effective tokens"] or 0)
    note = "The article's text takes it from its table."
    where = f"n = {last['n']:,}"
    return [
        compared(f"share of the attention in %, {where}", PRINTED_SHARE, share, 5e-3, note=note),
        compared(f"effective number of tokens, {where}", PRINTED_EFFECTIVE, effective, 0.5, note=note),
    ]


def _claims(lines: list[Row], gaps: tuple[float, ...]) -> list[Comparison]:
    sizes = _column(lines, "n")
    scaled = _off(lines, "weight, R = e^4")
    ratios = dispersion.doubling_ratio(sizes, blog.GAP)
    widest = max(gaps)
    first = float(dispersion.doubling_ratio(sizes[0], widest))
    far = max(float(dispersion.relevant_weight(1e6 * math.exp(gap), gap)) for gap in gaps)
    deficits = (capacity.needle_deficit(sizes, blog.GAP) / math.log(2)).tolist()
    falling = all(after < before for before, after in pairwise(deficits))
    return [
        Comparison(
            "printed weights, if 5 and 1 are logits that are scaled already (R = e⁴)",
            f"{len(lines)} weights",
            f"{sum(each <= 5e-9 for each in scaled)} of {len(lines)} come out",
            "agrees" if max(scaled) <= 5e-9 else "differs",
            note="The other reading of the scores.",
        ),
        Comparison(
            "claim: doubling the context roughly halves the weight",
            "α(2n)/α(n) ≈ 1/2",
            f"{float(ratios.min()):.3f} to {float(ratios.max()):.3f} at the table's n, for the article's gap",
            "agrees" if float((ratios - 0.5).abs().max()) <= 0.05 else "differs",
            note=f"It needs n much larger than R: for a gap of {widest:g} it is {first:.3f} at n = {sizes[0]:g}.",
        ),
        Comparison(
            "claim: no matter how relevant a token is, its weight goes to 0",
            "limit 0 for every R",
            f"at most {far:.1g} at n = 10⁶·R, for every gap drawn",
            "agrees" if far < 1e-5 else "differs",
            note="For a gap that stays the same. One that grows like ln n holds any weight.",
        ),
        Comparison(
            "claim: entropy increases towards its maximum",
            "log2 n − H → 0",
            f"{deficits[0]:.2g} bits at n = {sizes[0]:g}, {deficits[-1]:.2g} at n = {sizes[-1]:,.0f}",
            "agrees" if falling and deficits[-1] < 1e-3 else "differs",
            note="For one token against equal ones. In general the deficit stays bounded but need not vanish.",
        ),
    ]


def _off(lines: list[Row], name: str) -> list[float]:
    printed = _column(lines, "weight printed")
    return [abs(one - other) for one, other in zip(printed, _column(lines, name), strict=True)]


def _findings(table: list[Comparison], lines: list[Row], gaps: tuple[float, ...], longest: int) -> list[str]:
    agreeing, last = sum(each.verdict == "agrees" for each in table), lines[-1]
    share, printed = 100 * float(last["weight"] or 0), 100 * float(last["weight printed"] or 0)
    implied = _column(lines, "R implied by the printed weight")
    ahead = [one / other for one, other in zip(*(_column(lines, f"weight{x}") for x in (" printed", "")), strict=True)]
    scaled = sum(each <= 5e-9 for each in _off(lines, "weight, R = e^4"))
    gain, most = max(_column(lines, "bits lost")), blog.GAP / math.log(2)
    holding = [f"one of {gap:g} up to {_tokens(float(dispersion.dispersed_length(0.5, gap)) - 1)}" for gap in gaps]
    needed = float(dispersion.gap_to_hold(0.5, longest))
    return [
        f"{agreeing} of the {len(table)} figures of the article's table come out of the code printed above it: at "
        f"n = {last['n']:,} the relevant token gets {share:.3g} % of the attention (printed: {printed:.3g} %).",
        f"The printed weights are {min(ahead):.2g} to {max(ahead):.2g} times those of the code. They imply a relevance "
        f"ratio R from {min(implied):.1f} to {max(implied):.1f}, so no single R gives them; the code has "
        f"R = e^{blog.GAP:g} = {math.exp(blog.GAP):.3f}.",
        f"If the scores 5 and 1 are read as logits that are scaled already (R = e^{SCALED_GAP:g} = "
        f"{math.exp(SCALED_GAP):.1f}), {scaled} of the {len(lines)} printed weights come out.",
        f"“Bits lost” is log2(n·α), how much more than 1/n the token gets: here it stays below log2 R = {most:.4f} "
        f"(largest: {gain:.4f}), while the printed column reaches {max(_column(lines, 'bits lost printed')):.2f}.",
        f"The entropy of the code at n = {last['n']:,} is {float(last['entropy, bits'] or 0):.2f} bits, so the row "
        f"attends to effectively {float(last['effective tokens'] or 0):,.1f} tokens (in the article's text: "
        f"{PRINTED_EFFECTIVE:,}).",
        f"A gap that stays the same holds one half of the attention only so far: {', '.join(holding)}. At {longest:,} "
        f"tokens it takes a gap of ln(n − 1) = {needed:.1f}.",
    ]


def _tokens(number_of: float) -> str:
    return f"{number_of:,.0f} tokens" if number_of < 1e9 else f"{number_of:.2g} tokens"


# ---------------------------------------------------------------- pictures


def _weights_chart(lines: list[Row]) -> Chart:
    n = _column(lines, "n")
    return Chart(
        "weights",
        "The printed weights are not those of the printed code",
        "context size n, tokens",
        "weight of the relevant token",
        [
            Series("weight in the article's table, printed", n, _column(lines, "weight printed"), printed=True),
            Series("the article's code, R = e^0.5", n, _column(lines, "weight")),
            Series("scores read as scaled logits, R = e^4", n, _column(lines, "weight, R = e^4")),
            Series("uniform, 1/n", n, [1 / each for each in n], bound=True),
        ],
        x_log=10,
        y_log=10,
        note="Both readings of the code follow α = R/(R + n − 1) with one R; the printed weights do not.",
    )


def _law_chart(law: list[Row], gaps: tuple[float, ...]) -> Chart:
    series = []
    for gap in gaps:
        own = [row for row in law if row["gap"] == gap]
        series.append(Series(f"gap {gap:g}", _column(own, "n"), _column(own, "weight")))
    n = _column(own, "n")
    return Chart(
        "law",
        "A fixed gap holds its weight up to n ≈ e^gap, and then dilutes like 1/n",
        "context size n, tokens",
        "weight of the relevant token",
        [*series, Series("one half", [n[0], n[-1]], [0.5, 0.5], bound=True)],
        x_log=10,
        note="α = 1/(1 + (n − 1)·e^(−gap)); the gap is in nats, after scaling by 1/√d.",
    )


def _gap_chart(held: list[Row]) -> Chart:
    n = _column(held, "n")
    return Chart(
        "gap",
        "A gap that grows like ln n holds any weight",
        "context size n, tokens",
        "gap needed, nats",
        [
            *(Series(f"to hold {c:g}", n, _column(held, f"gap to hold {c:g}")) for c in HELD),
            Series("ln n", n, _column(held, "ln n"), bound=True),
        ],
        x_log=10,
        note="ln(n − 1) + ln(c/(1 − c)) for the weight c.",
    )


def _entropy_chart(lines: list[Row]) -> Chart:
    n = _column(lines, "n")
    return Chart(
        "entropy",
        "The code's rows are nearly uniform from the start; the printed entropies are lower",
        "context size n, tokens",
        "entropy of the row, bits",
        [
            Series("entropy in the article's table, printed", n, _column(lines, "entropy printed, bits"), printed=True),
            Series("the article's code, R = e^0.5", n, _column(lines, "entropy, bits")),
            Series("scores read as scaled logits, R = e^4", n, _column(lines, "entropy, R = e^4, bits")),
            Series("uniform, log2 n", n, [math.log2(each) for each in n], bound=True),
        ],
        x_log=10,
    )
