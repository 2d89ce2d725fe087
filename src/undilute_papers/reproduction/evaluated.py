"""Which rules are trained weights tested with?  Their own, what claims to help them unchanged, and the argmax.

The argmax of the same logits spreads nothing: what it gets wrong is lost in the logits, not in the weights. It is no
upper limit: a rule that averages over several good keys can do better.
"""

from __future__ import annotations

ARGMAX = "argmax of the logits"


def evaluated_with(rule: str) -> list[str]:
    """The rules that weights trained with ``rule`` are tested with.

    Itself; for softmax also adaptive temperature, which changes the rule at inference only; always the argmax.

    >>> evaluated_with("softmax")
    ['softmax', 'adaptive', 'argmax of the logits']
    """
    return [rule, *(["adaptive"] if rule == "softmax" else []), ARGMAX]
