"""How spread out is a row of attention?  H = −Σ p ln p, in nats; e^H is the number of keys it effectively looks at."""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure
from undilute.rules.entropy import entropy, entropy_of_logits

__all__ = ["entropy", "entropy_of_attention", "entropy_of_logits", "entropy_of_rows"]


@measure("entropy", label="entropy", formula="H = −Σ p ln p", unit="nats", without_sink=True)
def entropy_of_attention(rows: Rows) -> Tensor:
    """(heads, rows), of the attention that goes to keys."""
    return rows.derived(entropy_of_rows)


def entropy_of_rows(rows: Rows) -> Tensor:
    """(heads, rows): H = ln Σe^(z−m) − Σ p·(z−m); with a sink, that of sink and rest, and the rest's by its share."""
    if (parts := rows.parts) is not None:
        between: Tensor = torch.special.entr(parts.sink).sum(-1) + torch.special.entr(parts.share).squeeze(-1)
        return between.clamp(min=0.0) + parts.share.squeeze(-1) * parts.rest.derived(entropy_of_rows)
    mean = (rows.probabilities * rows.below).sum(-1)
    return (rows.total.log().squeeze(-1) - mean).clamp(min=0.0)
