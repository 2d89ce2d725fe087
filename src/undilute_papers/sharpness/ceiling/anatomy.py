"""How fine are the differences of priority that a head's logits tell apart?

Near the top of a large set, a logit is the priority times a slope, plus an offset that should not be there: one for
the item's class, which may differ from query to query. Of two items of different class the one with the smaller
priority wins where the difference of their offsets, divided by the slope, exceeds that of their priorities. So the
deviation of the offsets over classes, in units of priority, is the head's resolution; the two largest of n items are
1/(n + 1) apart on average.
"""

from __future__ import annotations

import torch

from undilute_papers.sharpness.max_retrieval.network import Network
from undilute_papers.sharpness.max_retrieval.task import CLASSES

PRIORITY = 0.999
STEP = 0.002  # of priority, that the slope is taken over
QUERIES = 9


@torch.no_grad()
def resolution(network: Network) -> list[float | None]:
    """The deviation of the class offsets in units of priority, for each seed; None where logits do not rise.

    Examples
    --------
    >>> [value is None or value > 0 for value in resolution(Network("softmax", [0, 1]))]
    [True, True]
    """
    seeds, classes = len(network.seeds), torch.eye(CLASSES)
    items = [torch.cat([torch.full((CLASSES, 1), at), classes], -1) for at in (PRIORITY - STEP, PRIORITY)]
    x = torch.cat(items).expand(seeds, QUERIES, -1, -1)
    queries = torch.linspace(0.0, 1.0, QUERIES)[:, None].expand(seeds, -1, -1)
    logits = network.attend(x, queries).logits.double()
    lower, upper = logits.split(CLASSES, -1)  # (seeds, queries, classes)
    slope = (upper - lower).mean((1, 2)) / STEP
    deviation = upper.var(-1).mean(1).sqrt()
    ratios = zip(deviation.tolist(), slope.tolist(), strict=True)
    return [of_offsets / rising if rising > 0 else None for of_offsets, rising in ratios]
