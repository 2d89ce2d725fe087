"""Does attention without softmax escape dilution?  Not if it is normalised: φ(q)·φ(k) / Σ φ(q)·φ(k) dilutes like 1/n.

Katharopoulos et al. 2020, arXiv:2006.16236, φ(x) = elu(x) + 1. Kept as the baseline: linear time, the same dilution (a
token scoring 3 against competitors scoring 1 gets 3/(n + 2)).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute.errors import InvalidTensor
from undilute.rules.rows import divide

CHUNK = 128


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, positive everywhere."""
    return F.elu(x) + 1


def linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    key_mask: Tensor | None = None,
    feature_map: Callable[[Tensor], Tensor] = elu_plus_one,
) -> Tensor:
    """Normalised linear attention in O(length) time and memory.

    Parameters
    ----------
    query : (..., L, E)
    key : (..., S, E)
    value : (..., S, Ev)
    is_causal : row i sees keys 0 … i; needs L = S
    key_mask : bool (..., S), True = visible
    feature_map : φ, positive

    Returns
    -------
    (..., L, Ev); a row that sees no key is all zeros.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> q, k, v = torch.randn(3, 2, 1000, 16).unbind()
    >>> ud.structures.linear(q, k, v, is_causal=True).shape
    torch.Size([2, 1000, 16])
    """
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise InvalidTensor(f"lengths {query.shape[-2]} and {key.shape[-2]}: causal linear attention needs them equal.")
    q, k = feature_map(query), feature_map(key)
    if key_mask is not None:
        k = k.masked_fill(~key_mask[..., None], 0.0)
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the last column becomes the row's sum of weights
    summed = _causal(q, k, value) if is_causal else q @ (k.transpose(-1, -2) @ value)
    return divide(summed[..., :-1], summed[..., -1:])


def _causal(q: Tensor, k: Tensor, value: Tensor) -> Tensor:
    """Σ_{j≤i} (q_i·k_j) v_j, a chunk of rows at a time: past chunks through their sum Σ k vᵀ, the own one directly."""
    outputs = []
    past = torch.zeros_like(k[..., :1, :].transpose(-1, -2) @ value[..., :1, :])  # (..., E, Ev + 1)
    for start in range(0, q.shape[-2], CHUNK):
        q_, k_, v_ = (t[..., start : start + CHUNK, :] for t in (q, k, value))
        outputs.append((q_ @ k_.transpose(-1, -2)).tril() @ v_ + q_ @ past)
        past = past + k_.transpose(-1, -2) @ v_
    return torch.cat(outputs, -2)
