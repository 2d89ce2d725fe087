"""Which part of a text may be fitted to, and which is only for judging?  The first half, and the second."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def halves(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids for calibration, and token ids that it never sees.

    Examples
    --------
    >>> halves(torch.arange(5))
    (tensor([0, 1]), tensor([2, 3, 4]))
    """
    half = len(ids) // 2
    return ids[:half], ids[half:]


def tokenised(tokenizer: PreTrainedTokenizerBase | None, text: str | Tensor) -> Tensor:
    """All token ids of a text, (tokens,), without special tokens; token ids are returned as they are."""
    if isinstance(text, Tensor):
        return text
    if not isinstance(text, str):
        raise InvalidValue(f"text is a {type(text).__name__}: must be text, or token ids in a tensor.")
    if tokenizer is None:
        raise InvalidValue("tokenizer = None: it is needed to read text; give one, or token ids.")
    return torch.tensor(encoded(tokenizer, text), dtype=torch.int64)


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text, without any that the tokenizer puts around it."""
    found: Any = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
    return [int(token) for token in found["input_ids"]]


def beginning(tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """The tokens that the tokenizer puts before every text, such as a beginning-of-sequence mark; usually one or none.

    Models that were trained with it do badly without. There are none if there is no tokenizer.
    """
    if tokenizer is None:
        return ()
    plain = encoded(tokenizer, "a")
    marked: list[int] = tokenizer("a")["input_ids"]
    for number in range(len(marked) - len(plain) + 1):
        if marked[number : number + len(plain)] == plain:
            return tuple(marked[:number])
    return ()


def fingerprint(ids: Tensor) -> str:
    """What a plan keeps of the text that it was fitted to: enough to know it again."""
    return hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()


def windows(ids: Tensor, length: int, count: int, what: str, *, start: tuple[int, ...] = ()) -> Tensor:
    """Up to ``count`` windows of ``length`` tokens each, evenly spread and apart: (windows, length).

    Parameters
    ----------
    ids : (tokens,)
    length, count : of the windows; fewer if there are not enough tokens, at least one
    what : these tokens in words, for the error if there is not even one
    start : tokens that begin every window and are part of its length, from :func:`beginning`

    Examples
    --------
    >>> windows(torch.arange(10), 3, 2, "the text")
    tensor([[0, 1, 2],
            [7, 8, 9]])
    >>> windows(torch.arange(10), 3, 2, "the text", start=(99,))
    tensor([[99,  0,  1],
            [99,  8,  9]])
    """
    own = length - len(start)
    if own < 1:
        raise InvalidValue(f"length = {length}: must be more than the {len(start)} tokens that start every window.")
    if len(ids) < own:
        raise InvalidValue(
            f"{what} has {len(ids):,} tokens: must have at least {own:,}; give a longer text or a smaller length."
        )
    number = min(count, len(ids) // own)
    before = torch.tensor(start, dtype=ids.dtype, device=ids.device)
    places = torch.linspace(0, len(ids) - own, number).round().long().tolist()
    return torch.stack([torch.cat([before, ids[place : place + own]]) for place in places])
