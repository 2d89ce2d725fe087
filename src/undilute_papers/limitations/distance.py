"""How far is what a head leaves out from what it selects, over length and over N?  arXiv:2508.17821v1, Fig. 2a and 2b.

For every head and row: d̃ = Σ_{i∉I} ‖αᵢxᵢ − s‖ (equation 7) for the genuine top N, what it would be for N tokens drawn
at random (its expectation, corrected and as printed), and the bound of Theorem 1(1). The mean over tokens belongs to a
head; curves are means over heads. ``undilute_papers.limitations.row_distances`` has the formulas.

What the paper leaves open is an option: which vectors xᵢ are (``x``), and what a row counts that sees no more than N
keys (``short_rows``). A row that sees n keys has L = n in every formula.

The corrected expectation is the mean over random sets, by default one for each row and head: without bias, and the mean
over a thousand rows settles it. The closed forms, a main term below it and an upper bound above it, enclose it, but not
tightly on real rows, where few tokens carry most of the weight; they are given as its interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.report.result import Chart, Comparison, Result, Row, Series, Verdict
from undilute.rules.parameters import count
from undilute_papers.limitations.samples import Sample, check_options, of_the_whole_text, samples
from undilute_papers.reproduction.attended import loaded, scope, selected_from
from undilute_papers.reproduction.experiment import Experiment, option
from undilute_papers.reproduction.power_law import exponent
from undilute_papers.reproduction.quartiles import quantiles

CURVES = ("distance", "expected", "main", "upper", "printed", "bound", "norms")
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of L, for a top set that grows with it
LINEAR = 0.1  # an exponent this near to 1 counts as linear
CLOSE = 0.1  # a relative difference up to this counts as none
ROUNDING = 1e-5


@dataclass(frozen=True)
class Distance(Experiment):
    """Fig. 2a and 2b."""

    id: ClassVar[str] = "distance"
    source: ClassVar[str] = "arXiv:2508.17821v1, Fig. 2a and 2b"
    shows: ClassVar[str] = "how far what a head leaves out is from its top-N average, over length and over N"
    quick_minutes: ClassVar[float] = 0.5
    full_minutes: ClassVar[float] = 0.6
    quick: ClassVar[dict[str, Any]] = {"length": 512}

    model: str = option("smollm2", "Model: a name, a path or a hub id.")
    text: tuple[str, ...] = option((), "Text files to read; by default the text that CPython ships.")
    length: int = option(1024, "Tokens to read, and the length at which N varies.")
    lengths: tuple[int, ...] = option((32, 64, 128, 256, 512, 1024), "Lengths L of Fig. 2a, up to --length.")
    top: int = option(5, "N of Fig. 2a.")
    tops: tuple[int, ...] = option((1, 5, 10, 20, 100), "Every N of Fig. 2b, below --length.")
    x: str = option("values", "What the weights select from: values, input or embedding; the paper does not say.")
    rows: int = option(256, "Evenly spaced tokens at each length that the mean is taken over; 0 for every token.")
    short_rows: str = option("left out", "A token that sees no more than N keys: left out, or zero.")
    draws: int = option(1, "Random sets drawn for each token and head.")
    seed: int = option(0, "Seed of the random sets.")

    def run(self, progress: Progress = quiet) -> Result:
        """Measure every head, and hold the claims of the paper against what comes out."""
        lengths, tops = self._checked()
        progress(0.0, f"loading {self.model}")
        model, ids = loaded(self.model, self.text, self.length)
        found = samples(
            model,
            ids,
            self._wanted(lengths, tops),
            rows=self.rows,
            x=selected_from(self.x),
            seed=self.seed,
            draws=self.draws,
            progress=lambda share: progress(0.05 + 0.9 * share, "measuring every head"),
        )
        found, left_out = of_the_whole_text(found, "--length")
        figures = _Figures(self, lengths, tops, found)
        return self.result([*figures.findings(), *left_out], figures.comparisons(), figures.tables(), figures.charts())

    def _checked(self) -> tuple[list[int], list[int]]:
        """The lengths and the Ns to compute, in order."""
        check_options(self.x, self.rows, self.short_rows, self.draws, self.seed)
        count("--length", self.length)
        lengths = sorted({count("--lengths", each) for each in self.lengths if each <= self.length})
        tops = sorted({count("--tops", each) for each in self.tops if each < self.length})
        if len(lengths) < 2:
            raise InvalidValue(f"--lengths = {self.lengths}: at least two must be up to --length = {self.length:,}.")
        if not tops:
            raise InvalidValue(f"--tops = {self.tops}: at least one must be below --length = {self.length:,}.")
        if count("--top", self.top) >= lengths[0]:
            raise InvalidValue(f"--top = {self.top}: must be below the shortest of --lengths, {lengths[0]}.")
        return lengths, tops

    def _wanted(self, lengths: Sequence[int], tops: Sequence[int]) -> dict[int, dict[int, tuple[str, ...]]]:
        wanted: dict[int, dict[int, tuple[str, ...]]] = {}
        for length in lengths:
            wanted[length] = dict.fromkeys(proportional(length).values(), ("distance",)) | {self.top: CURVES}
        wanted.setdefault(self.length, {}).update(dict.fromkeys(tops, CURVES))
        return wanted


def proportional(length: int) -> dict[float, int]:
    """N = share · L, for each share.

    Examples
    --------
    >>> proportional(64)
    {0.0625: 4, 0.125: 8, 0.25: 16, 0.5: 32}
    """
    return {share: max(1, round(share * length)) for share in SHARES}


class _Figures:
    """What the measured rows say: tables, charts, and a comparison with the paper's claims."""

    def __init__(self, options: Distance, lengths: list[int], tops: list[int], found: dict[int, Sample]) -> None:
        self.options, self.lengths, self.tops, self.found = options, lengths, tops, found
        self.by_length = [self._line(length, options.top) for length in lengths]
        self.by_top = [self._line(options.length, top) for top in tops]
        self.proportional = [
            {"share": share, "L": length, "N": top} | self._summary(length, top, ["distance"])
            for length in lengths
            for share, top in proportional(length).items()
        ]

    def _per_head(self, quantity: str, length: int, top: int) -> Tensor:
        return self.found[length].per_head(quantity, top, short_rows=self.options.short_rows).double()

    def _line(self, length: int, top: int) -> dict[str, Any]:
        sample = self.found[length]
        distance, bound = sample.values["distance", top], sample.values["bound", top]
        figures = {
            "L": length,
            "N": top,
            "rows": int((sample.n > top).sum()) // len(sample.n),
            "rows above the bound": int((distance > bound * (1 + ROUNDING)).sum()),
        }
        return figures | self._summary(length, top, CURVES) | {"expected error": self._error(length, top)}

    def _error(self, length: int, top: int) -> float:
        """The standard error of the drawn expectation's mean over heads: at most, as rows differ in themselves, too."""
        values = self.found[length].values["expected", top].double()
        known = values.isfinite().sum(-1).clamp(min=1)
        squares = (values - values.nanmean(-1, keepdim=True)).square().nansum(-1) / (known - 1).clamp(min=1) / known
        return float(squares.sum().sqrt() / len(squares))

    def _summary(self, length: int, top: int, quantities: Sequence[str]) -> dict[str, float]:
        """The mean over heads that have rows with more than N keys, and between what 80 % of them lie."""
        figures: dict[str, float] = {}
        for quantity in quantities:
            heads = self._per_head(quantity, length, top)
            low, high = _interval(heads)
            figures |= {quantity: float(heads.nanmean()), f"{quantity} p10": low, f"{quantity} p90": high}
        return figures

    def tables(self) -> dict[str, list[Row]]:
        sample, length, top = self.found[self.lengths[-1]], self.lengths[-1], self.options.top
        columns = {quantity: _known(self._per_head(quantity, length, top)) for quantity in CURVES}
        heads: list[Row] = [
            {"layer": layer, "head": head, "L": length, "N": top} | {name: each[i] for name, each in columns.items()}
            for i, (layer, head) in enumerate(zip(sample.layer.tolist(), sample.head.tolist(), strict=True))
        ]
        return {
            "by_length": list(self.by_length),
            "by_top": list(self.by_top),
            "proportional": list(self.proportional),
            "heads": heads,
        }

    def charts(self) -> list[Chart]:
        top, length = self.options.top, self.options.length
        y_label = "sum of distances, mean over tokens and heads"
        shaded = (
            "Shaded: for d̃ and the printed formula where 80 % of the heads lie; for the corrected expectation the "
            "proven interval of the mean."
        )
        return [
            Chart(
                "distance_over_length",
                f"Fig. 2a: over length, with the top {top} selected",
                "length L, tokens",
                y_label,
                _series(self.by_length, "L"),
                x_log=2,
                y_log=10,
                note=shaded,
            ),
            Chart(
                "distance_over_top",
                f"Fig. 2b: over the size of the selection, at {length:,} tokens",
                "selected tokens N",
                y_label,
                _series(self.by_top, "N"),
                x_log=10,
                y_log=10,
                note=shaded,
            ),
            Chart(
                "distance_of_a_share",
                "A selection that grows with the length: the distance grows, too"
                if self._grows()
                else "A selection that grows with the length",
                "length L, tokens",
                "d̃, mean over tokens and heads",
                [self._share_series(share) for share in SHARES],
                x_log=2,
                y_log=10,
            ),
        ]

    def _share_series(self, share: float) -> Series:
        lines = [line for line in self.proportional if line["share"] == share]
        name = f"d̃, N = L/{round(1 / share)}"
        return Series(name, [line["L"] for line in lines], [line["distance"] for line in lines])

    def _exponents(self) -> dict[str, float]:
        return {name: exponent(self.lengths, [line[name] for line in self.by_length]) for name in CURVES}

    def _share_exponents(self) -> dict[float, float]:
        return {share: exponent(series.x, series.y) for share in SHARES for series in [self._share_series(share)]}

    def _grows(self) -> bool:
        return all(each > 0 for each in self._share_exponents().values())

    def comparisons(self) -> list[Comparison]:
        return [*self._over_length(), self._corollary(), self._safety(), *self._over_top(), self._collapse()]

    def _over_length(self) -> list[Comparison]:
        exponents = self._exponents()
        low, high = _interval(self._head_exponents())
        top = self.options.top
        return [
            _linear(
                f"d̃ over L at N = {top}", exponents["distance"], low=low, high=high, note="Interval: 80 % of heads."
            ),
            _linear(f"its expectation over L at N = {top}, corrected", exponents["expected"]),
            _linear(
                f"its expectation over L at N = {top}, formula as printed",
                exponents["printed"],
                note="The printed main term is ‖(αᵢ+p)xᵢ − x̄‖ where the proof gives ‖(1+p)αᵢxᵢ − p·x̄‖: its x̄ is "
                "not multiplied by p, and adds up to about L·‖x̄‖.",
            ),
        ]

    def _head_exponents(self) -> Tensor:
        curves = torch.stack([self._per_head("distance", length, self.options.top) for length in self.lengths], -1)
        return torch.tensor([exponent(self.lengths, curve) for curve in curves.tolist()], dtype=torch.float64)

    def _corollary(self) -> Comparison:
        line = self.by_length[-1]
        ratio = line["expected"] / line["norms"]
        return Comparison(
            f"Corollary 2(i): expectation over Σ‖αᵢxᵢ‖ at L = {line['L']:,}, N = {line['N']}",
            1.0,
            ratio,
            "agrees" if abs(ratio - 1) <= CLOSE else "differs",
            low=line["main"] / line["norms"],
            high=line["upper"] / line["norms"],
            note="Interval: proven, from the main term and its remainder. Σ‖αᵢxᵢ‖ cannot exceed the longest xᵢ.",
        )

    def _safety(self) -> Comparison:
        above = {(line["L"], line["N"]): line["rows above the bound"] for line in [*self.by_length, *self.by_top]}
        total = sum(above.values())
        return Comparison(
            "the upper bound is safe: rows with d̃ above it",
            0,
            total,
            "agrees" if total == 0 else "differs",
            note="Theorem 1(1) as printed, which is right for a genuine top-N set, with the exact largest distance d₁.",
        )

    def _over_top(self) -> list[Comparison]:
        first, last = self.by_top[0], self.by_top[-1]
        made = [_converges(last, "expected", "corrected"), _converges(last, "printed", "formula as printed")]
        if len(self.by_top) > 1:
            ratios = first["bound"] / first["distance"], last["bound"] / last["distance"]
            made.append(
                Comparison(
                    f"the bound tightens with N: bound/d̃ at N = {first['N']} and {last['N']}",
                    "falls",
                    f"{ratios[0]:.3g} → {ratios[1]:.3g}",
                    "agrees" if ratios[1] < ratios[0] else "differs",
                )
            )
        at_20 = next((line for line in self.by_top if line["N"] == 20), None)
        if at_20 is not None and last["N"] > 20:
            change = last["distance"] / at_20["distance"] - 1
            made.append(
                Comparison(
                    "d̃ plateaus beyond N = 20",
                    "plateau",
                    f"{change:+.1%} from N = 20 to {last['N']}",
                    "agrees" if abs(change) <= CLOSE else "differs",
                    note=f"A plateau is a change of at most {CLOSE:.0%}.",
                )
            )
        return made

    def _collapse(self) -> Comparison:
        exponents = self._share_exponents()
        shown = ", ".join(f"L/{round(1 / share)}: {each:.2f}" for share, each in exponents.items())
        return Comparison(
            "d̃ collapses once N grows proportionally to L: exponent over L",
            "below 0",
            shown,
            "agrees" if all(each < 0 for each in exponents.values()) else "differs",
            note="An exponent above 0 is growth. Only L − N → 0 makes d̃ vanish.",
        )

    def findings(self) -> list[str]:
        exponents, line, first = self._exponents(), self.by_length[-1], self.by_length[0]
        shares, last = self._share_exponents(), self.by_top[-1]
        grow = sum(each > 0 for each in shares.values())
        missing = "counted as 0" if self.options.short_rows == "zero" else "left out"
        where = scope(self.options.model, self.options.text, self.options.length)
        return [
            f"{where}: from {first['L']} to {line['L']:,} tokens with the top {line['N']} selected, d̃ goes from "
            f"{first['distance']:.3g} to {line['distance']:.3g} (exponent {exponents['distance']:.2f}); its "
            f"expectation for a random selection goes from {first['expected']:.3g} to {line['expected']:.3g} "
            f"(exponent {exponents['expected']:.2f}), while the formula as printed gives {first['printed']:.3g} to "
            f"{line['printed']:.3g} (exponent {exponents['printed']:.2f}).",
            f"At {line['L']:,} tokens and N = {line['N']} the printed expectation is "
            f"{line['printed'] / line['expected']:.3g} times the true one. The true one lies between "
            f"{line['main']:.3g} and {line['upper']:.3g} by proof; its mean over random selections "
            f"is used, whose standard error is at most {line['expected error']:.2g}.",
            f"At N = {last['N']} of {last['L']:,} tokens, d̃ is {last['distance'] / last['expected']:.3g} times its "
            f"expectation, and {last['distance'] / last['printed']:.3g} times the printed formula.",
            f"With N growing in proportion to L, d̃ grows with L for {grow} of {len(shares)} shares between "
            f"L/{round(1 / SHARES[0])} and L/{round(1 / SHARES[-1])}"
            + (": it does not collapse." if grow == len(shares) else "."),
            f"x is {_WHAT[self.options.x]}; tokens that see no more than N keys are {missing}; the paper states "
            "neither. A token that sees n keys counts with L = n.",
        ]


