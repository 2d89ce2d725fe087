"""What would help?  Only what was tried: each remedy that theory suggests is applied to the model and measured.

The remedies are fitted to what happens from a quarter of the measured length to all of it, so that their effect can be
seen there, on the last third of each text, which the diagnosis has not read:

    llama4 for the retrieval heads    Llama 4's scale, with the growth that holds each head's α*
    llama4 for the diluting heads     the same, with the growth that holds each head's top weight on plain text
    sharper retrieval heads           their logits × 1.5 at every length

Loss and recall are compared in pairs with the model as it is. A remedy helps if recall rises, with p < 0.05 divided by
the number of remedies, and the loss does not rise by more than 0.02 nats. One whose loss surely rises by more is not
asked any questions, and one that answers no more of the first half rightly is not asked the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from undilute.diagnosis import fit
from undilute.diagnosis.factor import factor_to_hold
from undilute.diagnosis.heads import Head, Heads
from undilute.diagnosis.probe import ASKED, Probe
from undilute.diagnosis.windows import Text, spread
from undilute.errors import UndiluteError
from undilute.evaluation.changes import RUN, SIGNIFICANT, Change, change
from undilute.evaluation.haystacks import Hay, Haystack, Hiding
from undilute.evaluation.measure import answered
from undilute.models import text_loss
from undilute.models.forward_pass import evaluating
from undilute.models.read_once import ReadOnce, takes_together
from undilute.progress import Progress, quiet
from undilute.treatment.apply import apply
from undilute.treatment.kinds.rules import Treated
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOSS_LIMIT = 0.02  # nats by which a remedy may raise the loss
QUARTER = 4  # remedies begin at this part of the length
SHARPER = 1.5
DIGITS = 4  # of a rule's parameter
HAYSTACKS = 8
MOST = 3  # remedies
STREAM = 2  # of random numbers; finding and judging heads have 0 and 1


@dataclass(frozen=True)
class Remedy:
    """Something to try.

    Attributes
    ----------
    label : in a few words
    rules : pattern of a head → the expression of a rule
    """

    label: str
    rules: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Trial:
    """What came of a remedy.

    Attributes
    ----------
    remedy : what was tried
    plan : the same, as ``undilute.apply`` and ``undilute treat`` take it, with these figures in its record
    loss : on windows that were kept apart
    recall : of facts hidden there; None if the loss had risen too much already
    length : tokens of the windows and haystacks
    helps : whether recall rose without raising the loss
    """

    remedy: Remedy
    plan: Plan
    loss: Change
    recall: Change | None
    length: int
    helps: bool

    @property
    def sentence(self) -> str:
        """What came of it, in one sentence."""
        loss = f"loss {_signed(self.loss.difference, 3)} [{_signed(self.loss.low, 3)}, {_signed(self.loss.high, 3)}]"
        if self.recall is None:
            return f"{self.remedy.label}: {loss}; not asked, because that is more than {LOSS_LIMIT} nats."
        recall = self.recall
        points = f"[{_signed(_percent(recall.low))}, {_signed(_percent(recall.high))}]"
        return f"{self.remedy.label}: recall {recall.before:.0%} → {recall.after:.0%} {points}, {loss}."


@dataclass(frozen=True, eq=False)
class Trials:
    """Everything that was tried.

    Attributes
    ----------
    tried : in the order of trying
    why_not : why nothing was tried, in one sentence; None if something was
    failed : what could not be tried: its label → why
    """

    tried: tuple[Trial, ...] = ()
    why_not: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> Trial | None:
        """The one that raised recall most, of those that help."""
        helped = [each for each in self.tried if each.helps and each.recall is not None]
        return max(helped, key=lambda each: each.recall.difference if each.recall else 0.0, default=None)

    @property
    def advice(self) -> str:
        """What to do about it, in a sentence or two; only what was measured."""
        failed = "".join(f" Could not be tried: {label} ({reason})." for label, reason in self.failed.items())
        if not self.tried:
            return f"No advice: {self.why_not}{failed}"
        if self.best is not None:
            use = "To use it: undilute diagnose --save-plan plan.json, then undilute treat --plan plan.json."
            return f"What helped most: {self.best.sentence} {use}{failed}"
        named = ", ".join(each.remedy.label for each in self.tried)
        return f"None of what was tried helped ({named}): leave the heads alone.{failed}"


# ---------------------------------------------------------------- what to try


def remedies(heads: Heads, probe: Probe, length: int) -> list[Remedy]:
    """What theory suggests for these heads."""
    floor = length // QUARTER + 1
    growth = math.log1p(length // floor)
    found, places = heads.retrieval, probe.places

    def llama4(some: Sequence[Head], factors: Sequence[float | None]) -> dict[str, str]:
        return {
            _pattern(head): f"llama4(beta={(factor - 1) / growth:.{DIGITS}g}, floor_length={floor})"
            for head, factor in zip(some, factors, strict=True)
            if factor is not None and factor > 1.0
        }

    held = [_holding(probe, places[head.name, head.head]) for head in found]
    fallen = [
        factor_to_hold(head.slope * math.log(QUARTER), head.medians["rise_doubled"], head.medians["rise_quadrupled"])
        for head in heads.diluting
    ]
    tried = [
        Remedy("llama4 for the retrieval heads", llama4(found, held)),
        Remedy("llama4 for the diluting heads", llama4(heads.diluting, fallen)),
        Remedy(
            f"logits × {SHARPER:g} in the retrieval heads",
            {_pattern(head): f"temperature(T={1 / SHARPER:.{DIGITS}g})" for head in found},
        ),
    ]
    return [each for each in tried if each.rules]


def _holding(probe: Probe, place: int) -> float | None:
    """The factor that would hold a head's α* from a quarter of the longest haystack to all of it."""
    asked = probe.judged.of(probe.judged.tasks == ASKED)
    alpha, sharper = asked.alpha[..., place].mean(1), asked.sharper[..., place].mean(1)
    quarter = int(np.abs(np.log(np.array(asked.lengths) * QUARTER / asked.lengths[-1])).argmin())
    step = math.log(asked.lengths[-1] / asked.lengths[quarter])  # shorter, if nothing as short was asked
    fall = float(fit.logit(alpha[quarter]) - fit.logit(alpha[-1])) * math.log(QUARTER) / step
    rise = float(fit.logit(sharper[-1]) - fit.logit(alpha[-1]))
    return factor_to_hold(fall, rise, 3 * rise)


