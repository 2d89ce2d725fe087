"""Which heads find what is asked for, and what weight do they give it as the context grows?

Facts are hidden in the user's own texts, and the model is asked for each. A text is read once; its cache serves all its
questions. From the last row of a question, where the answer is about to be said, every head's attention is summed over
the fact that answers it: α*, the weight that matters.

Two sets of questions never share a name, a thing or a wording:

    found by    haystacks of one length. They are cut into chunks of about 80 tokens, and a head's contrastive score is
                C = mean of e^(s⁺/τ) / Σ_d e^(s_d/τ), where s_d is the attention on chunk d and s⁺ that on the chunk
                with the answer (CoRe, arXiv:2510.02219, τ = 0.05). A head that looks anywhere scores 1 / chunks.
    judged by   haystacks of several lengths, with the same facts at the same depths while the text around them grows.
                They give α* over length, recall, and how well α* tells right answers from wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undilute.diagnosis.windows import Text
from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import Hay, Haystack, Hiding, Question, Range, shortest
from undilute.evaluation.tasks.facts import FACTS
from undilute.models.forward_pass import evaluating
from undilute.models.read_once import LastRow, ReadOnce, takes_together
from undilute.progress import Progress, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Array = NDArray[np.float64]
FINDING = ("facts", "facts", "facts", "facts-paraphrased")  # in turn
ASKED, PARAPHRASED = "other-facts", "other-facts-paraphrased"  # the first one's recall and weights make the headline
JUDGING = (ASKED, ASKED, ASKED, PARAPHRASED)
HAYSTACKS = 8  # of each set
FINDING_LENGTH = 1024  # or the longest, if that is shorter
OCTAVES = 3  # the shortest haystack is the longest one's 1 / 2³
CHUNK = 80  # tokens
TEMPERATURE = 0.05
SHARPER = 2.0  # the factor on logits whose effect on α* is kept, for remedies
EXAMPLES = 8  # keys that are kept of a row


@dataclass(frozen=True, eq=False)
class Asked:
    """All questions of one set, at one length each or at several.

    Attributes
    ----------
    lengths : tokens of the haystacks with their questions
    tasks, texts, haystack : (questions,): the task's name, which text, and which haystack a question belongs to
    right : (lengths, questions), 1 or 0
    log_probability : (lengths, questions), of the right candidate among all
    span : (questions,), tokens of the fact that answers
    n : (lengths, questions), keys that the question's last row sees
    alpha : (lengths, questions, heads), attention on that fact
    sharper : the same if the logits were twice as large
    sink : attention on the first tokens
    score : the contrastive score
    chance : that of a head that looks anywhere, at the shortest length
    """

    lengths: tuple[int, ...]
    tasks: NDArray[np.str_]
    texts: NDArray[np.int64]
    haystack: NDArray[np.int64]
    right: Array
    log_probability: Array
    span: NDArray[np.int64]
    n: NDArray[np.int64]
    alpha: Array
    sharper: Array
    sink: Array
    score: Array
    chance: float

    def of(self, chosen: NDArray[np.bool_]) -> Asked:
        """Some of the questions."""
        own = {name: getattr(self, name)[chosen] for name in ("tasks", "texts", "haystack", "span")}
        both = {name: getattr(self, name)[:, chosen] for name in ("right", "log_probability", "n")}
        heads = {name: getattr(self, name)[:, chosen] for name in ("alpha", "sharper", "sink", "score")}
        return Asked(self.lengths, **own, **both, **heads, chance=self.chance)

    @property
    def without_sink(self) -> Array:
        """(lengths, questions, heads): α* if the sink were not there."""
        return np.asarray(self.alpha / np.maximum(1 - self.sink, 1e-12))


@dataclass(frozen=True)
class Looked:
    """What the heads looked at when one question was asked.

    Attributes
    ----------
    question : its tokens, a string for each
    span : where the fact that answers stands among the haystack's tokens
    right : whether the model answered rightly
    keys, weights : (heads, 8), the heaviest keys of the question's last row, as positions in haystack and question
    """

    question: tuple[str, ...]
    span: Range
    right: bool
    keys: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Probe:
    """What was asked, and what the heads attended to.

    Attributes
    ----------
    layers : the name of each head's layer
    heads : (heads,), its number in the layer
    found : the questions that heads are found by
    judged : those that they are judged by
    haystack : the tokens of one long haystack, a string for each
    looked : what the heads looked at in it
    """

    layers: tuple[str, ...]
    heads: NDArray[np.int64]
    found: Asked
    judged: Asked
    haystack: tuple[str, ...]
    looked: tuple[Looked, ...]

    @property
    def places(self) -> dict[tuple[str, int], int]:
        """Where a head stands in the figures, by the name of its layer and its number."""
        return {place: index for index, place in enumerate(zip(self.layers, self.heads.tolist(), strict=True))}


@dataclass(frozen=True)
class Plan:
    """What will be asked.

    Attributes
    ----------
    lengths : of the haystacks that heads are judged by
    finding : of those that they are found by
    each : haystacks of each set
    """

    lengths: tuple[int, ...]
    finding: int
    each: int

    @property
    def tokens(self) -> int:
        """How many the model will read."""
        return self.each * (self.finding + sum(self.lengths))


def planned(tokenizer: PreTrainedTokenizerBase, length: int, each: int = HAYSTACKS) -> Plan:
    """What to ask with texts of up to ``length`` tokens; an error if that is too short for two lengths."""
    least = shortest(tokenizer, sorted({*FINDING, *JUDGING}))
    lengths = [length // 2**octave for octave in reversed(range(OCTAVES + 1)) if length // 2**octave >= least]
    if len(lengths) < 2:
        raise InvalidValue(
            f"length = {length:,}: must be at least {2 * least:,} tokens to hide {FACTS} facts at two "
            "lengths; give more, or probe = False for plain text only."
        )
    return Plan(tuple(lengths), max(lengths[0], min(FINDING_LENGTH, length)), each)


def has_room(tokenizer: PreTrainedTokenizerBase, text: Text, length: int) -> bool:
    """Whether haystacks of ``length`` tokens can be made of a text: its sentences, each by itself, have as many."""
    hay, tokens = Hay(tokenizer, text.prose()), 0
    for place in range(len(hay.pieces)):
        tokens += len(hay.tokens(place))
        if tokens >= length:
            return True
    return False


def probe(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    plan: Plan,
    *,
    sinks: int = 1,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Probe:
    """Ask, and keep what every head attended to.

    Parameters
    ----------
    model : a causal Hugging Face language model
    tokenizer : its tokenizer
    texts : what the facts are hidden in, in turn
    plan : from :func:`planned`
    sinks : how many of the first tokens are the sink
    seed : of the facts, their places and the stretches of text
    on_progress : called with the share that is done and what is under way
    """
    asking = _Asking(model, tokenizer, texts, plan, sinks, seed, on_progress or quiet)
    with torch.inference_mode(), evaluating(model):
        found = asking.all_of(FINDING, (plan.finding,), 0)
        judged = asking.all_of(JUDGING, plan.lengths, 1)
    return Probe(asking.layers, asking.heads, found, judged, asking.haystack, tuple(asking.looked))


class _Asking:
    """One probe under way."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[Text],
        plan: Plan,
        sinks: int,
        seed: int,
        tell: Progress,
    ) -> None:
        self.model, self.tokenizer, self.plan = model, tokenizer, plan
        self.sinks, self.seed, self.tell = sinks, seed, tell
        self.hiding = Hiding(tokenizer)
        self.hay = [Hay(tokenizer, text.prose()) for text in texts]
        self.done, self.keep = 0, False
        self.together: bool | None = None
        self.layers: tuple[str, ...] = ()
        self.heads = np.zeros(0, dtype=np.int64)
        self.haystack: tuple[str, ...] = ()
        self.looked: list[Looked] = []

    def all_of(self, tasks: Sequence[str], lengths: tuple[int, ...], which: int) -> Asked:
        """All haystacks of one set."""
        every: list[list[_Row]] = [[] for _ in lengths]
        tasks_of: list[str] = []
        texts_of: list[int] = []
        numbers: list[int] = []
        for number in range(self.plan.each):
            task = tasks[number % len(tasks)]
            earlier = sum(tasks[each % len(tasks)] == task for each in range(number))
            text = earlier % len(self.hay)
            family = self.hiding.growing(self.hay[text], lengths, task, seed=(self.seed, which, number), number=number)
            for place, haystack in enumerate(family):
                self.tell(self.done / self.plan.tokens, f"asking, {haystack.length:,} tokens")
                self.keep = which == 1 and place == len(lengths) - 1 and number == 0
                every[place] += self._ask(haystack)
                self.done += haystack.length
            questions = len(family[0].questions)
            tasks_of += [task] * questions
            texts_of += [text] * questions
            numbers += [number] * questions

        def stacked(name: str) -> Array:
            return np.stack([np.stack([getattr(row, name) for row in rows]) for rows in every])

        return Asked(
            lengths=lengths,
            tasks=np.array(tasks_of),
            texts=np.array(texts_of),
            haystack=np.array(numbers),
            right=stacked("right"),
            log_probability=stacked("log_probability"),
            span=np.array([row.span for row in every[0]]),
            n=stacked("n").astype(np.int64),
            alpha=stacked("alpha"),
            sharper=stacked("sharper"),
            sink=stacked("sink"),
            score=stacked("score"),
            chance=float(np.mean([row.chance for row in every[0]])),
        )

    def _ask(self, haystack: Haystack) -> Iterator[_Row]:
        read = ReadOnce(self.model, haystack.ids)
        asked = [question.ids for question in haystack.questions]
        if self.together is None:
            self.together = takes_together(read, asked)
        answers = read.attended_together(asked) if self.together else map(read.attended, asked)
        facts = sorted({span.needle for question in haystack.questions for span in question.spans})
        borders = chunk_borders(len(haystack.ids), facts, min(self.sinks, facts[0][0]))  # no fact is part of the sink
        for question, (logits, rows) in zip(haystack.questions, answers, strict=True):
            if not self.layers:
                self.layers = tuple(row.layer for row in rows for _ in row.weights)
                self.heads = np.concatenate([np.arange(len(row.weights)) for row in rows])
            yield self._row(question, len(haystack.ids) + len(question.ids), logits, rows, borders)
            if self.keep:
                self._look(haystack, question, logits, rows)

    def _row(self, question: Question, n: int, logits: Tensor, rows: Sequence[LastRow], borders: Sequence[int]) -> _Row:
        spans = [span.needle for span in question.spans]
        scores = logits[question.candidate_ids]
        chunks = list(pairwise(borders))
        gold = [any(start <= begin and stop <= end for begin, stop in spans) for start, end in chunks]
        attended = torch.cat([torch.stack([row.on(*chunk) for chunk in chunks], -1) for row in rows]).double()
        score = (attended / TEMPERATURE).softmax(-1)[:, torch.tensor(gold)].sum(-1)

        def on(ranges: Sequence[Range], power: float = 1.0) -> NDArray[np.float64]:
            return torch.cat([_share(row, ranges, power) for row in rows]).double().numpy()

        return _Row(
            right=float(int(scores.argmax()) in question.right),
            log_probability=float(scores.log_softmax(0)[list(question.right)].mean()),
            span=sum(stop - start for start, stop in spans),
            n=n,
            alpha=on(spans),
            sharper=on(spans, SHARPER),
            sink=on([(0, self.sinks)]),
            score=score.numpy(),
            chance=sum(gold) / len(gold),
        )

    def _look(self, haystack: Haystack, question: Question, logits: Tensor, rows: Sequence[LastRow]) -> None:
        """Keep what the heads looked at."""

        def pieces(ids: Tensor) -> tuple[str, ...]:
            return tuple(str(self.tokenizer.decode([token])) for token in ids.tolist())

        self.haystack = self.haystack or pieces(haystack.ids)
        shown = min(EXAMPLES, min(row.weights.shape[-1] for row in rows))
        heaviest = [row.weights.topk(shown, -1) for row in rows]
        keys = [found.indices - row.first for found, row in zip(heaviest, rows, strict=True)]
        self.looked.append(
            Looked(
                pieces(question.ids),
                question.spans[0].needle,
                int(logits[question.candidate_ids].argmax()) in question.right,
                torch.cat(keys).numpy(),
                torch.cat([found.values for found in heaviest]).double().numpy(),
            )
        )


@dataclass(frozen=True, eq=False)
class _Row:
    """One question at one length."""

    right: float
    log_probability: float
    span: int
    n: int
    alpha: Array
    sharper: Array
    sink: Array
    score: Array
    chance: float


def _share(row: LastRow, ranges: Sequence[Range], power: float) -> Tensor:
    """(heads,): attention on some ranges of the text, if logits were ``power`` times as large."""
    if power != 1.0:
        raised = (row.weights / row.weights.amax(-1, keepdim=True).clamp(min=1e-30)) ** power
        row = LastRow(row.layer, raised / raised.sum(-1, keepdim=True), row.first)
    return torch.stack([row.on(*each) for each in ranges]).sum(0)


def chunk_borders(tokens: int, facts: Sequence[Range], start: int = 1) -> list[int]:
    """Borders of chunks of about ``CHUNK`` tokens, none of them within a fact.

    Examples
    --------
    >>> chunk_borders(400, [(75, 90)])
    [1, 90, 170, 250, 330, 400]
    """
    borders = [start]
    while borders[-1] < tokens:
        border = borders[-1] + CHUNK
        border = next((stop for begin, stop in facts if begin < border < stop), border)
        borders.append(border if tokens - border > CHUNK // 2 else tokens)
    return borders
