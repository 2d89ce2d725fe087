"""Does attention without softmax escape dilution?  Not if it is normalised: φ(q)·φ(k) / Σ φ(q)·φ(k) dilutes like 1/n.

Katharopoulos et al. 2020, arXiv:2006.16236, φ(x) = elu(x) + 1. Kept as the baseline: linear time, the same dilution (a
token scoring 3 against competitors scoring 1 gets 3/(n + 2)).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from undilute.engine.call import check_tensors, check_whole_sequence
from undilute.errors import InvalidTensor
from undilute.rules.masked import divide, working_dtype
from undilute.rules.parameters import flag

CHUNK = 128


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1 = x + 1 for x > 0, e^x below: written so that it stays positive however small e^x is."""
    return torch.where(x > 0, x + 1, x.clamp(max=0.0).exp())


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
    is_causal = flag("is_causal", is_causal)
    check_tensors(query, key, value)
    check_whole_sequence()
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise InvalidTensor(f"lengths {query.shape[-2]} and {key.shape[-2]}: causal linear attention needs them equal.")
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape[-1] != key.shape[-2]):
        raise InvalidTensor(
            f"key_mask is {key_mask.dtype} of shape {tuple(key_mask.shape)}: must be bool, (..., {key.shape[-2]})."
        )
    dtype = working_dtype(query.dtype)  # a sum of thousands of features overflows float16
    q, k, v = feature_map(query.to(dtype)), feature_map(key.to(dtype)), value.to(dtype)
    if key_mask is not None:
        k = k.masked_fill(~key_mask[..., None], 0.0)
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the last column becomes the row's sum of weights
    summed = _causal(q, k, v) if is_causal else q @ (k.transpose(-1, -2) @ v)
    return divide(summed[..., :-1], summed[..., -1:]).to(query.dtype)


def _causal(q: Tensor, k: Tensor, value: Tensor) -> Tensor:
    """Σ_{j≤i} (q_i·k_j) v_j, a chunk of rows at a time: past chunks through their sum Σ k vᵀ, the own one directly."""
    outputs = []
    past = torch.zeros_like(k[..., :1, :].transpose(-1, -2) @ value[..., :1, :])  # (..., E, Ev + 1)
    for start in range(0, max(1, q.shape[-2]), CHUNK):
        q_, k_, v_ = (t[..., start : start + CHUNK, :] for t in (q, k, value))
        outputs.append((q_ @ k_.transpose(-1, -2)).tril() @ v_ + q_ @ past)
        past = past + k_.transpose(-1, -2) @ v_
    return torch.cat(outputs, -2)
