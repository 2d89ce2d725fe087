"""How does a head's attention move with n?  Straight lines through log-log points, robust, with bootstrap intervals.

The top weight. If one key leads m others by an effective gap g, its weight is α = σ(g − ln m). So the fit is
    logit α = g − c·ln m,
exact for that law (c = 1) at every m, also where α is still near 1; m is n less the key itself and the sink. It crosses
α = 1/2 at m = e^(g/c): from there on the head has let go. The dilution exponent is that of the fitted weight on the way
from the m of the measured length to the M of the target,
    γ = ln(α(m)/α(M)) / ln(M/m),   and c·(1 − α(m)), its limit, for M = m:
1 is dilution as 1/n, 0 a weight that holds, be it because c = 0 or because g is so large that it holds all the way.

The effective keys. ln n_eff = c + γ_eff·ln n: 0 for a head that looks at a fixed number of keys, 1 for a fixed share.

Lines minimise Huber's loss by iterated weighted least squares, so a few odd rows do not tilt them. Intervals (95 %)
come from resampling rows, with the robust weights kept. They say how sure the slope is on this text, not on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
HUBER = 1.345  # standard deviations up to which a residual counts in full
ITERATIONS = 20
DRAWS = 400
CERTAIN = 1e-6  # weights closer than this to 0 or 1 are read as this close


@dataclass(frozen=True)
class Lines:
    """One line per head, y = intercept + slope·x, with the lines of the resampled rows.

    Attributes
    ----------
    intercept, slope : (heads,)
    intercepts, slopes : (draws, heads)
    """

    intercept: Array
    slope: Array
    intercepts: Array
    slopes: Array

    def at(self, x: float) -> Array:
        """(heads,): the fitted value at x."""
        return self.intercept + self.slope * x

    def interval_at(self, x: float) -> tuple[Array, Array]:
        """(heads,) twice: 95 % of the resampled lines pass between."""
        low, high = np.quantile(self.intercepts + self.slopes * x, [0.025, 0.975], axis=0)
        return low, high

    @property
    def slope_interval(self) -> tuple[Array, Array]:
        low, high = np.quantile(self.slopes, [0.025, 0.975], axis=0)
        return low, high


def robust_lines(x: Array, y: Array, seed: int = 0) -> Lines:
    """Huber regression of every head's points on the same x.

    Parameters
    ----------
    x : (rows,)
    y : (heads, rows), finite
    seed : of the resampling

    Examples
    --------
    >>> x = np.arange(10.0)
    >>> odd = np.where(x == 5, 100.0, 3 - 2 * x)  # one row of ten is wild
    >>> robust_lines(x, odd[None]).slope.round(3)
    array([-2.])
    """
    weights = np.ones_like(y)
    for _ in range(ITERATIONS):
        intercept, slope = _weighted(x, y, weights)
        residual = y - intercept[:, None] - slope[:, None] * x
        spread = np.median(np.abs(residual), axis=1, keepdims=True) / 0.6745
        limit = HUBER * np.maximum(spread, 1e-12)
        weights = limit / np.maximum(np.abs(residual), limit)
    intercepts, slopes = _weighted(x, y, weights, _resampled(len(x), seed))
    return Lines(intercept, slope, intercepts, slopes)


@lru_cache(maxsize=8)
def _resampled(rows: int, seed: int) -> Array:
    """(draws, rows): how often each row is drawn when as many are drawn as there are."""
    return np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=DRAWS).astype(float)


def exponents(intercept: Array, slope: Array, near: float, far: float) -> Array:
    """γ of lines logit α = intercept + slope·ln m, from m = ``near`` to m = ``far``.

    Examples
    --------
    A gap of 4.6 dilutes as 1/n, one of 20 holds:

    >>> exponents(np.array([4.6, 20.0]), np.array([-1.0, -1.0]), 2047, 131_071).round(3)
    array([0.989, 0.   ])
    """
    if far == near:
        return np.asarray(-slope * (1 - sigmoid(intercept + slope * np.log(near))))
    fall = np.logaddexp(0, -(intercept + slope * np.log(far))) - np.logaddexp(0, -(intercept + slope * np.log(near)))
    return np.asarray(fall / np.log(far / near))


def logit(weight: Array) -> Array:
    """ln(α/(1−α)), with α kept ``CERTAIN`` away from 0 and 1."""
    kept = np.clip(weight, CERTAIN, 1 - CERTAIN)
    return np.asarray(np.log(kept) - np.log1p(-kept))


def sigmoid(value: Array) -> Array:
    """1/(1 + e^(−value))."""
    return np.asarray(0.5 * (1 + np.tanh(value / 2)))


def _weighted(x: Array, y: Array, weights: Array, counts: Array | None = None) -> tuple[Array, Array]:
    """Weighted least squares; with ``counts`` (draws, rows), once for each resampling: (draws, heads)."""

    def total(values: Array) -> Array:
        return values.sum(-1) if counts is None else counts @ values.T

    centre = x.mean()
    u = x - centre
    w, wx, wy = total(weights), total(weights * u), total(weights * y)
    wxx, wxy = total(weights * u * u), total(weights * u * y)
    determinant = w * wxx - wx * wx
    slope = np.where(determinant > 1e-12 * w * w, (w * wxy - wx * wy) / np.maximum(determinant, 1e-300), 0.0)
    intercept = (wy - slope * wx) / w - slope * centre
    return intercept, slope
