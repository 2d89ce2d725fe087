"""What will a head's weight be in a longer context, and how far can that be trusted?

A forecast has to earn its place. What is known up to a quarter of the measured length is fitted without one of the
texts, and compared with that text at the full length; each text is left out once. Three ways compete:

    no change       the weight stays what it is
    pooled law      logit α falls with ln n by the same slope in every head, the median of all
    shrunk law      each head by its own slope, drawn towards the median as far as slopes differ from text to text

One of the laws is used only if its median error is at least 15 % below that of "no change". The interval is conformal:
as wide as the errors on left-out texts were, so that on average over texts and heads it covers what it says, while the
step is the same, a factor of 4. A step that is longer gets an interval wider in proportion to its logarithm, and is
marked. Where too few lengths were measured, less is checked: a factor of 2. Every text counts alike, however many
windows it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from undilute.diagnosis import fit

Array = NDArray[np.float64]
Way = Literal["no change", "pooled law", "shrunk law"]
LeftOut = Literal["texts", "windows", "haystacks", "nothing"]
STEP = 4  # the factor in length that is checked, and up to which a forecast counts as checked
WORTH = 0.15  # by which a law must lower the median error
TOLERANCE = 1.1  # of a step: rows are sampled, so that octaves are not exactly twice as long
CONFIDENCE = 0.9
FEWEST_LENGTHS = 2  # up to a quarter of the longest, for a slope


@dataclass(frozen=True, eq=False)
class Curves:
    """Weights over length, of some heads in some windows or haystacks.

    Attributes
    ----------
    n : (lengths,), ascending: what the logit of a weight is taken to be linear in the logarithm of
    weights : (units, heads, lengths), in [0, 1]; NaN where nothing was measured
    texts : (units,), which text each unit is of
    length : the longest in tokens, as it is shown
    end : the longest, counted as ``n``; the last rows may be a little shorter
    units : what the units are
    """

    n: Array
    weights: Array
    texts: NDArray[np.int64]
    length: int
    end: float
    units: Literal["windows", "haystacks"] = "windows"

    @property
    def left_out(self) -> LeftOut:
        """What can be left out to check a forecast."""
        if len(np.unique(self.texts)) > 1:
            return "texts"
        return self.units if len(self.texts) > 1 else "nothing"

    @property
    def grouped(self) -> Array:
        """(groups, heads, lengths): one curve for each text; for each window if there is only one text."""
        if self.left_out != "texts":
            return self.weights
        return np.stack([_middle(self.weights[self.texts == text]) for text in np.unique(self.texts)])


@dataclass(frozen=True)
class Check:
    """How a way of forecasting did on what was left out.

    Attributes
    ----------
    way : which one is used
    errors : way → median |ln(forecast / measured)|
    coverage : the share of left-out weights within the interval, if it is as wide as the other texts' errors; where
        nothing was left out, of the weights that it was made from
    width : half the interval, in logits, for a step as long as the one that was checked
    left_out : texts, windows or haystacks; "nothing" if there was only one, which then served fit and check
    length : at which it was checked
    count : weights that were forecast
    step : the factor in length that was checked
    """

    way: Way
    errors: dict[Way, float]
    coverage: float
    width: float
    left_out: LeftOut
    length: int
    count: int
    step: float = STEP

    @property
    def sentence(self) -> str:
        """The check in one sentence."""
        own, plain = self.errors[self.way], self.errors["no change"]
        beside = {
            "texts": "on texts left out",
            "windows": "on windows of the same text, left out in turn",
            "haystacks": "on haystacks of the same text, left out in turn",
            "nothing": "on the same window, for want of another",
        }[self.left_out]
        if self.way == "no change":
            laws = [f"{way} ×{math.exp(error):.2f}" for way, error in self.errors.items() if way != "no change"]
            better = f"; no law beats it by {WORTH:.0%} ({', '.join(laws)})" if laws else "; too few lengths for a law"
            found = f"median error ×{math.exp(plain):.2f}{better}"
        else:
            found = f"median error ×{math.exp(own):.2f}, no-change ×{math.exp(plain):.2f}"
        held = f"the {CONFIDENCE:.0%} interval covered {self.coverage:.0%}"
        if self.left_out == "nothing":
            held = f"whether the {CONFIDENCE:.0%} interval holds was not checked"
        return f"{self.way}, validated to {self.length:,} {beside}: {found}; {held}."


@dataclass(frozen=True, eq=False)
class Forecast:
    """Weights at a length that was not measured.

    Attributes
    ----------
    weight, low, high : (heads,), with an interval that covers 90 % of what was left out
    check : how the way of forecasting did
    is_checked : whether the step is no longer than the one that was checked
    """

    weight: Array
    low: Array
    high: Array
    check: Check
    is_checked: bool


def checked(curves: Curves) -> Check:
    """Let the ways compete on what is left out, and calibrate the interval of the winner."""
    known = curves.n <= curves.n[-1] / STEP * TOLERANCE
    ways: list[Way] = ["no change"]
    if known.sum() >= FEWEST_LENGTHS:
        ways += ["pooled law", "shrunk law"]
    if not known.any():
        known = curves.n < curves.n[-1] if len(curves.n) > 1 else np.array([True])
    curve = curves.grouped
    residuals: dict[Way, list[Array]] = {way: [] for way in ways}
    errors: dict[Way, list[Array]] = {way: [] for way in ways}
    for group in range(len(curve)):
        rest = np.delete(curve, group, 0) if curves.left_out != "nothing" else curve
        measured = curve[group, :, -1]
        for way in ways:
            forecast = _laws[way](curves.n[known], rest[:, :, known], float(curves.n[-1]))
            residuals[way].append(fit.logit(measured) - forecast)
            errors[way].append(np.log(_positive(measured)) - np.log(_positive(fit.sigmoid(forecast))))
    median = {way: float(np.nanmedian(np.abs(errors[way]))) for way in ways}
    best = min(ways, key=lambda way: median[way])
    used: Way = best if median[best] <= (1 - WORTH) * median["no change"] else "no change"
    misses = np.abs(np.stack(residuals[used]))  # (groups, heads)
    return Check(
        way=used,
        errors=median,
        coverage=_coverage(misses),
        width=_quantile(misses),
        left_out=curves.left_out,
        length=curves.length,
        count=int(np.isfinite(misses).sum()),
        step=float(curves.n[-1] / curves.n[known][-1]),
    )


def forecast(curves: Curves, n: float, check: Check | None = None) -> Forecast:
    """The weights at ``n``, which is counted as ``curves.n`` is."""
    check = check or checked(curves)
    logit = _laws[check.way](curves.n, curves.grouped, float(n))
    step = _steps(n / curves.n[-1], check.step)  # from the middle of the longest rows, as it was checked
    width = check.width * max(step, 1.0) if math.isfinite(step) else math.inf
    low, high = fit.sigmoid(logit - width), fit.sigmoid(logit + width)
    return Forecast(fit.sigmoid(logit), low, high, check, _steps(n / curves.end, check.step) <= TOLERANCE)


def _steps(factor: float, checked: float) -> float:
    """How many times as long as a checked step one by ``factor`` is; infinitely, if a single length checked none.

    >>> _steps(16.0, 4.0), _steps(4.0, 1.0), _steps(1.0, 1.0)
    (2.0, inf, 0.0)
    """
    if factor <= 1:
        return 0.0
    return math.log(factor) / math.log(checked) if checked > 1 else math.inf


# ------------------------------------------ the ways: (lengths,), (groups, heads, lengths), n → logits of (heads,)


def _no_change(n: Array, weights: Array, far: float) -> Array:
    return fit.logit(_middle(weights[:, :, -1]))


def _pooled(n: Array, weights: Array, far: float) -> Array:
    slopes = _slopes(n, weights)
    return np.asarray(_no_change(n, weights, far) + np.nanmedian(slopes) * math.log(far / n[-1]))


def _shrunk(n: Array, weights: Array, far: float) -> Array:
    slopes = _slopes(n, weights)  # (groups, heads)
    own, pool = _mean(slopes), np.nanmedian(slopes)
    between = float(np.nanvar(own))
    spread = _mean((slopes - own) ** 2) / max(len(slopes) - 1, 1)  # the squared standard error of each head's own
    within = float(np.nanmean(spread)) if len(slopes) > 1 else between
    kept = max(between - within, 0.0) / max(between, 1e-12)
    slope = pool + kept * (own - pool)
    return np.asarray(_no_change(n, weights, far) + np.nan_to_num(slope, nan=float(pool)) * math.log(far / n[-1]))


_laws: dict[Way, Callable[[Array, Array, float], Array]] = {
    "no change": _no_change,
    "pooled law": _pooled,
    "shrunk law": _shrunk,
}


def _slopes(n: Array, weights: Array) -> Array:
    """(groups, heads): of logit α on ln n, by least squares."""
    u = np.log(n) - np.log(n).mean()
    logits = fit.logit(weights)
    return np.asarray((logits - logits.mean(-1, keepdims=True)) @ u / (u @ u))


def _middle(weights: Array) -> Array:
    """The middle of the first axis, in logits."""
    return fit.sigmoid(_mean(fit.logit(weights)))


def _mean(values: Array) -> Array:
    """The mean over the first axis of what was measured; NaN where nothing was."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(0)
    return np.asarray(np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan))


def _positive(weights: Array) -> Array:
    return np.maximum(weights, fit.CERTAIN)


def _quantile(misses: Array) -> float:
    """The conformal quantile of absolute errors: finite-sample correction included."""
    values = misses[np.isfinite(misses)]
    level = min(1.0, math.ceil((len(values) + 1) * CONFIDENCE) / max(len(values), 1))
    return float(np.quantile(values, level, method="higher")) if len(values) else math.inf


def _coverage(misses: Array) -> float:
    """The share of errors within the quantile of the other groups' errors."""
    known = np.isfinite(misses)
    if len(misses) < 2:
        return float((misses <= _quantile(misses))[known].mean())
    limits = [_quantile(np.delete(misses, group, 0)) for group in range(len(misses))]
    return float((misses <= np.array(limits)[:, None])[known].mean())
