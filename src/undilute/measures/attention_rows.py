"""What do some rows of one layer attend to?  Their logits and weights, computed once and read by every measure.

A row is one query of one head. Rows come a few at a time, so that nothing here is ever as large as n × n; whatever more
than one measure needs (the weights, the heaviest keys, the row without its sink) is computed when first asked for and
kept while the rows are.

Exponentials and rankings are what costs most, so they are made once, of the row without its sink. With p′ its weights
and w the share of the keys that are no sink, the whole row has p = (p_sink, w·p′): weights and sums over them follow
(:class:`Parts`). All terms are positive, so nothing cancels, however much the sink takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
LOWEST = -1e30  # below any logit; finite, so that differences of it are
RANKED = 8  # heaviest keys that are always known
FLOOR = {torch.float32: -40.0, torch.float64: -300.0}
PARTIAL = 64  # torch's topk sorts only a part of rows that are at least so many times as long as the k it finds


@dataclass(frozen=True)
class Settings:
    """What the measures count.

    Attributes
    ----------
    top : the N of "top-N mass", of d̃ and of N_s/N
    sinks : how many of the first tokens count as attention sink
    recent : how many of the last keys count as recent
    """

    top: int = 5
    sinks: int = 1
    recent: int = 64


class Parts(NamedTuple):
    """Rows as their sink and the rest.

    Attributes
    ----------
    sink : (heads, rows, sinks), the weights of the sink's keys, of a row that sums to 1
    share : (heads, rows, 1), what all other keys get together
    rest : the rows without the sink, whose weights sum to 1 again
    """

    sink: Tensor
    share: Tensor
    rest: Rows


@dataclass(eq=False)
class Rows:
    """Some rows of one layer.

    Attributes
    ----------
    logits : (heads, rows, keys), scaled, with every bias; anything finite where hidden
    used : (heads, rows, keys), the weights that another rule than softmax makes of them, 0 where hidden; what measures
        say of weights is said of these, and only spread and lead are the logits'; None for softmax
    visible : (rows, keys) or (heads, rows, keys) bool; None if every row sees every key
    own : (rows,), index of each query's own key; None if the keys are another text's
    first : index of the first real token's key; padding may come before it; below 0 if a cache has dropped it
    outside : (heads, 1), logit of a learned sink that is no key (gpt-oss); None without one
    reach : (heads, rows), an upper bound of the moduli of the logits, ‖q‖·max‖k‖·scale; None if not known
    x : (key heads, keys, features), what the weights select from; None if not asked for
    settings : what the measures count
    """

    logits: Tensor
    visible: Tensor | None
    own: Tensor | None
    first: int = 0
    outside: Tensor | None = None
    reach: Tensor | None = None
    x: Tensor | None = None
    settings: Settings = Settings()
    used: Tensor | None = None
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def n(self) -> Tensor:
        """(heads, rows) or (1, rows): how many keys each row sees."""
        if self.visible is None:
            return self.logits.new_full((1, self.logits.shape[1]), self.logits.shape[-1])
        count = self.visible.sum(-1).to(self.logits.dtype)
        return count if count.ndim == 2 else count[None]

    @cached_property
    def masked(self) -> Tensor:
        """(heads, rows, keys): the logits, with the lowest number that arithmetic survives where hidden."""
        return self.logits if self.visible is None else self.logits + self._hidden

    @cached_property
    def largest(self) -> Tensor:
        """(heads, rows, 1): the largest logit of each row; 0 for a row that sees nothing."""
        start = self._start
        if not start:
            return self._or_zero(self.masked.amax(-1, keepdim=True))
        sink, rest = self.masked[..., :start].amax(-1, keepdim=True), self.without_sink
        return self._or_zero(torch.maximum(sink, rest.masked.amax(-1, keepdim=True)))

    @cached_property
    def smallest(self) -> Tensor:
        """(heads, rows, 1): the smallest visible logit."""
        shown = self.logits if self.visible is None else self.logits - self._hidden
        return self._or_zero(shown.amin(-1, keepdim=True))

    @cached_property
    def below(self) -> Tensor:
        """(heads, rows, keys): how far each logit is below the largest, ≤ 0, and not below ``FLOOR``.

        The floor keeps weights and their squares normal numbers: on denormal ones a CPU is a hundred times slower. It
        stands in for every smaller weight, a hidden key's too, and n times e^FLOOR is far below rounding.
        """
        floor = FLOOR[self.logits.dtype]
        if self.used is not None:
            return self.exponentials.log().clamp_(min=floor)
        return (self.masked - self.largest).clamp_(min=floor)

    @cached_property
    def exponentials(self) -> Tensor:
        """(heads, rows, keys): e^(z − max z); next to 0 where hidden, 0 in a row that sees nothing.

        Of given weights: their multiples of the largest one.
        """
        if self.used is not None:
            largest = self.used.amax(-1, keepdim=True)
            return self.used / largest.masked_fill(largest == 0, 1.0)
        return self._nothing_where_blind(self.below.exp())

    @cached_property
    def total(self) -> Tensor:
        """(heads, rows, 1): Σ e^(z − max z) over the keys; 1 for a row that sees nothing."""
        if self.used is not None:
            total = self.exponentials.sum(-1, keepdim=True)
        elif self._start:
            sink, rest = self._masses
            total = sink.sum(-1, keepdim=True) + rest
        else:  # the largest exponential is 1
            total = self.probabilities.amax(-1, keepdim=True).reciprocal().nan_to_num_(posinf=1.0)
        return total.masked_fill(total == 0, 1.0)

    @cached_property
    def kept(self) -> Tensor:
        """(heads, rows, 1): the share of the attention that goes to keys at all; 1 without an outside sink.

        A rule whose weights do not sum to 1 may hand out more or less.
        """
        if self.used is not None:
            return self.used.sum(-1, keepdim=True)
        if self.outside is None:
            return torch.ones_like(self.total)
        kept = torch.sigmoid(self.largest + self.total.log() - self.outside[..., None])
        return kept if self.visible is None else kept.masked_fill(self.n[..., None] == 0, 0.0)

    @cached_property
    def probabilities(self) -> Tensor:
        """(heads, rows, keys): softmax over the keys; it sums to 1."""
        if self.used is not None:
            return self.exponentials / self.total
        if (parts := self.parts) is None:
            return self._nothing_where_blind(self.below.softmax(-1))
        p = torch.cat([parts.sink, parts.rest.probabilities * parts.share], -1)
        return self._nothing_where_blind(p.clamp_(min=math.exp(FLOOR[p.dtype])))

    @cached_property
    def parts(self) -> Parts | None:
        """The sink and the rest; None without a sink, without a rest, or where another rule than softmax weighs."""
        if not self._start:
            return None
        sink, rest = self._masses
        return Parts(sink / self.total, rest / self.total, self.without_sink)

    @cached_property
    def weights(self) -> Tensor:
        """(heads, rows, keys): what each value is multiplied by; sums to ``kept``."""
        if self.used is not None:
            return self.used
        return self.probabilities if self.outside is None else self.probabilities * self.kept

    @cached_property
    def ranked(self) -> Tensor:
        """(heads, rows, ≤ max(top, RANKED)): indices of the heaviest keys, heaviest first; hidden ones come last."""
        k, start = min(max(self.settings.top, RANKED), self.logits.shape[-1]), self._start
        if start:
            sink = torch.arange(start, device=self.logits.device).expand(*self.logits.shape[:2], -1)
            candidates = torch.cat([sink, self.without_sink.ranked + start], -1)
            return candidates.gather(-1, _places_of_largest(self.masked.gather(-1, candidates), k))
        by = self.masked if self.used is None else self.below + (0.0 if self.visible is None else self._hidden)
        return _places_of_largest(by, k)

    @cached_property
    def heaviest(self) -> tuple[Tensor, Tensor]:
        """Probabilities and indices of the ``top`` heaviest keys, (heads, rows, ≤ top) each, heaviest first."""
        indices = self.ranked[..., : self.settings.top]
        return self.probabilities.gather(-1, indices), indices

    @cached_property
    def key_head(self) -> Tensor:
        """(heads,): which key head each head reads."""
        assert self.x is not None
        heads = self.logits.shape[0]
        return torch.arange(heads, device=self.logits.device) // (heads // self.x.shape[0])

    @cached_property
    def without_sink(self) -> Rows:
        """The same rows without the sink's keys, as if they were not there."""
        start, keys = max(self.first + self.settings.sinks, 0), self.logits.shape[-1]
        visible = None if self.visible is None else self.visible[..., start:]
        if start >= keys:  # nothing is left: one key that no row sees
            start, visible = keys - 1, torch.zeros_like(self.logits[0, :, :1], dtype=torch.bool)
        used = None if self.used is None else self.used[..., start:] * (1.0 if visible is None else visible)
        made = replace(
            self,
            logits=self.logits[..., start:],
            used=None if used is None else used / used.sum(-1, keepdim=True).clamp(min=torch.finfo(used.dtype).tiny),
            visible=visible,
            own=None if self.own is None else self.own - start,
            first=0,
            outside=None,
            x=None,
            settings=replace(self.settings, sinks=0),
        )
        if self._start:
            made.masked = self.masked[..., start:]
        return made

    def derived(self, make: Callable[[Rows], T]) -> T:
        """``make(self)``, computed once: for what several measures of one file share."""
        if make not in self._derived:
            self._derived[make] = make(self)
        made: T = self._derived[make]
        return made

    @cached_property
    def _hidden(self) -> Tensor:
        """(…, rows, keys): ``LOWEST`` where hidden, 0 elsewhere: adding it is cheaper than filling."""
        assert self.visible is not None
        return (~self.visible).to(self.logits.dtype).mul_(LOWEST)

    @cached_property
    def _start(self) -> int:
        """How many of the first keys are the sink's or come before it; 0 where there are no ``parts``."""
        start = max(self.first + self.settings.sinks, 0)
        return start if self.used is None and start < self.logits.shape[-1] else 0

    @cached_property
    def _masses(self) -> tuple[Tensor, Tensor]:
        """(heads, rows, sinks) and (heads, rows, 1): Σ e^(z − max z) of each of the sink's keys and of all others."""
        rest = self.without_sink
        sink = (self.masked[..., : self._start] - self.largest).clamp_(min=FLOOR[self.logits.dtype]).exp_()
        others = (rest.largest - self.largest).clamp_(max=0.0).exp_() * rest.total
        if self.visible is None:
            return sink, others
        return sink * (self.n[..., None] > 0), others * (rest.n[..., None] > 0)

    def _nothing_where_blind(self, weights: Tensor) -> Tensor:
        """``weights``, overwritten with 0 in rows that see nothing."""
        if self.visible is None or bool((self.n > 0).all()):
            return weights
        return weights.mul_(self.n[..., None] > 0)

    def _or_zero(self, extreme: Tensor) -> Tensor:
        if self.visible is None:
            return extreme
        return extreme.masked_fill(extreme.abs() > -LOWEST / 2, 0.0)


def _places_of_largest(values: Tensor, k: int) -> Tensor:
    """(..., n) → (..., k): where the k largest are, largest first.

    Short rows are made longer, so that torch sorts a part of them and not all: that is several times faster.
    """
    missing = PARTIAL * k - values.shape[-1]
    if missing > 0 and values.shape[-1] > 4 * k:
        values = torch.nn.functional.pad(values, (0, missing), value=-torch.inf)
    return values.topk(k, dim=-1).indices
