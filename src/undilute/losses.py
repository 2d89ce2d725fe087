"""Losses for training with sparse outputs: the Fenchel–Young losses of α-entmax.

Blondel, Martins & Niculae 2020, arXiv:1901.02324. With p = entmax_α(x) and y one-hot at the target,
    L(x, y) = ⟨p − y, x⟩ + (1 − Σ pᵢ^α) / (α(α−1)) ≥ 0,   ∂L/∂x = p − y,
and L = 0 exactly when the target leads every other logit by 1/(α−1). α = 2 is the sparsemax loss, α → 1 cross-entropy.
The calls have the shape of the ``entmax`` package's.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.base import Rule
from undilute.rules.maps.entmax import Entmax
from undilute.rules.parameters import Number
from undilute.rules.rows import working_dtype

Reduction = Literal["elementwise_mean", "mean", "sum", "none"]


def entmax_loss(X: Tensor, target: Tensor, alpha: Number = 1.5, n_iter: int = 50) -> Tensor:
    """Fenchel–Young loss of α-entmax, one value per row.

    Parameters
    ----------
    X : (rows, classes) logits
    target : (rows,) int64, the class of each row
    alpha : > 1, one number; a tensor gets its gradient too
    n_iter : accepted as in the entmax package, where it tunes a bisection; the result here does not depend on it

    Returns
    -------
    (rows,)

    Examples
    --------
    >>> import torch
    >>> entmax_loss(torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0., 3.])
    """
    _check(X, target)
    if isinstance(alpha, Tensor) and alpha.numel() != 1:
        raise InvalidValue(f"alpha has shape {tuple(alpha.shape)}: must be one number.")
    z = X.to(working_dtype(X.dtype))
    z = z - z.detach().amax(-1, keepdim=True)  # changes nothing but the rounding
    p: Tensor = Rule(map=Entmax(alpha))(z)
    y = torch.zeros_like(p).scatter(-1, target[:, None], 1.0)
    powers = p.masked_fill(p == 0, 1.0).pow(alpha).masked_fill(p == 0, 0.0)
    divergence = (1 - powers.sum(-1)) / (alpha * (alpha - 1))
    agreed = (p == 0) & (y == 0)  # 0 · z, for z = −inf too
    return (((p - y) * z.masked_fill(agreed, 0.0)).sum(-1) + divergence).to(X.dtype)


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """``entmax_loss`` with α = 2. ``k`` is accepted as in the entmax package, where it only tunes a partial sort."""
    return entmax_loss(X, target, 2.0)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """``entmax_loss`` with α = 1.5. ``k`` is accepted as in the entmax package, where it only tunes a partial sort."""
    return entmax_loss(X, target, 1.5)


class EntmaxLoss(nn.Module):
    """``entmax_loss`` as a module that skips ``ignore_index`` (−100 included, as in torch's cross-entropy) and reduces.

    Parameters
    ----------
    alpha : > 1, one number
    n_iter : accepted as in the entmax package; the result does not depend on it
    ignore_index : target value whose rows count neither in the sum nor in the mean
    reduction : "elementwise_mean" (or "mean"), "sum" or "none"
    """

    def __init__(
        self,
        alpha: Number = 1.5,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: Reduction = "elementwise_mean",
    ) -> None:
        super().__init__()
        if reduction not in get_args(Reduction):
            raise InvalidValue(f"reduction = {reduction!r}: must be one of {', '.join(get_args(Reduction))}.")
        self.map = Entmax(alpha)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        counted = target != self.ignore_index
        loss = entmax_loss(X, target.masked_fill(~counted, 0), self.map.alpha).masked_fill(~counted, 0.0)
        if self.reduction == "none":
            return loss
        return loss.sum() if self.reduction == "sum" else loss.sum() / counted.sum()


class SparsemaxLoss(EntmaxLoss):
    """``EntmaxLoss`` with α = 2, called like the entmax package's."""

    def __init__(
        self, k: int | None = None, ignore_index: int = -100, reduction: Reduction = "elementwise_mean"
    ) -> None:
        super().__init__(2.0, ignore_index=ignore_index, reduction=reduction)


class Entmax15Loss(EntmaxLoss):
    """``EntmaxLoss`` with α = 1.5, called like the entmax package's."""

    def __init__(
        self, k: int | None = None, ignore_index: int = -100, reduction: Reduction = "elementwise_mean"
    ) -> None:
        super().__init__(1.5, ignore_index=ignore_index, reduction=reduction)


def _check(X: Tensor, target: Tensor) -> None:
    if not X.is_floating_point():
        raise InvalidTensor(f"X has dtype {X.dtype}: must be floating-point logits.")
    if X.dim() != 2 or target.shape != X.shape[:1]:
        raise InvalidTensor(
            f"X has shape {tuple(X.shape)} and target {tuple(target.shape)}: must be (rows, classes) and (rows,)."
        )
    if target.dtype != torch.int64:
        raise InvalidTensor(f"target has dtype {target.dtype}: must be torch.int64.")
    if target.numel() and (int(target.min()) < 0 or int(target.max()) >= X.shape[1]):
        raise InvalidValue(f"target holds a class outside 0 … {X.shape[1] - 1}.")
