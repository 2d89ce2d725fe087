"""Which part of a text may be learned from, and which only judged by?  The first half, and the second."""

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
        if text.ndim != 1 or text.is_floating_point() or text.is_complex() or text.dtype == torch.bool:
            raise InvalidValue(
                f"text has shape {tuple(text.shape)} and dtype {text.dtype}: token ids must be one sequence of whole "
                "numbers, (tokens,)."
            )
        return text
    if not isinstance(text, str):
        raise InvalidValue(f"text is a {type(text).__name__}: must be text, or token ids in a tensor.")
    if tokenizer is None:
        raise InvalidValue("tokenizer = None: needed to read text; or give token ids.")
    encoded: Any = tokenizer(text, return_tensors="pt", add_special_tokens=False, truncation=False, verbose=False)
    ids: Tensor = encoded["input_ids"][0]
    return ids.long()


def fingerprint(ids: Tensor) -> str:
    """What a plan keeps of the text that it was fitted to: enough to know it again."""
    return hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()


def windows(ids: Tensor, length: int, count: int, what: str) -> Tensor:
    """Up to ``count`` windows of ``length`` tokens each, evenly spread and apart: (windows, length).

    Parameters
    ----------
    ids : (tokens,)
    length, count : of the windows; fewer if there are not enough tokens, at least one
    what : these tokens in words, for the error if there is not even one

    Examples
    --------
    >>> windows(torch.arange(10), 3, 2, "the text")
    tensor([[0, 1, 2],
            [7, 8, 9]])
    """
    if len(ids) < length:
        raise InvalidValue(
            f"{what} has {len(ids):,} tokens: must have at least {length:,}; give a longer text or a smaller length."
        )
    number = min(count, len(ids) // length)
    starts = torch.linspace(0, len(ids) - length, number).round().long()
    return torch.stack([ids[start : start + length] for start in starts.tolist()])
