"""Numbers about rows of attention weights, one small file each; and the place for the user's own.

@undilute.measures.measure("runner_up", label="second weight", formula="p₂")
def runner_up(rows: undilute.measures.Rows) -> Tensor: ...
"""

from undilute.measures.attention_rows import Rows, Settings
from undilute.measures.registry import measure, names, unregister
from undilute.rules.entropy import entropy, entropy_of_logits

__all__ = ["Rows", "Settings", "entropy", "entropy_of_logits", "measure", "names", "unregister"]
