"""How far back does a row look?  The mean distance |own − j| under the weights, and the share of the last keys.

Both are NaN where the keys belong to another text, as when a decoder looks at its encoder: the two have no distance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure


@measure("attended_distance", label="mean attended distance", formula="Σ p·|t − j|", unit="tokens", without_sink=True)
def attended_distance(rows: Rows) -> Tensor:
    """(heads, rows), of the attention that goes to keys."""
    return rows.derived(_near_and_far)[0]


@measure("recent_share", label="share of the last keys", formula="Σ p over |t − j| < recent", without_sink=True)
def recent_share(rows: Rows) -> Tensor:
    """(heads, rows), of the attention that goes to keys."""
    return rows.derived(_near_and_far)[1]


def _near_and_far(rows: Rows) -> tuple[Tensor, Tensor]:
    """Both sums as one product with each row's two columns, |t − j| and 1[|t − j| < recent]."""
    if rows.own is None:
        unknown = rows.logits.new_full(rows.logits.shape[:2], torch.nan)
        return unknown, unknown
    keys = torch.arange(rows.logits.shape[-1], device=rows.logits.device)
    distance = (rows.own[:, None] - keys).abs()
    columns = torch.stack([distance, distance < rows.settings.recent], -1).to(rows.logits.dtype)
    sums = rows.probabilities.transpose(0, 1) @ columns  # (rows, heads, 2)
    return sums[..., 0].T, sums[..., 1].T
