"""Can a model find something in a long text?  Questions in the style of RULER, made from a seed.

Short statements, the needles, are put between the sentences of the user's own text. Then a statement is begun once
more, and the model's next-token probabilities rank the words that could complete it. What is hidden and asked is up to
the task: ``undilute.evaluation.tasks`` has a file for each.

Hsieh et al. (2024), RULER: What's the Real Context Size of Your Long-Context Language Models? arXiv:2404.06654. There,
models write the answer. Here candidates are ranked by their first token, which takes one step and also works for a
small model.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation import tasks
from undilute.evaluation.tasks import Asked, Task
from undilute.evaluation.words import (
    KINDS,
    NAMES,
    OTHER_NAMES,
    OTHER_THINGS,
    THINGS,
    Generator,
    Words,
    continuation,
    standing_in,
)
from undilute.models.texts import beginning
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# before the white space that follows a sentence, after a full stop that needs none, and before an empty line
BORDER = re.compile(r"""(?<=[.!?…])(?=\s)|(?<=[.!?…]["'”’)])(?=\s)|(?<=[。！？])|(?<=\S)(?=\n\s*\n)""")
LONGEST_PIECE = 400  # characters: text without sentences is cut at words
WORDS = re.compile(rf"(?s).{{1,{LONGEST_PIECE}}}(?=\s|\Z)|.{{1,{LONGEST_PIECE}}}")
LEAST_HAY = 2  # the haystack is at least so many times as long as what is hidden in it


Range = tuple[int, int]


@dataclass(frozen=True)
class Span:
    """Where an answer stands, as ranges [start, stop) of a haystack's tokens.

    Attributes
    ----------
    needle : the whole statement
    answer : the word in it that answers the question, with whatever shares a token with it; the whole statement where
        the tokenizer does not give the word back
    """

    needle: Range
    answer: Range


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked about a haystack.

    Attributes
    ----------
    text : what is appended to the haystack
    ids : (tokens,), the same as tokens, with any that all candidates begin with
    candidates : the words that are ranked
    candidate_ids : (candidates,), the token that comes next if this is the answer; all different
    right : places of the right candidates
    depth : where in the haystack the answer stands: 0 at its start, 1 at its end; the mean of several answers
    spans : where each right candidate stands in the haystack's ``ids``, in the order of ``right``
    needs : where everything stands that must be read to know the answer, whole statements
    """

    text: str
    ids: Tensor
    candidates: tuple[str, ...]
    candidate_ids: Tensor
    right: tuple[int, ...]
    depth: float
    spans: tuple[Span, ...] = ()
    needs: tuple[Range, ...] = ()

    @property
    def chance(self) -> float:
        """The share of right ones among as many guesses as there are right candidates."""
        return len(self.right) / len(self.candidates)


@dataclass(frozen=True, eq=False)
class Haystack:
    """A text with needles in it.

    Attributes
    ----------
    number : different for each haystack of an evaluation
    task : which kind of question, by name
    length : tokens of the haystack with its longest question
    ids : (tokens,), the haystack alone
    questions : about it, each to be asked by itself
    """

    number: int
    task: str
    length: int
    ids: Tensor
    questions: tuple[Question, ...]


def haystacks(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    lengths: Sequence[int],
    each: int,
    *,
    seed: int = 0,
    only: Sequence[str] | None = None,
) -> tuple[Haystack, ...]:
    """Haystacks of every task at every length.

    Parameters
    ----------
    tokenizer : of the model that will be asked
    text : what the needles are hidden in
    lengths : tokens of a haystack with its longest question, exactly
    each : haystacks of each task and length
    seed : of the words, their places and the stretches of text
    only : names of tasks; all that there are by default

    Returns
    -------
    tuple of Haystack
        The same for the same arguments.
    """
    if each == 0 or not lengths:
        return ()
    count("haystacks", each)
    _check_lengths(tokenizer, lengths, only)
    words, hay = Words(tokenizer), Hay(tokenizer, text)
    wanted = [(length, task, place) for length in lengths for task in tasks.known(only) for place in range(each)]
    made = []
    for number, (length, task, place) in enumerate(wanted):
        generator = np.random.default_rng([seed, length, task.stream, place])
        drawn = _drawn(task, length, words, hay, generator)
        made.append(_haystack(number, drawn, length, words, hay, generator))
    return tuple(made)


class Hiding:
    """Hides the same facts in texts that grow.

    Parameters
    ----------
    tokenizer : of the model that will be asked
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.words = Words(tokenizer)

    def growing(
        self, hay: Hay, lengths: Sequence[int], task: str, *, seed: Sequence[int], number: int = 0
    ) -> tuple[Haystack, ...]:
        """The same needles and questions at every length, at the same depths: only the text around them grows.

        Parameters
        ----------
        hay : the text
        lengths : tokens of a haystack with its longest question
        task : the name of one
        seed : of the words, their places and the stretch of text
        number : that the haystacks carry

        Returns
        -------
        tuple of Haystack
            One for each length. Each shorter one's text ends where the longest one's does.
        """
        _check_lengths(self.words.tokenizer, lengths, [task])
        chosen = tasks.known([task])[0]
        generator = np.random.default_rng([*seed, chosen.stream])
        drawn = _drawn(chosen, max(lengths), self.words, hay, generator)
        return tuple(_haystack(number, drawn, length, self.words, hay, copy.deepcopy(generator)) for length in lengths)


def _check_lengths(tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], only: Sequence[str] | None) -> None:
    least = shortest(tokenizer, only)
    for length in lengths:
        if count("needle length", length) < least:
            raise InvalidValue(
                f"needle length = {length:,}: must be at least {least:,} tokens, so that half of the haystack is "
                "text; or give haystacks = 0 for no needles."
            )


