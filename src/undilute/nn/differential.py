"""The differential transformer's attention layer, versions 1 and 2 (arXiv:2410.05258 and its authors' follow-up).

Version 1: two half-width attentions share values of double width; λ = exp(λq₁·λk₁) − exp(λq₂·λk₂) + λ_init with
λ_init = 0.8 − 0.6·e^(−0.3·depth); each head's output goes through RMSNorm and is multiplied by 1 − λ_init.
Version 2: twice the query heads over the same keys and values; output o¹ − σ(W_λ x)·o², no norm.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from undilute.errors import InvalidValue
from undilute.nn.heads import check_heads, check_input, merge_heads, split_heads
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.parameters import flag
from undilute.rules.registry import get, learnable
from undilute.structures.differential import differential, initial_lambda


class DifferentialAttention(nn.Module):
    """Differential self-attention with any rule.

    Parameters
    ----------
    embed_dim, num_heads, num_kv_heads, rule, is_causal, bias : as in ``undilute.nn.Attention``
    depth : the layer's index from 0, which sets version 1's λ_init
    version : 1 or 2

    Examples
    --------
    >>> import torch, undilute as ud
    >>> layer = ud.nn.DifferentialAttention(64, 4, depth=0, is_causal=True)
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        depth: int,
        *,
        version: Literal[1, 2] = 1,
        num_kv_heads: int | None = None,
        rule: str | Rule | Map | Scale = "softmax",
        is_causal: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if version not in (1, 2):
            raise InvalidValue(f"version = {version!r}: must be 1 or 2.")
        self.num_heads = num_heads
        self.num_kv_heads = check_heads(embed_dim, num_heads, num_kv_heads)
        self.version = version
        self.is_causal = flag("is_causal", is_causal)
        width = embed_dim // num_heads
        if version == 1 and width % 2:
            raise InvalidValue(f"embed_dim / num_heads = {width}: version 1 halves it, so it must be even.")
        self.q_proj = nn.Linear(embed_dim, embed_dim * version, bias=bias)
        self.k_proj = nn.Linear(embed_dim, width * self.num_kv_heads, bias=bias)
        self.v_proj = nn.Linear(embed_dim, width * self.num_kv_heads, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.rule = learnable(rule, embed_dim, num_heads) if isinstance(rule, str) else get(rule)
        if version == 1:
            self.lambda_init = initial_lambda(depth)
            self.lambda_vectors = nn.Parameter(torch.randn(2, 2, width // 2) * 0.1)  # (pair, q or k, features)
            self.norm = nn.RMSNorm(width, eps=1e-5)
        else:
            self.lambda_proj = nn.Linear(embed_dim, num_heads, bias=bias)

    def forward(self, x: Tensor, *, attn_mask: Tensor | None = None) -> Tensor:
        """(batch, length, embed_dim) → (batch, length, embed_dim); ``attn_mask`` as in ``undilute.nn.Attention``."""
        check_input("x", x, self.q_proj.in_features)
        if self.is_causal and attn_mask is not None:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            hidden = -torch.inf if attn_mask.is_floating_point() else False
            attn_mask = attn_mask.masked_fill(future, hidden)
        q = split_heads(self.q_proj(x), 2 * self.num_heads)
        k = split_heads(self.k_proj(x), self.num_kv_heads * (2 if self.version == 1 else 1))
        v = split_heads(self.v_proj(x), self.num_kv_heads)
        pairs = (k[:, 0::2], k[:, 1::2]) if self.version == 1 else (k, k)
        out = differential(
            q[:, 0::2],
            pairs[0],
            q[:, 1::2],
            pairs[1],
            v,
            self.lam(x),
            rule=self.rule.on(x),
            attn_mask=attn_mask,
            is_causal=self.is_causal and attn_mask is None,
            enable_gqa=True,
        )
        if self.version == 1:
            out = self.norm(out) * (1 - self.lambda_init)
        y: Tensor = self.out_proj(merge_heads(out))
        return y

    def lam(self, x: Tensor) -> Tensor:
        """λ: one number in version 1, (batch, heads, length, 1) in version 2."""
        if self.version == 1:
            dots = self.lambda_vectors.prod(dim=1).sum(-1)  # λq·λk of each pair
            return dots[0].exp() - dots[1].exp() + self.lambda_init
        return torch.sigmoid(self.lambda_proj(x)).transpose(1, 2)[..., None]
