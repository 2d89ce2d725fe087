"""``undilute.attention``: torch's scaled_dot_product_attention with a choice of rule."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from undilute.engine.call import prepare
from undilute.engine.routes.choose import Route, choose, run
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.registry import get


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
    softcap: float | None = None,
    n: int | Tensor | None = None,
    key_offset: int = 0,
    return_lse: Literal[False] = False,
    return_entropy: Literal[False] = False,
    route: str | None = None,
) -> Tensor: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
    softcap: float | None = None,
    n: int | Tensor | None = None,
    key_offset: int = 0,
    return_lse: Literal[False] = False,
    return_entropy: Literal[True],
    route: str | None = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
    softcap: float | None = None,
    n: int | Tensor | None = None,
    key_offset: int = 0,
    return_lse: Literal[True],
    return_entropy: Literal[False] = False,
    route: str | None = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
    softcap: float | None = None,
    n: int | Tensor | None = None,
    key_offset: int = 0,
    return_lse: Literal[True],
    return_entropy: Literal[True],
    route: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
    softcap: float | None = None,
    n: int | Tensor | None = None,
    key_offset: int = 0,
    return_lse: bool = False,
    return_entropy: bool = False,
    route: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention with any rule; with ``rule="softmax"`` the same as ``F.scaled_dot_product_attention``.

    The logits of a row are z = scale · q·k (+ bias), and its weights are rule(z). Wherever a rule uses n, it is the
    number of keys that row can see after every mask.

    Parameters
    ----------
    query : (..., Hq, L, E)
    key : (..., H, S, E)
    value : (..., H, S, Ev)
    attn_mask : broadcastable to (..., Hq, L, S). Boolean: True = visible. Floating-point: added to the logits, where
        −inf (or the dtype's lowest number, as Hugging Face writes it) hides a key; a milder number such as −1e9 gives
        it no weight but leaves it in n, so avoid that with rules that use n. Also accepts
        ``torch.nn.attention.bias.causal_upper_left`` / ``causal_lower_right``; the latter is what a step with a KV
        cache needs.
    dropout_p : share of weights to drop; as in torch, applied whenever it is above 0
    is_causal : row i sees keys 0 … i (aligned to the upper left if L ≠ S, as in torch); not together with attn_mask
    scale : of the dot products; None = 1/√E
    enable_gqa : let Hq be a multiple of H; query head h uses key head h // (Hq/H)
    rule : a name (``undilute.rules.names()``), a Rule, a Map or a Scale
    sliding_window : row i sees only keys less than this many positions away, itself included
    softcap : c > 0 replaces the logits z by c·tanh(z/c) before a floating-point ``attn_mask`` is added, as in Gemma 2
    n : the n of each row, if it is not the number of keys the row sees, because these keys are part of a longer
        sequence. A whole number, or a tensor of whole numbers that broadcasts to (..., Hq, L). Refused by rules that
        need n outside their scale, or that read the row's entropy.
    key_offset : position of the first key, counted from the first query; matters for ``is_causal`` and
        ``sliding_window``. For keys from position 4,096 on, 4096; for queries from there on against all keys, −4096.
    return_lse : also return log Σe^z of each row, where z are its scaled logits over the keys it sees, without any
        sink; −inf for a row that sees nothing. Softmax-like rules only. Use it to merge parts of the keys: with n
        given, out = Σ out_i·e^(lse_i − lse), lse = log Σ e^lse_i.
    return_entropy : also return the entropy of each row's weights, in nats
    route : None to choose automatically (``undilute.explain`` says which), or "flash", "sdpa", "sparse", "rows",
        "reference"

    Returns
    -------
    The output (..., Hq, L, Ev), followed by log-sum-exp and entropy if asked for, both (..., Hq, L). A row that sees no
    key is all zeros (even where torch, given the dtype's lowest number throughout a row, would average everything). A
    hidden key may hold anything, even NaN: it reaches neither output nor gradients. NaN in the *value* of a hidden key
    may spread, as in torch. On the sdpa route so may NaN in the key itself: fill padding with numbers.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> q, k, v = torch.randn(3, 1, 8, 128, 64).unbind()
    >>> out, entropy = ud.attention(q, k, v, rule="entmax15", is_causal=True, return_entropy=True)
    >>> out.shape, entropy.shape
    (torch.Size([1, 8, 128, 64]), torch.Size([1, 8, 128]))
    """
    call = prepare(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
        rule=get(rule),
        sliding_window=sliding_window,
        softcap=softcap,
        n=n,
        key_offset=key_offset,
        return_lse=return_lse,
        return_entropy=return_entropy,
    )
    output, *asked_for = run(call, route)
    more = [each for each in asked_for if each is not None]
    return (output, *more) if more else output


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
    softcap: float | None = None,
    n: int | Tensor | None = None,
    key_offset: int = 0,
    return_lse: bool = False,
    return_entropy: bool = False,
    route: str | None = None,
) -> Route:
    """Which route ``undilute.attention`` would take for these arguments, and why; nothing is computed.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> q = torch.randn(1, 8, 1024, 64)
    >>> print(ud.explain(q, q, q, rule="ssmax", is_causal=True))
    flash: softmax-like, on PyTorch's own kernel
    """
    call = prepare(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
        rule=get(rule),
        sliding_window=sliding_window,
        softcap=softcap,
        n=n,
        key_offset=key_offset,
        return_lse=return_lse,
        return_entropy=return_entropy,
    )
    return choose(call, route)
