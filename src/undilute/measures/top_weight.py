"""How much does the heaviest key get?  max p, the number that dilution eats."""

from __future__ import annotations

from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure


@measure("top_weight", label="top weight", formula="max p", without_sink=True)
def top_weight(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return (rows.heaviest[0][..., :1] * rows.kept).squeeze(-1)
