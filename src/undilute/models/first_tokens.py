"""Which tokens of a text does a model read?  The first ones, up to a length; too short a text is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models import texts
from undilute.models.limits import readable_length
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SHORTEST_LENGTH = 64  # below two octaves of n there is no curve to fit
CHARACTERS = 8  # of text for a token, generously, before a whole book is tokenised


def tokens(
    tokenizer: PreTrainedTokenizerBase | None, text: str | Tensor, model: PreTrainedModel, length: int | None
) -> Tensor:
    """The token ids to read: (tokens,)."""
    if length is not None and count("length", length) < SHORTEST_LENGTH:
        raise InvalidValue(
            f"length = {length}: must be at least {SHORTEST_LENGTH} tokens, or there is no curve to fit."
        )
    wanted = readable_length(model, length)
    if not isinstance(text, str | Tensor):
        raise InvalidValue(f"text is a {type(text).__name__}: must be text, or token ids in a tensor.")
    ids = texts.known_tokens(text if isinstance(text, Tensor) else _tokenised(tokenizer, text, wanted), model)
    if len(ids) < (length or SHORTEST_LENGTH):
        raise InvalidValue(
            f"the text has {len(ids):,} tokens: must be at least {length or SHORTEST_LENGTH:,}; give a longer text"
            + (" or a smaller length." if length else ".")
        )
    return ids[:wanted]


def _tokenised(tokenizer: PreTrainedTokenizerBase | None, text: str, wanted: int) -> Tensor:
    if tokenizer is None:
        raise InvalidValue("tokenizer = None: it is needed to read text; give one, or token ids.")
    if not text.strip():
        raise InvalidValue("the text is empty: give some text to read.")
    ids = _encode(tokenizer, text[: wanted * CHARACTERS])
    if len(ids) < wanted and len(text) > wanted * CHARACTERS:
        ids = _encode(tokenizer, text)
    return ids


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    encoded: Any = tokenizer(text, return_tensors="pt", truncation=False, verbose=False)
    ids: Tensor = encoded["input_ids"][0]
    return ids
