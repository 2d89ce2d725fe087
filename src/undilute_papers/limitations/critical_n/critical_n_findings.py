"""What does the critical N say about Figure 2c?  Sentences, verdicts on what it claims, and pictures.

The claim “≈ 0.06 L” is one about every L, so it is judged over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from undilute.report.result import Chart, Comparison, Series, Verdict
from undilute_papers.limitations.critical_n.found import Found
from undilute_papers.limitations.critical_n.search import EQUIVALENT, EXPECTATIONS, LEVELS, Critical
from undilute_papers.reproduction.attended import scope
from undilute_papers.reproduction.power_law import exponent

if TYPE_CHECKING:
    from undilute_papers.limitations.critical_n.critical_n import CriticalN

PUBLISHED = 0.06
AGREES = (0.03, 0.12)  # critical N / L that counts as "≈ 0.06": within a factor of 2
SUBLINEAR = 0.9  # an exponent of N over L below this
MISSING = {  # what becomes of a token that sees too few keys
    "left out": "left out, so a large N rests on few tokens",
    "zero": "counted as 0 in both quantities, which makes them more alike the larger N is",
}


def near(found: Mapping[int, Critical]) -> list[int]:
    """The lengths L at which the critical N is about 0.06 L.

    Examples
    --------
    >>> near({64: Critical(None, 63, 0), 128: Critical(7, 6, 0), 1024: Critical(16, 13, 0)})
    [128]
    """
    reached = {length: each.top for length, each in found.items() if each.top is not None}
    return [length for length, top in reached.items() if AGREES[0] <= top / length <= AGREES[1]]


def span(found: Mapping[int, Critical]) -> str:
    """The range of N / L over all lengths, in words.

    Examples
    --------
    >>> span({64: Critical(None, 63, 0), 128: Critical(7, 6, 0), 1024: Critical(16, 13, 0)})
    '0.016 to 0.055, none at L = 64'
    """
    shares = sorted(each.top / length for length, each in found.items() if each.top is not None)
    if not shares:
        return "none at any L"
    low, high = f"{shares[0]:.2g}", f"{shares[-1]:.2g}"
    missing = ", ".join(f"{length:,}" for length, each in found.items() if each.top is None)
    return (low if low == high else f"{low} to {high}") + (f", none at L = {missing}" if missing else "")


def _each(found: Mapping[int, Critical]) -> str:
    return "; ".join(
        f"L = {length:,}: " + ("none" if each.top is None else f"{each.top / length:.2g}")
        for length, each in found.items()
    )


def _at(found: Mapping[int, Critical], length: int) -> str:
    top, before, _ = found[length]
    return f"none up to {before}" if top is None else f"{top} ({top / length:.2g} L)"


def sentences(found: Found, options: CriticalN) -> list[str]:
    """What came out with these options."""
    longest, alpha = found.lengths[-1], LEVELS[0]
    true, printed = (found.published[name, alpha] for name in ("expected", "printed"))
    survives = len(near(true)) == len(true)
    rows = "every token" if not options.rows else f"{options.rows} evenly spaced tokens of each length"
    return [
        f"{scope(options.model, options.text, longest)}: “≈ 0.06 L” {'survives' if survives else 'does not survive'} "
        f"with the corrected expectation, where over all L from "
        f"{found.lengths[0]:,} to {longest:,} the critical N / L is {span(true)}: about 0.06 at {len(near(true))} of "
        f"{len(true)} lengths. With the formula as printed it is {span(printed)}: about 0.06 at {len(near(printed))} "
        f"of {len(printed)} ({found.heads} heads, α = {alpha:g}).",
        f"Length by length, the critical N / L is with the corrected expectation {_each(true)}, and with the formula "
        f"as printed {_each(printed)}. “About 0.06” is between {AGREES[0]:g} and {AGREES[1]:g}.",
        _crossing(found),
        f"The two samples are the same {found.heads} heads, so the published test is not valid for them. At "
        f"L = {longest:,} the smallest N that a paired test does not reject is {_at(found.paired, longest)}; the "
        f"smallest at which d̃ is shown to be within {EQUIVALENT:.0%} of the expectation is "
        f"{_at(found.equivalent, longest)}. Not to reject is not to find equal: only the last is "
        "evidence that the two are alike. Heads of one layer are not independent of each other, which none of "
        "these tests allows for.",
        *_fewer_heads(found, options.subsets),
        f"Means are over {rows}; a token that sees no more than N keys is {MISSING[options.short_rows]}. At "
        "N = L both quantities are 0 by definition, so a critical N next to L says nothing about selection.",
    ]


def _crossing(found: Found) -> str:
    longest = found.lengths[-1]
    curves, critical = found.curves[longest], found.published["printed", LEVELS[0]][longest]
    above = [
        top
        for top, d, e in zip(curves.tops, curves.distance, curves.expectations["printed"], strict=True)
        if d.mean() >= e.mean()
    ]
    meets = f"from N = {above[0]} on for {len(above)} of {len(curves.tops)} N" if above else "for no N"
    told = f"; beyond the critical N the test rejects again at {critical.again} N" if critical.top is not None else ""
    return (
        f"The printed formula is another curve, not the expectation: at L = {longest:,} the mean d̃ is at or above "
        f"it {meets}{told}."
    )


def _fewer_heads(found: Found, subsets: int) -> list[str]:
    longest = found.lengths[-1]
    said = []
    for line in found.fewer:
        if line["L"] == longest and line["expectation"] != "main":
            label = EXPECTATIONS[line["expectation"]]
            said.append(f"{line['heads']} heads, {label}: {_drawn(line)}")
    if not said:
        return []
    return [
        "The published test depends on how many heads are tested, since with fewer it lets larger differences "
        f"pass. Median critical N of {subsets} random subsets at L = {longest:,}: {'; '.join(said)}."
    ]


def _drawn(line: Mapping[str, Any]) -> str:
    """The median over subsets, where those that reach no critical N count as larger than all others."""
    if not line["reached"]:
        return "none"
    middle = "none" if line["median N / L"] is None else f"{line['median N / L']:.2g} L"
    missed = line["subsets"] - line["reached"]
    between = f"from {line['lowest N / L']:.2g} to {line['highest N / L']:.2g} L"
    return f"{middle} ({between}{f', in {missed} none' if missed else ''})"


def comparisons(found: Found) -> list[Comparison]:
    """The share, the caption's share, and the growth, with each expectation, beside what came out."""
    return [
        *(_share(found.published[name, alpha], name, alpha) for name in EXPECTATIONS for alpha in LEVELS),
        *(_few(found.published[name, LEVELS[0]], name) for name in EXPECTATIONS),
        *(_sublinear(found.published[name, LEVELS[0]], name) for name in EXPECTATIONS),
    ]


