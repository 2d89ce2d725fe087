"""heads: the model's own retrieval heads say which passages they look at when the question is asked.

The heads suffer the dilution that they are to cure, so they are never given a long text. Passages are read in groups,
each from position 0 and only as long as the heads keep half of their attention on a fact
(``undilute.selection.finding``). A passage's score is the heads' mean attention on it from the question's last token,
less what it gets when nothing is asked. The best of all groups are read once more, together, and again until they fit
into one group: an eighth of the tokens go on each time, so that all these rounds cost a seventh of the first, and
memory is that of one group. At last the better half of that group is read from the worst to the best.

Attention in groups follows Undilute's own measurements (docs/select.md); scores from retrieval heads and the
content-free question follow arXiv:2410.02642 (ICR), 2506.09944 (QRHead) and 2510.02219 (CoRe).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation.words import continuation
from undilute.models.fingerprint import of_model
from undilute.models.forward_pass import evaluating
from undilute.models.limits import maximum_length
from undilute.models.passes import PASSES
from undilute.models.read_once import LastRow, ReadOnce, cache_of, takes_together, tensors_of
from undilute.models.texts import beginning, encoded
from undilute.progress import Progress
from undilute.rules.parameters import count
from undilute.selection.finding import RetrievalHeads, layers_in, retrieval_heads
from undilute.selection.forms import put, put_nothing
from undilute.selection.keeping import Kept
from undilute.selection.passages import Passage
from undilute.selection.scorers import Scores, Subject, scorer

Array = NDArray[np.float64]
GO_ON = 8  # one token in so many goes on to the next round
CLOSER = 2  # and one in so many of the last group, to be read once more
TOGETHER = 16  # questions that are asked in one pass
TRIED = 64  # tokens of a text that shows whether questions can be asked together


@scorer("heads")
def heads(subject: Subject) -> Heads:
    return Heads(subject)


class Heads:
    """Retrieval heads as a scorer.

    Parameters
    ----------
    subject : the model and its tokenizer
    found : its retrieval heads; by default found once, which takes about a minute for a small model, and looked up
        afterwards
    group : tokens of a group, with its question; by default what the heads can be given
    """

    label = "heads"

    def __init__(self, subject: Subject, found: RetrievalHeads | None = None, group: int | None = None) -> None:
        self.model, self.tokenizer = subject.model, subject.tokenizer
        self.given, self.group = found, None if group is None else count("group", group)
        self.start = list(beginning(self.tokenizer))
        self._together: bool | None = None
        self._name: str | None = None

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        found = self.given or retrieval_heads(self.model, self.tokenizer, on_progress=on_progress)
        self.given, self._name = found, None  # the model may have been treated since it was last asked
        asked = [self._question(each) for each in questions]
        longest = max(len(each) for pair in asked for each in pair)
        room = self._room(found, longest)
        self._check_fits(passages, longest)
        every = [Standing.begun(passages) for _ in questions]
        with torch.inference_mode(), evaluating(self.model):
            groups = list(grouped(np.arange(len(passages)), passages, room))
            for number, group in enumerate(groups):
                on_progress(number / (len(groups) + 1), f"reading, group {number + 1:,} of {len(groups):,}")
                read = self._read([passages[place] for place in group], kept)
                for some in range(0, len(asked), TOGETHER):
                    for place, masses in enumerate(self._masses(read, asked[some : some + TOGETHER]), start=some):
                        every[place].saw(group, masses, read.tokens)
            for standing, pair in zip(every, asked, strict=True):
                on_progress(len(groups) / (len(groups) + 1), "reading the best once more")
                self._further(standing, pair, passages, room, len(groups))
        return [Scores(each.values, each.rounds, each.read) for each in every]

    def _further(
        self, standing: Standing, pair: tuple[Tensor, Tensor], passages: Sequence[Passage], room: int, groups: int
    ) -> None:
        """Rounds with the best of the one before, until all of them were read together."""
        while groups > 1:
            tokens = sum(passages[place].tokens for place in standing.last)
            chosen = standing.best(passages, max(room, tokens // GO_ON))
            further = list(grouped(chosen, passages, room))
            if len(further) >= groups:
                break
            standing.next_round()
            for group in further:
                read = self._read([passages[place] for place in group], None)
                standing.saw(group, self._masses(read, [pair])[0], read.tokens)
            groups = len(further)
        self._closer(standing, pair, passages, room // CLOSER)

    def _closer(self, standing: Standing, pair: tuple[Tensor, Tensor], passages: Sequence[Passage], room: int) -> None:
        """The best half of the last group, read once more from the worst to the best, near the question."""
        if sum(passages[place].tokens for place in standing.last) <= room:
            return
        chosen = standing.best(passages, room)
        chosen = chosen[np.argsort(standing.values[chosen], kind="stable")]
        standing.next_round()
        read = self._read([passages[place] for place in chosen], None)
        standing.saw(chosen, self._masses(read, [pair])[0], read.tokens)

    # ---------------------------------------------------------------- one group

    def _question(self, question: str) -> tuple[Tensor, Tensor]:
        """The tokens of the question, and of the same form with nothing asked."""
        asked = (continuation(self.tokenizer, put(question)), continuation(self.tokenizer, put_nothing(question)))
        return torch.tensor(asked[0]), torch.tensor(asked[1])

    def _room(self, found: RetrievalHeads, question: int) -> int:
        """Tokens of passages that a group may hold."""
        limit = maximum_length(self.model)
        most = found.group if self.group is None else self.group
        if limit is not None and limit - question - len(self.start) < 1:
            raise InvalidValue(
                f"the question has {question:,} tokens: {type(self.model).__name__} reads at most {limit:,}, and some "
                "are needed for what it is about; ask a shorter question."
            )
        return max(1, min(most, most if limit is None else limit - question) - len(self.start))

    def _check_fits(self, passages: Sequence[Passage], question: int) -> None:
        """Raise if a passage and the question are longer than what the model reads at once, or there is nothing."""
        largest = max(passages, key=lambda each: each.tokens)
        limit = maximum_length(self.model)
        free = math.inf if limit is None else limit - question - len(self.start)
        if largest.tokens > free:
            raise InvalidValue(
                f"a passage of {largest.document} has {largest.tokens:,} tokens, from character {largest.start:,} on: "
                f"{type(self.model).__name__} reads at most {limit:,} with the question; give a smaller size."
            )
        if not largest.tokens:
            raise InvalidValue("the tokenizer makes no tokens of the documents: give documents that it can read.")

    def _read(self, group: Sequence[Passage], kept: Kept | None) -> _Group:
        found = self.given
        assert found is not None
        ids, spans = list(self.start), []
        for passage in group:
            begun = len(ids)
            ids += encoded(self.tokenizer, passage.text)
            spans.append((max(begun, 1), len(ids)))  # the first token is a sink
        tokens = torch.tensor(ids)
        self._try_together(tokens)
        made: list[ReadOnce] = []

        def make() -> dict[str, Tensor]:
            made.append(ReadOnce(self.model, tokens, until=found.until))
            return tensors_of(made[0].cache)

        cache = None
        if kept is None:
            make()
        else:
            cache = cache_of(self.model, kept.tensors(self._key(tokens, found.until), make))
        read = made[0] if made else ReadOnce(self.model, tokens, until=found.until, cache=cache)
        return _Group(read, spans, len(ids) if made else 0)

    def _key(self, tokens: Tensor, until: str) -> str:
        """All that the keys and values of a group depend on."""
        if self._name is None:
            self._name = of_model(self.model, self.tokenizer)
        made = hashlib.sha256(f"{self._name} {until}".encode())
        made.update(tokens.numpy().tobytes())
        return made.hexdigest()

    def _try_together(self, tokens: Tensor) -> None:
        if self._together is None:
            few = tokens.repeat(TRIED // len(tokens) + 1)[:TRIED]
            self._together = takes_together(ReadOnce(self.model, few), [few[:5], few[3:10]])

    def _masses(self, read: _Group, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Array]:
        """For each question (passages,): the heads' mean attention on each passage, less that of nothing asked."""
        assert self.given is not None
        free = {pair[1].numpy().tobytes(): pair[1] for pair in pairs}
        rows = read.text.looked([*(pair[0] for pair in pairs), *free.values()], together=bool(self._together))
        masses = [read.masses(each, self.given) for each in rows]
        of_nothing = dict(zip(free, masses[len(pairs) :], strict=True))
        return [own - of_nothing[pair[1].numpy().tobytes()] for pair, own in zip(pairs, masses, strict=False)]


