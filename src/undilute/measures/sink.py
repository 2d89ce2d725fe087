"""How much attention is parked on the first token(s)?  The attention sink of Xiao et al., arXiv:2309.17453."""

from __future__ import annotations

from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure


@measure("sink_share", label="share of the sink", formula="Σ p over the first tokens")
def sink_share(rows: Rows) -> Tensor:
    """(heads, rows); what a learned sink outside the keys takes counts too."""
    keys = slice(max(rows.first, 0), max(rows.first + rows.settings.sinks, 0))
    return rows.probabilities[..., keys].sum(-1) * rows.kept.squeeze(-1) + (1 - rows.kept.squeeze(-1)).clamp(min=0.0)