def _pattern(head: Head) -> str:
    return f"{head.name}.heads.{head.head}"


# ---------------------------------------------------------------- trying it


def tokens_of(texts: Sequence[Text], length: int, number: int) -> int:
    """How many tokens ``number`` trials and the model as it is will read, at most."""
    return (number + 1) * length * (len(texts) + HAYSTACKS)


def tried(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    length: int,
    suggested: Sequence[Remedy],
    *,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Trials:
    """Apply each remedy and measure it.

    Parameters
    ----------
    model, tokenizer : a causal Hugging Face language model
    texts : what was kept apart
    length : tokens of a window, and of a haystack with its question
    suggested : from :func:`remedies`
    seed : of the facts
    on_progress : called with the share that is done and what is under way
    """
    if not suggested:
        return Trials(why_not="no head was found whose weight falls, so theory suggests nothing to try.")
    try:
        material = _Material(model, tokenizer, texts, length, len(suggested), seed, on_progress or quiet)
        losses, right = material.losses("the model as it is"), material.right("the model as it is")
    except UndiluteError as error:
        return Trials(why_not=f"nothing was tried: {error}")
    found: list[Trial] = []
    failed: dict[str, str] = {}
    for remedy in suggested:
        try:
            found.append(_trial(model, remedy, material, losses, right, len(suggested)))
        except UndiluteError as error:  # not every head of every model takes a rule
            failed[remedy.label] = str(error).rstrip(".")
    return Trials(tuple(found), None if found else "nothing that theory suggests could be tried.", failed)


def _trial(
    model: PreTrainedModel,
    remedy: Remedy,
    material: _Material,
    losses: NDArray[np.float64],
    right: NDArray[np.float64],
    number: int,
) -> Trial:
    """One of ``number`` remedies, applied and compared with the model as it is."""
    with apply(model, remedy.rules) as now:
        assert isinstance(now, Treated)
        plan = now.plan
        loss = change("next-token loss", "nats", losses, material.losses(remedy.label), material.runs, better="lower")
        too_much = loss.low is not None and loss.low > LOSS_LIMIT
        after = None if too_much else material.right(remedy.label, right)
    recall = None
    if after is not None:
        asked = len(after)
        recall = change("recall", "share", right[:asked], after, material.haystack_of[:asked], better="higher")
    helps = loss.difference <= LOSS_LIMIT and recall is not None and _rose(recall, number)
    made = {"rule": remedy.label, "by": "undilute diagnose", "tried_at": material.length} | _record(loss, recall)
    return Trial(remedy, replace(plan, made=made), loss, recall, material.length, helps)


def _rose(recall: Change, number: int) -> bool:
    if recall.p_value is None or recall.low is None:
        return False
    return recall.difference > 0 and recall.low > 0 and recall.p_value < SIGNIFICANT / number


def _record(loss: Change, recall: Change | None) -> dict[str, float | None]:
    """A trial's figures, for a plan."""
    found = {"loss_change": loss.difference, "loss_low": loss.low, "loss_high": loss.high}
    if recall is not None:
        found |= {"recall_before": recall.before, "recall_after": recall.after}
        found |= {"recall_low": recall.low, "recall_high": recall.high, "recall_p": recall.p_value}
    return found


class _Material:
    """What every remedy is judged by: the same windows and the same questions."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[Text],
        length: int,
        remedies: int,
        seed: int,
        tell: Progress,
    ) -> None:
        self.model, self.length, self.tell, self.done = model, length, tell, 0
        self.windows = [spread(text, which, length, 1)[0].ids for which, text in enumerate(texts)]
        hiding, hay = Hiding(tokenizer), [Hay(tokenizer, text.prose()) for text in texts]
        self.haystacks: list[Haystack] = []
        for number in range(HAYSTACKS):
            own = (seed, STREAM, number)
            self.haystacks += hiding.growing(hay[number % len(hay)], [length], ASKED, seed=own, number=number)
        self.all = (remedies + 1) * (len(self.windows) + HAYSTACKS)
        runs = (np.arange(length - 1) + 1) // RUN
        self.runs = np.concatenate([runs + each * (runs[-1] + 1) for each in range(len(self.windows))])
        self.haystack_of = np.array([each.number for each in self.haystacks for _ in each.questions])

    def losses(self, label: str) -> NDArray[np.float64]:
        """Next-token losses of all windows."""
        found = []
        for window in self.windows:
            self._say(f"trying {label}: loss")
            found.append(text_loss.losses(self.model, window[None])[0])
        return np.concatenate(found)

    def right(self, label: str, before: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Whether each question was answered rightly; only half of them, if none more is than ``before``."""
        found: list[float] = []
        together: bool | None = None
        with torch.inference_mode(), evaluating(self.model):
            for number, haystack in enumerate(self.haystacks):
                if before is not None and number == HAYSTACKS // 2 and sum(found) <= before[: len(found)].sum():
                    break
                self._say(f"trying {label}: recall")
                read, asked = ReadOnce(self.model, haystack.ids), [each.ids for each in haystack.questions]
                together = takes_together(read, asked[:2]) if together is None else together
                logits = read.ask_together(asked) if together else map(read.ask, asked)
                pairs = enumerate(zip(haystack.questions, logits, strict=True))
                found += [answered(haystack, place, *pair).right for place, pair in pairs]
        return np.array(found)

    def _say(self, doing: str) -> None:
        self.tell(self.done / self.all, doing)
        self.done += 1


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _signed(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "−")
