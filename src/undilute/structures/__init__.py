"""Attention that is more than one rule per row: differences of rules, penalties between rows, feature maps.

Sliding windows are an argument of ``undilute.attention`` itself, because they go with every rule.
"""

from undilute.structures.differential import differential
from undilute.structures.linear import linear
from undilute.structures.selective import SelectiveState, selective

__all__ = ["SelectiveState", "differential", "linear", "selective"]
