"""What is known about each head: the verdict of one, and all of them by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from undilute.diagnosis import retrieval
from undilute.diagnosis.kinds import STEADY, Kind
from undilute.diagnosis.probe import Probe
from undilute.diagnosis.retrieval import Estimate, Law, Retrieval, Score
from undilute.errors import InvalidValue


@dataclass(frozen=True)
class Head:
    """One head. Top weights and effective keys are those of plain text, without the sink.

    Attributes
    ----------
    layer, head : indices from 0
    name : the layer's name in the model
    kind : "retrieval", "sink", "local", "diffuse", "diluting" or "sharp"
    plain_kind : what it is on plain text, where nobody asks for anything
    share : of the windows in which it is of its kind; for a retrieval head, of the haystacks
    gamma, gamma_low, gamma_high : dilution exponent of the top weight from the length to the target by the fitted law,
        with its interval over texts and windows: 0 holds, 1 dilutes as 1/n
    gap, slope : of the fitted law logit α = gap − slope·ln m, m the competing keys: n less the key itself and the
        sink; gap is the top key's effective lead in nats
    half_length : keys at which the fitted top weight passes 1/2; infinite if it never does
    gamma_keys, gamma_keys_low, gamma_keys_high : exponent of the effective keys
    top_short, top_now : fitted top weight at the shortest row and at the length
    top_target, top_target_low, top_target_high : forecast at the target with its interval, as it was validated
        (``undilute.diagnosis.forecast``)
    ceiling_target : what no weight can exceed at the target while the logit spread stays within the largest seen
    keys_now, keys_target : fitted effective keys
    n_target : keys a row sees at the target: fewer than it in a sliding window
    factor : on its logits, by which the fitted law would hold its top weight at the target; 1 where nothing falls, None
        if no factor does. It is what theory says; whether it helps was tried or not (``Diagnosis.trials``)
    medians : each measure's median over long rows
    asked : what it does when it is asked for something; None without a probe
    """

    layer: int
    head: int
    name: str
    kind: Kind
    plain_kind: Kind
    share: float
    gamma: float
    gamma_low: float
    gamma_high: float
    gap: float
    slope: float
    half_length: float
    gamma_keys: float
    gamma_keys_low: float
    gamma_keys_high: float
    top_short: float
    top_now: float
    top_target: float
    top_target_low: float
    top_target_high: float
    ceiling_target: float
    keys_now: float
    keys_target: float
    n_target: int
    factor: float | None
    medians: dict[str, float]
    asked: Retrieval | None = None

    @property
    def lost(self) -> float:
        """How much of its top weight goes from the shortest rows to the target: what heads are ranked by."""
        return self.top_short - self.top_target

    @property
    def is_steady(self) -> bool:
        """Whether it is of its kind in two thirds of the windows or haystacks."""
        return self.share >= STEADY - 1e-9

    @property
    def alpha(self) -> dict[int, Estimate]:
        """Attention on the fact that is asked for, by length."""
        return self._asked.alpha

    @property
    def law(self) -> Law:
        """Of ``alpha`` over length."""
        return self._asked.law

    @property
    def score(self) -> Score:
        """How well it finds what is asked for."""
        return self._asked.score

    @property
    def auc(self) -> float | None:
        """How well ``alpha`` tells right answers from wrong ones."""
        return self._asked.auc

    @property
    def _asked(self) -> Retrieval:
        if self.asked is None:
            raise InvalidValue(
                f"layer {self.layer} head {self.head} was not asked: the diagnosis was made without a probe."
            )
        return self.asked

    @property
    def sentence(self) -> str:
        """The head in one sentence."""
        plain = (
            f"top weight {self.top_short:.2f} on short rows, {self.top_now:.2g} now, forecast {self.top_target:.2g} at "
            f"the target (γ {self.gamma:.2f}, {self.gamma_low:.2f} to {self.gamma_high:.2f})".replace("-", "−")
        )
        if self.kind != "retrieval" or self.asked is None:
            return plain
        lengths = list(self.asked.alpha)
        first, last = (self.asked.alpha[each].value for each in (lengths[0], lengths[-1]))
        return (
            f"asked for a fact, gives it {first:.2g} of its attention at {lengths[0]:,} tokens and {last:.2g} at "
            f"{lengths[-1]:,}; on plain text: {plain}"
        )


class Heads(Sequence[Head]):
    """All heads of a model, or some of them.

    ``heads.retrieval`` are those that find what is asked for, best first, and ``heads.diluting`` and the like those of
    one other kind, worst first; ``heads.at(layer, head)`` is one. After a probe, ``alpha``, ``law``, ``score`` and
    ``auc`` are those of their mean attention, as if they were one head.
    """

    def __init__(self, heads: Iterable[Head], probe: Probe | None = None) -> None:
        self._heads, self._probe = list(heads), probe

    @overload
    def __getitem__(self, index: int) -> Head: ...
    @overload
    def __getitem__(self, index: slice) -> Heads: ...
    def __getitem__(self, index: int | slice) -> Head | Heads:
        return self._some(self._heads[index]) if isinstance(index, slice) else self._heads[index]

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Head]:
        return iter(self._heads)

    def __repr__(self) -> str:
        return f"Heads({', '.join(f'{each.layer}.{each.head}' for each in self._heads)})"

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.heads(self)

    def _some(self, heads: Iterable[Head]) -> Heads:
        return Heads(heads, self._probe)

    def at(self, layer: int, head: int) -> Head:
        """The head with these indices."""
        for each in self._heads:
            if (each.layer, each.head) == (layer, head):
                return each
        raise InvalidValue(f"layer {layer} head {head}: must be among the {len(self)} heads here.")

    def of(self, kind: Kind) -> Heads:
        """Those of one kind: the best at finding first, of the others the one that loses most."""

        def rank(head: Head) -> float:
            return -head.asked.score.value if kind == "retrieval" and head.asked is not None else -head.lost

        return self._some(sorted((each for each in self._heads if each.kind == kind), key=rank))

    @property
    def steady(self) -> Heads:
        """Those that are of their kind in at least two thirds of the windows or haystacks."""
        return self._some(each for each in self._heads if each.is_steady)

    @property
    def retrieval(self) -> Heads:
        return self.of("retrieval")

    @property
    def diluting(self) -> Heads:
        return self.of("diluting")

    @property
    def sharp(self) -> Heads:
        return self.of("sharp")

    @property
    def local(self) -> Heads:
        return self.of("local")

    @property
    def sink(self) -> Heads:
        return self.of("sink")

    @property
    def diffuse(self) -> Heads:
        return self.of("diffuse")

    # ---------------------------------------------------------------- together, when asked

    @property
    def asked(self) -> Retrieval | None:
        """What they do on average when they are asked; None without a probe, or without heads."""
        if self._probe is None or not self._heads:
            return None
        places = self._probe.places
        chosen = [places[each.name, each.head] for each in self._heads if (each.name, each.head) in places]
        return retrieval.of_all(self._probe, np.array(chosen)) if chosen else None

    @property
    def alpha(self) -> dict[int, Estimate]:
        """Their mean attention on the fact that is asked for, by length."""
        return self._together.alpha

    @property
    def law(self) -> Law:
        """Of ``alpha`` over length."""
        return self._together.law

    @property
    def score(self) -> Score:
        """How well they find what is asked for, on average."""
        return self._together.score

    @property
    def auc(self) -> float | None:
        """How well ``alpha`` tells right answers from wrong ones."""
        return self._together.auc

    @property
    def _together(self) -> Retrieval:
        found = self.asked
        if found is None:
            raise InvalidValue("these heads were not asked: the diagnosis was made without a probe, or there are none.")
        return found
