"""What does a plan multiply?  The logits of each head by β · c(n), and its output by a gain.

β and the gain are constants of a head: they fold into weights. c(n) is one curve of the length for all heads of the
model: a configuration can state it. Whatever of a plan is not of this form cannot leave this library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["exact", "approximate", "cannot"]


@dataclass(frozen=True)
class Factors:
    """What multiplies the heads of one attention layer.

    Attributes
    ----------
    layer : its index, in the order in which attention layers run
    name : of the attention module in the model
    logits : β of each head: its logits are multiplied by it
    outputs : the gain of each head: its output, before the output projection, is multiplied by it
    """

    layer: int
    name: str
    logits: tuple[float, ...]
    outputs: tuple[float, ...]

    @property
    def changes(self) -> bool:
        """Does anything differ from 1?"""
        return any(each != 1.0 for each in (*self.logits, *self.outputs))


@dataclass(frozen=True)
class Curve:
    """c(n) = 1 + beta · ln(1 + ⌊(n − 1) / length⌋): what configurations call Llama 4's attention scaling.

    Attributes
    ----------
    beta : how much it grows
    length : tokens after which it grows; 1 makes it 1 + beta · ln n
    """

    beta: float
    length: int


@dataclass(frozen=True)
class Part:
    """What becomes of the logits, or of the output, of one head.

    Attributes
    ----------
    layer, head : which head
    what : "logits" or "output"
    rule : what the plan does to it, in a few words
    verdict : "exact", "approximate" or "cannot"
    way : where it goes, such as "W_Q" or "W_Q, config: llama_4_scaling"; "" if nowhere
    reason : why it is approximate, or cannot be done; "" if it is exact
    error : the largest difference of the factor at any length up to ``Explanation.length``; 0 if exact
    """

    layer: int
    head: int
    what: Literal["logits", "output"]
    rule: str
    verdict: Verdict
    way: str
    reason: str = ""
    error: float = 0.0


@dataclass(frozen=True)
class Explanation:
    """What of a plan can leave this library, and how.

    Attributes
    ----------
    parts : what becomes of each head
    factors : the constants that fold into weights, of each layer that has some; 1 for what cannot be done
    curve : the curve of the length that all heads of the model get; None if there is none
    length : tokens up to which errors were taken
    """

    parts: tuple[Part, ...]
    factors: tuple[Factors, ...]
    curve: Curve | None
    length: int

    def having(self, verdict: Verdict) -> list[Part]:
        """The parts with this verdict."""
        return [each for each in self.parts if each.verdict == verdict]
