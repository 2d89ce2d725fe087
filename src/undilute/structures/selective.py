"""Can a token tell the others what to forget?  Selective attention: weights(z − F), F the sum of past "forget" votes.

Leviathan et al. 2024, arXiv:2410.02703. With S = relu(logits of head 0), zero on the diagonal and for the first token,
F_{i,j} = Σ_{m<i} S_{m,j}: how much tokens before i voted to mask token j. All heads share F. Causal by nature.

F is never built: blocks of rows go by, and only the running sum over the rows before a block is carried on. The
backward pass computes each block again from the sum it started with.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from undilute.engine.call import Call, prepare
from undilute.engine.routes import rows as rows_route
from undilute.engine.routes.choose import run
from undilute.errors import InvalidTensor
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.masked import working_dtype
from undilute.rules.registry import get


class SelectiveState:
    """The votes cast so far, for decoding with a KV cache: pass the same one to every step.

    Examples
    --------
    >>> import torch, undilute as ud
    >>> q, k, v = torch.randn(3, 1, 4, 10, 16).unbind()
    >>> state = ud.structures.SelectiveState()
    >>> steps = [ud.structures.selective(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], state=state)
    ...          for i in range(10)]
    >>> torch.allclose(torch.cat(steps, 2), ud.structures.selective(q, k, v), atol=1e-5)
    True
    """

    def __init__(self) -> None:
        self.penalty: Tensor | None = None  # (..., keys so far)

    def extended(self, votes_shape: tuple[int, ...], keys: int, like: Tensor) -> Tensor:
        """The penalty of ``keys`` keys, those not seen before at 0."""
        if self.penalty is None:
            return like.new_zeros(*votes_shape, keys, dtype=working_dtype(like.dtype))
        if self.penalty.shape[:-1] != votes_shape or self.penalty.shape[-1] > keys:
            raise InvalidTensor(
                f"the state holds votes of shape {tuple(self.penalty.shape)}, this step has {(*votes_shape, keys)}: "
                "use a new SelectiveState for another batch."
            )
        return torch.nn.functional.pad(self.penalty, (0, keys - self.penalty.shape[-1]))


def selective(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    rule: str | Rule | Map | Scale = "softmax",
    sliding_window: int | None = None,
    state: SelectiveState | None = None,
) -> Tensor:
    """Causal selective self-attention in linear memory.

    Parameters
    ----------
    query : (..., Hq, L, E); head 0 casts the votes
    key, value : (..., H, S, E) and (..., H, S, Ev); S = L, or with ``state`` all keys so far, the L newest included
    attn_mask : as in ``undilute.attention``, on top of the causal mask; a hidden key gets no votes and casts none
    scale, enable_gqa, rule, sliding_window : as in ``undilute.attention``
    state : votes of earlier steps, updated by this one

    Returns
    -------
    (..., Hq, L, Ev)

    Examples
    --------
    >>> import torch, undilute as ud
    >>> q, k, v = torch.randn(3, 1, 4, 10, 16).unbind()
    >>> ud.structures.selective(q, k, v).shape
    torch.Size([1, 4, 10, 16])
    """
    call = prepare(
        query,
        key,
        value,
        attn_mask,
        scale=scale,
        enable_gqa=enable_gqa,
        rule=get(rule),
        sliding_window=sliding_window,
        past=max(0, key.shape[-2] - query.shape[-2]),
    )
    if query.dim() < 3 or query.shape[-2] > key.shape[-2] or (state is None and query.shape[-2] != key.shape[-2]):
        raise InvalidTensor(
            f"query {tuple(query.shape)} and key {tuple(key.shape)}: selective attention is causal self-attention and "
            "needs shapes (..., heads, length, features) of one length, or a state of the tokens before."
        )
    penalty = (state or SelectiveState()).extended(tuple(call.logits_shape[:-3]), call.keys, call.query)
    outputs = []
    for block in rows_route.block_slices(call):
        output, penalty = _checkpointed(call, block, penalty)
        outputs.append(output)
    if state is not None:
        state.penalty = penalty.detach()
    return torch.cat(outputs, -2)


def _checkpointed(call: Call, rows: slice, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """A block of rows; what it computes on the way is computed again in the backward pass, not kept."""
    if not torch.is_grad_enabled():
        return _block(call, rows, penalty)
    from torch.utils.checkpoint import checkpoint

    made: tuple[Tensor, Tensor] = checkpoint(_block, call, rows, penalty, use_reentrant=False)
    return made


def _block(call: Call, rows: slice, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """Output of some rows, given the votes cast before them, and the votes cast with them."""
    dtype = working_dtype(call.query.dtype)
    logits = call.query[..., 0, rows, :].to(dtype) @ call.key[..., 0, :, :].to(dtype).transpose(-1, -2) * call.scale
    votes = _votes(logits, _of_head_0(call.mask), rows, call.offset)
    bias = -(penalty[..., None, :] + votes.cumsum(-2) - votes)[..., None, :, :]  # before each row: (..., 1, rows, S)
    bias = bias if call.bias is None else bias + _rows_of(call.bias, rows)
    whole = replace(
        call,
        query=call.query[..., rows, :],
        rule=call.rule.for_rows(rows, call.queries),
        mask=None if call.mask is None else _rows_of(call.mask, rows),
        bias=bias,
        offset=call.offset + rows.start,
        logits_shape=torch.Size((*call.logits_shape[:-2], rows.stop - rows.start, call.keys)),
    )
    return run(whole).output, penalty + votes.sum(-2)


def _votes(logits: Tensor, seen: Tensor | None, rows: slice, offset: int) -> Tensor:
    """relu of the voting head's logits (..., rows, S) where a vote counts, else 0.

    Nobody votes on itself, on what comes later, on what it cannot see, or on the first token; a token that padding
    hides from everyone casts no vote either, and the first token is the first one that is not hidden.
    """
    keys = torch.arange(logits.shape[-1], device=logits.device)
    position = torch.arange(rows.start, rows.stop, device=logits.device)[:, None] + offset
    first = torch.zeros((), dtype=torch.long, device=logits.device)
    if seen is not None:
        seen = seen.expand(*seen.shape[:-1], len(keys))
        if seen.dim() < 2 or seen.shape[-2] == 1:
            present = seen if seen.dim() < 2 else seen[..., 0, :]
            logits = logits.masked_fill(~present[..., rows.start + offset : rows.stop + offset, None], 0.0)
            first = present.int().argmax(-1, keepdim=True)[..., None]
        logits = logits.masked_fill(~_rows_of(seen, rows), 0.0)
    return logits.relu() * ((keys < position) & (keys != first))


def _rows_of(t: Tensor, rows: slice) -> Tensor:
    return t[..., rows, :] if t.dim() > 1 and t.shape[-2] > 1 else t


def _of_head_0(mask: Tensor | None) -> Tensor | None:
    """The mask (..., 1 or H, 1 or L, S) as head 0 has it, (..., 1 or L, S)."""
    return mask[..., 0, :, :] if mask is not None and mask.dim() > 2 else mask
