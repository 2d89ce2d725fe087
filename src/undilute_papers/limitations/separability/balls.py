"""Which of a row's N heaviest tokens lie in a ball that leaves the others out, and what does Theorem 2 say of it?

With s = Σ_{i∈I} αᵢxᵢ over the N heaviest, r = min_{j∉I} ‖s − αⱼxⱼ‖ and N_s = #{i ∈ I : ‖s − αᵢxᵢ‖ < r},
    ‖s − αᵢxᵢ‖² = ‖s‖² + kᵢ   (``undilute.measures.weighted_vectors``),
so no nearly equal lengths are subtracted: i is inside exactly when kᵢ < min kⱼ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from undilute.measures.weighted_vectors import WeightedVectors
from undilute.models.capture import sampled
from undilute.report.result import Row
from undilute_papers.reproduction.attended import Layer, blocks
from undilute_papers.reproduction.quartiles import quartiles
from undilute_papers.theory.separability import certain_fraction, probability_bounds

BLOCK = 2**18  # logits at a time
BOUNDED_ROWS = 8  # of each head: the corrected bounds cost far more than what they are held against
ROUNDING = 1e-9
BOUNDS = ("certain", "lower", "upper", "printed_upper")


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
    """N_s/N for each N in ``tops``: :func:`undilute_papers.theory.separability.separable_fraction` as matrix products.

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
    vectors, seen = WeightedVectors(w, x), visible.sum(-1)
    return [_ball(vectors, (rank < top) & visible, visible, order[..., :top], seen > top) for top in tops]


def _ball(vectors: WeightedVectors, chosen: Tensor, visible: Tensor, first: Tensor, counted: Tensor) -> Ball:
    w = vectors.p
    s = vectors.sum(w * chosen)
    k = vectors.offsets(s)
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
    from undilute_papers.audit.geometry import printed_upper

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
        self.most_seen, self.widest = 0, ""  # keys that a row sees at most, and the layer where one does
        self._found: list[Tensor] = []  # (3, tops, heads, rows): share, closed, boundary
        self._theorem: list[Tensor] = []  # (2 + 4, tops, heads, bounded rows): share, closed, then BOUNDS

    def add(self, layer: Layer) -> None:
        """Measure one layer."""
        if (most := int(layer.seen.max())) > self.most_seen:
            self.most_seen, self.widest = most, layer.name
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
    cases = cases[:, cases[0].isfinite()]
    measured, closed, certain, _, _, printed = cases
    share, _, _, lower, upper, printed_mean = theory
    return {
        "N": top,
        "rows": rows,
        **{name: _or_none(value) for name, value in quartiles(heads[0]).items()},
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
