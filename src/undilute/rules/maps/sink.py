"""May a head attend to nothing?  A sink takes part of the mass: e^z / (e^s + Σ e^z).

With s = 0 it is softmax1, "attention is off by one" (Miller 2023); with one learned s per head it is gpt-oss's sink
(arXiv:2508.10925). Rows sum to less than 1. A row sees the sink as one more key whose value is 0, so the Jacobian is
a block of softmax's on n + 1 keys: norm at most 1/2, and 1/4 for n = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from undilute.rules.base import Divisor, Hide, Map
from undilute.rules.forms import SoftmaxForm
from undilute.rules.masked import divide, masked_exp, masked_max
from undilute.rules.parameters import Number, finite, per_head
from undilute.rules.registry import register


class Sink(Map):
    """e^z / (e^s + Σ e^z).

    Parameters
    ----------
    s : the sink's logit, one number or one per head
    """

    sums_to_one = False
    is_shift_invariant = False

    s: Number

    def __init__(self, s: Number = 0.0) -> None:
        super().__init__()
        self.hold("s", finite("s", s))

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        sink = torch.as_tensor(per_head("s", self.s, logits), dtype=logits.dtype, device=logits.device)
        top = torch.maximum(masked_max(logits.detach(), visible), sink.detach())
        e = masked_exp(logits, visible, top)
        return divide(e, (sink - top).exp() + e.sum(-1, keepdim=True))

    def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: Hide) -> Divisor | None:
        if isinstance(self.s, Tensor):
            return None
        hide(-torch.inf)
        top = logits.amax(-1, keepdim=True).clamp_(min=self.s)
        e = logits.sub_(top).exp_()
        return e.sum(-1, keepdim=True).add_(top.neg_().add_(self.s).exp_()).clamp_(min=torch.finfo(logits.dtype).tiny)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(sink=self.s)

    def lipschitz(self, n: int) -> float:
        return 0.5 if n > 1 else 0.25


class LearnableSink(Sink):
    """A sink with one learned logit per head; starts at 0, which is softmax1."""

    def __init__(self, num_heads: int, s: float = 0.0) -> None:
        super().__init__(nn.Parameter(torch.full((num_heads,), float(s))))


class Softmax1(Sink):
    """e^z / (1 + Σ e^z): a sink whose logit is 0."""

    def __init__(self) -> None:
        super().__init__(0.0)


@register("softmax1", formula="e^z / (1 + Σ e^z)", paper="Miller 2023")
def softmax1() -> Map:
    return Softmax1()


@register(
    "sink",
    formula="e^z / (e^s + Σ e^z)",
    paper="arXiv:2508.10925",
    learnable=lambda embed_dim, num_heads: LearnableSink(num_heads),
)
def sink(s: Number = 0.0) -> Map:
    return Sink(s)
