"""What do scales that look at how flat a row is share?  softmax(β(H)·z), H the row's own softmax entropy.

Such a scale reads the logits, so it cannot be folded into the queries beforehand; but H is all it needs of them, and
the flash route gets H from the kernel's log-sum-exp. A subclass writes β as a function of H. ``entropy_adaptive``
derives the Lipschitz bound they share.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor

from undilute.rules.base import LOWEST, Hide, Scale
from undilute.rules.entropy import entropy_of_logits


class OfEntropy(Scale, ABC):
    """β(H) of the row's own softmax entropy H, in nats. Subclasses write ``at_entropy`` and ``bound``."""

    @abstractmethod
    def at_entropy(self, entropy: Tensor) -> Tensor:
        """β of each entropy.

        Parameters
        ----------
        entropy : any shape; (..., heads, rows, 1) where β differs from head to head

        Returns
        -------
        The same shape.
        """

    @overload
    def beta(self, entropy: float) -> float: ...
    @overload
    def beta(self, entropy: Tensor) -> Tensor: ...
    def beta(self, entropy: float | Tensor) -> float | Tensor:
        """β for an entropy in nats: a number for a number, a tensor for a tensor."""
        if isinstance(entropy, Tensor):
            return self.at_entropy(entropy)
        return self.at_entropy(torch.tensor(entropy, dtype=torch.float64, device="cpu")).item()

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return self.at_entropy(entropy_of_logits(logits, visible)[..., None])

    def as_entropy(self) -> Callable[[Tensor], Tensor]:
        return self.at_entropy

    def multiply_(self, logits: Tensor, spare: Tensor, hide: Hide) -> None:
        hide(LOWEST)
        logits.sub_(top := logits.amax(-1, keepdim=True))
        e = torch.exp(logits, out=spare)
        total = e.sum(-1, keepdim=True)
        H = total.log() - e.mul_(logits).sum(-1, keepdim=True) / total
        hide(0.0)
        logits.add_(top).mul_(self.at_entropy(H))


def softmax_lipschitz(beta: float, slope: float, n: int) -> float:
    """max β / 2 + max|β'|·V(n), with V(n) the bound on the varentropy of n ≥ 2 keys.

    Examples
    --------
    >>> softmax_lipschitz(beta=2.0, slope=0.5, n=2)
    1.5
    """
    return beta / 2 + slope * (math.log(n - 1) ** 2 / 4 + 1)
