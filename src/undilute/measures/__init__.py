"""Numbers about rows of attention weights, one small file each."""

from undilute.measures.entropy import entropy, entropy_of_logits

__all__ = ["entropy", "entropy_of_logits"]
