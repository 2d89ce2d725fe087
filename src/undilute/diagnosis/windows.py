"""Which parts of which texts does a diagnosis read?

Windows are spread over each text, at the middle of equal parts of it, so that no first page, licence or list of
contents decides. The last third of a text is kept apart where there is room: what is tried against dilution is judged
there (:mod:`undilute.diagnosis.trials`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models import texts
from undilute.models.limits import readable_length
from undilute.models.texts import SHORTEST_LENGTH
from undilute.rules.parameters import count, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TextLike: TypeAlias = "str | Tensor"
TextsLike: TypeAlias = "TextLike | Sequence[TextLike] | Mapping[str, TextLike]"
WINDOWS = 2  # of each text
APART = 3  # one part in so many of a text is kept apart


@dataclass(frozen=True, eq=False)
class Text:
    """One text.

    Attributes
    ----------
    name : as it is shown
    ids : (tokens,), without any that the tokenizer puts around a text
    tokenizer : of the model; None if the text was given as token ids without one
    is_given : whether it was given as token ids, which are read as they are
    """

    name: str
    ids: Tensor
    tokenizer: PreTrainedTokenizerBase | None
    is_given: bool

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that begin and end every window."""
        return ((), ()) if self.is_given else (texts.beginning(self.tokenizer), texts.ending(self.tokenizer))

    def needs(self, length: int) -> int:
        """How many of its tokens a window of ``length`` holds."""
        return length - sum(map(len, self.around))

    def part(self, start: int, stop: int) -> Text:
        """Tokens ``start`` to ``stop`` of it."""
        return Text(self.name, self.ids[start:stop], self.tokenizer, self.is_given)

    def prose(self) -> str:
        """Its tokens as text; it needs a tokenizer."""
        assert self.tokenizer is not None
        return str(self.tokenizer.decode(self.ids.tolist()))


@dataclass(frozen=True, eq=False)
class Window:
    """A part of a text, as a model reads it.

    Attributes
    ----------
    text : which of the texts
    start : how many of the text's tokens come before it
    ids : (tokens,)
    """

    text: int
    start: int
    ids: Tensor


def given_texts(
    given: TextsLike, tokenizer: PreTrainedTokenizerBase | None, model: PreTrainedModel, offset: int = 0
) -> list[Text]:
    """The texts as tokens that the model knows, each without its first ``offset`` tokens."""
    whole("offset", offset, 0)
    if isinstance(given, Mapping):
        named = {str(name): text for name, text in given.items()}
    elif isinstance(given, str | Tensor):
        named = {"text": given}
    elif isinstance(given, Sequence) and not isinstance(given, bytes):
        named = {f"text {number}": text for number, text in enumerate(given, start=1)}
    else:
        raise InvalidValue(
            f"text is a {type(given).__name__}: must be text, token ids in a tensor, or a list or dict of them."
        )
    if not named:
        raise InvalidValue("texts holds no text: give at least one.")
    return [_text(name, text, tokenizer, model, offset) for name, text in named.items()]


def _text(
    name: str, text: TextLike, tokenizer: PreTrainedTokenizerBase | None, model: PreTrainedModel, offset: int
) -> Text:
    if isinstance(text, str) and not text.removeprefix(texts.BOM).strip():
        raise InvalidValue(f"{_called(name)} is empty: give some text to read.")
    ids = texts.known_tokens(texts.tokenised(tokenizer, text, name), model, name)
    if offset and len(ids) <= offset:
        raise InvalidValue(f"offset = {offset:,}: must be less than the {len(ids):,} tokens of {_called(name)}.")
    return Text(name, ids[offset:], tokenizer, not isinstance(text, str))


def joined(given: Sequence[Text], model: PreTrainedModel, length: int | None, usual: int) -> list[Text]:
    """The texts, with those that are shorter than a window read one after another, as one text.

    Short ones are joined in their order until they fill a window; what is left over goes to the last text.
    """
    wanted = length or min(usual, readable_length(model))
    made: list[list[Text]] = []
    short: list[Text] = []
    for text in given:
        if len(text.ids) >= text.needs(wanted):
            made.append([text])
            continue
        short.append(text)
        if len(_one(short).ids) >= text.needs(wanted):
            made.append(short)
            short = []
    if short and made:
        made[-1] = [*made[-1], *short]
    elif short:
        made.append(short)
    return [_one(parts) for parts in made]


def _one(parts: Sequence[Text]) -> Text:
    """Texts one after another, with an empty line between."""
    first = parts[0]
    if len(parts) == 1:
        return first
    between = [] if first.is_given or first.tokenizer is None else texts.encoded(first.tokenizer, "\n\n")
    gap = torch.tensor(between, dtype=first.ids.dtype, device=first.ids.device)
    ids = torch.cat([first.ids, *(each for part in parts[1:] for each in (gap, part.ids))])
    return Text(f"{first.name} and {len(parts) - 1} more", ids, first.tokenizer, first.is_given)


def length_of(given: Sequence[Text], model: PreTrainedModel, length: int | None, usual: int) -> int:
    """Tokens of a window: ``length`` if every text has so many; else what is usual, the model reads and all have."""
    if length is not None and count("length", length) < SHORTEST_LENGTH:
        raise InvalidValue(
            f"length = {length}: must be at least {SHORTEST_LENGTH} tokens, or there is no curve to fit."
        )
    wanted = readable_length(model, length) if length else min(usual, readable_length(model))
    for text in given:
        around = wanted - text.needs(wanted)
        if len(text.ids) + around < (length or SHORTEST_LENGTH):
            raise InvalidValue(
                f"{_called(text.name)} has {len(text.ids):,} tokens: must be at least "
                f"{(length or SHORTEST_LENGTH) - around:,}; give a longer text"
                + (" or a smaller length." if length else ".")
            )
        wanted = min(wanted, len(text.ids) + around)
    return wanted


def split(text: Text, length: int) -> tuple[Text, Text | None]:
    """What a diagnosis reads of a text, and what it keeps apart: its last third, if that holds a window; else none."""
    apart = len(text.ids) // APART
    if apart < text.needs(length):
        return text, None
    return text.part(0, len(text.ids) - apart), text.part(len(text.ids) - apart, len(text.ids))


def spread(text: Text, which: int, length: int, number: int) -> list[Window]:
    """Up to ``number`` windows of a text, in the middle of as many equal parts of it, none over another.

    There are fewer if the text has not so many tokens, and none if it is shorter than one.

    Examples
    --------
    >>> [window.start for window in spread(Text("text", torch.arange(100), None, True), 0, 10, 2)]
    [20, 70]
    """
    before, after = (torch.tensor(ids, dtype=text.ids.dtype, device=text.ids.device) for ids in text.around)
    own, tokens = text.needs(length), len(text.ids)
    number = min(count("windows", number), tokens // own)
    starts = [(2 * place + 1) * tokens // (2 * number) - own // 2 for place in range(number)]
    return [Window(which, start, torch.cat([before, text.ids[start : start + own], after])) for start in starts]


def _called(name: str) -> str:
    return "the text" if name == "text" else name
