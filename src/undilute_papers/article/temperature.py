"""What does a lower temperature do to a row with one relevant token?  The blog article's demonstration, often.

1,000 scores drawn from N(0, 0.5²), the first replaced by 3.0; weights softmax(z/τ). The article prints the code without
its output and the code draws without a seed, so what can be held against it are its two sentences: a lower temperature
"helps the model focus", and one that is "too low causes it to ignore potentially useful secondary information".
Entropies are exact and at least 0; the article adds 1e-12 inside the logarithm, which makes that of a one-hot row −0.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.report.result import Chart, Comparison, Result, Row, Series
from undilute.rules.entropy import entropy_of_logits
from undilute.rules.parameters import count, number
from undilute_papers.audit import blog
from undilute_papers.reproduction.experiment import Experiment, option

BITS = math.log(2.0)
TOO_LOW = 0.1  # at most this temperature can stand for the article's "too low"; it tries 0.1 and 0.01
LOWEST = 1e-6
LEFT = 0.01  # what the other tokens have together, once they are ignored
RISES = "It is a theorem: with β = 1/τ the logarithm of the largest weight grows at the rate max z − mean z."
FALLS = "It is a theorem: with β = 1/τ the entropy changes at the rate −β times the variance of the scores."
MEASURES = {  # of one row: column → what it is
    "top weight": "largest weight",
    "others": "what all other tokens get together",
    "smallest weight": "smallest weight",
    "entropy, bits": "entropy in bits",
    "entropy as printed, bits": "entropy in bits, 1e-12 inside the logarithm",
}


@dataclass(frozen=True)
class Temperature(Experiment):
    """The article's demonstration of temperatures over many seeds."""

    id = "temperature"
    source = "Blog article “Softmax Attention and the Dilution Problem”, Temperature Scaling"
    shows = "what a lower temperature gives to one relevant token, and takes from the others"
    quick_minutes = 0.1
    full_minutes = 0.1

    seeds: int = option(200, "How many times to draw the scores.")
    seed: int = option(0, "The first seed; the others follow it.")
    n: int = option(1000, "Tokens in a row.")
    temperatures: tuple[float, ...] = option((2.0, 1.0, 0.5, 0.1, 0.01), "Temperatures to divide the scores by.")

    def __post_init__(self) -> None:
        super().__post_init__()
        count("seeds", self.seeds)
        if count("n", self.n) < 2:
            raise InvalidValue(f"n = {self.n}: must be at least 2, the relevant token and another.")
        if not self.temperatures:
            raise InvalidValue("temperatures is empty: must be at least one number above 0, such as 1,0.5.")
        for temperature in self.temperatures:
            if number("temperature", temperature) < LOWEST:
                raise InvalidValue(f"temperature = {temperature:g}: must be at least {LOWEST:g}.")

    def run(self, progress: Progress = quiet) -> Result:
        """Every seed at every temperature, and the article's two claims.

        Examples
        --------
        >>> result = Temperature(seeds=5).run()
        >>> [comparison.verdict for comparison in result.comparisons]
        ['agrees', 'agrees', 'agrees']
        """
        rows: list[Row] = []
        descending = sorted(self.temperatures, reverse=True)
        for index in range(self.seeds):
            progress(index / self.seeds, f"seed {self.seed + index}")
            rows += _one_seed(self.seed + index, self.n, descending)
        over_seeds = [_over_seeds(rows, temperature) for temperature in descending]
        comparisons = _claims(rows, descending)
        charts = [_weight_chart(over_seeds, self.n), _entropy_chart(over_seeds, self.n)]
        tables = {"over seeds": over_seeds, "every seed": rows}
        progress(1.0, "done")
        return self.result(_findings(over_seeds, comparisons, self.seeds), comparisons, tables, charts)


def _one_seed(seed: int, n: int, temperatures: Sequence[float]) -> list[Row]:
    """One row of scores at each temperature."""
    scores = blog.demo_scores(torch.from_numpy(np.random.default_rng(seed).standard_normal(n)))
    seen = torch.ones(n, dtype=torch.bool)
    rows: list[Row] = []
    for temperature in temperatures:
        weights = (scores / temperature).softmax(-1)
        top = int(weights.argmax())
        others = float(weights[:top].sum() + weights[top + 1 :].sum())  # 1 − top weight would lose all digits
        exact = float(entropy_of_logits(scores / temperature, seen)) / BITS
        rows.append(
            {
                "seed": seed,
                "temperature": temperature,
                "top weight": float(weights[top]),
                "others": others,
                "smallest weight": float(weights.min()),
                "entropy, bits": max(0.0, exact),
                "entropy as printed, bits": float(blog.printed_demo(scores, temperature)[1]),
                "top is the relevant token": top == 0,
            }
        )
    return rows


def _over_seeds(rows: Sequence[Row], temperature: float) -> Row:
    """Mean, smallest and largest of every measure at one temperature."""
    found: dict[str, float] = {"temperature": temperature}
    for name in MEASURES:
        values = _column(rows, name, temperature)
        found |= {f"{name}, mean": sum(values) / len(values), f"{name}, min": min(values), f"{name}, max": max(values)}
    return found


def _column(rows: Sequence[Row], name: str, temperature: float | None = None) -> list[float]:
    return [float(row[name]) for row in rows if temperature in (None, row["temperature"])]  # type: ignore[arg-type]