def shortest(tokenizer: PreTrainedTokenizerBase, only: Sequence[str] | None = None) -> int:
    """The least tokens of a haystack that is half text, whatever words are drawn."""

    def most_tokens(words: Iterable[str]) -> str:
        return max(words, key=lambda word: len(continuation(tokenizer, f" {word}")))

    name, kind, thing = most_tokens(NAMES), most_tokens(KINDS), most_tokens(THINGS)
    favourite = most_tokens(word for words in KINDS.values() for word in words)
    fields = {"name": name, "other": name, "kind": kind, "favourite": favourite, "thing": thing}
    fields |= {"other_name": most_tokens(OTHER_NAMES), "other_thing": most_tokens(OTHER_THINGS)}

    def tokens(statement: str) -> int:
        return len(continuation(tokenizer, f" {statement.format(**fields)}"))

    chosen = tasks.known(only)
    hidden = max(sum(number * tokens(needle) for needle, number in task.hides.items()) for task in chosen)
    question = max(tokens(f"{task.asks} {{thing}}.") for task in chosen)
    return LEAST_HAY * (hidden + question + len(beginning(tokenizer)))


# ---------------------------------------------------------------- the text around the needles


def sentences(text: str) -> list[str]:
    """The text in pieces that end with a sentence or a paragraph; joined, they are the text again.

    Examples
    --------
    >>> sentences("One is here. So is two.\\n\\nThree")
    ['One is here.', ' So is two.', '\\n\\nThree']
    """
    return [part for piece in BORDER.split(text) for part in WORDS.findall(piece)]