@dataclass(frozen=True, eq=False)
class _Group:
    """Passages that were read together: the text, where each stands in it, and tokens that were read just now."""

    text: ReadOnce
    spans: Sequence[tuple[int, int]]
    tokens: int

    def masses(self, rows: Sequence[LastRow], found: RetrievalHeads) -> Array:
        """(passages,): the heads' mean attention on each, from the last row."""
        first = {f"{row.layer}{PASSES}0": row for row in rows}  # of a module that runs again above the last layer read
        by_layer = first | {row.layer: row for row in rows}
        own: list[Any] = []
        for layer, numbers in layers_in(found.heads).items():
            if layer not in by_layer:
                raise InvalidValue(f"the model has no layer {layer!r}: its retrieval heads are those of another model.")
            row = by_layer[layer]
            own.append(torch.stack([row.on(*span)[numbers] for span in self.spans], -1))
        return np.asarray(torch.cat(own).double().mean(0).numpy())


# ---------------------------------------------------------------- rounds


@dataclass(eq=False)
class Standing:
    """How the passages stand for one question.

    Attributes
    ----------
    values : (passages,), from the last round that a passage was in
    rounds : (passages,), how often it was read
    groups : those of the last round
    read : tokens that were read
    """

    values: Array
    rounds: NDArray[np.int64]
    groups: list[NDArray[np.int64]]
    read: int = 0

    @classmethod
    def begun(cls, passages: Sequence[Passage]) -> Standing:
        return cls(np.full(len(passages), -np.inf), np.zeros(len(passages), dtype=np.int64), [])

    @property
    def last(self) -> list[int]:
        """The passages of the last round."""
        return [int(place) for group in self.groups for place in group]

    def saw(self, group: NDArray[np.int64], masses: Array, tokens: int) -> None:
        """What a group of the current round gave."""
        self.values[group] = masses
        self.rounds[group] += 1
        self.groups.append(group)
        self.read += tokens

    def next_round(self) -> None:
        """Begin another round."""
        self.groups = []

    def best(self, passages: Sequence[Passage], tokens: int) -> NDArray[np.int64]:
        """Passages with at most so many tokens that go on, in order: the first of every group, then the best of all."""
        leaders = {int(group[self.values[group].argmax()]) for group in self.groups}
        order = sorted(self.last, key=lambda place: (place not in leaders, -self.values[place]))
        chosen: list[int] = []
        for place in order:
            tokens -= passages[place].tokens
            if tokens < 0 and chosen:
                break
            chosen.append(place)
        return np.array(sorted(chosen))


def grouped(places: NDArray[np.int64], passages: Sequence[Passage], room: int) -> Iterator[NDArray[np.int64]]:
    """Passages in order, in groups of at most ``room`` tokens and of about the same size; one alone if it is longer."""
    sizes = np.array([passages[place].tokens for place in places.tolist()], dtype=float)
    number = max(1, int(np.ceil(sizes.sum() / room)))
    fair = min(room, sizes.sum() / number + sizes.max())
    group: list[int] = []
    held = 0.0
    for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
        if held and held + size > fair:
            yield np.array(group)
            group, held = [], 0.0
        group.append(place)
        held += size
    if group:
        yield np.array(group)