# ---------------------------------------------------------------- the article's claims


def _claims(rows: list[Row], temperatures: list[float]) -> list[Comparison]:
    tops = [_column(rows, "top weight", each) for each in temperatures]
    bits = [_column(rows, "entropy, bits", each) for each in temperatures]
    return [
        _monotone("the largest weight", "rises", RISES, list(zip(*tops, strict=True))),
        _monotone("the entropy", "falls", FALLS, [tuple(-each for each in seed) for seed in zip(*bits, strict=True)]),
        _ignored(_column(rows, "others", temperatures[-1]), temperatures[-1]),
    ]


def _monotone(what: str, does: str, why: str, seeds: list[tuple[float, ...]]) -> Comparison:
    """In how many seeds a figure never falls from one temperature to the next lower one."""
    claim = f"claim: lower temperature helps the model focus ({what} {does})"
    if len(seeds[0]) < 2:
        return Comparison(claim, f"{what} {does}", "one temperature only", "other set-up", note="It takes two.")
    holding = sum(all(after >= before for before, after in pairwise(seed)) for seed in seeds)
    moved = sum(seed[-1] > seed[0] for seed in seeds)
    return Comparison(
        claim,
        f"{what} {does}",
        f"at every step in {holding} of {len(seeds)} seeds",
        "agrees" if holding == moved == len(seeds) else "differs",
        note=why,
    )


def _ignored(others: list[float], temperature: float) -> Comparison:
    """Whether the other tokens have hardly anything left at the lowest temperature."""
    largest = max(others)
    came_out = f"the others keep at most {100 * largest:.2g} % at τ = {temperature:g}"
    claim = "claim: too low a temperature ignores secondary information"
    if temperature > TOO_LOW:
        note = f"The lowest temperature here is not low: the article goes down to 0.01 (at most {TOO_LOW:g} tests it)."
        return Comparison(claim, "the others are ignored", came_out, "other set-up", note=note)
    note = f"Ignored: less than {100 * LEFT:g} % for all other tokens together, in every seed."
    verdict = "agrees" if largest < LEFT else "differs"
    return Comparison(claim, "the others are ignored", came_out, verdict, note=note)  # type: ignore[arg-type]


def _findings(over_seeds: list[Row], comparisons: list[Comparison], seeds: int) -> list[str]:
    held = sum(each.verdict == "agrees" for each in comparisons)
    first, last = over_seeds[0], over_seeds[-1]
    printed = min(_column(over_seeds, "entropy as printed, bits, min"))
    sentences = [
        f"{held} of {len(comparisons)} readings of the article's claims hold in all of {seeds} seeds: from temperature "
        f"{first['temperature']:g} to {last['temperature']:g} the mean largest weight goes from "
        f"{first['top weight, mean']:.3g} to {last['top weight, mean']:.3g}.",
        "Mean largest weight [smallest, largest seed]: "
        + "; ".join(
            f"τ = {row['temperature']:g}: {row['top weight, mean']:.6f} [{row['top weight, min']:.6f}, "
            f"{row['top weight, max']:.6f}], entropy {row['entropy, bits, mean']:.3f} bits"
            for row in over_seeds
        )
        + ".",
        "The article prints no output for this code, and the code draws without a seed: these figures are ours, for "
        "NumPy's default generator.",
    ]
    if printed < 0:
        sentences.append(
            f"The 1e-12 inside the printed code's logarithm makes an entropy of {printed:.2g} bits, which it would "
            "print as -0.00; here entropies are exact and at least 0."
        )
    return sentences


# ---------------------------------------------------------------- pictures


def _series(name: str, over_seeds: list[Row], measure: str) -> Series:
    columns = [_column(over_seeds, f"{measure}, {each}") for each in ("mean", "min", "max")]
    return Series(name, _column(over_seeds, "temperature"), columns[0], low=columns[1], high=columns[2])


def _course(over_seeds: list[Row], measure: str) -> str:
    """Where the mean of a measure begins and ends, from the highest to the lowest temperature."""
    ends = [
        f"{round(float(row[f'{measure}, mean']), 4):g} at τ = {row['temperature']:g}"  # type: ignore[arg-type]
        for row in (over_seeds[0], over_seeds[-1])
    ]
    return ends[0] if ends[0] == ends[1] else f"from {ends[0]} to {ends[1]}"


def _weight_chart(over_seeds: list[Row], n: int) -> Chart:
    return Chart(
        "weights",
        f"The largest weight among {n:,} tokens, {_course(over_seeds, 'top weight')}",
        "temperature τ",
        "share of the attention",
        [
            _series("the token with the largest weight", over_seeds, "top weight"),
            _series("all other tokens together", over_seeds, "others"),
        ],
        x_log=10,
        note="Means over seeds; shaded from the smallest to the largest seed.",
    )


def _entropy_chart(over_seeds: list[Row], n: int) -> Chart:
    temperatures = _column(over_seeds, "temperature")
    most = Series(f"uniform, log2 {n:,}", temperatures, [math.log2(n)] * len(temperatures), bound=True)
    return Chart(
        "entropy",
        f"The entropy among {n:,} tokens in bits, {_course(over_seeds, 'entropy, bits')}",
        "temperature τ",
        "entropy of the row, bits",
        [_series("entropy", over_seeds, "entropy, bits"), most],
        x_log=10,
        note="Means over seeds; shaded from the smallest to the largest seed.",
    )
