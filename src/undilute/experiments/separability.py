"""How many of the tokens that a head selects fit into a ball that leaves the others out?  N_s/N over N.

Figure 3 of Mudarisov et al., arXiv:2508.17821 (v1). For a row with weights α and vectors x of unit length, I the N
heaviest tokens and s = Σ_{i∈I} αᵢxᵢ,
    r = min_{j∉I} ‖s − αⱼxⱼ‖,    N_s = #{i ∈ I : ‖s − αᵢxᵢ‖ < r},
over the tokens that the row sees; rows that see N or fewer leave nothing out and are not counted. The publication takes
the closed ball, which holds the token that sets r; ties between selected tokens and that one are counted there only.

‖s − αᵢxᵢ‖² = ‖s‖² + kᵢ with kᵢ = αᵢ(αᵢ‖xᵢ‖² − 2⟨xᵢ, s⟩), so the comparison needs no ‖s‖² and no difference of nearly
equal lengths: Xᵢ < r exactly when kᵢ < min kⱼ. All ⟨xᵢ, s⟩ of a block of rows are two matrix products.

What the theorem says beside it, at each row's own weights and radius (``undilute.theory.separability``): the certain
share #{ξᵢ ≤ r}/N, which holds whatever the vectors, with δ the smallest distance between any two tokens, as published;
the corrected bounds on E[N_s]/N, proved for independent uniform vectors and an r that is fixed beforehand, while the r
of the figure comes from the same vectors; and the upper bound as printed, (1/N) Σ exp(−(r − ξᵢ)²/16).

Beside the model, rows of ``length`` tokens with logits from N(0, 1) and vectors that are known exactly: independent and
uniform on a sphere, orthonormal, or with a common direction (cosine 0.5); and a head with weight 0.97 on one token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.experiments.attended import SELECTED_FROM, Layer, each_layer, loaded
from undilute.experiments.experiment import Experiment, Progress, option, quiet
from undilute.experiments.gradient import blocks, evenly, layer_count
from undilute.experiments.result import Chart, Comparison, Result, Row, Series
from undilute.models.capture import sampled
from undilute.rules.parameters import count
from undilute.theory.separability import certain_fraction, probability_bounds

SATURATES = (0.70, 0.85)  # what the publication prints from N = 16 on
FROM_TOP = 16
CEILING = 0.80
BLOCK = 2**18  # logits at a time
BOUNDED_ROWS = 8  # of each head: the corrected bounds cost far more than what they are held against
DRAWS = 8  # of the vectors of a control, each with as many rows of logits
ROUNDING = 1e-9
QUARTILES = ("lowest", "first_quartile", "median", "third_quartile", "highest")
BOUNDS = ("certain", "lower", "upper", "printed_upper")


@dataclass(frozen=True)
class Separability(Experiment):
    """Figure 3: the separable share of the N heaviest tokens, over N, for every head of a model and for controls."""

    id: ClassVar[str] = "separability"
    source: ClassVar[str] = "arXiv:2508.17821v1, Fig. 3"
    shows: ClassVar[str] = "how many of the selected tokens fit into a ball that leaves the others out"
    quick_minutes: ClassVar[float] = 0.5
    full_minutes: ClassVar[float] = 0.5
    quick: ClassVar[dict[str, Any]] = {"rows": 32}

    model: str = option("smollm2", "A name, a folder, a .gguf file or a hub id.")
    text: tuple[str, ...] = option((), "Text files to read; by default what CPython ships.")
    length: int = option(1024, "Tokens to read.")
    tops: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "How many tokens are selected: the N's.")
    x: str = option("embedding", "What is selected from: the token's embedding (as published), or values or input.")
    rows: int = option(64, "Rows of each head, evenly spaced; 0 for all.")
    seed: int = option(0, "Of the controls.")

    def run(self, progress: Progress = quiet) -> Result:
        """Measure every head in one forward pass, and the controls."""
        tops, rows = self._checked(), evenly(self.length, self.rows)
        model, ids = loaded(self.model, self.text, self.length)
        measured = Measured(tops, rows)
        layers = layer_count(model)

        def use(layer: Layer) -> None:
            measured.add(layer)
            progress(0.9 * min(1.0, (layer.index + 1) / layers), f"layer {layer.index + 1}")

        each_layer(model, ids, use, x=self.x, rows=rows)  # type: ignore[arg-type]
        progress(0.9, "controls")
        controls = control_shares(len(ids), tops, self.seed)
        lines = measured.lines()
        return self.result(
            _findings(self, lines, controls, len(measured.names)),
            _comparisons(lines, controls),
            {"by_top": lines, "controls": controls, "heads": measured.head_lines()},
            [_model_chart(lines), _control_chart(lines, controls)],
        )

    def _checked(self) -> list[int]:
        """The N's in order, after every option has been looked at."""
        if self.x not in SELECTED_FROM:
            raise InvalidValue(f"x = {self.x!r}: must be one of {', '.join(SELECTED_FROM)}.")
        tops = sorted({count("tops", top) for top in self.tops})
        if not tops or tops[-1] >= count("length", self.length):
            raise InvalidValue(
                f"tops = {self.tops}: must be numbers of selected tokens below the length, {self.length:,}, or "
                "nothing is left out."
            )
        return tops


