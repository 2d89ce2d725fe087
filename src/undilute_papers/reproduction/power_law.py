"""Which power of x does y follow?  The slope of a straight line through the logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x by least squares: 1 is linear growth.

    NaN if a value is not above 0, since no power of x is then, and if there are no two different x.

    Parameters
    ----------
    x, y : of equal length

    Examples
    --------
    >>> round(exponent([32, 64, 128], [1.0, 2.0, 4.0]), 6)
    1.0
    """
    if len(set(x)) < 2 or not all(value > 0 for value in [*x, *y]):
        return math.nan
    logs_x, logs_y = [math.log(each) for each in x], [math.log(each) for each in y]
    mean_x, mean_y = sum(logs_x) / len(x), sum(logs_y) / len(y)
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(logs_x, logs_y, strict=True))
    return rise / sum((a - mean_x) * (a - mean_x) for a in logs_x)
