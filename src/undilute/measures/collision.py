"""How likely do two looks meet the same key?  Σ p², e^(−Rényi-2 entropy); its inverse counts keys as e^H does."""

from __future__ import annotations

from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure


@measure("collision", label="collision probability", formula="Σ p²", without_sink=True)
def collision(rows: Rows) -> Tensor:
    """(heads, rows), of the attention that goes to keys."""
    return rows.derived(sum_of_squares)


def sum_of_squares(rows: Rows) -> Tensor:
    """(heads, rows): Σ p² as one product of each row with itself."""
    p = rows.probabilities
    return (p.unsqueeze(-2) @ p.unsqueeze(-1)).squeeze((-2, -1))
