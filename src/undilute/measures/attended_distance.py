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
    """Both sums, (heads, rows) each, of the sink and of the rest."""
    if rows.own is None:
        unknown = rows.logits.new_full(rows.logits.shape[:2], torch.nan)
        return unknown, unknown
    if (parts := rows.parts) is None:
        return _sums(rows, rows.probabilities)
    share, rest = parts.share.squeeze(-1), parts.rest.derived(_near_and_far)
    sink = _sums(rows, parts.sink)
    return sink[0] + share * rest[0], sink[1] + share * rest[1]


def _sums(rows: Rows, p: Tensor) -> tuple[Tensor, Tensor]:
    """Both sums over the first keys, whose weights are ``p``."""
    assert rows.own is not None
    keys = torch.arange(p.shape[-1], device=p.device)
    distance = (rows.own[:, None] - keys).abs()  # (rows, keys)
    near = distance < rows.settings.recent
    return (p * distance.to(p.dtype)).sum(-1), (p * near.to(p.dtype)).sum(-1)
