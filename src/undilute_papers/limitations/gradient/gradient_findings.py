"""What do the steps in the logits say about Figure 4?  Sentences, verdicts on what it claims, and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undilute.report.result import Chart, Comparison, Row, Series
from undilute_papers.limitations.gradient.steps import Steps, printed_bound
from undilute_papers.reproduction.power_law import exponent

SMALL = 0.1  # "for T < 0.1"


def _of(lines: Sequence[Row], **fixed: float) -> list[Row]:
    return [line for line in lines if all(line[name] == value for name, value in fixed.items())]


def _column(lines: Sequence[Row], name: str) -> list[float]:
    return [float(line[name] or 0.0) for line in lines]


def _epsilons(lines: Sequence[Row]) -> list[float]:
    return sorted(set(_column(lines, "epsilon")))


def _small(lines: Sequence[Row]) -> list[Row]:
    return [line for line, T in zip(lines, _column(lines, "temperature"), strict=True) if T < SMALL]


def sentences(lines: Sequence[Row], norms: Sequence[Row], steps: Steps, scope: str) -> list[str]:
    """What came out on the model and text that ``scope`` names; exponents and cap only where T is low."""
    broken, cases = sum(map(int, _column(norms, "rows_above_printed"))), sum(map(int, _column(norms, "rows")))
    heads = int((steps.heads("broken").sum(0) > 0).sum())
    excess = max(row / bound for row, bound in _pairs(norms, "norm_highest_row", "printed_bound"))
    closest = max(row / bound for row, bound in _pairs(norms, "norm_highest_row", "bound"))
    step = max(row / top for row, top in _pairs(lines, "worst_row", "supremum"))
    smallest = _of(lines, epsilon=_epsilons(lines)[0])
    ratio = [worst / max(random, 1e-300) for worst, random in _pairs(smallest, "worst_mean", "published")]
    median = _column(smallest, "worst_over_random_median_head")
    found = [
        f"{scope}: the printed bound min{{1/(4T), √2}} on ‖J‖₂ is exceeded in {broken:,} of {cases:,} cases (a row, a "
        f"T), in {heads} of {len(steps.names)} heads at some T; the largest ‖J‖₂ is {excess:.3g} times the bound. The "
        f"true bound 1/(2T) is reached to {100 * closest:.2f} %, the supremum of a finite step to {100 * step:.2f} %.",
        f"A random direction, as published, misses the worst one: with ε = {_epsilons(lines)[0]:g} the worst direction "
        f"moves the largest head {min(ratio):.3g} to {max(ratio):.3g} times as far, over T, and the median head "
        f"{min(median):.3g} to {max(median):.3g} times. So the published estimate cannot test a bound on ‖J‖₂.",
    ]
    return [*found, *_slope_findings(lines, norms), *_cap_findings(lines)]


def _pairs(lines: Sequence[Row], first: str, second: str) -> list[tuple[float, float]]:
    return list(zip(_column(lines, first), _column(lines, second), strict=True))


def _slope_findings(lines: Sequence[Row], norms: Sequence[Row]) -> list[str]:
    def fitted(rows: Sequence[Row], name: str) -> float:
        return exponent(_column(rows, "temperature"), _column(rows, name))

    small, low = _small(lines), _small(norms)
    slopes = {epsilon: fitted(_of(small, epsilon=epsilon), "published") for epsilon in _epsilons(lines)}
    told = ", ".join(f"T^{value:.2f} at ε = {epsilon:g}" for epsilon, value in slopes.items() if not math.isnan(value))
    highest, mean = fitted(low, "norm_highest_row"), fitted(low, "norm_highest_head")
    if not told or math.isnan(highest) or math.isnan(mean):
        return []
    return [
        f"Below T = {SMALL:g} the published estimate goes as {told}. The largest ‖J‖₂ of any row goes as "
        f"T^{highest:.2f}, the mean over rows of the largest head as T^{mean:.2f}. 1/T is the envelope: only rows "
        "whose two largest logits are tied to within about T come near it, and the lower T, the fewer they are."
    ]


def _cap_findings(lines: Sequence[Row]) -> list[str]:
    largest = _epsilons(lines)[-1]
    capped = [line for line in _small(lines) if line["epsilon"] == largest]
    if not capped:
        return []
    share = [value * largest / math.sqrt(2) for value in _column(capped, "published")]
    worst = [value * largest / math.sqrt(2) for value in _column(capped, "worst_mean")]
    return [
        f"No difference of weights is longer than √2, so g ≤ √2/ε: at ε = {largest:g} at most "
        f"{math.sqrt(2) / largest:.3g}, of which the published estimate reaches {100 * min(share):.3g} to "
        f"{100 * max(share):.3g} % below T = {SMALL:g}, the worst direction {100 * min(worst):.3g} to "
        f"{100 * max(worst):.3g} %. That is why a smaller ε can give larger values, however sharp the logits are."
    ]


def comparisons(lines: Sequence[Row], norms: Sequence[Row]) -> list[Comparison]:
    """The printed bound and what the text says of the curves, each beside what came out."""
    broken, cases = sum(map(int, _column(norms, "rows_above_printed"))), sum(map(int, _column(norms, "rows")))
    found = [
        Comparison(
            "bound on ‖J‖₂ of softmax",
            "min{1/(4T), √2}",
            f"exceeded in {broken:,} of {cases:,} cases",
            "differs" if broken else "agrees",
            note="Exact norm of every row's Jacobian at every T; the true bound is 1/(2T).",
        )
    ]
    small = _small(lines)
    for epsilon in _epsilons(small):
        of = _of(small, epsilon=epsilon)
        value = exponent(_column(of, "temperature"), _column(of, "published"))
        if not math.isnan(value):
            found.append(
                Comparison(
                    f"exponent of T below {SMALL:g}, ε = {epsilon:g}",
                    -1.0,
                    value,
                    "agrees" if abs(value + 1) <= 0.15 else "differs",
                    note="Random direction, mean over rows, largest head.",
                )
            )
    return [*found, *_level_comparisons(lines), *_order_comparisons(small)]


def _level_comparisons(lines: Sequence[Row]) -> list[Comparison]:
    found = []
    temperatures = sorted(set(_column(lines, "temperature")))
    low, high = [T for T in temperatures if T < SMALL], [T for T in temperatures if T >= 1]
    if low and high:
        drops = {
            epsilon: max(_column(_of(_small(lines), epsilon=epsilon), "published"))
            / max(_column(_of(lines, epsilon=epsilon, temperature=high[0]), "published")[0], 1e-300)
            for epsilon in _epsilons(lines)
        }
        found.append(
            Comparison(
                f"drop from the highest value below T = {SMALL:g} to T = {high[0]:g}",
                "two orders of magnitude, all curves",
                ", ".join(f"{drop:.3g} times at ε = {epsilon:g}" for epsilon, drop in drops.items()),
                "agrees" if all(30 <= drop <= 300 for drop in drops.values()) else "differs",
                note="Agreement: every curve between 30 and 300 times.",
            )
        )
    if low:
        smallest = _of(_small(lines), epsilon=_epsilons(lines)[0])
        near = [value / bound for value, bound in _pairs(smallest, "published", "printed_bound")]
        found.append(
            Comparison(
                f"published estimate over the printed bound, T < {SMALL:g}, ε = {_epsilons(lines)[0]:g}",
                "GPT-2 operates close to the theoretical limit",
                f"{min(near):.2g} to {max(near):.2g} of it",
                "agrees" if min(near) >= 0.5 and max(near) <= 1 else "differs",
                note="Agreement: between 0.5 and 1 at every such T. Below T = 0.177 that bound is √2, which is flat: "
                "no curve follows 1/T there and stays close to it.",
            )
        )
    return found


def _order_comparisons(small: Sequence[Row]) -> list[Comparison]:
    if not small or len(_epsilons(small)) < 2:
        return []
    first, last = _epsilons(small)[0], _epsilons(small)[-1]
    few, many = (_column(_of(small, epsilon=epsilon), "published") for epsilon in (first, last))
    larger = sum(a > b for a, b in zip(few, many, strict=True))
    cap = [100 * value * last / math.sqrt(2) for value in _column(_of(small, epsilon=last), "worst_mean")]
    return [
        Comparison(
            f"smaller ε gives larger values, T < {SMALL:g}",
            "yes, because the sharpest logits dominate",
            f"ε = {first:g} above ε = {last:g} at {larger} of {len(few)} temperatures",
            "agrees" if larger == len(few) else "differs",
            note=f"The reason is another: g ≤ √2/ε whatever the logits, and in the worst direction ε = {last:g} gets "
            f"{max(cap):.0f} % of that.",
        )
    ]


def charts(lines: Sequence[Row], norms: Sequence[Row]) -> list[Chart]:
    """The figure as published, the worst direction, and the exact norm."""
    return [_published_chart(lines), _worst_chart(lines), _norm_chart(norms, lines)]


def _curves(lines: Sequence[Row], name: str, label: str, bound: bool = False) -> list[Series]:
    return [
        Series(f"{label}, ε = {epsilon:g}", _column(of, "temperature"), _column(of, name), bound=bound)
        for epsilon in _epsilons(lines)
        if (of := _of(lines, epsilon=epsilon))
    ]


def _printed_series(lines: Sequence[Row]) -> Series:
    temperatures = sorted(set(_column(lines, "temperature")))
    bounds = [printed_bound(T) for T in temperatures]
    return Series("bound as printed, min{1/(4T), √2}", temperatures, bounds, bound=True)


def _published_chart(lines: Sequence[Row]) -> Chart:
    return Chart(
        "random",
        "As published, a random direction for each row, beside both bounds",
        "temperature T",
        "g(T, ε), largest head, mean over rows",
        [*_curves(lines, "published", "random"), _printed_series(lines), *_curves(lines, "bound", "true bound", True)],
        x_log=10,
        y_log=10,
        note="True bound: min{1/(2T), √2/ε}.",
    )


def _worst_chart(lines: Sequence[Row]) -> Chart:
    return Chart(
        "worst",
        "The worst direction, beside its supremum and the printed bound",
        "temperature T",
        "g(T, ε), largest row of any head",
        [*_curves(lines, "worst_row", "worst"), _printed_series(lines), *_curves(lines, "supremum", "supremum", True)],
        x_log=10,
        y_log=10,
        note="Worst of two directions: the Jacobian's top eigenvector, and the two largest logits against each other. "
        "Supremum: (√2/ε)·tanh(ε/(2√2·T)).",
    )


def _norm_chart(norms: Sequence[Row], lines: Sequence[Row]) -> Chart:
    temperatures = _column(norms, "temperature")
    epsilon = _epsilons(lines)[0]
    random = _column(_of(lines, epsilon=epsilon), "published")
    return Chart(
        "jacobian",
        "Exact norm of the Jacobian, beside the printed and the true bound",
        "temperature T",
        "‖J‖₂",
        [
            Series("largest row of any head", temperatures, _column(norms, "norm_highest_row")),
            Series("largest head, mean over rows", temperatures, _column(norms, "norm_highest_head")),
            Series("median head, mean over rows", temperatures, _column(norms, "norm_median_head")),
            Series(f"as published: random direction, ε = {epsilon:g}", temperatures, random),
            _printed_series(lines),
            Series("true bound, 1/(2T)", temperatures, _column(norms, "bound"), bound=True),
        ],
        x_log=10,
        y_log=10,
    )
