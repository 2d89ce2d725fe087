"""Losses for training with sparse outputs: the Fenchel–Young losses of α-entmax and α-normmax.

Blondel, Martins & Niculae 2020, arXiv:1901.02324. The weights p of a map that maximises ⟨p, x⟩ + H(p) have the loss
    L(x, y) = ⟨p − y, x⟩ + H(p) ≥ 0,   ∂L/∂x = p − y,   y one-hot at the target.
For entmax H(p) = (1 − Σ pᵢ^α) / (α(α−1)): with α > 1, L = 0 exactly when the target leads every other logit by 1/(α−1);
α = 2 is the sparsemax loss, α → 1 cross-entropy, and with α < 1 it is never 0. For normmax H(p) = 1 − ‖p‖_α, and L = 0
exactly when the target leads by 1, whatever α. The calls have the shape of the ``entmax`` package's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.base import Map, Rule
from undilute.rules.maps.entmax import Entmax
from undilute.rules.maps.normmax import Normmax
from undilute.rules.masked import working_dtype
from undilute.rules.parameters import Number

Reduction = Literal["elementwise_mean", "mean", "sum", "none"]


def entmax_loss(X: Tensor, target: Tensor, alpha: Number = 1.5, n_iter: int = 50) -> Tensor:
    """Fenchel–Young loss of α-entmax, one value per row.

    Parameters
    ----------
    X : (rows, classes) logits
    target : (rows,) int64, the class of each row
    alpha : > 0 and not 1, one number; a tensor gets its gradient too
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

    def entropy(p: Tensor) -> Tensor:
        return (1 - _power_sum(p, alpha)) / (alpha * (alpha - 1))

    return _fenchel_young(X, target, Entmax(_one_number(alpha)), entropy)


def normmax_loss(X: Tensor, target: Tensor, alpha: Number = 2.0, n_iter: int = 50) -> Tensor:
    """Fenchel–Young loss of α-normmax, one value per row.

    Parameters
    ----------
    X, target, n_iter : as in :func:`entmax_loss`
    alpha : > 1, one number; a tensor gets its gradient too

    Returns
    -------
    (rows,)

    Examples
    --------
    >>> import torch
    >>> normmax_loss(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0., 1.])
    """

    def entropy(p: Tensor) -> Tensor:
        return 1 - _power_sum(p, alpha) ** (1 / alpha)

    return _fenchel_young(X, target, Normmax(_one_number(alpha)), entropy)


def _one_number(alpha: Number) -> Number:
    if isinstance(alpha, Tensor) and alpha.numel() != 1:
        raise InvalidValue(f"alpha has shape {tuple(alpha.shape)}: must be one number.")
    return alpha


def _power_sum(p: Tensor, alpha: Number) -> Tensor:
    """Σ p^α of each row, with a gradient where p = 0 too."""
    return p.masked_fill(p == 0, 1.0).pow(alpha).masked_fill(p == 0, 0.0).sum(-1)


def _fenchel_young(X: Tensor, target: Tensor, map: Map, entropy: Callable[[Tensor], Tensor]) -> Tensor:
    """⟨p − y, x⟩ + entropy(p) of each row."""
    _check(X, target)
    z = X.to(working_dtype(X.dtype))
    z = z - z.detach().amax(-1, keepdim=True)  # changes nothing but the rounding
    p: Tensor = Rule(map=map)(z)
    y = torch.zeros_like(p).scatter(-1, target[:, None], 1.0)
    agreed = (p == 0) & (y == 0)  # 0 · z, for z = −inf too
    return (((p - y) * z.masked_fill(agreed, 0.0)).sum(-1) + entropy(p)).to(X.dtype)


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """``entmax_loss`` with α = 2. ``k`` is accepted as in the entmax package, where it only tunes a partial sort."""
    return entmax_loss(X, target, 2.0)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """``entmax_loss`` with α = 1.5. ``k`` is accepted as in the entmax package, where it only tunes a partial sort."""
    return entmax_loss(X, target, 1.5)


class _Loss(nn.Module):
    """A loss that skips ``ignore_index`` (−100 included, as in torch's cross-entropy) and reduces."""

    def __init__(self, map: Entmax | Normmax, ignore_index: int, reduction: Reduction) -> None:
        super().__init__()
        if reduction not in get_args(Reduction):
            raise InvalidValue(f"reduction = {reduction!r}: must be one of {', '.join(get_args(Reduction))}.")
        self.map = map
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        counted = target != self.ignore_index
        function = entmax_loss if isinstance(self.map, Entmax) else normmax_loss
        loss = function(X, target.masked_fill(~counted, 0), self.map.alpha).masked_fill(~counted, 0.0)
        if self.reduction == "none":
            return loss
        return loss.sum() if self.reduction == "sum" else loss.sum() / counted.sum()


class EntmaxLoss(_Loss):
    """``entmax_loss`` as a module that skips ``ignore_index`` (−100 included, as in torch's cross-entropy) and reduces.

    Parameters
    ----------
    alpha : > 0 and not 1, one number
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
        super().__init__(Entmax(alpha), ignore_index, reduction)


class NormmaxLoss(_Loss):
    """``normmax_loss`` as a module.

    Parameters
    ----------
    alpha : > 1, one number
    n_iter, ignore_index, reduction : as in ``EntmaxLoss``
    """

    def __init__(
        self,
        alpha: Number = 2.0,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: Reduction = "elementwise_mean",
    ) -> None:
        super().__init__(Normmax(alpha), ignore_index, reduction)


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
