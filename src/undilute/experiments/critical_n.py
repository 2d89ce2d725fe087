"""From which N on is the top-N distance like that of a random selection?  Fig. 2c of arXiv:2508.17821v1: "≈ 0.06 L".

The procedure as published: at each L, the mean of d̃ over tokens for every head, and the mean of its expectation E; a
two-sample Kolmogorov–Smirnov test between the heads' d̃ and the heads' E; the critical N is the smallest N that the test
does not reject. The text says α = .01, Algorithm 3 says .05. It is run with the expectation as printed (a misprint),
with the main term as corrected, and with the expectation itself, found by drawing random sets without bias.

Two things are wrong with that procedure whatever the formula. The two samples are the same heads, so they are paired,
and the test's level does not hold. And not to reject is not to find equal: with fewer heads the same curves give a
smaller critical N. So beside it stand a paired test (Wilcoxon signed-rank over heads) and an equivalence test: the
ratio d̃/E, its geometric mean over heads, and the N from which its 90 % interval lies within 10 % of 1 (two one-sided
tests at 5 %).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from undilute.errors import InvalidValue
from undilute.experiments.attended import X, loaded
from undilute.experiments.distance import check_common, exponent
from undilute.experiments.experiment import Experiment, Progress, option, quiet
from undilute.experiments.result import Chart, Comparison, Result, Row, Series, Verdict
from undilute.experiments.row_distances import Sample, samples
from undilute.rules.parameters import count

Heads = NDArray[np.float64]  # (heads,)
EXPECTATIONS = {"printed": "formula as printed", "main": "main term, corrected", "expected": "expectation, corrected"}
LEVELS = (0.01, 0.05)  # of the text, and of Algorithm 3
PUBLISHED = 0.06
AGREES = (0.03, 0.12)  # critical N / L that counts as "≈ 0.06": within a factor of 2
EQUIVALENT = 0.1  # d̃/E within 10 % of 1
NEAR = (0.7, 0.8, 0.85, 0.9, 0.95, 0.98)  # shares of L where a log-spaced grid would be coarse
SUBLINEAR = 0.9  # an exponent of N over L below this


@dataclass(frozen=True)
class CriticalN(Experiment):
    """Fig. 2c."""

    id: ClassVar[str] = "critical-n"
    source: ClassVar[str] = "arXiv:2508.17821v1, Fig. 2c"
    shows: ClassVar[str] = "from which N on the top-N distance cannot be told from a random selection's"
    quick_minutes: ClassVar[float] = 0.8
    full_minutes: ClassVar[float] = 1.2
    quick: ClassVar[Mapping[str, Any]] = {"lengths": (64, 128, 256, 512), "rows": 32}

    model: str = option("smollm2", "Model: a name, a path or a hub id.")
    text: tuple[str, ...] = option((), "Text files to read; by default the text that CPython ships.")
    lengths: tuple[int, ...] = option((64, 128, 256, 512, 1024), "Lengths L.")
    points: int = option(36, "Values of N evenly spaced on a log scale up to the longest L.")
    rows: int = option(64, "Evenly spaced tokens at each length that the mean is taken over; 0 for every token.")
    x: str = option("values", "What the weights select from: values, input or embedding; the paper does not say.")
    short_rows: str = option("left out", "A token that sees no more than N keys: left out, or zero.")
    heads: tuple[int, ...] = option((36, 144), "Repeat the test with so many heads, drawn at random.")
    subsets: int = option(20, "How often heads are drawn.")
    draws: int = option(1, "Random sets drawn for each token and head.")
    seed: int = option(0, "Of the random sets and of the drawn heads.")

    def run(self, progress: Progress = quiet) -> Result:
        """Compute d̃ and its expectations for every head, and search the critical N in every way."""
        lengths = self._checked()
        progress(0.0, f"loading {self.model}")
        model, ids = loaded(self.model, self.text, lengths[-1])
        grids = {length: grid(length, lengths[-1], self.points) for length in lengths}
        found = samples(
            model,
            ids,
            {length: dict.fromkeys(grid, ("distance", *EXPECTATIONS)) for length, grid in grids.items()},
            rows=self.rows,
            x=cast(X, self.x),
            seed=self.seed,
            draws=self.draws,
            progress=lambda share: progress(0.05 + 0.85 * share, "measuring every head"),
        )
        progress(0.9, "testing")
        curves = {length: self._curves(found[length], grids[length]) for length in lengths}
        figures = _Figures(self, curves)
        return self.result(figures.findings(), figures.comparisons(), figures.tables(), figures.charts())

    def _checked(self) -> list[int]:
        check_common(self.x, self.rows, self.short_rows, self.draws, self.seed)
        count("subsets", self.subsets)
        for size in self.heads:
            count("heads", size)
        if count("points", self.points) < 8:
            raise InvalidValue(f"points = {self.points}: must be at least 8, or no critical N can be told.")
        lengths = sorted({count("lengths", each) for each in self.lengths})
        if len(lengths) < 2 or lengths[0] < 8:
            raise InvalidValue(f"lengths = {self.lengths}: must be at least two, of at least 8 tokens each.")
        return lengths

    def _curves(self, sample: Sample, tops: Sequence[int]) -> Curves:
        def per_head(name: str) -> NDArray[np.float64]:
            means = [sample.per_head(name, top, short_rows=self.short_rows) for top in tops]
            return torch.stack(means).double().numpy()

        distance = per_head("distance")
        known = ~np.isnan(distance).any(0)  # a window may leave a head with no row of more than N keys
        return Curves(tuple(tops), distance[:, known], {name: per_head(name)[:, known] for name in EXPECTATIONS})


class Curves(NamedTuple):
    """d̃ and its expectations at one length.

    Attributes
    ----------
    tops : every N
    distance : (N, heads), means over tokens
    expectations : name → (N, heads)
    """

    tops: tuple[int, ...]
    distance: NDArray[np.float64]
    expectations: Mapping[str, NDArray[np.float64]]


class Critical(NamedTuple):
    """The smallest N that a test lets pass.

    Attributes
    ----------
    top : it, None if no N on the grid does
    before : the largest N below it on the grid, 0 if there is none: the true one lies above it
    again : how many larger N the test does not let pass
    """

    top: int | None
    before: int
    again: int


def grid(length: int, longest: int, points: int) -> list[int]:
    """Every N below ``length`` of one log-spaced grid for all lengths, finer towards ``length`` − 1.

    Examples
    --------
    >>> grid(16, 64, 8)
    [1, 2, 3, 6, 11, 13, 14, 15]
    """
    spaced = np.geomspace(1, longest - 1, points).round().astype(int).tolist()
    near = [round(share * length) for share in NEAR]
    return sorted({top for top in [*spaced, *near, length - 1] if top < length})


def kolmogorov_smirnov(distance: Heads, expectation: Heads) -> tuple[float, float]:
    """The two-sample statistic and its p-value.

    Examples
    --------
    >>> statistic, p = kolmogorov_smirnov(np.arange(5.0), np.arange(5.0) + 10)
    >>> statistic, round(p, 4)
    (1.0, 0.0079)
    """
    from scipy.stats import ks_2samp

    with warnings.catch_warnings():
        # Where rounding takes the exact p-value above 1, scipy says so and takes the large-sample one, next to 1.
        warnings.filterwarnings("ignore", message="ks_2samp: Exact calculation unsuccessful", category=RuntimeWarning)
        test = ks_2samp(distance, expectation)
    return float(test.statistic), float(test.pvalue)


def rejects(distance: Heads, expectation: Heads, alpha: float) -> bool:
    """Whether the test's p-value is below ``alpha``, for two samples of equal size; without computing it each time."""
    a, b = np.sort(distance), np.sort(expectation)
    both = np.concatenate([a, b])
    steps = np.abs(np.searchsorted(a, both, side="right") - np.searchsorted(b, both, side="right")).max()
    return int(steps) > largest_accepted(len(a), alpha)


