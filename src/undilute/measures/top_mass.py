"""How much do the N heaviest keys get together?"""

from __future__ import annotations

from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure


@measure("top_mass", label="mass of the top N", formula="Σ of the N largest p", without_sink=True)
def top_mass(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return (rows.heaviest[0].sum(-1, keepdim=True) * rows.kept).squeeze(-1)