_WHAT = {"values": "the heads' values", "input": "the layers' input", "embedding": "the token embeddings"}


def _linear(what: str, found: float, **more: Any) -> Comparison:
    verdict: Verdict = "agrees" if abs(found - 1) <= LINEAR else "differs"
    return Comparison(f"{what}: exponent (1 is linear)", 1.0, found, verdict, **more)


def _converges(line: dict[str, Any], quantity: str, which: str) -> Comparison:
    ratio = line["distance"] / line[quantity]
    return Comparison(
        f"true and expected distance converge: d̃/expectation at N = {line['N']}, {which}",
        1.0,
        ratio,
        "agrees" if abs(ratio - 1) <= CLOSE else "differs",
    )


def _known(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _interval(values: Tensor) -> tuple[float, float]:
    known = values[values.isfinite()]
    if not len(known):
        return math.nan, math.nan
    low, high = quantiles(known, torch.tensor([0.1, 0.9], dtype=known.dtype)).tolist()
    return low, high


def _series(lines: Sequence[dict[str, Any]], x: str) -> list[Series]:
    def curve(name: str, quantity: str, low: str, high: str) -> Series:
        at, y = [line[x] for line in lines], [line[quantity] for line in lines]
        return Series(name, at, y, low=[line[low] for line in lines], high=[line[high] for line in lines])

    return [
        curve("d̃, top N", "distance", "distance p10", "distance p90"),
        curve("expectation, corrected", "expected", "main", "upper"),
        curve("expectation, formula as printed", "printed", "printed p10", "printed p90"),
        Series("bound of Theorem 1(1)", [line[x] for line in lines], [line["bound"] for line in lines], bound=True),
    ]