def _share(found: Mapping[int, Critical], name: str, alpha: float) -> Comparison:
    longest = max(found)
    note = f"Agreement: between {AGREES[0]:g} and {AGREES[1]:g} at every L. {_each(found)}."
    if found[longest].again:
        note += (
            f" At L = {longest:,} the test rejects again at {found[longest].again} larger N: the two come near each "
            "other and part."
        )
    return Comparison(
        f"critical N / L over all L, {EXPECTATIONS[name]}, α = {alpha:g}",
        PUBLISHED,
        span(found),
        "agrees" if len(near(found)) == len(found) else "differs",
        note=note,
    )


def _few(found: Mapping[int, Critical], name: str) -> Comparison:
    """What the caption of Fig. 2c says."""
    fewer = [length for length, each in found.items() if each.top is not None and each.top < PUBLISHED * length]
    return Comparison(
        f"fewer than 6 % of the tokens need to be selected, {EXPECTATIONS[name]}",
        "at every L",
        f"at {len(fewer)} of {len(found)} lengths",
        "agrees" if len(fewer) == len(found) else "differs",
    )


def _sublinear(found: Mapping[int, Critical], name: str) -> Comparison:
    reached = {length: float(each.top) for length, each in found.items() if each.top is not None}
    what = f"critical N grows sub-linearly with L, {EXPECTATIONS[name]}: exponent"
    if len(reached) < 2:
        return Comparison(what, "below 1", f"reached at {len(reached)} of {len(found)} lengths", "differs")
    slope = exponent(list(reached), list(reached.values()))
    verdict: Verdict = "agrees" if slope < SUBLINEAR else "differs"
    note = f"Sub-linear: below {SUBLINEAR:g}. A constant share of L, such as 0.06 L, would be linear, exponent 1."
    if len(reached) < len(found):
        note += f" Over the {len(reached)} of {len(found)} lengths at which it is reached."
    return Comparison(what, "below 1", slope, verdict, note=note)


def charts(found: Found) -> list[Chart]:
    """The figure, and the curves that the tests compare."""
    return [_critical_chart(found), _compared_curves(found)]


def _critical_chart(found: Found) -> Chart:
    series = [
        _critical_series(f"{label}, KS at .01", found.published[name, LEVELS[0]])
        for name, label in EXPECTATIONS.items()
    ]
    series.append(_critical_series("equivalent within 10 %, corrected", found.equivalent))
    return Chart(
        "critical_n",
        "Fig. 2c: the smallest N that the test does not reject",
        "length L, tokens",
        "critical N, tokens",
        [
            *(each for each in series if each.x),
            Series("0.06 L", found.lengths, [PUBLISHED * length for length in found.lengths], printed=True),
            Series("L", found.lengths, found.lengths, bound=True),
        ],
        x_log=2,
        y_log=2,
        note="Where a series has no point, no critical N was reached. Shaded: the step of the grid of N.",
    )


def _critical_series(name: str, found: Mapping[int, Critical]) -> Series:
    reached = {length: each for length, each in found.items() if each.top is not None}
    return Series(
        name,
        list(reached),
        [float(each.top or 0) for each in reached.values()],
        low=[float(max(each.before, 1)) for each in reached.values()],
        high=[float(each.top or 0) for each in reached.values()],
    )


def _compared_curves(found: Found) -> Chart:
    longest = found.lengths[-1]
    curves = found.curves[longest]
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
