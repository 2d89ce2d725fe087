"""What would the heaviest key get if the logits were multiplied by β?  max p^β / Σ p^β: powers of the weights say it.

From β = 1, 2 and 4 a diagnosis reads which scale would hold a weight.
"""

from __future__ import annotations

from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.collision import squares, sum_of_squares
from undilute.measures.registry import measure


@measure("top_weight_doubled", label="top weight with logits doubled", formula="max p² / Σ p²", without_sink=True)
def top_weight_doubled(rows: Rows) -> Tensor:
    """(heads, rows), of the attention that goes to keys."""
    return _share(_top(rows).square(), rows.derived(sum_of_squares))


@measure("top_weight_quadrupled", label="top weight with logits × 4", formula="max p⁴ / Σ p⁴", without_sink=True)
def top_weight_quadrupled(rows: Rows) -> Tensor:
    """(heads, rows), of the attention that goes to keys."""
    return _share(_top(rows).square().square(), rows.derived(_sum_of_fourth_powers))


def _sum_of_fourth_powers(rows: Rows) -> Tensor:
    """(heads, rows): Σ p⁴, of the sink and of the rest."""
    if (parts := rows.parts) is not None:
        rest = parts.rest.derived(_sum_of_fourth_powers)
        return parts.sink.pow(4).sum(-1) + parts.share.squeeze(-1).pow(4) * rest
    kept = rows.derived(squares).clamp(min=1e-18)  # so that no fourth power is a denormal number
    return kept.square_().sum(-1)


def _top(rows: Rows) -> Tensor:
    return rows.heaviest[0][..., 0]


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.masked_fill(whole == 0, 1.0)