class Ball(NamedTuple):
    """The N heaviest tokens of each row and the ball around their context vector.

    Attributes
    ----------
    share : (heads, rows): N_s/N with the open ball; NaN where a row sees N tokens or fewer
    closed : (heads, rows): the same with the closed ball
    boundary : (heads, rows): tokens that are left out and lie in the closed ball all the same
    radius : (heads, rows): r
    selected : (heads, rows, N): the weights, heaviest first
    """

    share: Tensor
    closed: Tensor
    boundary: Tensor
    radius: Tensor
    selected: Tensor


def balls(weights: Tensor, x: Tensor, tops: Sequence[int], visible: Tensor) -> list[Ball]:
    """N_s/N for each N in ``tops``: :func:`undilute.theory.separability.separable_fraction` as matrix products.

    Parameters
    ----------
    weights : (heads, rows, keys)
    x : (heads, keys, features), float64; one matrix expanded over the heads is multiplied once
    tops : the N's
    visible : (rows, keys) or (heads, rows, keys) bool

    Examples
    --------
    >>> weights = torch.tensor([[[0.5, 0.3, 0.2]]], dtype=torch.float64)
    >>> ball, = balls(weights, torch.eye(3, dtype=torch.float64)[None], [2], torch.ones(1, 3, dtype=torch.bool))
    >>> ball.share.item(), round(ball.radius.item() ** 2, 4)
    (1.0, 0.38)
    """
    visible = visible.expand(weights.shape)
    w = weights.double().masked_fill(~visible, 0.0)
    order = w.masked_fill(~visible, -1.0).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(w.shape[-1]).expand_as(order))
    squares = w * w * x.square().sum(-1)[:, None]
    seen = visible.sum(-1)
    return [_ball(w, x, squares, (rank < top) & visible, visible, order[..., :top], seen > top) for top in tops]


def _ball(
    w: Tensor, x: Tensor, squares: Tensor, chosen: Tensor, visible: Tensor, first: Tensor, counted: Tensor
) -> Ball:
    s = _times(w * chosen, x)
    k = squares - 2 * w * _times(s, x.transpose(-1, -2))
    left_out = visible & ~chosen
    nearest = k.masked_fill(~left_out, torch.inf).amin(-1, keepdim=True)
    N, nowhere = float(first.shape[-1]), torch.tensor(torch.nan, dtype=torch.float64)
    inside, within = ((k < nearest) & chosen).sum(-1), ((k <= nearest) & chosen).sum(-1)
    return Ball(
        share=torch.where(counted, inside.double() / N, nowhere),
        closed=torch.where(counted, within.double() / N, nowhere),
        boundary=torch.where(counted, ((k <= nearest) & left_out).sum(-1).double(), nowhere),
        radius=(s.square().sum(-1) + nearest.squeeze(-1)).clamp(min=0.0).sqrt(),
        selected=w.gather(-1, first),
    )


def _times(a: Tensor, b: Tensor) -> Tensor:
    """(heads, rows, m) and (heads, m, k) → (heads, rows, k); one product if every head has the same b."""
    if b.stride(0) == 0 or b.shape[0] == 1:
        return (a.reshape(-1, a.shape[-1]) @ b[0]).view(*a.shape[:-1], -1)
    return a @ b


def unit(x: Tensor) -> Tensor:
    """(heads, keys, features) → the same at length 1, float64; still one matrix if the heads share it."""
    distinct = x[:1] if x.stride(0) == 0 else x
    normalised: Tensor = torch.nn.functional.normalize(distinct.double(), dim=-1)
    return normalised.expand(x.shape)


