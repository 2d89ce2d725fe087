"""What is a diagnosis?  Sampled rows, what was asked and tried, a verdict on each head, and ways to read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undilute.diagnosis import fit, retrieval
from undilute.diagnosis.forecast import Check, Curves, Forecast, checked, forecast
from undilute.diagnosis.heads import Head, Heads
from undilute.diagnosis.kinds import KINDS, Kind
from undilute.diagnosis.probe import ASKED, Probe
from undilute.diagnosis.retrieval import Estimate, Recall, Retrieval
from undilute.diagnosis.trials import Trials
from undilute.diagnosis.verdicts import Question, Reading
from undilute.errors import InvalidValue, MissingExtra
from undilute.models.capture import LayerSample, frame_of
from undilute.models.passes import is_numbered_alike
from undilute.rules.parameters import count

if TYPE_CHECKING:
    import pandas

SHORTEST = 16  # keys of the rows that a forecast looks at
TOP = "top_weight_without_sink"
TINY = 1e-9
SELECT = "undilute select finds the passages that matter, and undilute ask answers from those alone."


@dataclass(frozen=True)
class TextRead:
    """A text that was read.

    Attributes
    ----------
    name : as it was given
    tokens : how many it has
    windows : where each window begins, in tokens
    """

    name: str
    tokens: int
    windows: tuple[int, ...]


@dataclass(frozen=True)
class Subject:
    """What was measured, and how.

    Attributes
    ----------
    model, architecture, implementation : the model's name, its class and its attention implementation
    parameters : how many
    maximum_length : tokens the model can read; None if unlimited
    texts : what was read
    tokens : the first window, a string for each token
    x, top, sinks, rows : settings of the measures
    """

    model: str
    architecture: str
    parameters: int
    implementation: str
    maximum_length: int | None
    texts: tuple[TextRead, ...]
    tokens: list[str]
    x: str
    top: int
    sinks: int
    rows: int

    @property
    def windows(self) -> int:
        """How many were read."""
        return sum(len(text.windows) for text in self.texts)


@dataclass(frozen=True, eq=False)
class Outlook:
    """What is to be expected at a length that was not measured.

    Attributes
    ----------
    n : the length
    heads : every head
    top : their top weights on plain text
    finding : the heads that find what is asked for
    alpha : their attention on it; None without them
    """

    n: int
    heads: Heads
    top: Forecast
    finding: Heads
    alpha: Forecast | None

    def __repr__(self) -> str:
        return f"Outlook at {self.n:,} tokens: {self.summary}"

    @property
    def is_checked(self) -> bool:
        """Whether no forecast looks further ahead than it was checked to."""
        return self.top.is_checked and (self.alpha is None or self.alpha.is_checked)

    @property
    def summary(self) -> str:
        """The forecasts and how they were checked, in a few sentences."""
        parts = []
        if self.alpha is not None:
            parts.append(f"Attention on what is asked for: {_forecast(self.alpha)}")
        parts.append(f"Top weight on plain text: {_forecast(self.top)}")
        if not self.top.is_checked:
            parts.append(f"{self.n:,} tokens are beyond what was checked.")
        elif not self.is_checked:
            parts.append(f"For attention on what is asked for, {self.n:,} tokens are beyond what was checked.")
        return " ".join(parts)

    def frame(self) -> pandas.DataFrame:
        """One line per head: its forecast with its interval; α* where it finds what is asked for."""
        pandas = _pandas()
        lines = [
            {"layer": head.layer, "head": head.head, "kind": head.kind, "top": weight, "top_low": low, "top_high": high}
            for head, weight, low, high in zip(self.heads, self.top.weight, self.top.low, self.top.high, strict=True)
        ]
        found = pandas.DataFrame(lines)
        if self.alpha is not None:
            asked = [
                {"layer": head.layer, "head": head.head, "alpha": weight, "alpha_low": low, "alpha_high": high}
                for head, weight, low, high in zip(
                    self.finding, self.alpha.weight, self.alpha.low, self.alpha.high, strict=True
                )
            ]
            found = found.merge(pandas.DataFrame(asked), on=["layer", "head"], how="left")
        return found


def _forecast(ahead: Forecast) -> str:
    middle, low, high = (float(np.median(each)) for each in (ahead.weight, ahead.low, ahead.high))
    return f"a median head {middle:.2g} [{low:.2g}, {high:.2g}]; {ahead.check.sentence}"


class Diagnosis:
    """The result of :func:`undilute.diagnose`.

    Attributes
    ----------
    subject : what was measured
    question : length, target and thresholds
    readings : what was sampled in each window
    layers : the sampled rows of each layer, of all windows; ``batch`` is the window
    heads : a verdict on each head; ``heads.retrieval``, ``heads.diluting`` and the like select
    probe : what was asked; None if nothing was
    why_no_probe : why not, in one sentence
    trials : what was tried against dilution, and what came of it
    """

    def __init__(
        self,
        subject: Subject,
        question: Question,
        readings: Sequence[Reading],
        heads: Heads,
        probe: Probe | None = None,
        why_no_probe: str | None = None,
        trials: Trials | None = None,
    ) -> None:
        self.subject, self.question, self.readings = subject, question, list(readings)
        self.probe, self.why_no_probe = probe, why_no_probe
        self.trials = trials or Trials(why_not="nothing was tried.")
        self.layers = stacked(readings)
        self.heads = heads
        self.heads = self._with_forecasts(heads)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.counts.items() if number)
        return f"Diagnosis of {self.subject.model!r} at {self.question.length:,} tokens: {kinds}"

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.diagnosis(self)

    # ---------------------------------------------------------------- in words

    @property
    def summary(self) -> str:
        """The outcome in a sentence or two."""
        every = len(self.heads)
        if self.probe is None:
            return self._plain_summary
        found = self.heads.retrieval.steady
        lines = [each for each in self.recalls if each.task == ASKED]
        first, last = lines[0], lines[-1]
        fall = retrieval.recall_fall(self.probe.judged, self.question.seed)
        recall = f"recall {_goes(first.right.value, last.right.value, '.0%', _is_clear(fall))}"
        span = f"From {first.length:,} to {last.length:,} tokens"
        together = found.asked
        if together is None:
            seldom = _seldom(self.heads.retrieval, "finds it", "find it", "haystacks")
            return f"None of {every:,} heads finds what is asked for{seldom}. {span} {recall}."
        alpha = list(together.alpha.values())
        begin, end = alpha[0].value, alpha[-1].value
        gamma = math.log(max(begin, TINY) / max(end, TINY)) / math.log(last.length / first.length)
        gamma = round(gamma, 2) + 0.0  # not −0.00
        one = len(found) == 1
        return (
            f"{len(found):,} of {every:,} heads {'finds' if one else 'find'} what is asked for. {span} "
            f"{'its' if one else 'their'} weight on it "
            f"{_goes(begin, end, '.2f', _is_clear(together.law.slope), f'γ {gamma:.2f}')}, and {recall}."
        ).replace("γ -", "γ −")

    @property
    def _plain_summary(self) -> str:
        some, every = self.heads.diluting.steady, len(self.heads)
        if not some:
            return f"None of {every:,} heads dilutes{_seldom(self.heads.diluting, 'does', 'do', 'windows')}."
        now, target = (median(getattr(head, at) for head in some) for at in ("top_now", "top_target"))
        one = len(some) == 1
        return (
            f"{len(some):,} of {every:,} heads {'dilutes' if one else 'dilute'}: {'its' if one else 'their'} top "
            f"weight, {'' if one else 'a median '}{now:.2g} now, is forecast to be {target:.2g} at "
            f"{self.question.target:,} tokens."
        )

    @property
    def caution(self) -> str | None:
        """What limits all of it, in one sentence; None with several windows."""
        if self.subject.windows == 1:
            return "One window of one text was read: on another, heads may be of other kinds."
        if len(self.subject.texts) == 1:
            return f"One text was read, in {self.subject.windows} windows: on another, heads may be of other kinds."
        return None

    @property
    def advice(self) -> str:
        """What to do, in a sentence or two: only what was measured here."""
        if self.trials.best is not None or not self.trials.tried or self.probe is None:
            return self.trials.advice
        lines = [each for each in self.recalls if each.task == ASKED]
        short, long = lines[0], lines[-1]
        if retrieval.recall_fall(self.probe.judged, self.question.seed).low > 0:
            return (
                f"{self.trials.advice} Keep the context short: recall is {short.right.value:.0%} at {short.length:,} "
                f"tokens and {long.right.value:.0%} at {long.length:,}. {SELECT}"
            )
        limit = self.subject.maximum_length
        further = " A larger length shows whether it does further on." if limit is None or limit > long.length else ""
        return f"{self.trials.advice} Up to {long.length:,} tokens recall does not clearly fall.{further}"

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

    @property
    def steady_counts(self) -> dict[Kind, int]:
        """How many of them are so in at least two thirds of the windows or haystacks."""
        return {kind: len(self.heads.of(kind).steady) for kind in KINDS}

    # ---------------------------------------------------------------- when asked

    @cached_property
    def recalls(self) -> list[Recall]:
        """Recall of each task at each length; none without a probe."""
        return [] if self.probe is None else retrieval.recalls(self.probe.judged, self.question.seed)

    @cached_property
    def together(self) -> Retrieval | None:
        """What the steady retrieval heads do on average when asked; None without any."""
        return self.heads.retrieval.steady.asked

    def recall(self) -> pandas.DataFrame:
        """One line per task and length: the share of questions answered rightly, with its interval over haystacks."""
        if self.probe is None:
            raise InvalidValue(f"nothing was asked: {self.why_no_probe}")
        return _pandas().DataFrame(
            [
                {
                    "task": each.task,
                    "length": each.length,
                    "recall": each.right.value,
                    "low": each.right.low,
                    "high": each.right.high,
                    "questions": each.questions,
                    "haystacks": each.haystacks,
                }
                for each in self.recalls
            ]
        )

    # ---------------------------------------------------------------- ahead

    def forecast(self, n: int | None = None) -> Outlook:
        """What is to be expected at ``n`` tokens, the target by default, and how far that was checked.

        Examples
        --------
        >>> import torch, transformers, undilute as ud
        >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=256)
        >>> d = ud.diagnose(transformers.GPT2LMHeadModel(config).eval(), None, torch.arange(2000) % 50)
        >>> ahead = d.forecast(512)
        >>> ahead.top.weight.shape, ahead.top.check.left_out, ahead.top.is_checked
        ((8,), 'windows', True)
        """
        n = self.question.target if n is None else count("n", n)
        if n < self.question.length:
            raise InvalidValue(f"n = {n:,}: must be at least the {self.question.length:,} tokens that were measured.")
        finding = self.heads.retrieval
        asked = self._alpha_curves(finding)
        alpha = None if asked is None else forecast(asked, n)
        return Outlook(n, self.heads, self._ahead(n), finding, alpha)

    def _ahead(self, n: int) -> Forecast:
        """Top weights on plain text at ``n`` tokens; those of heads with a sliding window at what they see then."""

        def at(keys: int) -> Forecast:
            return forecast(self._top_curves, float(self.question.others(keys)), self.check)

        ahead = at(n)
        weight, low, high = ahead.weight.copy(), ahead.low.copy(), ahead.high.copy()
        widths = np.array([head.n_target if head.n_target < self.question.target else n for head in self.heads])
        for width in np.unique(widths[widths < n]):
            own, some = at(max(int(width), self.question.length)), widths == width
            grows = width > self.question.length  # else nothing more is seen than was measured
            weight[some] = own.weight[some]
            low[some], high[some] = (own.low[some], own.high[some]) if grows else (own.weight[some], own.weight[some])
        return replace(ahead, weight=weight, low=low, high=high)

    @cached_property
    def check(self) -> Check:
        """How forecasts of the top weight did on what was left out."""
        return checked(self._top_curves)

    @cached_property
    def _top_curves(self) -> Curves:
        """Top weights on plain text, in octaves of the context's length."""
        length, widest = self.question.length, max(self.readings[0].layers, key=lambda layer: int(_seen(layer).max()))
        lengths = [length // 2**octave for octave in reversed(range(int(math.log2(length / SHORTEST))))]
        rows = dict(zip(lengths, _octaves(widest, lengths), strict=True))
        lengths = [each for each in lengths if rows[each].any()] or [length]  # no row may see even the shortest
        rows = dict(zip(lengths, _octaves(widest, lengths), strict=True))
        others = np.log(self.question.others(_seen(widest)))
        middles = [np.exp(np.median(others[rows[each]] if rows[each].any() else others)) for each in lengths]
        weights = []
        for reading in self.readings:
            parts = [_medians(layer, lengths) for layer in reading.layers]
            weights.append(np.concatenate(parts))
        texts = np.array([reading.text for reading in self.readings])
        end = float(self.question.others(length))
        return Curves(np.array(middles), np.stack(weights), texts, length, end)

    def _alpha_curves(self, finding: Heads) -> Curves | None:
        """Attention of the retrieval heads on what is asked for."""
        if self.probe is None or not finding:
            return None
        asked = self.probe.judged.of(self.probe.judged.tasks == ASKED)
        chosen = [self.probe.places[head.name, head.head] for head in finding]
        stacks = np.unique(asked.haystack)
        weights = np.stack([asked.alpha[:, asked.haystack == each][..., chosen].mean(1).T for each in stacks])
        texts = np.array([asked.texts[asked.haystack == each][0] for each in stacks])
        n = asked.n.mean(1)
        return Curves(n, weights, texts, asked.lengths[-1], float(n[-1]), "haystacks")

    def _with_forecasts(self, heads: Heads) -> Heads:
        """The heads with their top weight at the length and at the target, in the way that forecasts best."""
        now, ahead = self._ahead(self.question.length), self._ahead(self.question.target)
        made = []
        for index, head in enumerate(heads):
            here = float(now.weight[index])
            expected = (float(each[index]) for each in (ahead.weight, ahead.low, ahead.high))
            weight, low, high = (min(each, head.ceiling_target) for each in expected)
            made.append(replace(head, top_now=here, top_target=weight, top_target_low=low, top_target_high=high))
        return Heads(made, self.probe)

    # ---------------------------------------------------------------- as tables and files

    def stability(self) -> pandas.DataFrame:
        """One line per head: its kind, that on plain text, and the share of windows or haystacks in which it is so."""
        lines = [
            {
                "layer": head.layer,
                "head": head.head,
                "kind": head.kind,
                "plain_kind": head.plain_kind,
                "share": head.share,
                "steady": head.is_steady,
            }
            for head in self.heads
        ]
        return _pandas().DataFrame(lines)

    def frame(self) -> pandas.DataFrame:
        """One line per head: verdict, fits, forecast, what it does when asked, each measure's median over long rows."""
        return _pandas().DataFrame([flat(head) for head in self.heads])

    def curves(self) -> pandas.DataFrame:
        """One line per head and sampled row, with n and every measure; ``batch`` is the window."""
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


def stacked(readings: Sequence[Reading]) -> list[LayerSample]:
    """The rows of all windows, layer by layer; ``batch`` is the window's number."""
    made = []
    for layers in zip(*(reading.layers for reading in readings), strict=True):
        first = layers[0]
        made.append(
            replace(
                first,
                batch=np.concatenate([np.full(len(layer.n), window) for window, layer in enumerate(layers)]),
                position=np.concatenate([layer.position for layer in layers]),
                n=np.concatenate([layer.n for layer in layers]),
                measures={
                    name: np.concatenate([layer.measures[name] for layer in layers], 1) for name in first.measures
                },
                keys=np.concatenate([layer.keys for layer in layers], 1),
                key_weights=np.concatenate([layer.key_weights for layer in layers], 1),
            )
        )
    return made


def _seen(layer: LayerSample) -> NDArray[np.int64]:
    """(rows,): how long the context of each row is, whatever a sliding window shows of it."""
    return layer.n if layer.looks_ahead or layer.is_cross else layer.position + 1


def _octaves(layer: LayerSample, lengths: Sequence[int]) -> list[NDArray[np.bool_]]:
    """Which rows are in the octave that ends at each length."""
    seen = _seen(layer)
    return [(seen > length // 2) & (seen <= length) for length in lengths]


def _medians(layer: LayerSample, lengths: Sequence[int]) -> NDArray[np.float64]:
    """(heads, lengths): the median top weight of the rows in each octave, taken in logits.

    A layer that has no rows there, as an encoder's with a sliding window, sees no more than in the octave before.
    """
    rows = _octaves(layer, lengths)
    if not any(own.any() for own in rows):  # a window narrower than the shortest octave
        rows = [np.ones(len(layer.n), dtype=bool)] * len(lengths)
    logits = fit.logit(layer.measures[TOP])
    there = [place for place, own in enumerate(rows) if own.any()]
    nearest = [max((each for each in there if each <= place), default=there[0]) for place in range(len(lengths))]
    return fit.sigmoid(np.stack([np.median(logits[:, rows[place]], axis=1) for place in nearest], 1))


def _seldom(some: Heads, one: str, several: str, units: str) -> str:
    """What is to be said of heads that are of a kind, but not steadily; nothing without any."""
    if not some:
        return ""
    return f" steadily: {len(some):,} {one if len(some) == 1 else several}, but in less than two thirds of the {units}"


def _is_clear(change: Estimate) -> bool:
    """Whether an interval leaves no doubt which way something changes."""
    return change.low > 0 or change.high < 0


def _goes(before: float, after: float, form: str, is_clear: bool, *notes: str) -> str:
    """How a figure changes, as it is shown, with notes.

    >>> _goes(0.98, 0.54, ".0%", True, "γ 0.21"), _goes(0.98, 0.94, ".0%", False), _goes(0.251, 0.249, ".2f", True)
    ('falls from 98% to 54% (γ 0.21)', 'goes from 98% to 94% (no clear change)', 'stays at 0.25')
    """
    first, last = format(before, form), format(after, form)
    verb = "goes" if not is_clear else "falls" if after < before else "rises"
    said = f"stays at {first}" if first == last else f"{verb} from {first} to {last}"
    every = [*notes, *(["no clear change"] if verb == "goes" and first != last else [])]
    return f"{said} ({', '.join(every)})" if every else said


def flat(head: Head) -> dict[str, Any]:
    """A head as one line of a table."""
    plain = {each.name: getattr(head, each.name) for each in fields(head) if each.name not in ("medians", "asked")}
    return plain | _flat_asked(head.asked) | head.medians


def _flat_asked(asked: Retrieval | None) -> dict[str, Any]:
    if asked is None:
        return {}
    alpha = {f"alpha_{length}": estimate.value for length, estimate in asked.alpha.items()}
    return {
        "score": asked.score.value,
        "score_error": asked.score.error,
        "score_chance": asked.score.chance,
        "auc": asked.auc,
        "alpha_slope": asked.law.slope.value,
        "alpha_slope_low": asked.law.slope.low,
        "alpha_slope_high": asked.law.slope.high,
    } | alpha


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise MissingExtra("pandas", "models") from None
    return pandas
