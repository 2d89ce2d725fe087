"""How spread out is a row of weights?  H = −Σ p ln p, in nats; from the weights, or straight from the logits."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(weights: Tensor) -> Tensor:
    """Shannon entropy of each row, in nats.

    Parameters
    ----------
    weights : (..., keys). Rows that do not sum to 1 are normalised first: the entropy is that of |w| / Σ|w|.

    Returns
    -------
    (...,); 0 for a row of zeros.

    Examples
    --------
    >>> import torch
    >>> entropy(torch.tensor([0.25, 0.25, 0.25, 0.25])).exp()
    tensor(4.)
    """
    mass = weights.abs().sum(-1, keepdim=True)
    p = weights.abs() / mass.masked_fill(mass == 0, 1.0)
    return -(p * p.masked_fill(p == 0, 1.0).log()).sum(-1)


def entropy_of_logits(logits: Tensor, visible: Tensor) -> Tensor:
    """Entropy of softmax(logits) per row, straight from the logits: H = ln Z − Σ e^(z−m)(z−m) / Z, m = max z.

    Parameters
    ----------
    logits : (..., keys), finite
    visible : (..., keys) bool

    Returns
    -------
    (...,); 0 for a row that sees nothing. Nothing is added inside the logarithm, so there is no bias at large n.
    """
    top = logits.detach().masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
    centred = (logits - top).masked_fill(~visible, 0.0)
    e = centred.exp().masked_fill(~visible, 0.0)
    centred = centred.masked_fill(e == 0, 0.0)  # 0 · (−huge) is 0, in the gradient too
    total = e.sum(-1)
    total = total.masked_fill(total == 0, 1.0)
    return total.log() - (e * centred).sum(-1) / total