def smallest_separation(x: Tensor, block: int = 1024) -> Tensor:
    """δ of Assumption 2: the smallest distance between two of the unit vectors, (heads, keys, features) → (heads,).

    Distances below about 1e-8 cannot be told from 0.

    Examples
    --------
    >>> smallest_separation(torch.eye(3, dtype=torch.float64)[None])
    tensor([1.4142], dtype=torch.float64)
    """
    distinct = x[:1] if x.stride(0) == 0 else x
    closest = torch.full((len(distinct),), -1.0, dtype=torch.float64)
    for start in range(0, x.shape[1], block):
        cosines = distinct[:, start : start + block] @ distinct.transpose(-1, -2)
        cosines[:, torch.arange(cosines.shape[1]), torch.arange(cosines.shape[1]) + start] = -1.0
        closest = torch.maximum(closest, cosines.amax((-2, -1)))
    return (2 - 2 * closest).clamp(min=0.0).sqrt().expand(x.shape[0])


def theorem(ball: Ball, separation: Tensor, features: int) -> Tensor:
    """Theorem 2 at each row's weights and radius, (4, heads, rows), in the order of ``BOUNDS``; NaN as in ``share``.

    Parameters
    ----------
    ball : the N heaviest tokens of each row
    separation : (heads,): δ
    features : d
    """
    from undilute.audit.geometry import printed_upper

    found = torch.full((len(BOUNDS), *ball.share.shape), torch.nan, dtype=torch.float64)
    counted = ball.share.isfinite()
    if not counted.any():
        return found
    weights, radius = ball.selected[counted], ball.radius[counted]
    delta = separation[:, None].expand_as(ball.radius)[counted]
    corrected = probability_bounds(weights, radius, features)
    found[:, counted] = torch.stack(
        [
            certain_fraction(weights, radius * (1 - ROUNDING), delta),
            corrected.fraction_lower,
            corrected.fraction_upper,
            printed_upper(weights, radius, delta),
        ]
    )
    return found


class Measured:
    """N_s/N of every head, row and N, and the theorem's bounds for some of the rows."""

    def __init__(self, tops: Sequence[int], rows: Tensor) -> None:
        self.tops = tops
        self.bounded = sampled(rows, BOUNDED_ROWS, evenly=True)
        self.names: list[tuple[int, int]] = []
        self.separation: list[Tensor] = []
        self._found: list[Tensor] = []  # (3, tops, heads, rows): share, closed, boundary
        self._theorem: list[Tensor] = []  # (2 + 4, tops, heads, bounded rows): share, closed, then BOUNDS

    def add(self, layer: Layer) -> None:
        """Measure one layer."""
        x = unit(layer.x)
        separation = smallest_separation(x)
        found, bounds = [], []
        for piece in blocks(layer, BLOCK):
            keys = piece.logits.shape[-1]
            each = balls(piece.weights, x[:, :keys], self.tops, piece.visible)
            found.append(torch.stack([torch.stack([ball.share, ball.closed, ball.boundary]) for ball in each], 1))
            some = torch.isin(piece.rows, self.bounded)
            if some.any():
                chosen = [Ball(*(part[:, some] for part in ball)) for ball in each]
                both = [torch.cat([b.share[None], b.closed[None], theorem(b, separation, x.shape[-1])]) for b in chosen]
                bounds.append(torch.stack(both, 1))
        self.names += [(layer.index, head) for head in range(len(x))]
        self.separation.append(separation)
        self._found.append(torch.cat(found, -1))
        self._theorem.append(torch.cat(bounds, -1))

    def lines(self) -> list[dict[str, float | int | None]]:
        """One line for each N: quartiles over heads of the means over rows, and the bounds' means."""
        found = torch.cat(self._found, 2)
        bounded = torch.cat(self._theorem, 2)
        lines = []
        for place, top in enumerate(self.tops):
            heads = found[:, place].nanmean(-1)
            theory = bounded[:, place].nanmean(-1)
            known = heads[0].isfinite()
            rows = int(found[0, place].isfinite().any(0).sum())
            lines.append(_line(top, rows, heads[:, known], theory[:, known], bounded[:, place].flatten(1)))
        return lines

    def head_lines(self) -> list[Row]:
        """One line for each head: its mean N_s/N at each N."""
        heads = torch.cat(self._found, 2)[0].nanmean(-1)  # (tops, heads)
        separation = torch.cat(self.separation).tolist()
        return [
            {"layer": layer, "head": head, "smallest_separation": separation[place]}
            | {f"N={top}": _or_none(float(heads[at, place])) for at, top in enumerate(self.tops)}
            for place, (layer, head) in enumerate(self.names)
        ]


