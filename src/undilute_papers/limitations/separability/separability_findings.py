"""What do the shares say about Figure 3?  Sentences, verdicts on what it claims, and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from undilute.report.result import Chart, Comparison, Row, Series, Verdict
from undilute_papers.limitations.separability.balls import ROUNDING
from undilute_papers.limitations.separability.controls import CONTROLS, DRAWS
from undilute_papers.reproduction.quartiles import QUARTILES

SATURATES = (0.70, 0.85)  # what the publication prints from N = 16 on
FROM_TOP = 16
CEILING = 0.80


def sentences(lines: Sequence[Row], controls: Sequence[Row], heads: int, x: str, scope: str) -> list[str]:
    """What came out, for so many heads and vectors ``x`` of the model and text that ``scope`` names."""
    known = [line for line in lines if line["median"] is not None]
    told = ", ".join(f"{_number(line, 'median'):.2f} (N = {line['N']})" for line in known)
    return [
        f"{scope}: the median head of {heads} separates {told} of its N heaviest tokens.",
        *_control_findings(controls),
        *_bound_findings(lines),
        _ball_finding(known),
        *_window_findings(lines, heads),
        f"Vectors are the tokens' {x} at unit length. A row counts for N only if it sees more than N "
        "tokens; N = 1 gives 1 whatever the vectors, since s is then the token itself.",
    ]


def _control_findings(controls: Sequence[Row]) -> list[str]:
    high = _high_controls(controls)
    said = [
        f"80 % is no ceiling for ideal vectors: {_listed(high)}."
        if high
        else f"No control of ideal vectors exceeds {SATURATES[1]:g} at N ≥ 2 with these options."
    ]
    lowest = min(_named(controls, "sharp"), key=lambda line: _number(line, "mean"))
    if _number(lowest, "mean") < 0.5:
        said.append(
            f"A head with weight 0.97 on one token, as selective as can be, scores {_number(lowest, 'mean'):.2f} at "
            f"N = {lowest['N']}: a low N_s/N does not mean poor selection."
        )
    return said


def _bound_findings(lines: Sequence[Row]) -> list[str]:
    """How often a bound is missed; without N = 1, where the share is 1 by definition, and none without another N."""
    lines = _more_than_one(lines)
    if not _total(lines, "cases"):
        return []
    cases, over, below = (_total(lines, name) for name in ("cases", "above_printed_upper", "below_certain"))
    pairs, outside = _total(lines, "heads"), _total(lines, "heads_outside_corrected")
    return [
        f"The printed upper bound is below the measured share in {over:,} of {cases:,} cases (a head, a row, an N ≥ 2; "
        "N = 1 is left out of these counts, since the share is then 1 by definition). It stays above 0.93 wherever "
        "r ≤ ξ, because ξ ≤ 1, so it cannot explain a plateau near 0.8.",
        f"The certain share #{{ξ ≤ r}}/N, proved whatever the vectors, is undercut in {below:,} of {cases:,} cases.",
        f"The corrected bounds on the expectation miss the mean of {outside:,} of {pairs:,} pairs of a head and an "
        "N ≥ 2. They are proved for independent uniform vectors and a radius fixed beforehand; here the vectors are a "
        "model's and the radius comes from them.",
    ]


def _window_findings(lines: Sequence[Row], heads: int) -> list[str]:
    fewer = [f"{line['heads']} at N = {line['N']}" for line in lines if _number(line, "heads") < heads]
    if not fewer:
        return []
    return [f"Heads that see only a sliding window count for smaller N alone: of {heads} heads, {', '.join(fewer)}."]


def _ball_finding(known: Sequence[Row]) -> str:
    boundary = max((_number(line, "left_out_in_closed_ball") for line in known), default=math.nan)
    ties = max((_number(line, "closed_ball_mean") - _number(line, "open_ball_mean") for line in known), default=0.0)
    return (
        "The closed ball of the publication always holds the token that sets its radius, one that was left out (tokens "
        f"left out and inside: up to {boundary:.3g} on average over heads); N_s/N of the closed ball exceeds that of "
        f"the open one by at most {ties:.2g}."
    )


def comparisons(lines: Sequence[Row], controls: Sequence[Row]) -> list[Comparison]:
    """The plateau, the ceiling and the upper bound, each beside what came out."""
    high = _high_controls(controls)
    ideal = Comparison(
        "N_s/N with ideal spherical vectors, N ≥ 2",
        "no more than about 80 %",
        _listed(high) or f"no control above {SATURATES[1]:g}",
        "differs" if high else "agrees",
        note="Means over draws; orthonormal vectors reach 1 for every N, by proof.",
    )
    known = [line for line in lines if line["median"] is not None]
    return [*_plateau(known), ideal, *_upper_bound(known)]


def _plateau(known: Sequence[Row]) -> list[Comparison]:
    """Two N tell a decline or a plateau at the least; N = 1 tells nothing, since the share is then 1 by definition."""
    known = _more_than_one(known)
    early = [_number(line, "median") for line in known if _number(line, "N") <= FROM_TOP]
    late = [_number(line, "median") for line in known if _number(line, "N") >= FROM_TOP]
    if not late:
        return []
    falls = all(after <= before for before, after in pairwise(early)) and early[-1:] < early[:1]
    flat = all(SATURATES[0] <= each <= SATURATES[1] for each in late)
    decline = "declines" if falls else "does not decline" if len(early) >= 2 else "too few N to tell a decline"
    verdict: Verdict = "agrees" if len(early) >= 2 and len(late) >= 2 else "other set-up"
    if not flat or (len(early) >= 2 and not falls):
        verdict = "differs"
    return [
        Comparison(
            "N_s/N of the median head over N",
            "declines up to N ≈ 16, then saturates between 0.7 and 0.85",
            f"{decline} up to N = {FROM_TOP}, then {min(late):.2f} to {max(late):.2f}",
            verdict,
            low=min(late),
            high=max(late),
            note="Medians over heads of the means over rows, from N = 2 on. A decline: no N above the one before, and "
            f"the last below the first; told by two N up to {FROM_TOP}, as saturation by two from {FROM_TOP} on.",
        )
    ]


def _upper_bound(known: Sequence[Row]) -> list[Comparison]:
    gaps = [_number(line, "highest") - _number(line, "bound_printed_upper") for line in _more_than_one(known)]
    if not gaps:
        return []
    return [
        Comparison(
            "highest head beside the printed upper bound, N ≥ 2",
            "the bound tracks the empirical maxima closely",
            f"highest head minus bound: {min(gaps):+.3f} to {max(gaps):+.3f} over N",
            "agrees" if min(gaps) >= -0.05 and max(gaps) <= ROUNDING else "differs",
            note="Agreement: never above it, and within 0.05. The bound is averaged over heads; wherever r ≤ ξ it is "
            "above 0.93 whatever the vectors.",
        )
    ]


def _high_controls(controls: Sequence[Row]) -> list[Row]:
    """For each control of ideal vectors (not the sharp head): its line of the largest N ≥ 2 above the printed range."""
    best: dict[str, Row] = {}
    for line in controls:
        ideal = not str(line["control"]).startswith("sharp")
        if ideal and _number(line, "N") >= 2 and _number(line, "mean") > SATURATES[1]:
            best[str(line["control"])] = line
    return list(best.values())


def _more_than_one(lines: Sequence[Row]) -> list[Row]:
    return [line for line in lines if _number(line, "N") >= 2]


def _named(controls: Sequence[Row], start: str) -> list[Row]:
    return [line for line in controls if str(line["control"]).startswith(start)]


def _total(lines: Sequence[Row], name: str) -> int:
    return sum(int(_number(line, name)) for line in lines)


def _number(line: Row, name: str) -> float:
    value = line[name]
    return math.nan if value is None else float(value)


def _listed(controls: Sequence[Row]) -> str:
    return "; ".join(f"{line['control']}: {_number(line, 'mean'):.2f} at N = {line['N']}" for line in controls)


def charts(lines: Sequence[Row], controls: Sequence[Row]) -> list[Chart]:
    """The figure with every bound, and the controls."""
    return [_model_chart(lines), _control_chart(lines, controls)]


def _model_chart(lines: Sequence[Row]) -> Chart:
    known = [line for line in lines if line["median"] is not None]
    tops = [_number(line, "N") for line in known]
    late = [top for top in tops if top >= FROM_TOP]
    middle = sum(SATURATES) / 2

    def bound(name: str, label: str) -> Series:
        return Series(label, tops, [_number(line, f"bound_{name}") for line in known], bound=True)

    return Chart(
        "separability",
        "Separable share of the N heaviest tokens, over heads, and what Theorem 2 says",
        "N, selected tokens",
        "N_s / N",
        [
            Series(
                "measured, boxes over heads",
                tops,
                [_number(line, "median") for line in known],
                boxes=[[_number(line, name) for name in QUARTILES] for line in known],
            ),
            Series(
                "printed: 0.70 to 0.85",
                late,
                [middle] * len(late),
                low=[SATURATES[0]] * len(late),
                high=[SATURATES[1]] * len(late),
                printed=True,
            ),
            bound("printed_upper", "upper bound as printed"),
            bound("upper", "upper bound, corrected"),
            bound("lower", "lower bound, corrected"),
            bound("certain", "certain share"),
        ],
        x_log=2,
        note="Bounds are means over heads, each at its rows' own weights and radius; the corrected ones are proved for "
        "independent uniform vectors and a fixed radius only.",
    )


def _control_chart(lines: Sequence[Row], controls: Sequence[Row]) -> Chart:
    known = [line for line in lines if line["median"] is not None]
    series = [
        Series("model, median head", [_number(line, "N") for line in known], [_number(x, "median") for x in known])
    ]
    for name in CONTROLS:
        of = _named(controls, name)
        series.append(
            Series(
                name,
                [_number(line, "N") for line in of],
                [_number(line, "mean") for line in of],
                low=[_number(line, "lowest") for line in of],
                high=[_number(line, "highest") for line in of],
            )
        )
    tops = [_number(line, "N") for line in controls if line["control"] == "orthonormal"]
    series.append(Series("printed: about 80 % at most", tops, [CEILING] * len(tops), printed=True))
    return Chart(
        "controls",
        "Separable share with ideal vectors and of a sharp head, beside the model",
        "N, selected tokens",
        "N_s / N",
        series,
        x_log=2,
        note=f"Controls: logits from N(0, 1), mean and range over {DRAWS * DRAWS} rows.",
    )
