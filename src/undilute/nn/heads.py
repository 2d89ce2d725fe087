"""Between (batch, length, heads · features) and (batch, heads, length, features)."""

from __future__ import annotations

from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules.parameters import count


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, heads · d) → (B, heads, L, d)"""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, L, d) → (B, L, heads · d)"""
    return x.transpose(1, 2).flatten(-2)


def check_input(name: str, x: Tensor, features: int) -> None:
    """Refuse what is not (batch, length, features)."""
    if x.dim() != 3 or x.shape[-1] != features:
        raise InvalidTensor(f"{name} has shape {tuple(x.shape)}: must be (batch, length, {features}).")


def check_heads(embed_dim: int, num_heads: int, num_kv_heads: int | None) -> int:
    """The number of key heads, once all three numbers fit together."""
    count("embed_dim", embed_dim)
    count("num_heads", num_heads)
    kv_heads = num_heads if num_kv_heads is None else count("num_kv_heads", num_kv_heads)
    if embed_dim % num_heads:
        raise InvalidValue(f"embed_dim = {embed_dim} and num_heads = {num_heads}: embed_dim must be a multiple.")
    if num_heads % kv_heads:
        raise InvalidValue(f"num_heads = {num_heads} and num_kv_heads = {kv_heads}: num_heads must be a multiple.")
    return kv_heads