def _line(top: int, rows: int, heads: Tensor, theory: Tensor, cases: Tensor) -> dict[str, float | int | None]:
    """One N. ``heads``: (3, heads); ``theory``: (6, heads); ``cases``: (6, heads × bounded rows)."""
    quartiles = heads[0].quantile(torch.linspace(0, 1, 5, dtype=torch.float64)) if heads.numel() else [math.nan] * 5
    cases = cases[:, cases[0].isfinite()]
    measured, closed, certain, _, _, printed = cases
    share, _, _, lower, upper, printed_mean = theory
    return {
        "N": top,
        "rows": rows,
        **{name: _or_none(float(value)) for name, value in zip(QUARTILES, quartiles, strict=True)},
        "open_ball_mean": _or_none(float(heads[0].mean())),
        "closed_ball_mean": _or_none(float(heads[1].mean())),
        "left_out_in_closed_ball": _or_none(float(heads[2].mean())),
        **{f"bound_{name}": _or_none(float(of.nanmean())) for name, of in zip(BOUNDS, theory[2:], strict=True)},
        "cases": cases.shape[1],
        "above_printed_upper": int((measured > printed + ROUNDING).sum()),
        "below_certain": int((closed < certain - ROUNDING).sum()),
        "heads": int(share.isfinite().sum()),
        "heads_above_printed_upper": int((share > printed_mean + ROUNDING).sum()),
        "heads_outside_corrected": int(((share > upper + ROUNDING) | (share < lower - ROUNDING)).sum()),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


# Controls


def control_shares(length: int, tops: Sequence[int], seed: int) -> list[Row]:
    """N_s/N of rows whose vectors are known: one line for each control and N.

    Examples
    --------
    >>> lines = control_shares(64, [1, 8], seed=0)
    >>> [line["mean"] for line in lines if line["control"] == "orthonormal"]
    [1.0, 1.0]
    """
    rng = torch.Generator().manual_seed(seed)
    lines: list[Row] = []
    for name, features in CONTROLS.items():
        drawn = [_drawn(name, length, features or length, rng) for _ in range(DRAWS)]
        shares = torch.cat([torch.stack([ball.share[0] for ball in _all_seen(w, x, tops)]) for w, x in drawn], -1)
        for top, each in zip(tops, shares, strict=True):
            lines.append(
                {
                    "control": name,
                    "features": features or length,
                    "N": top,
                    "mean": float(each.mean()),
                    "lowest": float(each.min()),
                    "highest": float(each.max()),
                }
            )
    return lines


CONTROLS = {
    "sphere, 64 features": 64,
    "sphere, 768 features": 768,
    "orthonormal": 0,
    "common direction, cosine 0.5": 768,
    "sharp head, weight 0.97": 64,
}


def _drawn(name: str, length: int, features: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights (rows, length) and unit vectors (length, features) of one draw of a control."""
    weights = torch.randn(DRAWS, length, generator=rng, dtype=torch.float64).softmax(-1)
    if name == "orthonormal":
        return weights, torch.eye(length, dtype=torch.float64)
    x = unit(torch.randn(1, length, features, generator=rng, dtype=torch.float64))[0]
    if name.startswith("common"):
        x = unit((x + unit(torch.randn(1, 1, features, generator=rng, dtype=torch.float64))[0])[None])[0]
    if name.startswith("sharp"):
        weights[:, 0] = 0.0
        weights *= 0.03 / weights.sum(-1, keepdim=True)
        weights[:, 0] = 0.97
    return weights, x


def _all_seen(weights: Tensor, x: Tensor, tops: Sequence[int]) -> list[Ball]:
    return balls(weights[None], x[None], tops, torch.ones(weights.shape, dtype=torch.bool))


# What came out


def _findings(experiment: Separability, lines: Sequence[Row], controls: Sequence[Row], heads: int) -> list[str]:
    known = [line for line in lines if line["median"] is not None]
    told = ", ".join(f"{_number(line, 'median'):.2f} (N = {line['N']})" for line in known)
    return [
        f"The median head of {heads} separates {told} of its N heaviest tokens.",
        *_control_findings(controls),
        *_bound_findings(lines),
        _ball_finding(known),
        f"Vectors are the tokens' {experiment.x} at unit length. A row counts for N only if it sees more than N "
        "tokens; N = 1 gives 1 whatever the vectors, since s is then the token itself.",
    ]


def _control_findings(controls: Sequence[Row]) -> list[str]:
    high = _high_controls(controls)
    sentences = [
        f"80 % is no ceiling for ideal vectors: {_listed(high)}."
        if high
        else f"No control of ideal vectors exceeds {SATURATES[1]:g} at N ≥ 2 with these options."
    ]
    lowest = min(_named(controls, "sharp"), key=lambda line: _number(line, "mean"))
    if _number(lowest, "mean") < 0.5:
        sentences.append(
            f"A head with weight 0.97 on one token, as selective as can be, scores {_number(lowest, 'mean'):.2f} at "
            f"N = {lowest['N']}: a low N_s/N does not mean poor selection."
        )
    return sentences


def _bound_findings(lines: Sequence[Row]) -> list[str]:
    cases, over, below = (_total(lines, name) for name in ("cases", "above_printed_upper", "below_certain"))
    pairs, outside = _total(lines, "heads"), _total(lines, "heads_outside_corrected")
    return [
        f"The printed upper bound is below the measured share in {over:,} of {cases:,} cases (a head, a row, an N). It "
        "stays above 0.93 wherever r ≤ ξ, because ξ ≤ 1, so it cannot explain a plateau near 0.8.",
        f"The certain share #{{ξ ≤ r}}/N, proved whatever the vectors, is undercut in {below:,} of {cases:,} cases.",
        f"The corrected bounds on the expectation miss the mean of {outside:,} of {pairs:,} pairs of a head and an N. "
        "They are proved for independent uniform vectors and a radius fixed beforehand; here the vectors are a model's "
        "and the radius comes from them.",
    ]


def _ball_finding(known: Sequence[Row]) -> str:
    boundary = max((_number(line, "left_out_in_closed_ball") for line in known), default=math.nan)
    ties = max((_number(line, "closed_ball_mean") - _number(line, "open_ball_mean") for line in known), default=0.0)
    return (
        "The closed ball of the publication always holds the token that sets its radius, one that was left out (tokens "
        f"left out and inside: up to {boundary:.3g} on average over heads); N_s/N of the closed ball exceeds that of "
        f"the open one by at most {ties:.2g}."
    )


def _comparisons(lines: Sequence[Row], controls: Sequence[Row]) -> list[Comparison]:
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
    early = [_number(line, "median") for line in known if _number(line, "N") <= FROM_TOP]
    late = [_number(line, "median") for line in known if _number(line, "N") >= FROM_TOP]
    if not late:
        return []
    falls = all(after <= before for before, after in pairwise(early))
    flat = all(SATURATES[0] <= each <= SATURATES[1] for each in late)
    return [
        Comparison(
            "N_s/N of the median head over N",
            "declines up to N ≈ 16, then saturates between 0.7 and 0.85",
            f"{'declines' if falls else 'does not fall'} to N = {FROM_TOP}, then {min(late):.2f} to {max(late):.2f}",
            "agrees" if falls and flat else "differs",
            low=min(late),
            high=max(late),
            note="Medians over heads of the means over rows.",
        )
    ]


def _upper_bound(known: Sequence[Row]) -> list[Comparison]:
    gaps = [_number(line, "highest") - _number(line, "bound_printed_upper") for line in known]
    if not gaps:
        return []
    return [
        Comparison(
            "highest head beside the printed upper bound",
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


def _named(controls: Sequence[Row], start: str) -> list[Row]:
    return [line for line in controls if str(line["control"]).startswith(start)]


def _total(lines: Sequence[Row], name: str) -> int:
    return sum(int(_number(line, name)) for line in lines)


def _number(line: Row, name: str) -> float:
    value = line[name]
    return math.nan if value is None else float(value)


def _listed(controls: Sequence[Row]) -> str:
    return "; ".join(f"{line['control']}: {_number(line, 'mean'):.2f} at N = {line['N']}" for line in controls)


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
