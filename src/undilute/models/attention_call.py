"""What did one attention call of a model see?  Its logits and visible keys, for any few rows, as the model has them.

Everything a Hugging Face attention function is given: masks as bool, as numbers to add, as padding per batch (flash) or
left out because the call is causal; grouped heads; caches longer than the queries; soft caps, position biases and
learned sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from undilute.engine.call import check_whole_sequence
from undilute.errors import InvalidValue

IMPLEMENTATION = "undilute:"  # how the names of our own attention functions begin
GIVEN = ("query", "key", "value", "attention_mask")  # what every attention function is given first
UNREAD = ("indices", "block_indices", "cache")  # what else, apart from the mask, some functions choose keys by


def arguments(
    module: nn.Module, implementation: str, given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """What a model gave its attention function, in one form: query, key, value and mask in order, the rest by name.

    Each of the four may come in its place or by its name, and a missing mask is None. What comes after them must have
    its name, because attention functions do not agree on the order of scaling and dropout. A model that selects its
    keys (DeepSeek-V3.2) puts them into the mask for "eager" and "sdpa", but hands over their ``indices`` under any
    other name, ours among them; so that is done here.

    Parameters
    ----------
    module : the attention layer
    implementation : the model's own, as in :class:`AttentionCall`
    given, named : its arguments after the module

    Examples
    --------
    >>> arguments(nn.Identity(), "sdpa", ["q", "k", "v"], {"attention_mask": "m", "scaling": 2.0})
    (['q', 'k', 'v', 'm'], {'scaling': 2.0})
    """
    options = dict(named)
    if len(given) > len(GIVEN):
        raise InvalidValue(
            f"{type(module).__name__} gives its attention function {len(given)} positional arguments: must be "
            f"{', '.join(GIVEN)}, and the others by name, such as scaling = 0.125, or they cannot be told apart."
        )
    four = [*given, *(options.pop(name, None) for name in GIVEN[len(given) :])]
    if implementation in ("eager", "sdpa") or implementation.startswith(IMPLEMENTATION):
        if (selected := options.pop("indices", None)) is not None:
            four[3] = _narrowed(four[3], selected, four[1].shape[2])
        if options.get("block_indices") is not None:
            raise _unread(module, "block_indices")
    return four, options


def _narrowed(mask: Tensor, selected: Tensor, keys: int) -> Tensor:
    """A mask that shows no key but those of ``selected``, (batch, queries, number)."""
    hidden = torch.ones(*selected.shape[:2], keys, dtype=torch.bool, device=selected.device)
    hidden = hidden.scatter(-1, selected.long(), False)[:, None]
    return mask & ~hidden if mask.dtype == torch.bool else mask.masked_fill(hidden, torch.finfo(mask.dtype).min)


def _unread(module: nn.Module, option: str) -> InvalidValue:
    return InvalidValue(
        f"{type(module).__name__} chooses its keys by {option}, which cannot be read from outside: must be a model "
        "that hides keys only with a mask."
    )


@dataclass(eq=False)
class AttentionCall:
    """One call of an attention function.

    Attributes
    ----------
    module : the attention layer
    implementation : "sdpa", "eager", "flash_attention_2", "undilute:ssmax", …: it decides what a missing mask means
    query : (batch, heads, queries, features)
    key, value : (batch, key heads, keys, features)
    mask : None, (batch, 1 or heads, queries, keys) bool or to be added, or (batch, keys) padding
    options : whatever else the function was given
    is_cross : whether the keys are another text's than the queries' (``undilute.models.cross_attention``)
    """

    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]
    is_cross: bool = False

    def __post_init__(self) -> None:
        check_whole_sequence()
        if self.mask is not None and not isinstance(self.mask, Tensor):
            raise InvalidValue(
                f"attn_implementation = {self.implementation!r} hides its mask in a {type(self.mask).__name__}, which "
                "cannot be read: load the model with attn_implementation='sdpa'."
            )
        if option := next((name for name in UNREAD if self.options.get(name) is not None), None):
            raise _unread(self.module, option)

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @cached_property
    def keys(self) -> int:
        """Keys that count: a cache that is longer than what it holds is cut where torch's attention cuts it."""
        return self.queries if self._is_prefill_of_static_cache else self.key.shape[2]

    @cached_property
    def causal(self) -> bool:
        """Whether causality comes from a flag, because there is no mask that says so."""
        if self.implementation == "eager" or (self.mask is not None and self.mask.ndim == 4) or self.queries == 1:
            return False
        flag = self.options.get("is_causal")
        return bool(getattr(self.module, "is_causal", True) if flag is None else flag)

    @cached_property
    def offset(self) -> int:
        """Index of the first query's own key, if keys are its own; torch's flag counts from the first key otherwise."""
        if self.queries == self.keys or self._mask_of_rows is None:
            return self.keys - self.queries if self._is_flash else max(self.keys - self.queries, 0)
        seen = self._seen(self._mask_of_rows[:, :, -1]).flatten(0, -2).any(0).nonzero()
        last = int(seen[-1]) if len(seen) else self.keys - 1
        return last - (self.queries - 1)

    @cached_property
    def looks_ahead(self) -> bool:
        """Whether a query sees keys after its own: an encoder, or a decoder that looks at it."""
        if self.is_cross:
            return True
        if self.causal or self.queries == 1:
            return False
        if self._mask_of_rows is None:
            return True
        return bool(self._seen(self._mask_of_rows[:, :, 0, max(self.offset, 0) + 1 : self.keys]).any())

    @property
    def window(self) -> int | None:
        """How many keys back a query of this layer sees, if it is told."""
        window: int | None = self.options.get("sliding_window") or getattr(self.module, "sliding_window", None)
        return window

    def real(self, batch: int) -> Tensor:
        """(queries,) bool: queries that are no padding, because they see their own key; not of a cross-attention."""
        own = torch.arange(self.queries, device=self.query.device) + self.offset
        if self.mask is None:
            return torch.ones_like(own, dtype=torch.bool)
        if self.mask.ndim == 2:
            padding: Tensor = self.mask[batch].bool()
            return padding[own]
        assert self._mask_of_rows is not None
        mask = self._mask_of_rows[min(batch, self.mask.shape[0] - 1), 0]
        return self._seen(mask[torch.arange(self.queries, device=own.device), own.clamp(0, mask.shape[-1] - 1)])

    def position(self, batch: int, query: int) -> int | None:
        """The position that the model gives a query, if it is told: what a cache has dropped is counted too."""
        ids = self.options.get("position_ids")
        return int(ids[min(batch, ids.shape[0] - 1), query]) if isinstance(ids, Tensor) and ids.ndim == 2 else None

    def first_key(self, batch: int, query: Tensor) -> int:
        """Index of the sequence's first real token, where a sink would be; below 0 if a window's cache has dropped it.

        The first real query of a pass, (1,), sees that token, unless it continues a cache beyond its window.
        """
        position = None if self.is_cross else self.position(batch, int(query))
        if self.window and self.queries < self.keys and position is not None and position >= self.window:
            return int(query) + self.offset - position
        seen = self.visible(batch, query)
        return 0 if seen is None else int(seen.flatten(0, -2).any(0).int().argmax())

    def visible(self, batch: int, rows: Tensor, keys: int | None = None) -> Tensor | None:
        """Which keys some rows see: (rows, keys) or (heads, rows, keys) bool, None if all.

        Parameters
        ----------
        batch : index in the batch
        rows : (rows,), indices of queries
        keys : look at the first so many; at all of them by default
        """
        keys = self.keys if keys is None else keys
        seen: Tensor | None = None
        if self.mask is not None and self.mask.ndim == 2:
            seen = self.mask[batch, :keys].bool()[None].expand(len(rows), -1)
        elif self._mask_of_rows is not None:
            mask = self._seen(self._mask_of_rows[min(batch, self.mask.shape[0] - 1)][:, rows, :keys])
            seen = mask[0] if mask.shape[0] == 1 else mask
        if self.causal:
            behind = (rows + self.offset)[:, None] - torch.arange(keys, device=rows.device)
            near = behind >= 0
            if self.flag_window is not None:
                near = near & (behind < self.flag_window)
            seen = near if seen is None else seen & near
        return seen

    @property
    def flag_window(self) -> int | None:
        """The sliding window, where causality comes from a flag and no mask says how far back a query sees."""
        return self.options.get("sliding_window") or None if self.causal and self._is_flash else None

    @property
    def engine_mask(self) -> Tensor | None:
        """What hides keys or is added to the logits, as ``undilute.attention`` takes it; without the causal flag."""
        mask: Tensor | None = self.mask
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None, None, : self.keys].bool()
        elif mask is not None:
            mask = mask[..., : self.keys]
        bias: Tensor | None = self.options.get("position_bias")
        if bias is None:
            return mask
        bias = bias[..., : self.keys]
        if mask is None:
            return bias
        return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask

    def of_heads(self, heads: Sequence[int]) -> AttentionCall:
        """The same call for some of its query heads, each with the key head that it reads."""
        own = torch.tensor(heads, device=self.query.device)
        groups = self.query.shape[1] // self.key.shape[1]
        kept = {
            name: self.options[name].index_select(at, own)
            for name, at in (("s_aux", 0), ("position_bias", 1))
            if self.options.get(name) is not None and self.options[name].shape[at] > 1
        }
        per_head = self.mask is not None and self.mask.ndim == 4 and self.mask.shape[1] > 1
        return AttentionCall(
            self.module,
            self.implementation,
            self.query.index_select(1, own),
            self.key.index_select(1, own // groups),
            self.value.index_select(1, own // groups),
            self.mask.index_select(1, own) if per_head else self.mask,
            self.options | kept,
            self.is_cross,
        )

    def of_rows(self, rows: Tensor, batch: int | None = None) -> AttentionCall:
        """The same call for some of its queries, (rows,), of one sequence or of all; each sees the keys that it saw."""
        some = slice(None) if batch is None else slice(batch, batch + 1)

        def cut(given: Tensor) -> Tensor:  # (batch or 1, heads or 1, queries or 1, keys)
            own = given[some] if given.shape[0] > 1 else given
            return (own.index_select(2, rows) if own.shape[2] > 1 else own)[..., : self.keys]

        mask = self.mask
        if mask is not None and mask.ndim == 4:
            mask = cut(mask)
        else:  # what a flag says of all queries has to be said for these
            each = range(len(self.query))[some] if mask is not None else [0]
            every = torch.ones(len(rows), self.keys, dtype=torch.bool, device=rows.device)
            seen = [self.visible(index, rows) for index in each]
            mask = torch.stack([every if one is None else one for one in seen])[:, None]
        own = {}
        if isinstance(bias := self.options.get("position_bias"), Tensor):
            own["position_bias"] = cut(bias)
        if isinstance(ids := self.options.get("position_ids"), Tensor) and ids.ndim == 2:
            own["position_ids"] = (ids[some] if ids.shape[0] > 1 else ids)[:, rows]
        query = self.query[some].index_select(2, rows)
        key, value = self.key[some, :, : self.keys], self.value[some, :, : self.keys]
        return AttentionCall(
            self.module, self.implementation, query, key, value, mask, self.options | own, self.is_cross
        )

    def logits(self, batch: int, rows: Tensor, keys: int | None = None) -> Tensor:
        """The logits of some rows, (heads, rows, keys), anything where hidden; as :meth:`visible` is asked."""
        keys = self.keys if keys is None else keys
        q, k = self.full(self.query[batch][:, rows]) * self.scale, self.full(self.key[batch][:, :keys])
        heads, count, features = q.shape
        z = (q.reshape(k.shape[0], -1, features) @ k.transpose(-1, -2)).view(heads, count, keys)
        softcap = self.options.get("softcap")
        if softcap is not None:
            z = torch.tanh(z / softcap) * softcap
        bias = self.bias(batch, rows, keys)
        return z if bias is None else z + bias

    def bias(self, batch: int, rows: Tensor, keys: int) -> Tensor | None:
        """What the mask adds to the logits, apart from hiding keys: (1 or heads, rows, keys), or None."""
        added: Tensor | None = self.options.get("position_bias")
        if added is not None:
            added = self.full(added[min(batch, added.shape[0] - 1)][:, rows, :keys])
        if self._mask_of_rows is not None and self.mask.dtype != torch.bool:
            mask = self._mask_of_rows[min(batch, self.mask.shape[0] - 1)][:, rows, :keys]
            shown = self.full(mask.masked_fill(~self._seen(mask), 0.0))
            if shown.any():
                added = shown if added is None else added + shown
        return added

    def reach(self, batch: int, rows: Tensor, keys: int, visible: Tensor | None) -> Tensor | None:
        """(heads, rows): ‖q‖·max‖k‖·scale over the keys that each row sees; None if a bias is added."""
        if self.bias(batch, rows, keys) is not None or (visible is not None and visible.ndim == 3):
            return None
        lengths = self._key_lengths[batch, :, None, :keys]  # (key heads, 1, keys)
        longest = (lengths if visible is None else lengths * visible).amax(-1)
        groups = self.query.shape[1] // longest.shape[0]
        reach: Tensor = self.full(self.query[batch][:, rows]).norm(dim=-1) * longest.repeat_interleave(groups, 0)
        return reach * self.scale

    @cached_property
    def _key_lengths(self) -> Tensor:
        """(batch, key heads, keys): ‖k‖."""
        return torch.stack([self.full(each).norm(dim=-1) for each in self.key])

    @property
    def outside(self) -> Tensor | None:
        """(heads, 1): the logit of a learned sink that is no key, as gpt-oss has it."""
        sink: Tensor | None = self.options.get("s_aux")
        return None if sink is None else self.full(sink.reshape(-1, 1))

    @property
    def dropout(self) -> float:
        """The share of weights to drop."""
        return float(self.options.get("dropout") or 0.0)

    @property
    def scale(self) -> float:
        scaling = self.options.get("scaling")
        return float(self.query.shape[-1] ** -0.5 if scaling is None else scaling)

    @staticmethod
    def full(t: Tensor) -> Tensor:
        """At least single precision: half-precision logits would not tell close keys apart."""
        return t if t.dtype == torch.float64 else t.float()

    @staticmethod
    def _seen(mask: Tensor) -> Tensor:
        """What a mask shows: bool masks say so; in masks to be added, the lowest number or −∞ hides."""
        return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2

    @cached_property
    def _mask_of_rows(self) -> Tensor | None:
        """A mask of four dimensions with a row for each query, also if it came with one for all; None if there is none.

        The engine is given the mask as it came: one row for all queries is faster.
        """
        if self.mask is None or self.mask.ndim == 2:
            return None
        mask: Tensor = self.mask
        return mask.expand(-1, -1, self.queries, -1) if mask.shape[2] == 1 else mask

    @property
    def _is_prefill_of_static_cache(self) -> bool:
        return self.mask is None and self.causal and self.key.shape[2] > self.queries and not self._is_flash

    @property
    def _is_flash(self) -> bool:
        return "flash" in self.implementation and ":" not in self.implementation
