"""How strongly do the weights react to the logits?  ‖diag(p) − ppᵀ‖₂, exact, O(n) per row; at most 1/2."""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure
from undilute.theory.jacobian import largest_eigenvalue


@measure("jacobian_norm", label="Jacobian norm", formula="‖diag(p) − ppᵀ‖₂")
def jacobian_norm(rows: Rows) -> Tensor:
    """(heads, rows); with a learned sink outside the keys, that of the row with the sink as a key: an upper bound."""
    if rows.outside is not None:
        return largest_eigenvalue(torch.cat([rows.weights, 1 - rows.kept], -1))
    return largest_eigenvalue(rows.probabilities, rows.ranked[..., :1])
