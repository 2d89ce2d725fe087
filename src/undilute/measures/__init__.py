"""Numbers about rows of attention weights, one small file each."""

from undilute.measures import entropy as _entropy_measure  # noqa: F401  # first, or it would hide the function
from undilute.rules.entropy import entropy, entropy_of_logits

__all__ = ["entropy", "entropy_of_logits"]
