"""Does the encoding of the items keep a head from telling close priorities apart?  The same head, with a linear path.

    ψ_x(x) = W₂·gelu(W₁x + b₁) + b₂ + W_s·x,   W₂ = 0 at the start

Through GELUs alone a logit is curved in the priority, and differently for each class, so of two items the one with the
larger priority need not have the larger logit. Through a linear path it is the priority times one slope, plus an offset
for the class. With W₂ at 0 the head starts like that, and curvature is added only as far as the loss asks for it.

Hidden features and raw item side by side, with [W₂; W_s] as one matrix, are again features that ψ_x is linear in, so
the path folds like the rest of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from undilute.rules.base import Rule
from undilute_papers.sharpness.max_retrieval.network import WIDTH, Network, Projection
from undilute_papers.sharpness.max_retrieval.task import ITEM


class LinearPathNetwork(Network):
    """The network of the task with a linear path into the encoding of the items, which is all of it at the start.

    Everything else starts as in the network without the path. Parameters as there.
    """

    def __init__(self, rule: str | Callable[[], Rule], seeds: Sequence[int], scaled: bool = True) -> None:
        super().__init__(rule, seeds, scaled)
        self.path = Projection(ITEM, WIDTH, [torch.Generator().manual_seed(seed + 3_000_003) for seed in seeds])
        nn.init.zeros_(self.item_last.weight)

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([super().features(x), x], -1)

    def of_features(self) -> Tensor:
        return torch.cat([super().of_features(), self.path.weight], 1)

    def encoded_plainly(self, x: Tensor) -> Tensor:
        encoded: Tensor = super().encoded_plainly(x) + self.path(x)
        return encoded