class Hay:
    """The user's text in sentences, as tokens.

    Parameters
    ----------
    tokenizer : of the model
    text : at least as long as the longest haystack
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str) -> None:
        self.pieces = sentences(text)
        self.tokens = functools.cache(lambda place: continuation(tokenizer, self.pieces[place]))

    def stretch(self, end: int, tokens: int) -> tuple[str, list[list[int]]]:
        """The text before piece ``end``, and its sentences as tokens: exactly so many, the first one cut if need be.

        Before the first sentence comes the last one, as on a ring.
        """
        found: list[list[int]] = []
        texts: list[str] = []
        missing = tokens
        while missing > 0:
            if len(found) == len(self.pieces):
                raise InvalidValue(
                    f"the text has {tokens - missing:,} tokens: a haystack of this length needs {tokens:,}; give a "
                    "longer text or a smaller length."
                )
            end = (end - 1) % len(self.pieces)
            piece = self.tokens(end)
            texts.append(self.pieces[end])
            found.append(piece[-missing:])
            missing -= len(found[-1])
        return "".join(reversed(texts)), [piece for piece in reversed(found) if piece]


# ---------------------------------------------------------------- putting it together


@dataclass(frozen=True)
class _Drawn:
    """What is hidden and asked, before there is a haystack."""

    task: Task
    end: int
    hidden: list[list[int]]
    asked: list[Asked]
    questions: list[list[int]]


def _drawn(task: Task, length: int, words: Words, hay: Hay, generator: Generator) -> _Drawn:
    """Needles and questions whose words do not stand in the text of a haystack of this length."""
    end = int(generator.integers(len(hay.pieces)))
    around, _ = hay.stretch(end, length)
    needles, asked = task.make(words, standing_in(around), generator)
    _check(task, needles, asked, words)
    hidden = [continuation(words.tokenizer, f" {needle}") for needle in needles]
    questions = [continuation(words.tokenizer, f"\n\n{each.text}") + words.shared for each in asked]
    return _Drawn(task, end, hidden, asked, questions)


def _haystack(number: int, drawn: _Drawn, length: int, words: Words, hay: Hay, generator: Generator) -> Haystack:
    tokenizer, task, hidden, questions = words.tokenizer, drawn.task, drawn.hidden, drawn.questions
    start = list(beginning(tokenizer))
    free = length - len(start) - sum(map(len, hidden)) - max(map(len, questions))
    if free < 1:
        raise InvalidValue(f"task {task.name!r} hides more than {length:,} tokens: its 'hides' must say how much.")
    _, pieces = hay.stretch(drawn.end, free)
    ids, places = _inserted(start, pieces, hidden, generator)

    def span(word: str, needle: int) -> Span:
        place, (begin, stop) = places[needle], _within(tokenizer, hidden[needle], word)
        return Span((place, place + len(hidden[needle])), (place + begin, place + stop))

    made = [
        Question(
            each.text,
            torch.tensor(tokens),
            tuple(each.candidates),
            torch.tensor([words.first[word] for word in each.candidates]),
            tuple(each.candidates.index(word) for word in each.right),
            float(np.mean([places[needle] for needle in each.answered_by])) / len(ids),
            tuple(map(span, each.right, each.answered_by)),
            tuple(
                (places[needle], places[needle] + len(hidden[needle]))
                for needle in sorted({*each.answered_by, *each.needs})
            ),
        )
        for each, tokens in zip(drawn.asked, questions, strict=True)
    ]
    return Haystack(number, task.name, length, torch.tensor(ids), tuple(made))


def _check(task: Task, needles: Sequence[str], asked: Sequence[Asked], words: Words) -> None:
    """Refuse what a task of the user's own may get wrong."""
    if not needles or not asked:
        raise InvalidValue(
            f"task {task.name!r} made {len(needles)} needles and {len(asked)} questions: must make some of both."
        )
    for each in asked:
        first = [words.first.get(word) for word in each.candidates]
        if None in first or len(set(first)) < len(first):
            raise InvalidValue(
                f"task {task.name!r}: its candidates {', '.join(each.candidates)} cannot be told apart by one token; "
                "draw them with words.chosen(…)."
            )
        if not each.right or not set(each.right) <= set(each.candidates):
            raise InvalidValue(f"task {task.name!r}: right = {list(each.right)}: must be some of its candidates.")
        if len(each.answered_by) != len(each.right) or not set(each.answered_by) <= set(range(len(needles))):
            raise InvalidValue(
                f"task {task.name!r}: answered_by = {list(each.answered_by)}: must be the place of a needle, from 0 to "
                f"{len(needles) - 1}, for each of {len(each.right)} right words."
            )
        if not set(each.needs) <= set(range(len(needles))):
            raise InvalidValue(
                f"task {task.name!r}: needs = {list(each.needs)}: must be places of needles, from 0 to "
                f"{len(needles) - 1}."
            )


def _within(tokenizer: PreTrainedTokenizerBase, needle: Sequence[int], word: str) -> Range:
    """The fewest tokens of a needle that hold the word, where it stands last in it; as a part of others if need be."""

    def read(start: int, stop: int | None = None) -> str:
        return str(tokenizer.decode(list(needle[start:stop])))

    text, plain = read(0), re.escape(word)
    found = [*re.finditer(plain, text, re.IGNORECASE), *re.finditer(rf"(?<!\w){plain}(?!\w)", text)]
    if not found:
        return 0, len(needle)
    written, rest = found[-1][0], text[found[-1].start() :]
    start = next(start for start in reversed(range(len(needle))) if read(start).endswith(rest))
    return start, next(stop for stop in range(start + 1, len(needle) + 1) if written in read(start, stop))


def _inserted(
    start: list[int], pieces: list[list[int]], hidden: list[list[int]], generator: Generator
) -> tuple[list[int], list[int]]:
    """The tokens of the haystack, and where in it each needle begins.

    One needle at a random depth of each of equally many parts of the text, at the sentence's end that is nearest.
    """
    ends = np.cumsum([len(piece) for piece in pieces])
    depths = (np.arange(len(hidden)) + generator.random(len(hidden))) / len(hidden)
    after = [int(np.abs(ends - depth * ends[-1]).argmin()) for depth in depths]
    ids, places = list(start), []
    for piece, tokens in enumerate(pieces):
        ids += tokens
        for needle, border in zip(hidden, after, strict=True):
            if border == piece:
                places.append(len(ids))
                ids += needle
    return ids, places
