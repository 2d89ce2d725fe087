"""How does a head's attention move with n?  Straight lines through log-log points, robust, with bootstrap intervals.

The top weight. If one key leads m others by an effective gap g, its weight is α = σ(g − ln m). So the fit is
    logit α = g − c·ln m,
exact for that law (c = 1) at every m, even where α is still near 1; m is n minus the key itself and the sink. It
crosses α = 1/2 at m = e^(g/c): from there on the head has let go. The dilution exponent is that of the fitted weight
from the m of the measured length to the M of the target,
    γ = ln(α(m)/α(M)) / ln(M/m),   and c·(1 − α(m)), its limit, for M = m:
1 is dilution as 1/n; 0 is a weight that holds, either because c = 0 or because g is large enough all the way.

The effective keys. ln n_eff = c + γ_eff·ln n: 0 for a head that looks at a fixed number of keys, 1 for a fixed share.

Slopes minimise Huber's loss by iterated weighted least squares, so a few odd rows do not tilt them; the level is that
of the long rows, so that a law which does not bend quite as the rows do is right where a forecast sets out. Intervals
come from resampling runs of neighbouring rows, with the robust weights kept: 95 % of the resampled lines lie within.
They say how certain the line is on this text, not on another, and nothing about whether the law continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
HUBER = 1.345  # standard deviations up to which a residual counts in full
ITERATIONS = 50
CONVERGED = 1e-6  # of a slope, from one iteration to the next
DRAWS = 400
RUN = 8  # rows that are resampled together: neighbours read much the same text
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


def robust_lines(x: Array, y: Array, seed: int = 0, *, level: NDArray[np.bool_] | None = None) -> Lines:
    """Huber regression of every head's points on the same x.

    Parameters
    ----------
    x : (rows,), in order
    y : (heads, rows), finite
    seed : of the resampling
    level : (rows,) bool, the rows that the lines' level is taken from; all by default

    Examples
    --------
    >>> x = np.arange(10.0)
    >>> odd = np.where(x == 5, 100.0, 3 - 2 * x)  # one row of ten is wild
    >>> robust_lines(x, odd[None]).slope.round(3)
    array([-2.])
    """
    weights, slope = np.ones_like(y), np.full(len(y), np.inf)
    for _ in range(ITERATIONS):
        before, (intercept, slope) = slope, _weighted(x, y, weights)
        if np.abs(slope - before).max() < CONVERGED:
            break
        weights = _huber(y - intercept[:, None] - slope[:, None] * x)
    counts = _resampled(len(x), seed)
    intercepts, slopes = _weighted(x, y, weights, counts)
    if level is not None:
        intercept, intercepts = _levelled(x[level], y[:, level], slope, slopes, counts[:, level])
    return Lines(intercept, slope, intercepts, slopes)


def _levelled(x: Array, y: Array, slope: Array, slopes: Array, counts: Array) -> tuple[Array, Array]:
    """Intercepts (heads,) and (draws, heads) at which lines of these slopes pass through the middle of some rows."""
    rest = y - slope[:, None] * x
    middle = np.median(rest, axis=1, keepdims=True)
    weights = _huber(rest - middle)
    w, wy, wx = _totals(counts, weights, weights * y, weights * x)
    intercepts = (wy - slopes * wx) / np.maximum(w, 1e-12)  # (draws, heads); a draw that misses all keeps the middle
    return middle[:, 0], np.where(counts.sum(1, keepdims=True) > 0, intercepts, middle[:, 0])


def _huber(residual: Array) -> Array:
    """Huber's weights of residuals (heads, rows)."""
    spread = np.median(np.abs(residual), axis=1, keepdims=True) / 0.6745
    limit = HUBER * np.maximum(spread, 1e-12)
    return np.asarray(limit / np.maximum(np.abs(residual), limit))


@lru_cache(maxsize=8)
def _resampled(rows: int, seed: int) -> Array:
    """(draws, rows): how often each row is drawn, if runs of neighbours are drawn until there are as many rows."""
    run = min(RUN, rows)
    starts = np.random.default_rng(seed).integers(0, rows, (DRAWS, -(-rows // run)))
    places = (starts[..., None] + np.arange(run)) % rows
    counts = np.zeros((DRAWS, rows))
    np.add.at(counts, (np.arange(DRAWS)[:, None, None], places), 1.0)
    return counts


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
    centre = x.mean()
    u = x - centre
    weighted = weights * u
    w, wx, wy, wxx, wxy = _totals(counts, weights, weighted, weights * y, weighted * u, weighted * y)
    determinant = w * wxx - wx * wx
    slope = np.where(determinant > 1e-12 * w * w, (w * wxy - wx * wy) / np.maximum(determinant, 1e-300), 0.0)
    intercept = (wy - slope * wx) / w - slope * centre
    return intercept, slope


def _totals(counts: Array | None, *values: Array) -> Array:
    """Sums over the rows of several (heads, rows): (several, heads), or for each resampling (several, draws, heads).

    All resamplings of all of them are one product.
    """
    if counts is None:
        return np.stack([each.sum(-1) for each in values])
    drawn = counts @ np.concatenate(values).T
    return np.moveaxis(drawn.reshape(len(counts), len(values), -1), 1, 0)
