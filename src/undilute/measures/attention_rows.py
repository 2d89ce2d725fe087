"""What do some rows of one layer attend to?  Their logits and weights, computed once and read by every measure.

A row is one query of one head. Rows come a few at a time, so that nothing here is ever as large as n × n; whatever more
than one measure needs (the exponentials, the heaviest keys, the row without its sink) is computed when first asked for
and kept while the rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
LOWEST = -1e30  # below any logit; finite, so that differences of it are
RANKED = 8  # heaviest keys that are always known
FLOOR = {torch.float32: -40.0, torch.float64: -300.0}


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
        return self.logits if self.visible is None else self.logits + self._hidden(LOWEST)

    @cached_property
    def largest(self) -> Tensor:
        """(heads, rows, 1): the largest logit of each row; 0 for a row that sees nothing."""
        return self._or_zero(self.masked.amax(-1, keepdim=True))

    @cached_property
    def smallest(self) -> Tensor:
        """(heads, rows, 1): the smallest visible logit."""
        shown = self.logits if self.visible is None else self.logits - self._hidden(LOWEST)
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
        e = self.below.exp()
        return e if self.visible is None or bool((self.n > 0).all()) else e.mul_(self.n[..., None] > 0)

    @cached_property
    def total(self) -> Tensor:
        """(heads, rows, 1): Σ e^(z − max z) over the keys; 1 for a row that sees nothing."""
        total = self.exponentials.sum(-1, keepdim=True)
        never_zero = self.visible is None and self.used is None
        return total if never_zero else total.masked_fill(total == 0, 1.0)

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
        return self.exponentials / self.total

    @cached_property
    def weights(self) -> Tensor:
        """(heads, rows, keys): what each value is multiplied by; sums to ``kept``."""
        if self.used is not None:
            return self.used
        return self.probabilities if self.outside is None else self.probabilities * self.kept

    @cached_property
    def ranked(self) -> Tensor:
        """(heads, rows, ≤ max(top, RANKED)): indices of the heaviest keys, heaviest first; hidden ones come last."""
        by = self.masked if self.used is None else self.below + (0.0 if self.visible is None else self._hidden(LOWEST))
        return by.topk(min(max(self.settings.top, RANKED), self.logits.shape[-1]), dim=-1).indices

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
        return replace(
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

    def derived(self, make: Callable[[Rows], T]) -> T:
        """``make(self)``, computed once: for what several measures of one file share."""
        if make not in self._derived:
            self._derived[make] = make(self)
        made: T = self._derived[make]
        return made

    def _hidden(self, value: float) -> Tensor:
        """(…, rows, keys): ``value`` where hidden, 0 elsewhere: adding it is cheaper than filling."""
        assert self.visible is not None
        return torch.zeros(self.visible.shape, dtype=self.logits.dtype, device=self.logits.device).masked_fill_(
            ~self.visible, value
        )

    def _or_zero(self, extreme: Tensor) -> Tensor:
        if self.visible is None:
            return extreme
        return extreme.masked_fill(extreme.abs() > -LOWEST / 2, 0.0)
