"""How many keys does a row look at?  n_eff = e^H, between 1 and n, and H / ln n, between 0 and 1."""

from __future__ import annotations

from torch import Tensor

from undilute.measures.attention_rows import Rows
from undilute.measures.registry import measure
from undilute.measures.row_entropy import entropy_of_rows


@measure("n_eff", label="effective keys", formula="e^H", unit="keys", without_sink=True)
def effective_keys(rows: Rows) -> Tensor:
    """(heads, rows)."""
    return rows.derived(entropy_of_rows).exp()


@measure("normalised_entropy", label="normalised entropy", formula="H / ln n", without_sink=True)
def normalised_entropy(rows: Rows) -> Tensor:
    """(heads, rows); 1, the uniform row's, for a row that sees one key."""
    entropy = rows.derived(entropy_of_rows)
    n = rows.n.expand_as(entropy)
    return (entropy / n.clamp(min=2).log()).masked_fill(n <= 1, 1.0)
