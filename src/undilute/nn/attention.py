"""A trainable attention layer with any rule: self or cross, GQA, causal, windows, KV cache, your own positions."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from undilute.engine.call import prepare, probability
from undilute.engine.routes.choose import run
from undilute.errors import InvalidValue
from undilute.nn.cache import KVCache
from undilute.nn.heads import check_heads, check_input, merge_heads, split_heads
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.parameters import count, flag
from undilute.rules.registry import get, learnable

Rotate = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Multi-head attention whose rule is a parameter.

    Parameters
    ----------
    embed_dim : features of the input and the output
    num_heads : query heads
    num_kv_heads : key and value heads (GQA); default num_heads
    context_dim : features of the context in cross-attention; default embed_dim
    rule : a name gives the preset's trainable form, with learned parameters per head where its paper learns them
        ("ssmax", "sink", "entmax", "as-entmax", "temperature"); a Rule, Map or Scale is used as it is
    is_causal : does a query see only keys up to its own position?
    sliding_window : see ``undilute.attention``
    dropout : share of attention weights dropped in training
    bias : do the projections have biases?
    rotate : ``(q, k, offset) → (q, k)``, your positions: called on q (B, heads, L, d) and k (B, kv_heads, S, d) before
        attention; ``offset`` is the position of the first of them (the cache's length)

    Examples
    --------
    >>> import torch, undilute as ud
    >>> layer = ud.nn.Attention(embed_dim=64, num_heads=8, rule="ssmax", is_causal=True)
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    >>> layer.rule.scale.s.shape  # one learned scale per head
    torch.Size([8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        context_dim: int | None = None,
        rule: str | Rule | Map | Scale = "softmax",
        is_causal: bool = False,
        sliding_window: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        rotate: Rotate | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = check_heads(embed_dim, num_heads, num_kv_heads)
        kv_dim = embed_dim // num_heads * self.num_kv_heads
        context_dim = embed_dim if context_dim is None else context_dim
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(context_dim, kv_dim, bias=bias)
        self.v_proj = nn.Linear(context_dim, kv_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.rule = learnable(rule, embed_dim, num_heads) if isinstance(rule, str) else get(rule)
        self.is_causal = flag("is_causal", is_causal)
        self.sliding_window = None if sliding_window is None else count("sliding_window", sliding_window)
        self.dropout = probability("dropout", dropout)
        self.rotate = rotate

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Attend from ``x`` to itself or to ``context``.

        Parameters
        ----------
        x : (batch, queries, embed_dim)
        context : (batch, keys, context_dim) for cross-attention
        attn_mask : as in ``undilute.attention``, broadcastable to (batch, heads, queries, all keys); in a causal
            layer it is combined with the causal mask, so key padding is all you need to give
        cache : keys and values of earlier calls, extended by this one; causal layers only

        Returns
        -------
        (batch, queries, embed_dim)
        """
        check_input("x", x, self.q_proj.in_features)
        if context is not None:
            check_input("context", context, self.k_proj.in_features)
        if cache is not None and (not self.is_causal or context is not None):
            raise InvalidValue("cache goes with causal self-attention only: is_causal = True and no context.")
        if self.is_causal and context is not None:
            raise InvalidValue("context goes with is_causal = False: positions of two sequences have no order.")
        source = x if context is None else context
        q = split_heads(self.q_proj(x), self.num_heads)  # (B, H, L, d)
        k = split_heads(self.k_proj(source), self.num_kv_heads)  # (B, Hkv, S, d)
        v = split_heads(self.v_proj(source), self.num_kv_heads)
        if self.rotate is not None:
            q, k = self.rotate(q, k, 0 if cache is None else len(cache))
        if cache is not None:
            k, v = cache.append(k, v)
        call = prepare(
            q,
            k,
            v,
            attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=True,
            rule=self.rule.on(x),
            sliding_window=self.sliding_window,
            past=k.shape[-2] - q.shape[-2] if self.is_causal else None,
        )
        y: Tensor = self.out_proj(merge_heads(run(call).output))
        return y