@lru_cache(maxsize=64)
def largest_accepted(size: int, alpha: float) -> int:
    """The largest k for which the statistic k/size of two samples of ``size`` is not rejected, by bisection.

    Examples
    --------
    >>> largest_accepted(144, 0.01)
    27
    """
    ranks = np.arange(float(size))
    accepted, rejected = 0, size + 1
    while rejected - accepted > 1:
        middle = (accepted + rejected) // 2
        apart = ranks + middle - 0.5  # ahead by exactly ``middle`` ranks
        accepted, rejected = (middle, rejected) if kolmogorov_smirnov(ranks, apart)[1] >= alpha else (accepted, middle)
    return accepted


def paired(distance: Heads, expectation: Heads) -> float:
    """The p-value of a Wilcoxon signed-rank test between paired heads; 1 if no head differs."""
    from scipy.stats import wilcoxon

    if np.array_equal(distance, expectation):
        return 1.0
    return float(wilcoxon(distance, expectation).pvalue)


def ratio(distance: Heads, expectation: Heads, level: float = 0.9) -> tuple[float, float, float]:
    """The geometric mean over heads of d̃/E, and the ends of its interval (Student's t of the log ratios).

    Heads for which one of the two is 0 have no ratio and are left out.

    Examples
    --------
    >>> ratio(np.array([2.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0]))
    (2.0, 2.0, 2.0)
    """
    from scipy.stats import t

    some = (distance > 0) & (expectation > 0)
    if some.sum() < 2:
        return math.nan, math.nan, math.nan
    logs = np.log(distance[some] / expectation[some])
    half = float(t.ppf((1 + level) / 2, len(logs) - 1)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    middle = float(logs.mean())
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def first_passing(tops: Sequence[int], passes: Sequence[bool]) -> Critical:
    """The smallest N that passes.

    Examples
    --------
    >>> first_passing([1, 2, 4, 8], [False, False, True, False])
    Critical(top=4, before=2, again=1)
    """
    places = [place for place, each in enumerate(passes) if each]
    if not places:
        return Critical(None, tops[-1], 0)
    at = places[0]
    return Critical(tops[at], tops[at - 1] if at else 0, sum(not each for each in passes[at:]))


def critical_n(curves: Curves, expectation: str, alpha: float, heads: NDArray[np.int64] | None = None) -> Critical:
    """The procedure as published: the smallest N at which the Kolmogorov–Smirnov test does not reject.

    Parameters
    ----------
    curves : of one length
    expectation : "printed", "main" or "expected"
    alpha : level of the test
    heads : indices of the heads to use; all by default
    """
    chosen = slice(None) if heads is None else heads
    pairs = zip(curves.distance[:, chosen], curves.expectations[expectation][:, chosen], strict=True)
    return first_passing(curves.tops, [not rejects(d, e, alpha) for d, e in pairs])


def equivalent_n(curves: Curves, expectation: str) -> Critical:
    """The smallest N at which d̃/E is shown to be within 10 % of 1: two one-sided tests at 5 %."""
    passes = []
    for d, e in zip(curves.distance, curves.expectations[expectation], strict=True):
        _, low, high = ratio(d, e)
        passes.append(low >= 1 / (1 + EQUIVALENT) and high <= 1 + EQUIVALENT)
    return first_passing(curves.tops, passes)


def paired_n(curves: Curves, expectation: str, alpha: float) -> Critical:
    """The smallest N at which the paired test does not reject."""
    pairs = zip(curves.distance, curves.expectations[expectation], strict=True)
    return first_passing(curves.tops, [paired(d, e) >= alpha for d, e in pairs])


class _Figures:
    """What the curves say: tables, charts, and the paper's claims beside them."""

    def __init__(self, options: CriticalN, curves: Mapping[int, Curves]) -> None:
        self.options, self.curves, self.lengths = options, curves, list(curves)
        self.published = {
            (name, alpha): self._over_lengths(lambda each, name=name, alpha=alpha: critical_n(each, name, alpha))
            for name in EXPECTATIONS
            for alpha in LEVELS
        }
        self.paired = self._over_lengths(lambda each: paired_n(each, "expected", LEVELS[0]))
        self.equivalent = self._over_lengths(lambda each: equivalent_n(each, "expected"))
        self.fewer = [line for name in EXPECTATIONS for size in self._sizes() for line in self._drawn(name, size)]

    def _over_lengths(self, search: Callable[..., Critical]) -> dict[int, Critical]:
        return {length: search(each) for length, each in self.curves.items()}

    def _sizes(self) -> list[int]:
        heads = self.curves[self.lengths[-1]].distance.shape[1]
        return [size for size in self.options.heads if size < heads]

    def _drawn(self, name: str, size: int) -> list[dict[str, Any]]:
        """The published procedure, at the level of the text, on heads drawn at random."""
        lines = []
        for length, curves in self.curves.items():
            generator = np.random.default_rng([self.options.seed, size, length])
            heads = curves.distance.shape[1]
            drawn = [generator.permutation(heads)[:size] for _ in range(self.options.subsets)]
            found = [critical_n(curves, name, LEVELS[0], each).top for each in drawn]
            reached = sorted(top for top in found if top is not None)
            lines.append(
                {
                    "expectation": name,
                    "L": length,
                    "heads": size,
                    "subsets": len(found),
                    "reached": len(reached),
                    "median N / L": reached[len(reached) // 2] / length if reached else None,
                    "lowest N / L": reached[0] / length if reached else None,
                    "highest N / L": reached[-1] / length if reached else None,
                }
            )
        return lines

    def tables(self) -> dict[str, list[Row]]:
        critical: list[Row] = []
        for (name, alpha), found in self.published.items():
            critical += [_line("KS", name, alpha, length, each) for length, each in found.items()]
        for test, found in (("Wilcoxon, paired", self.paired), ("equivalence within 10 %", self.equivalent)):
            alpha = LEVELS[0] if test.startswith("Wilcoxon") else 0.05
            critical += [_line(test, "expected", alpha, length, each) for length, each in found.items()]
        return {"critical": critical, "tests": self._tests(), "fewer_heads": list(self.fewer)}

    def _tests(self) -> list[Row]:
        lines: list[Row] = []
        for length, curves in self.curves.items():
            for name, expectation in curves.expectations.items():
                for top, d, e in zip(curves.tops, curves.distance, expectation, strict=True):
                    statistic, p = kolmogorov_smirnov(d, e)
                    middle, low, high = ratio(d, e)
                    lines.append(
                        {
                            "L": length,
                            "N": top,
                            "expectation": name,
                            "mean distance": float(d.mean()),
                            "mean expectation": float(e.mean()),
                            "KS statistic": statistic,
                            "KS p": p,
                            "Wilcoxon p": paired(d, e),
                            "ratio": middle,
                            "ratio low": low,
                            "ratio high": high,
                        }
                    )
        return lines

    def charts(self) -> list[Chart]:
        found = [
            _critical_series(f"{label}, KS at .01", self.published[name, LEVELS[0]])
            for name, label in EXPECTATIONS.items()
        ]
        found.append(_critical_series("equivalent within 10 %, corrected", self.equivalent))
        claim = [PUBLISHED * length for length in self.lengths]
        critical = Chart(
            "critical_n",
            "Fig. 2c: the smallest N that the test does not reject",
            "length L, tokens",
            "critical N, tokens",
            [
                *(series for series in found if series.x),
                Series("0.06 L", self.lengths, claim, printed=True),
                Series("L", self.lengths, self.lengths, bound=True),
            ],
            x_log=2,
            y_log=2,
            note="Where a series has no point, no critical N was reached. Shaded: the step of the grid of N.",
        )
        return [critical, self._compared_curves()]

    def _compared_curves(self) -> Chart:
        longest = self.lengths[-1]
        curves = self.curves[longest]
        return Chart(
            "curves",
            f"The curves that the tests compare, at {longest:,} tokens",
            "selected tokens N",
            "sum of distances, mean over tokens and heads",
            [
                Series("d̃, top N", curves.tops, curves.distance.mean(1).tolist()),
                *(
                    Series(label, curves.tops, curves.expectations[name].mean(1).tolist())
                    for name, label in EXPECTATIONS.items()
                ),
            ],
            x_log=2,
            y_log=10,
        )

    def comparisons(self) -> list[Comparison]:
        made = []
        for name, label in EXPECTATIONS.items():
            for alpha in LEVELS:
                made.append(self._share(name, alpha, f"critical N / L, {label}, α = {alpha:g}"))
        made += [self._few(name, label) for name, label in EXPECTATIONS.items()]
        made += [self._sublinear(name, label) for name, label in EXPECTATIONS.items()]
        return made

    def _few(self, name: str, label: str) -> Comparison:
        """What the caption of Fig. 2c says."""
        found = self.published[name, LEVELS[0]]
        fewer = [length for length, each in found.items() if each.top is not None and each.top < PUBLISHED * length]
        return Comparison(
            f"fewer than 6 % of the tokens need to be selected, {label}",
            "at every L",
            f"at {len(fewer)} of {len(found)} lengths",
            "agrees" if len(fewer) == len(found) else "differs",
        )

    def _share(self, name: str, alpha: float, what: str) -> Comparison:
        longest = self.lengths[-1]
        found = self.published[name, alpha][longest]
        if found.top is None:
            return Comparison(f"{what}, at L = {longest:,}", PUBLISHED, f"none up to N = {found.before}", "differs")
        share = found.top / longest
        verdict: Verdict = "agrees" if AGREES[0] <= share <= AGREES[1] else "differs"
        note = f"Agreement: between {AGREES[0]:g} and {AGREES[1]:g}. Interval: the step of the grid of N."
        if found.again:
            note += f" At {found.again} larger N the test rejects again: the two come near each other and part."
        return Comparison(
            f"{what}, at L = {longest:,}", PUBLISHED, share, verdict, low=found.before / longest, high=share, note=note
        )

    def _sublinear(self, name: str, label: str) -> Comparison:
        found = {length: each.top for length, each in self.published[name, LEVELS[0]].items() if each.top is not None}
        what = f"critical N grows sub-linearly with L, {label}: exponent"
        if len(found) < 2:
            return Comparison(what, "below 1", f"reached at {len(found)} of {len(self.lengths)} lengths", "differs")
        slope = exponent(list(found), [float(top) for top in found.values()])
        verdict: Verdict = "agrees" if slope < SUBLINEAR else "differs"
        note = f"Sub-linear: below {SUBLINEAR:g}. A constant share of L, such as 0.06 L, would be linear, exponent 1."
        return Comparison(what, "below 1", slope, verdict, note=note)

    def findings(self) -> list[str]:
        longest, alpha = self.lengths[-1], LEVELS[0]
        heads = self.curves[longest].distance.shape[1]
        shares = {name: self._said(self.published[name, alpha][longest], longest) for name in EXPECTATIONS}
        true, printed = (self._survives(name) for name in ("expected", "printed"))
        rows = "every token" if not self.options.rows else f"{self.options.rows} evenly spaced tokens of each length"
        return [
            f"“≈ 0.06 L” {'survives' if true else 'does not survive'} with the corrected expectation: at "
            f"L = {longest:,}, {heads} heads and α = {alpha:g} the critical N is {shares['expected']}; with the "
            f"formula as printed it is {shares['printed']}" + (", which is the published share." if printed else "."),
            f"Over L = {', '.join(map(str, self.lengths))} the critical N / L is {self._shares('expected')} with the "
            f"corrected expectation and {self._shares('printed')} with the formula as printed (α = {alpha:g}).",
            self._crossing(),
            f"The two samples are the same {heads} heads, so the published test is not valid for them. The smallest N "
            f"that a paired test does not reject is {self._said(self.paired[longest], longest)}; the smallest at which "
            f"d̃ is shown to be within {EQUIVALENT:.0%} of the expectation is "
            f"{self._said(self.equivalent[longest], longest)}. Not to reject is not to find equal: only the last is "
            "evidence that the two are alike. Heads of one layer are not independent of each other, which none of "
            "these tests allows for.",
            *self._fewer_heads(),
            f"Means are over {rows}; a token that sees no more than N keys is {_SHORT[self.options.short_rows]}. At "
            "N = L both quantities are 0 by definition, so a critical N next to L says nothing about selection.",
        ]

    @staticmethod
    def _said(found: Critical, length: int) -> str:
        return f"none up to {found.before}" if found.top is None else f"{found.top} ({found.top / length:.2g} L)"

    def _shares(self, name: str) -> str:
        found = self.published[name, LEVELS[0]].items()
        return ", ".join("none" if each.top is None else f"{each.top / length:.2g}" for length, each in found)

    def _survives(self, name: str) -> bool:
        longest = self.lengths[-1]
        top = self.published[name, LEVELS[0]][longest].top
        return top is not None and AGREES[0] <= top / longest <= AGREES[1]

    def _crossing(self) -> str:
        longest = self.lengths[-1]
        curves, found = self.curves[longest], self.published["printed", LEVELS[0]][longest]
        above = [
            top
            for top, d, e in zip(curves.tops, curves.distance, curves.expectations["printed"], strict=True)
            if d.mean() >= e.mean()
        ]
        meets = f"from N = {above[0]} on for {len(above)} of {len(curves.tops)} N" if above else "for no N"
        told = f"; beyond the critical N the test rejects again at {found.again} N" if found.top is not None else ""
        return (
            f"The printed formula is another curve, not the expectation: at L = {longest:,} the mean d̃ is at or above "
            f"it {meets}{told}."
        )

    def _fewer_heads(self) -> list[str]:
        longest = self.lengths[-1]
        said = []
        for line in self.fewer:
            if line["L"] == longest and line["expectation"] != "main":
                label = EXPECTATIONS[line["expectation"]]
                where = (
                    f"{line['median N / L']:.2g} L (from {line['lowest N / L']:.2g} to {line['highest N / L']:.2g} L)"
                    if line["reached"]
                    else "none"
                )
                said.append(f"{line['heads']} heads, {label}: {where}")
        if not said:
            return []
        return [
            "The published test depends on how many heads are tested, since with fewer it lets larger differences "
            f"pass. Median critical N of {self.options.subsets} random subsets at L = {longest:,}: {'; '.join(said)}."
        ]


_SHORT = {
    "left out": "left out, so a large N rests on few tokens",
    "zero": "counted as 0 in both quantities, which makes them more alike the larger N is",
}


def _line(test: str, expectation: str, alpha: float, length: int, found: Critical) -> Row:
    return {
        "test": test,
        "expectation": expectation,
        "alpha": alpha,
        "L": length,
        "critical N": found.top,
        "N before": found.before,
        "N / L": None if found.top is None else found.top / length,
        "larger N not passing": found.again,
    }


def _critical_series(name: str, found: Mapping[int, Critical]) -> Series:
    reached = {length: each for length, each in found.items() if each.top is not None}
    return Series(
        name,
        list(reached),
        [float(each.top or 0) for each in reached.values()],
        low=[float(max(each.before, 1)) for each in reached.values()],
        high=[float(each.top or 0) for each in reached.values()],
    )
