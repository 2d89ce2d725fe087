"""Which constant, and which curve of the length, multiplies the logits of each head?

A rule that can leave this library multiplies the logits of a row by f(n), a function of the n keys that it sees, and is
softmax otherwise. A configuration has room for one curve c(n) for all heads (Llama 4's attention scaling), so each
f(n) must be β · c(n): exactly if all heads agree on the curve, by least squares over the lengths if they do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from undilute.exporting.factors import Curve
from undilute.rules.base import Rule, Scale, forward_of
from undilute.rules.maps.sink import Sink
from undilute.rules.maps.softmax import Softmax
from undilute.rules.scales.llama4 import Llama4

STEEPEST = 1e6  # 1 + 1e6 · ln n is ln n in seven digits
STEEPEST_HALF = 4e3  # the same for float16, whose largest number is 65,504
SAME = 1e-6  # of the largest factor: less is rounding
FURTHEST = 2**22  # tokens: what does not change up to here is a constant
POINTS, STEPS = 384, 48  # lengths of a fit; steepnesses that are tried for each length of a curve


def obstacle(rule: Rule) -> str | None:
    """Why a rule is no factor f(n) on the logits of softmax; None if it is.

    Examples
    --------
    >>> import undilute as ud
    >>> obstacle(ud.rules.get("ssmax")), obstacle(ud.rules.get("entmax15"))
    (None, "its weights are Entmax's, not softmax's: no engine's configuration says that, only Undilute runs it")
    """
    if forward_of(rule) is not Rule:
        return f"{type(rule).__name__} computes its weights in its own code, which only Undilute runs"
    if isinstance(rule.map, Sink):
        return f"{type(rule.map).__name__} adds a sink, which only the layout of gpt-oss has room for"
    if forward_of(rule.map) is not Softmax:
        name = type(rule.map).__name__
        return f"its weights are {name}'s, not softmax's: no engine's configuration says that, only Undilute runs it"
    if not rule.scale.is_foldable:
        return f"{type(rule.scale).__name__} reads the logits of each row, which only Undilute does"
    return None


def lengths(longest: int) -> Tensor:
    """Lengths from 2 on, evenly spaced on a logarithmic scale, (points,). A row of one key has weight 1 in any case."""
    points = torch.logspace(math.log10(2), math.log10(max(longest, 3)), POINTS, dtype=torch.float64)
    whole: Tensor = points.round().unique()
    return whole


def values(rule: Rule, heads: int, n: Tensor) -> Tensor:
    """f(n) of each head, (heads, points) float64, for a rule without an obstacle.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> values(ud.rules.get("llama4", floor_length=4), 1, torch.tensor([3.0, 4.0]))
    tensor([[1.0000, 1.0693]], dtype=torch.float64)
    """
    rows = n.double().expand(heads, -1)[..., None]
    with torch.no_grad():
        factor = torch.as_tensor(rule.scale.at_length(rows), dtype=torch.float64)
    return factor.cpu().broadcast_to(rows.shape)[..., 0].clone()


def constants(rule: Rule, heads: int) -> Tensor | None:
    """f of each head, (heads,), if it is the same for every length; None if it is not."""
    found = values(rule, heads, lengths(FURTHEST))
    return found[:, 0] if bool((found == found[:, :1]).all()) else None


def at(curve: Curve, n: Tensor) -> Tensor:
    """c(n).

    Examples
    --------
    >>> at(Curve(0.5, 1), torch.tensor([1.0, 2.0]))
    tensor([1.0000, 1.3466])
    """
    return 1.0 + curve.beta * ((n - 1.0) / curve.length).floor().log1p()


class Stated(Scale):
    """β of each head times the curve: what an exported model does to its logits, as a rule of this library."""

    beta: Tensor

    def __init__(self, beta: Sequence[float], curve: Curve | None) -> None:
        super().__init__()
        self.hold("beta", torch.tensor(beta, dtype=torch.float64))
        self.curve = curve

    def at_length(self, n: Tensor) -> Tensor:
        beta = self.beta.to(n.dtype).view(-1, 1, 1)
        return beta * (torch.ones_like(n) if self.curve is None else at(self.curve, n))

    def bound(self, n: int) -> float:
        factor = 1.0 if self.curve is None else abs(float(at(self.curve, torch.tensor(float(n), dtype=torch.float64))))
        return float(self.beta.abs().max()) * factor


def nearest(wanted: Tensor, n: Tensor, rules: Sequence[Rule], only: int | None, half: bool) -> Curve:
    """The curve whose multiples come nearest to all factors, by least squares of relative errors.

    Parameters
    ----------
    wanted : (heads, points), f(n) of all heads of the model
    n : (points,)
    rules : those of its heads; what they state of a curve is tried first
    only : the curve's length, if the configuration already has one for other purposes
    half : will weights be float16?
    """
    rows, heads = wanted.unique(dim=0, return_counts=True)
    steepest = STEEPEST_HALF if half else STEEPEST
    stated = {curve for each in rules if (curve := _stated(each.scale)) is not None}
    known = [*stated, *_logarithmic(rows, n, steepest)] if only in (None, 1) else [*stated]
    known = [each for each in known if only in (None, each.length)]

    def misfit(curve: Curve) -> float:
        return _misfit(rows, heads, n, curve)

    if known and misfit(best := min(known, key=misfit)) < SAME**2:
        return best
    spans = [2**power for power in range(int(math.log2(float(n[-1]))) + 1)] if only is None else [only]
    grid = torch.logspace(-3, math.log10(steepest), STEPS, dtype=torch.float64).tolist()
    best = min([*known, *(Curve(beta, span) for span in spans for beta in grid)], key=misfit)
    step = grid[1] / grid[0]
    for _ in range(4):  # ever finer around the best
        best = min((Curve(best.beta * step ** (place / 8), best.length) for place in range(-8, 9)), key=misfit)
        step **= 1 / 4
    return best


def multiples(wanted: Tensor, n: Tensor, curve: Curve) -> Tensor:
    """β of each head, (heads,), so that β · c(n) is nearest to f(n)."""
    c = at(curve, n)
    return wanted @ c / (c @ c)


def _stated(scale: Scale) -> Curve | None:
    """The curve that a rule states itself, if all of its heads have the same."""
    if not isinstance(scale, Llama4) or scale.floor_length < 1 or scale.floor_length != int(scale.floor_length):
        return None
    slopes = torch.as_tensor(scale.beta, dtype=torch.float64).unique()
    return Curve(float(slopes), int(scale.floor_length)) if len(slopes) == 1 else None


def _logarithmic(rows: Tensor, n: Tensor, steepest: float) -> list[Curve]:
    """The curve 1 + (s/b)·ln n of each f(n) = s·ln n + b; the steepest if b is 0."""
    columns = torch.stack([n.log(), torch.ones_like(n)], 1)
    s, b = torch.linalg.lstsq(columns, rows.T).solution
    found = {}
    for slope, start in zip(s.tolist(), b.tolist(), strict=True):
        if abs(slope) > 1e-9 * max(abs(start), 1.0):
            ratio = slope / start if abs(start) * steepest > abs(slope) else steepest
            found[f"{ratio:.6g}"] = Curve(ratio, 1)
    return list(found.values())


def _misfit(rows: Tensor, heads: Tensor, n: Tensor, curve: Curve) -> float:
    """The mean of squared relative errors over heads."""
    error = rows - multiples(rows, n, curve)[:, None] * at(curve, n)
    squared = error.square().mean(1) / rows.square().mean(1).clamp(min=1e-30)
    return float((squared * heads).sum() / heads.sum())
