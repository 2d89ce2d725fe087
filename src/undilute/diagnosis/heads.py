"""What is known about each head: the verdict of one, and all of them by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from undilute.diagnosis.advice import Advice
from undilute.diagnosis.kinds import Kind
from undilute.errors import InvalidValue


@dataclass(frozen=True)
class Head:
    """One head. Top weights and effective keys are those without the sink.

    Attributes
    ----------
    layer, head : indices from 0
    name : the layer's name in the model
    kind : "sink", "local", "diffuse", "diluting" or "sharp"
    gamma, gamma_low, gamma_high : dilution exponent of the top weight from the length to the target, with its
        interval over resampled rows: 0 holds, 1 dilutes as 1/n
    gap, slope : of the fitted law logit α = gap − slope·ln m, m the competing keys: n less the key itself and the
        sink; gap is the top key's effective lead in nats
    half_length : keys at which the fitted top weight passes 1/2; infinite if it never does
    gamma_keys, gamma_keys_low, gamma_keys_high : exponent of the effective keys
    top_short, top_now, top_target : fitted top weight at the shortest row, at the length and at the target
    top_target_low, top_target_high : interval of the forecast
    ceiling_target : what no weight can exceed at the target while the logit spread stays within the largest seen
    keys_now, keys_target : fitted effective keys
    n_target : keys a row sees at the target: fewer than it in a sliding window
    medians : each measure's median over long rows
    advice : what would hold the top weight at the target
    """

    layer: int
    head: int
    name: str
    kind: Kind
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
    medians: dict[str, float]
    advice: Advice

    @property
    def lost(self) -> float:
        """How much of its top weight goes from the shortest rows to the target: what heads are ranked by."""
        return self.top_short - self.top_target

    @property
    def sentence(self) -> str:
        """The head in one sentence."""
        return (
            f"top weight {self.top_short:.2f} on short rows, {self.top_now:.2g} now, {self.top_target:.2g} at the "
            f"target (γ {self.gamma:.2f}, {self.gamma_low:.2f} to {self.gamma_high:.2f})".replace("-", "−")
        )


class Heads(Sequence[Head]):
    """All heads of a model, or some of them.

    ``heads.diluting`` and the like are those of one kind, worst first; ``heads.at(layer, head)`` is one.
    """

    def __init__(self, heads: Iterable[Head]) -> None:
        self._heads = list(heads)

    @overload
    def __getitem__(self, index: int) -> Head: ...
    @overload
    def __getitem__(self, index: slice) -> Heads: ...
    def __getitem__(self, index: int | slice) -> Head | Heads:
        return Heads(self._heads[index]) if isinstance(index, slice) else self._heads[index]

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Head]:
        return iter(self._heads)

    def __repr__(self) -> str:
        return f"Heads({', '.join(f'{each.layer}.{each.head}' for each in self._heads)})"

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.heads(self)

    def at(self, layer: int, head: int) -> Head:
        """The head with these indices."""
        for each in self._heads:
            if (each.layer, each.head) == (layer, head):
                return each
        raise InvalidValue(f"layer {layer} head {head}: must be among the {len(self)} heads here.")

    def of(self, kind: Kind) -> Heads:
        """Those of one kind, the one that loses most first."""
        return Heads(sorted((each for each in self._heads if each.kind == kind), key=lambda each: -each.lost))

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
