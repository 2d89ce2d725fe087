"""How far apart are a row's logits, and what weight do they allow?

The spread δ = max z − min z caps every weight at 1/(1 + (n−1)e^(−δ)) (``undilute.theory.dispersion.weight_bounds``); it
is itself at most 2·‖q‖·max‖k‖·scale, Proposition 3.1 of Veličković et al. (arXiv:2410.01104) in its form for queries
and keys. The lead of the first key over the second decides what a sparse rule would keep.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure


@measure("logit_spread", label="logit spread δ", formula="max z − min z", unit="nats")
def logit_spread(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return (rows.largest - rows.smallest).squeeze(-1)


@measure("spread_bound", label="bound on the spread", formula="2·‖q‖·max‖k‖·scale", unit="nats")
def spread_bound(rows: Rows) -> Tensor:
    """(heads, rows); NaN where a bias is added to q·k, which the bound does not know."""
    return torch.full_like(rows.largest.squeeze(-1), torch.nan) if rows.reach is None else 2 * rows.reach


@measure("weight_ceiling", label="ceiling on every weight", formula="1 / (1 + (n−1)·e^(−δ))")
def weight_ceiling(rows: Rows) -> Tensor:
    """(heads, rows): what no weight of the row can exceed, given its spread; 1 for a row of one key or none."""
    return torch.sigmoid(logit_spread(rows) - (rows.n - 1).clamp(min=0).log())


@measure("lead", label="lead of the first key", formula="z₁ − z₂", unit="nats", without_sink=True)
def lead(rows: Rows) -> Tensor:
    """(heads, rows); infinite for a row of one key."""
    z = rows.derived(_two_largest)
    alone = rows.n.expand(z.shape[:-1]) < 2
    return (z[..., 0] - z[..., 1]).masked_fill(alone, torch.inf)


def _two_largest(rows: Rows) -> Tensor:
    z: Tensor = rows.masked.gather(-1, rows.ranked[..., :2])
    return z if z.shape[-1] == 2 else torch.cat([z, z], -1)
