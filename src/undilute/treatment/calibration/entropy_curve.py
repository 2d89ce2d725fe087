"""Which β(H) keeps a head's rows from growing wider than they are at a reference length?

Nine in ten of a head's rows at lengths up to n₀ have an entropy of at most H₀. That is normal for the head, so β = 1 up
to there. Every wider row needs the β with H(β·z) = H₀, which the grid gives. The curve through these (H, β) is the
monotone one that is closest (isotonic regression), thinned to a few knots; above the widest row seen it stays at its
last value. So it is defined for every entropy, non-decreasing, at least 1, and it never raises a row's entropy, since
the entropy of softmax(β·z) falls as β grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from undilute.rules.base import Rule
from undilute.rules.scales.entropy_curve import EntropyCurve
from undilute.treatment.calibration.sharpening import Sharpened, needed

KNOTS = 9
OWN = 0.9  # the share of rows up to the reference length that stay as they are


def entropy_curve(layer: Sharpened, heads: Sequence[int], reference: int) -> tuple[Rule, NDArray[np.float64]]:
    """The refitted adaptive temperature of some heads of a layer, and the largest β of each, (heads,)."""
    knots = [fitted(layer.measured[:, head], layer.n, reference) for head in heads]
    entropies, betas = (torch.tensor(np.stack(part), dtype=torch.float32) for part in zip(*knots, strict=True))
    return Rule(EntropyCurve(entropies, betas)), np.array([beta[-1] for _, beta in knots])


def fitted(
    measured: NDArray[np.float64], n: NDArray[np.int64], reference: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Knots of one head: entropies, increasing, and β, from 1 on and non-decreasing; (KNOTS,) each.

    Parameters
    ----------
    measured : (betas, rows), entropy at every β of the grid
    n : (rows,)
    reference : the length up to which rows are the head's own business
    """
    from scipy.optimize import isotonic_regression

    entropy = measured[0]
    floor = float(np.quantile(entropy[n <= reference], OWN))
    wide = np.flatnonzero(entropy > floor)
    wide = wide[np.argsort(entropy[wide], kind="stable")]
    x = np.append(floor, entropy[wide])
    y = np.append(1.0, [needed(measured[:, row], floor, falls=True) for row in wide])
    y = np.asarray(isotonic_regression(y).x) if len(y) > 1 else y
    places = np.linspace(floor, max(float(x[-1]), floor + 0.1), KNOTS)
    betas = np.interp(places, x, y)
    return places, np.maximum.accumulate(np.maximum(betas, 1.0))
