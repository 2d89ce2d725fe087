"""Can a model find what stands somewhere in a long text?  Questions in the style of RULER, made from a seed.

Short statements, the needles, are put between the sentences of the user's own text. Then a statement is begun once
more, and the model's next-token probabilities rank the words that could complete it:

    single        the only favourite animal in the haystack; the other animals do not occur in it
    multi-key     the special word of one of eight people; the candidates are all eight words
    multi-value   the three special words of one of four people; the candidates are all twelve words
    tracking      the special word of somebody who has that of somebody who has that of somebody who has a word; the
                  candidates are the words of four such chains

Hsieh et al. (2024), RULER: What's the Real Context Size of Your Long-Context Language Models? arXiv:2404.06654. There,
models write the answer; here, candidates are ranked by their first token, which also says something about a small model
and takes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation.outcome import TASKS, Task
from undilute.evaluation.pieces import Hay, continuation
from undilute.evaluation.words import KINDS, NAMES, THINGS, Generator, Words, names, standing_in
from undilute.models.splits import beginning
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FAVOURITE = "The favourite {kind} of {name} is"
SPECIAL = "The special word of {name} is"
ONE_OF = "One of the special words of {name} is"
SAME = "the special word of {other}"

QUESTIONS = 4  # about each haystack
KEYS = 8
VALUES = 3  # of each key where it has several
LINKS = 3  # of a chain
CANDIDATES = 8  # for a needle that is alone of its kind
LEAST_HAY = 2  # the haystack is at least so many times as long as what is hidden in it


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
    """

    text: str
    ids: Tensor
    candidates: tuple[str, ...]
    candidate_ids: Tensor
    right: tuple[int, ...]
    depth: float

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
    task : which kind of question
    length : tokens of the haystack with its longest question
    ids : (tokens,), the haystack alone
    questions : about it, each to be asked by itself
    """

    number: int
    task: Task
    length: int
    ids: Tensor
    questions: tuple[Question, ...]


def haystacks(
    tokenizer: PreTrainedTokenizerBase, text: str, lengths: Sequence[int], each: int, *, seed: int = 0
) -> tuple[Haystack, ...]:
    """Haystacks of every task at every length.

    Parameters
    ----------
    tokenizer : of the model that will be asked
    text : what the needles are hidden in
    lengths : tokens of a haystack with its longest question, exactly
    each : haystacks of each task and length
    seed : of the words, their places and the stretches of text

    Returns
    -------
    tuple of Haystack
        The same for the same arguments.
    """
    if each == 0 or not lengths:
        return ()
    count("haystacks", each)
    least = shortest(tokenizer)
    for length in lengths:
        if count("needle length", length) < least:
            raise InvalidValue(
                f"needle length = {length:,}: must be at least {least:,} tokens for half of the haystack to be text; "
                "or give haystacks = 0, for no needles."
            )
    words, hay = Words(tokenizer), Hay(tokenizer, text)
    wanted = [(length, task, place) for length in lengths for task in TASKS for place in range(each)]
    return tuple(
        _haystack(number, task, length, words, hay, np.random.default_rng([seed, length, TASKS.index(task), place]))
        for number, (length, task, place) in enumerate(wanted)
    )


def shortest(tokenizer: PreTrainedTokenizerBase) -> int:
    """The least tokens of a haystack that is half text, whatever words are drawn."""

    def most_tokens(words: Iterable[str]) -> str:
        return max(words, key=lambda word: len(continuation(tokenizer, f" {word}")))

    name, kind, thing = most_tokens(NAMES), most_tokens(KINDS), most_tokens(THINGS)
    favourite = most_tokens(word for words in KINDS.values() for word in words)

    def tokens(start: str, end: str) -> int:
        return len(continuation(tokenizer, f" {start} {end}.".format(name=name, kind=kind, other=name)))

    hidden = (
        QUESTIONS * tokens(FAVOURITE, favourite),
        KEYS * tokens(SPECIAL, thing),
        QUESTIONS * VALUES * tokens(ONE_OF, thing),
        QUESTIONS * (tokens(SPECIAL, thing) + (LINKS - 1) * tokens(SPECIAL, SAME)),
    )
    question = max(tokens(start, thing) for start in (FAVOURITE, SPECIAL, ONE_OF))
    return LEAST_HAY * (max(hidden) + question + len(beginning(tokenizer)))


# ---------------------------------------------------------------- the tasks


@dataclass(frozen=True)
class _Asked:
    """A question before it has tokens: ``answered_by`` are places among the needles."""

    text: str
    candidates: list[str]
    right: list[str]
    answered_by: list[int]


_Plan = tuple[list[str], list[_Asked]]  # needles in the order in which they are to stand, and questions


def _single(words: Words, taken: Set[str], generator: Generator) -> _Plan:
    drawn = {kind: words.chosen(own, CANDIDATES, taken, generator) for kind, own in KINDS.items()}
    kinds = sorted(drawn, key=lambda kind: -len(drawn[kind]))[:QUESTIONS]
    if len(drawn[kinds[-1]]) < 2:
        raise words.too_few(f"{len(drawn[kinds[-1]])} of the words for {kinds[-1]!r}", 2)
    needles, asked = [], []
    for place, name in enumerate(names(QUESTIONS, taken, generator)):
        kind = kinds[place]
        begun = FAVOURITE.format(kind=kind, name=name)
        right = drawn[kind][int(generator.integers(len(drawn[kind])))]
        needles.append(f"{begun} {right}.")
        asked.append(_Asked(begun, drawn[kind], [right], [place]))
    return _in_random_order(needles, asked, generator)


def _multi_key(words: Words, taken: Set[str], generator: Generator) -> _Plan:
    values = words.things(KEYS, taken, generator)
    begun = [SPECIAL.format(name=name) for name in names(KEYS, taken, generator)]
    needles = [f"{start} {value}." for start, value in zip(begun, values, strict=True)]
    step = KEYS // QUESTIONS
    places = step * np.arange(QUESTIONS) + generator.integers(step)
    return needles, [_Asked(begun[place], sorted(values), [values[place]], [place]) for place in places.tolist()]


def _multi_value(words: Words, taken: Set[str], generator: Generator) -> _Plan:
    values = words.things(QUESTIONS * VALUES, taken, generator)
    needles, asked = [], []
    for key, name in enumerate(names(QUESTIONS, taken, generator)):
        begun, own = ONE_OF.format(name=name), list(range(key * VALUES, (key + 1) * VALUES))
        needles += [f"{begun} {values[place]}." for place in own]
        asked.append(_Asked(begun, sorted(values), [values[place] for place in own], own))
    return _in_random_order(needles, asked, generator)


def _tracking(words: Words, taken: Set[str], generator: Generator) -> _Plan:
    values = words.things(QUESTIONS, taken, generator)
    people = np.reshape(names(QUESTIONS * LINKS, taken, generator), (QUESTIONS, LINKS)).tolist()
    places = np.sort(generator.permutation(QUESTIONS * LINKS).reshape(QUESTIONS, LINKS))
    needles, asked = [""] * places.size, []
    for chain, own, value in zip(people, places.tolist(), values, strict=True):
        needles[own[0]] = f"{SPECIAL.format(name=chain[0])} {value}."
        for link in range(1, LINKS):
            needles[own[link]] = f"{SPECIAL.format(name=chain[link])} {SAME.format(other=chain[link - 1])}."
        asked.append(_Asked(SPECIAL.format(name=chain[-1]), sorted(values), [value], own[:1]))
    return needles, asked


_MAKE: dict[Task, Callable[[Words, Set[str], Generator], _Plan]] = {
    "single": _single,
    "multi-key": _multi_key,
    "multi-value": _multi_value,
    "tracking": _tracking,
}


def _in_random_order(needles: list[str], asked: list[_Asked], generator: Generator) -> _Plan:
    places = generator.permutation(len(needles)).tolist()  # where each needle comes to stand
    moved = [needles[places.index(place)] for place in range(len(needles))]
    return moved, [
        _Asked(each.text, each.candidates, each.right, [places[old] for old in each.answered_by]) for each in asked
    ]


# ---------------------------------------------------------------- putting it together


def _haystack(number: int, task: Task, length: int, words: Words, hay: Hay, generator: Generator) -> Haystack:
    tokenizer = words.tokenizer
    end = int(generator.integers(len(hay.pieces)))
    around, _ = hay.stretch(end, length)
    needles, asked = _MAKE[task](words, standing_in(around), generator)
    hidden = [continuation(tokenizer, f" {needle}") for needle in needles]
    questions = [continuation(tokenizer, f"\n\n{each.text}") + words.shared for each in asked]
    start = list(beginning(tokenizer))
    free = length - len(start) - sum(map(len, hidden)) - max(map(len, questions))
    _, pieces = hay.stretch(end, free)
    ids, places = _inserted(start, pieces, hidden, generator)
    return Haystack(
        number,
        task,
        length,
        torch.tensor(ids),
        tuple(
            Question(
                each.text,
                torch.tensor(tokens),
                tuple(each.candidates),
                torch.tensor([words.first[word] for word in each.candidates]),
                tuple(each.candidates.index(word) for word in each.right),
                float(np.mean([places[needle] for needle in each.answered_by])) / len(ids),
            )
            for each, tokens in zip(asked, questions, strict=True)
        ),
    )


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
