"""The keys and values a decoder has already seen, so that a step computes only what is new."""

from __future__ import annotations

import torch
from torch import Tensor

from undilute.errors import InvalidTensor


class KVCache:
    """Keys and values of one layer, growing by concatenation.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> layer = ud.nn.Attention(32, 4, is_causal=True)
    >>> cache = ud.nn.KVCache()
    >>> for token in torch.randn(1, 5, 32).split(1, dim=1):
    ...     out = layer(token, cache=cache)
    >>> len(cache)
    5
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # (batch, kv_heads, length, head_dim)
        self.values: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new keys and values and return all of them."""
        if self.keys is not None and self.values is not None:
            if keys.shape[:2] != self.keys.shape[:2] or keys.shape[-1] != self.keys.shape[-1]:
                raise InvalidTensor(
                    f"new keys have shape {tuple(keys.shape)}, the cache holds {tuple(self.keys.shape)}: "
                    "batch, heads and features must stay the same; use a new KVCache for another batch."
                )
            keys = torch.cat([self.keys, keys], dim=-2)
            values = torch.cat([self.values, values], dim=-2)
        self.keys, self.values = keys, values
        return keys, values
