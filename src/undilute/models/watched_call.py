"""What is known about an attention call while a model runs?  Its layer, its output, its rules, any of its rows.

Everything is computed on demand, and only for the rows asked for: nothing is as large as n × n.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute.errors import InvalidValue
from undilute.measures.attention_rows import Rows, Settings
from undilute.models.attention_call import AttentionCall
from undilute.models.head_rules import HeadRules
from undilute.models.passes import Run
from undilute.models.question_rows import question_rows, told


class Queries(NamedTuple):
    """The queries of one sequence: indices of those that are no padding, and the position of the one with index 0."""

    real: Tensor
    start: int


@dataclass(eq=False, kw_only=True, repr=False)
class WatchedCall(AttentionCall):
    """An attention call of a model that is watched (:func:`undilute.watch`).

    Attributes
    ----------
    run : the module's name in the model, and how often it ran before in this pass (``undilute.models.passes``)
    is_repeat : whether these rows were there before: DiffLlama attends twice with the same queries and keys, and
        gradient checkpointing computes a call again on the way back
    output : (batch, queries, heads, features), what the model's own attention made of it
    rules : those that made the weights of its heads; None if the model's own softmax did
    input : (batch, queries, features): the hidden states that the layer was given; None if it was given none
    before : of a cross-attention, the latest self-attention of the same decoder, without its vectors
    questions : how many of its queries are a question's, if it is known (``undilute.models.question_rows``)
    """

    run: Run
    is_repeat: bool
    output: Tensor
    rules: HeadRules | None
    input: Tensor | None
    before: WatchedCall | None
    questions: int | None = field(default_factory=told)

    @property
    def layer(self) -> str:
        """The name of the attention module in the model."""
        return self.run.module

    @property
    def versions(self) -> list[int]:
        """How often each of its tensors was changed in place; those of inference mode do not count that."""
        tensors = (self.query, self.key, self.value, self.mask, self.output)
        return [each._version for each in tensors if isinstance(each, Tensor) and not each.is_inference()]

    @cached_property
    def sequences(self) -> list[Queries]:
        """The queries of each sequence of the batch.

        A cross-attention cannot say which of its queries are padding, because no key is their own; the self-attention
        before it can. Without one, all are real.
        """
        batch, _, count, _ = self.query.shape
        if not self.is_cross:
            return [self._own_queries(each) for each in range(batch)]
        if self.before is not None and (self.before.query.shape[0], self.before.queries) == (batch, count):
            return self.before.sequences
        return [Queries(torch.arange(count, device=self.query.device), 0)] * batch

    def weights(self, batch: int, rows: Tensor) -> Tensor:
        """The weights of some rows, (heads, rows, keys), in single precision at least; 0 where hidden.

        Those of the layer's rules if it has any, in the rows that they act on. A head's gain is no part of them: the
        output is ``gains_of(batch, rows)`` · (weights @ values). Rows sum to 1, or to less with a learned sink that is
        no key, or to whatever a rule hands out; weights of either sign (SA-Softmax) are given by their magnitude.

        Parameters
        ----------
        batch : index in the batch
        rows : (rows,), indices of queries
        """
        found = self.block(batch, rows)
        weights = found.weights if found.visible is None else found.weights * found.visible
        return F.pad(weights, (0, self.keys - weights.shape[-1]))

    def block(self, batch: int, rows: Tensor, *, x: Tensor | None = None, settings: Settings | None = None) -> Rows:
        """Some rows as measures take them, without the keys that come after the last row's own.

        Parameters
        ----------
        batch : index in the batch
        rows : (rows,), indices of queries
        x : (1 or key heads, keys, features), what the weights select from
        settings : what the measures count
        """
        self._check_rows(rows)
        own = rows + self.offset
        keys = self.keys if self.looks_ahead else min(self.keys, int(own.max()) + 1)
        visible = self.visible(batch, rows, keys)
        if visible is not None and bool(visible.all()):
            visible = None
        logits, reach, used = self.logits(batch, rows, keys), self.reach(batch, rows, keys, visible), None
        if self.rules is not None:
            (logits, used) = self.rules.weigh(logits, visible, self._treated(batch, rows))
            reach = None  # the bound knows no scale but the model's
        return Rows(
            logits,
            visible,
            None if self.is_cross else own,
            first=self.first_token(batch),
            outside=self.outside,
            reach=reach,
            x=None if x is None else x[:, :keys],
            settings=settings or Settings(),
            used=used,
        )

    @property
    def gains(self) -> Tensor | None:
        """(heads,): what multiplies the output of each head, in rows that its rules act on; None if nothing does."""
        return None if self.rules is None else self.rules.gains

    def gains_of(self, batch: int, rows: Tensor) -> Tensor:
        """What multiplies the outputs of some rows, (heads, rows); 1 where nothing does.

        Parameters
        ----------
        batch : index in the batch
        rows : (rows,), indices of queries
        """
        self._check_rows(rows)
        gains, treated = self.gains, self._treated(batch, rows)
        if gains is None:
            return torch.ones(self.query.shape[1], len(rows), device=self.query.device)
        every = gains[:, None].expand(-1, len(rows))
        return every if treated is None else torch.where(treated, every, torch.ones_like(every))

    def _treated(self, batch: int, rows: Tensor) -> Tensor | None:
        """(rows,) bool: which of some rows the layer's rules act on; None if on all."""
        if self.rules is None or self.rules.rows == "all" or self._question_rows is None:
            return None
        return torch.isin(rows, self._question_rows[batch])

    @cached_property
    def _question_rows(self) -> list[Tensor] | None:
        return question_rows(self, self.questions)

    def _check_rows(self, rows: Tensor) -> None:
        """Refuse what would be taken for another row, or see no key: −1 is not the last row."""
        if not isinstance(rows, Tensor) or rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise InvalidValue("rows: must be a tensor of whole numbers, (rows,), such as torch.tensor([0, 9]).")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.queries:
            raise InvalidValue(f"rows = {rows.tolist()}: must be from 0 to {self.queries - 1}, the call's queries.")

    def first_token(self, batch: int) -> int:
        """Index of the key of the first real token; below 0 if a cache has dropped it."""
        real, start = self.sequences[batch]
        return self.first_key(batch, real[:1]) if self.is_cross else self.offset - start

    def without_vectors(self) -> WatchedCall:
        """The same call with vectors of no features: what its mask says, in no memory."""
        query, key, value, output = (
            each.new_empty(*each.shape[:-1], 0) for each in (self.query, self.key, self.value, self.output)
        )
        return replace(self, query=query, key=key, value=value, output=output, input=None)

    def __repr__(self) -> str:
        heads = self.query.shape[1]
        return f"WatchedCall({self.layer}, {heads} heads, {self.queries} queries, {self.keys} keys)"

    def _own_queries(self, batch: int) -> Queries:
        real = self.real(batch).nonzero().squeeze(-1)
        return Queries(real, self.offset - self.first_key(batch, real[:1]) if len(real) else 0)
