"""What happens when somebody differentiates a fast route twice?  It raises.

The backward passes of the fast routes are kernels of their own, which autograd cannot look into: without more, the
second derivative through them is 0, as if their gradients were constants. ``torch``'s ``once_differentiable`` does not
see that when the incoming gradient is a constant, as it is for ``out.sum()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue

Gradients = tuple[Tensor | None, ...]


def once(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Decorator for the ``backward`` of an autograd function: it runs without a graph, and its gradients say so.

    What the gradients depend on is what the context has saved, and what it has under ``held``.
    """

    def run(ctx: Any, *incoming: Tensor | None) -> Gradients:
        with torch.no_grad():
            gradients = backward(ctx, *incoming)
        if not torch.is_grad_enabled():  # only with create_graph=True is it on in here
            return gradients
        depends = [t for t in (*ctx.saved_tensors, *getattr(ctx, "held", ()), *incoming) if t is not None]
        return tuple(g if g is None else _Refuse.apply(g, *depends) for g in gradients)  # type: ignore[no-untyped-call]

    return run


class _Refuse(torch.autograd.Function):
    """A gradient as it is, until somebody asks how it depends on the rest."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *depends: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> None:
        raise InvalidValue(
            "the fast routes of undilute.attention have no second derivative: call it with route='reference', which "
            "can be differentiated as often as you like."
        )
