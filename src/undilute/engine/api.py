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
    return_entropy: Literal[True],
    route: str | None = None,
) -> tuple[Tensor, Tensor]: ...


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
    return_entropy: bool = False,
    route: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with any rule; with ``rule="softmax"`` the same as ``F.scaled_dot_product_attention``.

    The logits of a row are z = scale · q·k (+ bias); its weights are rule(z); n, wherever a rule uses it, is the
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
    return_entropy : also return the entropy of each row's weights, in nats
    route : None to choose by itself (``undilute.explain`` says which), or "flash", "sparse", "rows", "reference"

    Returns
    -------
    (..., Hq, L, Ev), and with ``return_entropy`` the entropies (..., Hq, L). A row that sees no key is all zeros (also
    where torch, given the dtype's lowest number throughout a row, would average everything). A hidden key may hold
    anything, NaN too: it reaches neither output nor gradients. NaN in the *value* of a hidden key may spread, as in
    torch: fill padding with numbers.

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
        return_entropy=return_entropy,
    )
    output, entropy = run(call, route)
    return output if entropy is None else (output, entropy)


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
        return_entropy=return_entropy,
    )
    return choose(call, route)
