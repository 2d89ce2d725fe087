"""Which words are hidden in a haystack, which tokens do they have, and which of them can a tokenizer tell apart?

Common English names and nouns, of our own choosing. Each list has words with many different first letters, so that a
tokenizer of single bytes can tell enough of them apart by their first token.

A word in the middle of a text has other tokens than the same word alone: a space belongs to the word after it, and many
tokenizers add one, or a mark, to the beginning of whatever they are given. So a piece of text is tokenised behind
something that is there already, and only its own tokens are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from undilute.errors import InvalidValue
from undilute.models.texts import encoded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


NAMES = _listed(
    """
    Alice Anna Clara Daniel Emma Felix George Hannah Helen Henry Isabel Jacob Julia Karen Laura Lucas Maria Martin
    Nina Oliver Oscar Paul Peter Robert Rosa Sarah Simon Sophie Thomas Victor Walter
    """
)

KINDS = {  # of things that somebody may have a favourite of; no word stands in two lists
    "colour": _listed("amber blue crimson green indigo olive pink purple red scarlet turquoise violet yellow"),
    "animal": _listed("bear camel dolphin eagle fox goat horse lion monkey otter rabbit tiger whale zebra"),
    "city": _listed("Athens Berlin Cairo Dublin Geneva Lisbon London Madrid Oslo Paris Rome Tokyo Vienna"),
    "fruit": _listed("apple banana cherry fig grape kiwi lemon mango peach raspberry strawberry tangerine"),
    "instrument": _listed("banjo cello drum flute guitar harp oboe piano saxophone trumpet ukulele"),
    "drink": _listed("beer cider juice lemonade milk tea vodka water whiskey coffee rum"),
    "sport": _listed("archery boxing cricket football golf hockey judo rowing sailing tennis volleyball"),
    "flower": _listed("daisy iris jasmine lavender magnolia orchid poppy rose sunflower tulip"),
}

THINGS = _listed(
    """
    anchor apron basket blanket bottle bridge button candle carpet castle chimney clock curtain dagger desk diamond
    drawer envelope engine feather fence fountain garden ghost glove hammer harbor helmet horn island jacket jewel
    kettle kitchen knife ladder lantern leather marble mirror mountain necklace needle nest oven palace pencil pillow
    pocket quilt ribbon river rocket rope saddle shoulder spoon statue temple thread tower tunnel umbrella valley
    vase village wagon wheel window yacht zipper
    """
)

OTHER_NAMES = _listed(  # nobody and nothing stands in two of these lists
    """
    Adam Arthur Beth Carl Charlotte Diana Edith Edward Flora Gilbert Grace Harold Hugo Irene Ivan James Julian Kate Leo
    Louise Margaret Miriam Nathan Olga Philip Rachel Stephen Tina Ursula Vincent William Yvonne Zoe
    """
)

OTHER_THINGS = _listed(
    """
    acorn arrow balloon barrel belt bench boot bowl brick broom bucket cabin cage canoe cart chalk cliff coat collar
    comb crown doll dress flag flask fork gate gown hat hook jar key kite lamp lock map mask mill nail net paddle pearl
    pipe plate plough pond purse ring roof rug sack sail scarf shed shell ship shoe shovel sled sock stool stove sword
    tent torch towel tray trunk veil vest whip whistle wing wreath
    """
)

Generator = np.random.Generator


def continuation(tokenizer: PreTrainedTokenizerBase, text: str, before: str = ".") -> list[int]:
    """The tokens of ``text`` where it follows ``before``.

    Where the two share a token (".\\n" is one in some vocabularies), ``text`` is tokenised alone.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> words = Tokenizer(models.WordLevel({"?": 0, "the": 1, "cat": 2, ".": 3}, unk_token="?"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> continuation(PreTrainedTokenizerFast(tokenizer_object=words), " the cat.")
    [1, 2, 3]
    """
    start, whole = encoded(tokenizer, before), encoded(tokenizer, before + text)
    return whole[len(start) :] if whole[: len(start)] == start else encoded(tokenizer, text)


def standing_in(text: str) -> Set[str]:
    """The words of a text, in small letters.

    Examples
    --------
    >>> sorted(standing_in("Red, red wine."))
    ['red', 'wine']
    """
    return frozenset(re.findall(r"\w+", text.lower()))


def names(number: int, taken: Set[str], generator: Generator, among: Sequence[str] = NAMES) -> list[str]:
    """Different names in random order, in the first place such that are not ``taken``."""
    drawn = [among[place] for place in generator.permutation(len(among))]
    return sorted(drawn, key=lambda name: name.lower() in taken)[:number]


class Words:
    """The words that a tokenizer can tell apart by one token.

    What all words begin with (the space before a word is a token of its own in some vocabularies) belongs to the
    question; the token after it ranks them.

    Parameters
    ----------
    tokenizer : of the model
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        every = {word for words in (THINGS, *KINDS.values()) for word in words}
        tokens = {word: continuation(tokenizer, f" {word}", before="is") for word in sorted(every)}
        alike = takewhile(lambda column: len(set(column)) == 1, zip(*tokens.values(), strict=False))
        self.shared = [column[0] for column in alike]
        self.lengths: dict[str, int] = {}
        self.first: dict[str, int] = {}
        for word, own in tokens.items():
            self._learn(word, own)

    def _learn(self, word: str, tokens: Sequence[int]) -> None:
        shared = len(self.shared)
        self.lengths[word] = len(tokens) - shared
        if list(tokens[:shared]) == self.shared and len(tokens) > shared and self._says_something(tokens[shared]):
            self.first[word] = tokens[shared]

    def chosen(self, words: Sequence[str], number: int, taken: Set[str], generator: Generator) -> list[str]:
        """Up to ``number`` of ``words`` in random order that differ in their first token and are not ``taken``.

        Words of few tokens come first: a first token that is a whole word says more than one that is a letter.
        """
        for word in words:
            if word not in self.lengths:  # of a task that has words of its own
                self._learn(word, continuation(self.tokenizer, f" {word}", before="is"))
        free = [word for word in words if word in self.first and word.lower() not in taken]
        drawn = [free[place] for place in generator.permutation(len(free))]
        found: dict[int, str] = {}
        for word in sorted(drawn, key=self.lengths.__getitem__):
            found.setdefault(self.first[word], word)
        kept = list(found.values())[:number]
        return [kept[place] for place in generator.permutation(len(kept))]

    def things(self, number: int, taken: Set[str], generator: Generator) -> list[str]:
        """So many things of :data:`THINGS`."""
        found = self.chosen(THINGS, number, taken, generator)
        if len(found) < number:
            raise self.too_few(f"{len(found)} of {len(THINGS)} things", number)
        return found

    def too_few(self, found: str, needed: int) -> InvalidValue:
        """The error where a tokenizer's tokens, or the text, leave too few words to hide."""
        return InvalidValue(
            f"{type(self.tokenizer).__name__} tells only {found} that are not in the text apart by their first token: "
            f"{needed} are needed to ask for one; give haystacks = 0 for no needles."
        )

    def _says_something(self, token: int) -> bool:
        return token != self.tokenizer.unk_token_id and bool(str(self.tokenizer.decode([token])).strip())
