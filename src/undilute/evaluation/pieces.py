"""Which tokens does a piece of a text have, with any tokenizer?

A sentence in the middle of a text has other tokens than the same sentence alone: a space belongs to the word after it,
and many tokenizers add one, or a mark, to the beginning of whatever they are given. So a piece is tokenised behind
something that is there already, and only its own tokens are kept.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from undilute.errors import InvalidValue
from undilute.models.splits import encoded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# before the white space that follows a sentence, after a full stop that needs none, and before an empty line
BORDER = re.compile(r"""(?<=[.!?…])(?=\s)|(?<=[.!?…]["'”’)])(?=\s)|(?<=[。！？])|(?<=\S)(?=\n\s*\n)""")
LONGEST_PIECE = 400  # characters: text without sentences is cut at words
WORDS = re.compile(rf"(?s).{{1,{LONGEST_PIECE}}}(?=\s|\Z)|.{{1,{LONGEST_PIECE}}}")


def sentences(text: str) -> list[str]:
    """The text in pieces that end with a sentence or a paragraph; joined, they are the text again.

    Examples
    --------
    >>> sentences("One is here. So is two.\\n\\nThree")
    ['One is here.', ' So is two.', '\\n\\nThree']
    """
    return [part for piece in BORDER.split(text) for part in WORDS.findall(piece)]


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
