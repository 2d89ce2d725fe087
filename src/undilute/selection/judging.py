"""Does a model answer better from what was selected?  Readers are compared on the same questions.

A reader is a way to come from documents to what a model reads: all of it, as far as its window goes (``none``), or what
a scorer selects. Facts are hidden in the user's texts, and each is asked for after every reader's text, in one form.

    rows = read_each(model, tokenizer, texts, ["none", "bm25", "heads", "heads+bm25"], lengths=[1024, 8192])

Every haystack's answers are written as soon as they are there, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import Hay, Haystack, Hiding, Question, shortest
from undilute.evaluation.journal import Journal
from undilute.evaluation.measure import answered
from undilute.evaluation.tasks import known as known_tasks
from undilute.evaluation.words import continuation
from undilute.models.forward_pass import evaluating
from undilute.models.limits import maximum_length
from undilute.models.read_once import ReadOnce, takes_together
from undilute.models.texts import beginning, encoded
from undilute.progress import Progress, quiet
from undilute.rules.parameters import count, whole
from undilute.selection import scorers
from undilute.selection.forms import put
from undilute.selection.keeping import Kept, Nothing
from undilute.selection.passages import SIZE, Passage, named, split
from undilute.selection.result import ORDERS, Order, Selection
from undilute.selection.scorers import Scorer, Scores, Subject
from undilute.selection.scorers.fusion import Fusion
from undilute.selection.scorers.oracle import Oracle
from undilute.selection.select import within

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FULL = "none"  # nothing is selected
ORACLE = "oracle"
TASKS = ("special-word", "team-name", "emblem", "descriptions")
HAYSTACKS = 8
QUESTIONS = 4  # of a haystack that are asked
BUDGET = 256
ORDER: Order = "best last"


@dataclass(frozen=True)
class Read:
    """One question, answered after what one reader gave the model.

    Attributes
    ----------
    reader, task, length, text, haystack, question : which
    right, log_probability, chance : of the answer, as of :class:`undilute.evaluation.Answer`
    kept : whether everything that the answer needs was in what the model read
    chosen, answered : tokens that a model read to choose, and to answer
    seconds : of choosing, its share of the haystack's, and of answering
    """

    reader: str
    task: str
    length: int
    text: str
    haystack: int
    question: int
    right: float
    log_probability: float
    chance: float
    kept: bool
    chosen: int
    answered: int
    seconds: float


@dataclass(frozen=True)
class Example:
    """One question of a task.

    Attributes
    ----------
    task : its name
    statements : what must be read to know the answer
    question : as it is asked
    answer : the right one
    candidates : how many are ranked
    """

    task: str
    statements: tuple[str, ...]
    question: str
    answer: str
    candidates: int


def read_each(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Mapping[str, str],
    readers: Sequence[str],
    *,
    tasks: Sequence[str] = TASKS,
    lengths: Sequence[int] = (1024,),
    haystacks: int = HAYSTACKS,
    questions: int = QUESTIONS,
    budget: int = BUDGET,
    order: Order = ORDER,
    size: int = SIZE,
    seed: int = 0,
    given: Mapping[str, Scorer] | None = None,
    checkpoint: Path | None = None,
    on_progress: Progress | None = None,
) -> list[Read]:
    """Every question, after what every reader gave the model.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    tokenizer : its tokenizer
    texts : {name: text} that facts are hidden in, in turn; as long as the longest haystack
    readers : "none" for all of the text, "oracle" for what answers the question, names of scorers, or names joined by +
    tasks : names of tasks (``undilute.evaluation.tasks``)
    lengths : tokens of the haystacks; may be more than the model reads at once
    haystacks : of each task; the same facts are hidden at every length
    questions : of each haystack, at most
    budget : tokens that are selected
    order : in which they are read
    size : tokens of a passage, at most
    seed : of facts, places and stretches of text
    given : name → scorer, for names that no file has
    checkpoint : a file that holds what is done already, and gets the rest; made if there is none
    on_progress : called with (share done, what is being done)

    Returns
    -------
    list of Read
        The same for the same arguments, except for seconds.
    """
    for name, number in (("haystacks", haystacks), ("questions", questions), ("budget", budget), ("size", size)):
        count(name, number)
    whole("seed", seed, 0)
    if not readers or not lengths or not tasks:
        raise InvalidValue("readers, lengths and tasks: must name at least one each.")
    check_names(readers, tasks, order, given or {})
    prose = named(texts)
    hay = {name: Hay(tokenizer, text) for name, text in prose.items()}
    _check_room(tokenizer, hay, tasks, lengths, haystacks)
    judging = _Judging(model, tokenizer, readers, given or {}, budget, order, size, questions)
    settings = {
        "model": judging.fingerprint,
        "readers": list(readers),
        "texts": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in prose.items()},
        "longest": max(lengths),  # which decides what is hidden
        "questions": questions,
        "budget": budget,
        "order": order,
        "size": size,
        "seed": seed,
    }
    done = Journal(checkpoint, settings)
    hiding = Hiding(tokenizer)
    cells = [(task, number) for number in range(haystacks) for task in tasks]
    found: list[Read] = []
    tell = on_progress or quiet
    with torch.inference_mode(), evaluating(model):
        for place, (task, number) in enumerate(cells):
            text = list(hay)[number % len(hay)]
            missing = [length for length in lengths if f"{task}, {number}, {length}" not in done]
            if missing:
                family = hiding.growing(hay[text], sorted(lengths), task, seed=(seed, 7, number), number=number)
            for length in lengths:
                if length in missing:
                    haystack = next(each for each in family if each.length == length)
                    share = (place + lengths.index(length) / len(lengths)) / len(cells)
                    tell(share, f"{task} at {length:,} tokens, haystack {number + 1} of {haystacks}")
                    rows = [asdict(each) for each in judging.about(haystack, text)]
                    done.add(f"{task}, {number}, {length}", rows)
                found += [Read(**each) for each in done[f"{task}, {number}, {length}"]]
    tell(1.0, "done")
    return found


def check_names(
    readers: Sequence[str], tasks: Sequence[str], order: str = ORDER, given: Mapping[str, Scorer] | None = None
) -> None:
    """Refuse names that nothing has, which takes no model."""
    among = [*scorers.known(), *(given or {})]
    for reader in readers:
        parts = [] if reader in (FULL, ORACLE) else reader.split("+")
        for part in parts:
            if part.partition(":")[0] not in among:
                raise InvalidValue(
                    f"reader {reader!r}: must be {FULL}, {ORACLE}, or one of the scorers {', '.join(among)}, several "
                    "joined by +."
                )
    known_tasks(list(tasks))
    if order not in ORDERS:
        raise InvalidValue(f"order = {order!r}: must be {' or '.join(map(repr, ORDERS))}.")


def _check_room(
    tokenizer: PreTrainedTokenizerBase,
    hay: Mapping[str, Hay],
    tasks: Sequence[str],
    lengths: Sequence[int],
    haystacks: int,
) -> None:
    """Refuse lengths without room for the facts, and texts that are too short, before anything is read."""
    for length in lengths:
        count("length", length)
    for task in tasks:
        if min(lengths) < (least := shortest(tokenizer, [task])):
            raise InvalidValue(
                f"length = {min(lengths):,}: must be at least {least:,} tokens for the task {task!r}, so that half of "
                "it is text."
            )
    for name, own in list(hay.items())[:haystacks]:
        try:
            own.stretch(0, max(lengths))
        except InvalidValue as error:
            raise InvalidValue(f"{name}: {error}") from None


def examples(
    tokenizer: PreTrainedTokenizerBase,
    texts: Mapping[str, str],
    tasks: Sequence[str],
    lengths: Sequence[int],
    seed: int = 0,
) -> list[Example]:
    """The first question of each task that :func:`read_each` asks with the same arguments."""
    hiding, hay = Hiding(tokenizer), Hay(tokenizer, next(iter(named(texts).values())))
    found = []
    for task in tasks:
        haystack = hiding.growing(hay, sorted(lengths), task, seed=(seed, 7, 0))[0]
        question = haystack.questions[0]
        said = (str(tokenizer.decode(haystack.ids[start:end].tolist())).strip() for start, end in question.needs)
        right = ", ".join(question.candidates[place] for place in question.right)
        found.append(Example(task, tuple(said), question.text, right, len(question.candidates)))
    return found


class _Judging:
    """One comparison under way."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        readers: Sequence[str],
        given: Mapping[str, Scorer],
        budget: int,
        order: Order,
        size: int,
        questions: int,
    ) -> None:
        from undilute.models.fingerprint import of_model

        self.model, self.tokenizer = model, tokenizer
        self.budget, self.order, self.size, self.questions = budget, order, size, questions
        self.fingerprint = of_model(model, tokenizer)
        self.parts: dict[str, _Once] = {}
        self.readers = {name: None if name in (FULL, ORACLE) else self._reader(name, given) for name in readers}
        self.together: bool | None = None

    def _reader(self, name: str, given: Mapping[str, Scorer]) -> Scorer:
        """A scorer whose parts are asked once, even if several readers share them."""
        parts = []
        for part in name.split("+"):
            if part not in self.parts:
                made = given[part] if part in given else scorers.get(part, Subject(self.model, self.tokenizer))
                self.parts[part] = _Once(made)
            parts.append(self.parts[part])
        return parts[0] if len(parts) == 1 else Fusion(parts)

    def about(self, haystack: Haystack, text: str) -> Iterator[Read]:
        """What every reader makes of a haystack."""
        document, gold = self._document(haystack)
        passages = split({text: document}, self.tokenizer, self.size)
        asked = haystack.questions[: self.questions]
        words = [each.text for each in asked]
        for name, scorer in self.readers.items():
            if name == FULL:
                yield from self._full(haystack, asked, text)
                continue
            start = time.perf_counter()
            told = {each: [(text, *span) for span in spans] for each, spans in zip(words, gold, strict=False)}
            chosen = (scorer or Oracle(told)).scores(words, passages, Nothing(), quiet)
            seconds = (self._seconds(name) or time.perf_counter() - start) / len(asked)
            for number, (question, scores) in enumerate(zip(asked, chosen, strict=True)):
                budget = self.budget if scorer is not None else max(self.budget, int(scores.values.sum()) * self.size)
                kept = within(scores, passages, budget)
                if scorer is None:
                    kept = tuple(each for each in kept if each.score > 0)
                made = Selection(question.text, kept, {}, len(passages), 0, scores.read, name, self.budget, 0.0)
                spans = [(each.start, each.end) for each in kept]
                whole_gold = all(_covered(span, spans) for span in gold[number])
                start = time.perf_counter()
                ids = torch.tensor([*beginning(self.tokenizer), *encoded(self.tokenizer, made.arranged(self.order))])
                logits = ReadOnce(self.model, ids).ask(self._asked(question))
                took = seconds + time.perf_counter() - start
                yield self._row(name, haystack, text, number, question, logits, whole_gold, scores.read, len(ids), took)

    def _seconds(self, name: str) -> float:
        """What choosing took: a part that was asked for another reader took its time as well."""
        return sum(self.parts[part].seconds for part in name.split("+") if part in self.parts)

    def _full(self, haystack: Haystack, asked: Sequence[Question], text: str) -> Iterator[Read]:
        """All of the text, or its end if the model does not read as much."""
        questions = [self._asked(each) for each in asked]
        start = time.perf_counter()
        limit = maximum_length(self.model)
        ids, cut = haystack.ids, 0
        if limit is not None:
            room = limit - max(map(len, questions))
            cut = max(0, len(ids) - room)
        if cut:
            before = torch.tensor(beginning(self.tokenizer), dtype=ids.dtype)
            cut += len(before)
            ids = torch.cat([before, ids[cut:]])
        read = ReadOnce(self.model, ids)
        if self.together is None:
            few = ReadOnce(self.model, ids[:64])
            self.together = takes_together(few, questions[:2])
        answers = read.ask_together(questions) if self.together else [read.ask(each) for each in questions]
        seconds = (time.perf_counter() - start) / len(asked)
        for number, (question, logits) in enumerate(zip(asked, answers, strict=True)):
            kept = all(begin >= cut for begin, _ in question.needs)
            yield self._row(FULL, haystack, text, number, question, logits, kept, 0, len(ids), seconds)

    def _row(
        self,
        reader: str,
        haystack: Haystack,
        text: str,
        number: int,
        question: Question,
        logits: Tensor,
        kept: bool,
        chosen: int,
        read: int,
        seconds: float,
    ) -> Read:
        made = answered(haystack, number, question, logits)
        return Read(
            reader=reader,
            task=haystack.task,
            length=haystack.length,
            text=text,
            haystack=haystack.number,
            question=number,
            right=made.right,
            log_probability=made.log_probability,
            chance=made.chance,
            kept=kept,
            chosen=chosen,
            answered=read,
            seconds=seconds,
        )

    def _asked(self, question: Question) -> Tensor:
        """The tokens of the question in the form in which every reader's text is asked about."""
        own = continuation(self.tokenizer, put(question.text))
        shared = len(question.ids) - len(continuation(self.tokenizer, f"\n\n{question.text}"))
        return torch.tensor(own + question.ids[len(question.ids) - shared :].tolist()) if shared else torch.tensor(own)

    def _document(self, haystack: Haystack) -> tuple[str, list[list[tuple[int, int]]]]:
        """The haystack as text, and where in it everything stands that a question needs."""
        borders = sorted({end for question in haystack.questions for span in question.needs for end in span})
        pieces, places, before, length = [], {}, 0, 0
        for border in [*borders, len(haystack.ids)]:
            piece = str(self.tokenizer.decode(haystack.ids[before:border].tolist(), skip_special_tokens=True))
            pieces.append(piece)
            length += len(piece)
            places[border], before = length, border
        gold = [[(places[start], places[end]) for start, end in question.needs] for question in haystack.questions]
        return "".join(pieces), gold


class _Once:
    """A scorer that is asked once about the same passages, whichever readers need it."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.label = scorer, scorer.label
        self.asked: tuple[Any, ...] = ()
        self.found: list[Scores] = []
        self.seconds = 0.0

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        now = (tuple(questions), tuple(each.text for each in passages))
        if now != self.asked:
            start = time.perf_counter()
            self.found = self.scorer.scores(questions, passages, kept, on_progress)
            self.seconds = time.perf_counter() - start
            self.asked = now
        return self.found


def _covered(span: tuple[int, int], by: Sequence[tuple[int, int]]) -> bool:
    """Whether ranges together cover a range."""
    place = span[0]
    for start, end in sorted(by):
        if start <= place < end:
            place = end
    return place >= span[1]
