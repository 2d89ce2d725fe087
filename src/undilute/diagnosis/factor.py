"""Which factor on a head's logits would hold a weight as the context grows?

A factor β moves the logit of a weight by Δ(β). It is measured at β = 2 and 4 (powers of the weights give it exactly),
with straight lines between. The β whose Δ(β) equals the fall of the law holds the weight. For equal competitors this is
exact: Δ(β) = (β − 1)·gap.
"""

from __future__ import annotations

import math

LARGEST = 8.0  # twice what was measured: beyond it the straight line says nothing


def factor_to_hold(fall: float, rise_doubled: float, rise_quadrupled: float) -> float | None:
    """The factor on the logits that makes up for a fall in the logit of a weight; None if none does.

    Parameters
    ----------
    fall : by which the logit falls
    rise_doubled, rise_quadrupled : what a factor of 2 and of 4 adds to it; straight lines between them and beyond

    Examples
    --------
    Equal competitors and a gap of 6: β·6 = 6 + ln(65535/1023).

    >>> round(factor_to_hold(math.log(65535 / 1023), 6.0, 18.0), 4)
    1.6933
    """
    if fall <= 0:
        return 1.0
    if fall <= rise_doubled:
        return 1 + fall / rise_doubled
    slope = (rise_quadrupled - rise_doubled) / 2
    factor = 2 + (fall - rise_doubled) / slope if slope > 0 else math.inf
    return factor if factor <= LARGEST else None
