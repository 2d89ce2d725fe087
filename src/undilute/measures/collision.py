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
    """(heads, rows): Σ p², of the sink and of the rest."""
    if (parts := rows.parts) is not None:
        rest = parts.rest.derived(sum_of_squares)
        return parts.sink.square().sum(-1) + parts.share.squeeze(-1).square() * rest
    return rows.derived(squares).sum(-1)


def squares(rows: Rows) -> Tensor:
    """(heads, rows, keys): p²."""
    return rows.probabilities.square()
