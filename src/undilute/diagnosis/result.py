"""What a diagnosis is: sampled rows, a verdict on each head, and ways to read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from undilute.diagnosis.heads import Head, Heads
from undilute.diagnosis.kinds import KINDS, Kind
from undilute.diagnosis.verdicts import Question
from undilute.errors import MissingExtra
from undilute.models.capture import LayerSample, frame_of
from undilute.models.passes import is_numbered_alike

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Subject:
    """What was measured, and how.

    Attributes
    ----------
    model, architecture, implementation : the model's name, its class and its attention implementation
    parameters : how many
    maximum_length : tokens the model can read; None if unlimited
    tokens : the text, a string for each token
    x, top, sinks, rows : settings of the measures
    """

    model: str
    architecture: str
    parameters: int
    implementation: str
    maximum_length: int | None
    tokens: list[str]
    x: str
    top: int
    sinks: int
    rows: int


class Diagnosis:
    """The result of :func:`undilute.diagnose`.

    Attributes
    ----------
    subject : what was measured
    question : length, target and thresholds
    layers : the sampled rows of each layer
    heads : a verdict on each head; ``heads.diluting`` and the like select
    """

    def __init__(self, subject: Subject, question: Question, layers: list[LayerSample], heads: Iterable[Head]) -> None:
        self.subject, self.question, self.layers = subject, question, layers
        self.heads = Heads(heads)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.counts.items() if number)
        return f"Diagnosis of {self.subject.model!r} at {self.question.length:,} tokens: {kinds}"

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.diagnosis(self)

    @property
    def summary(self) -> str:
        """The outcome in one sentence."""
        some, every = self.heads.diluting, len(self.heads)
        if not some:
            return f"None of {every:,} heads dilutes."
        now, target = (median(getattr(head, at) for head in some) for at in ("top_now", "top_target"))
        one = len(some) == 1
        return (
            f"{len(some):,} of {every:,} heads {'dilutes' if one else 'dilute'}: at {self.question.target:,} tokens "
            f"{'its' if one else 'their'} top weight falls from {'' if one else 'a median '}{now:.2g} to {target:.2g}."
        )

    @property
    def numbering(self) -> str | None:
        """What the numbers of layers mean, in one sentence; None if the model's own names count them alike."""
        names = [layer.name for layer in self.layers]
        if is_numbered_alike(names):
            return None
        last = "" if len(names) == 1 else f", layer {len(names) - 1} is {names[-1]}"
        return f"Attention layers are counted from 0 in the order in which they run: layer 0 is {names[0]}{last}."

    @property
    def counts(self) -> dict[Kind, int]:
        """How many heads there are of each kind."""
        return {kind: len(self.heads.of(kind)) for kind in KINDS}

    def frame(self) -> pandas.DataFrame:
        """One line per head: verdict, fits, forecast, advice, and each measure's median over long rows."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra("pandas", "models") from None
        return pandas.DataFrame([flat(head) for head in self.heads])

    def curves(self) -> pandas.DataFrame:
        """One line per head and sampled row, with n and every measure: the long form over n."""
        return frame_of(self.layers)

    def save_html(self, path: str | Path) -> Path:
        """Write a page that needs no network, and return its path."""
        from undilute import files
        from undilute.report import diagnosis_page

        return files.write(Path(path), diagnosis_page.page(self))

    def save_json(self, path: str | Path) -> Path:
        """Write everything the page shows as JSON, with a schema version, and return its path."""
        from undilute import files
        from undilute.report import diagnosis_data

        return files.write(Path(path), diagnosis_data.to_json(self))


def flat(head: Head) -> dict[str, Any]:
    """A head as one line of a table."""
    plain = {each.name: getattr(head, each.name) for each in fields(head) if each.name not in ("medians", "advice")}
    advice = asdict(head.advice)
    parameters = {f"advice_{name}": value for name, value in advice.pop("parameters").items()}
    return plain | {f"advice_{name}": value for name, value in advice.items()} | parameters | head.medians
