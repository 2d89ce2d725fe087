"""Between what do most of the values lie?  Quantiles of any number of values, and the five of a box."""

from __future__ import annotations

import math

import torch
from torch import Tensor

QUARTILES = ("lowest", "first_quartile", "median", "third_quartile", "highest")


def quartiles(values: Tensor) -> dict[str, float]:
    """The ends of the quarters by name; NaN if there are no values.

    Parameters
    ----------
    values : (n,), finite, float64

    Examples
    --------
    >>> quartiles(torch.tensor([4.0, 1.0, 2.0], dtype=torch.float64))["median"]
    2.0
    """
    found = quantiles(values, torch.linspace(0, 1, 5, dtype=torch.float64)).tolist() if len(values) else [math.nan] * 5
    return dict(zip(QUARTILES, found, strict=True))


def quantiles(values: Tensor, at: Tensor) -> Tensor:
    """``torch.quantile``, which takes no more than 2²⁴ values, over any number of them.

    Parameters
    ----------
    values : (n,), at least one
    at : (k,), shares from 0 to 1, of the same dtype

    Returns
    -------
    (k,)
    """
    ranked = values.sort().values
    place = at * (len(ranked) - 1)
    below = place.floor().long()
    above = (below + 1).clamp(max=len(ranked) - 1)
    return torch.lerp(ranked[below], ranked[above], place - below)
