"""What is learned from?  Texts that are read once and stay as they are, and a few rows after each that are asked for.

A sample is a text and what comes after it: questions whose first answer token is to be predicted, the answers of the
user's own prompts, or simply how the text goes on. Only the rows after the text are computed again in every step, over
the keys and values that the untreated model has kept of it, so a step costs little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute import files
from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import Haystack, haystacks
from undilute.evaluation.words import continuation
from undilute.models.limits import maximum_length
from undilute.models.texts import beginning, encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LEARNED, CHOSEN = "drills", "more-drills"  # tasks to learn from, and to choose by
LENGTHS = (512, 1024)
ROWS = 64  # of plain text that are predicted
FEWEST_PAIRS = 5
SHARE_CHOSEN = 0.2  # of the user's pairs


@dataclass(frozen=True, eq=False)
class Item:
    """Rows after a text, and what they are to predict.

    Attributes
    ----------
    ids : (tokens,)
    targets : (last rows,): the token after each of the last rows of ``ids``
    candidates : (candidates,): tokens that are ranked after the last row; None if nothing is
    """

    ids: Tensor
    targets: Tensor
    candidates: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """A text, and items after it, each by itself.

    Attributes
    ----------
    ids : (tokens,), the text
    items : what comes after it
    haystack : where the items are questions about a haystack
    """

    ids: Tensor
    items: tuple[Item, ...]
    haystack: Haystack | None = None


@dataclass(frozen=True, eq=False)
class Samples:
    """What is learned from, what decides, and plain text that is to be predicted as before.

    Attributes
    ----------
    learned, chosen : samples of different wordings, words' places and stretches of text, or other pairs of the user's
    text : stretches of plain text, of one item each
    """

    learned: tuple[Sample, ...]
    chosen: tuple[Sample, ...]
    text: tuple[Sample, ...]


def about(haystack: Haystack) -> Sample:
    """A haystack with its questions; the first right candidate is what is to be said."""
    items = tuple(
        Item(question.ids, question.candidate_ids[[question.right[0]]], question.candidate_ids)
        for question in haystack.questions
        if len(question.right) == 1
    )
    return Sample(haystack.ids, items, haystack)


def generated(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    each: int,
    chosen: int,
    lengths: Sequence[int],
    seed: int,
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Samples to learn from and to choose by: facts hidden in the text, in wordings that differ between the two.

    Parameters
    ----------
    model, tokenizer : of Hugging Face
    text : that facts are hidden in; its last third is for choosing
    each, chosen : haystacks of every length, to learn from and to choose by
    lengths : tokens of the haystacks to learn from; those to choose by are also twice as long as the longest
    seed : of facts, places and stretches of text
    """
    cut = 2 * len(text) // 3
    most = maximum_length(model)
    longer = [*lengths, 2 * max(lengths)]
    known = [length for length in longer if most is None or length <= most]
    learned = haystacks(tokenizer, text[:cut], list(lengths), each, seed=seed, only=[LEARNED])
    choose = haystacks(tokenizer, text[cut:], known, chosen, seed=seed, only=[CHOSEN])
    return tuple(map(about, learned)), tuple(map(about, choose))


def plain(ids: Tensor, number: int, lengths: Sequence[int], seed: int, start: Sequence[int] = ()) -> tuple[Sample, ...]:
    """Stretches of plain text: the last 64 tokens of each are predicted after those before them.

    Parameters
    ----------
    ids : (tokens,) of the text
    number : of stretches, each at a random place
    lengths : tokens of a stretch with those that begin it, in turn
    seed : of the places
    start : tokens that begin every text
    """
    generator = np.random.default_rng([seed, 3])
    made = []
    for place in range(number):
        before = lengths[place % len(lengths)] - ROWS - len(start)
        if before + len(start) < 1 or len(ids) < before + ROWS + 1:
            raise InvalidValue(
                f"the text has {len(ids):,} tokens: must have at least {before + ROWS + 1:,} to learn from; give a "
                "longer text."
            )
        first = int(generator.integers(len(ids) - before - ROWS))
        own = torch.cat([torch.tensor(start, dtype=ids.dtype), ids[first : first + before]])
        after = ids[first + before : first + before + ROWS + 1]
        made.append(Sample(own, (Item(after[:-1], after[1:]),)))
    return tuple(made)


def pairs(
    tokenizer: PreTrainedTokenizerBase,
    given: Sequence[Mapping[str, str]],
    rows: int,
    seed: int,
    most: int | None = None,
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """The user's own prompts and answers, as samples to learn from and to choose by.

    Parameters
    ----------
    tokenizer : of the model
    given : {"prompt": …, "answer": …} each; an answer begins as it follows the prompt, usually with a space
    rows : of the prompt's end that are learned with; what comes before them is read once
    seed : of which pairs are for choosing, one in five
    most : tokens that the model reads; None if there is no limit
    """
    made = []
    for number, each in enumerate(given, start=1):
        for name in ("prompt", "answer"):
            if not isinstance(each, Mapping) or not isinstance(each.get(name), str) or not each[name].strip():
                raise InvalidValue(
                    f'pair {number} has no {name}: must be {{"prompt": "…", "answer": "…"}} with text in both.'
                )
        prompt = [*beginning(tokenizer), *encoded(tokenizer, each["prompt"])]
        answer = continuation(tokenizer, each["answer"], before=each["prompt"])
        _check_pair(number, len(prompt), len(answer), most)
        cut = max(1, len(prompt) - rows)
        item = Item(torch.tensor(prompt[cut:] + answer[:-1]), torch.tensor(answer))
        made.append(Sample(torch.tensor(prompt[:cut]), (item,)))
    if len(made) < FEWEST_PAIRS:
        raise InvalidValue(f"{len(made)} pairs: must be at least {FEWEST_PAIRS}, so that some can decide.")
    order = np.random.default_rng([seed, 4]).permutation(len(made)).tolist()
    kept = max(1, round(SHARE_CHOSEN * len(made)))
    return tuple(made[place] for place in sorted(order[kept:])), tuple(made[place] for place in sorted(order[:kept]))


def _check_pair(number: int, prompt: int, answer: int, most: int | None) -> None:
    """Refuse a pair with tokens from which nothing can be learned."""
    if prompt < 2:
        raise InvalidValue(f"pair {number}: its prompt has {prompt} token: must have at least 2.")
    if not answer:
        raise InvalidValue(f"pair {number}: its answer has no token that follows the prompt: must have at least 1.")
    if most is not None and prompt + answer - 1 > most:
        raise InvalidValue(
            f"pair {number} has {prompt + answer:,} tokens: the model reads at most {most:,}; shorten its prompt."
        )


def read_pairs(path: Path) -> list[dict[str, str]]:
    """The pairs of a file, one JSON object a line."""
    found = []
    for number, line in enumerate(files.read_text(path, "give a file of JSON lines").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise InvalidValue(f"line {number} of {str(path)!r} is not JSON ({error}).") from None
    return found
