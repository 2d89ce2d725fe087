"""Which text does a model read?  The user's files, prose that every CPython ships, or token ids that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute import files
from undilute.errors import InvalidValue
from undilute.models.forward_pass import check_reads_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HINT = "give a text file that exists"


def shipped() -> str:
    """CPython's own reference topics, about 700 KB of English prose on the language: no download, no licence question.

    Examples
    --------
    >>> len(shipped()) > 400_000
    True
    """
    from pydoc_data import topics

    return "\n\n".join(topics.topics.values())


def read(paths: Sequence[Path]) -> str:
    """The text of these files, one after another; the shipped one if there are none."""
    text = "\n\n".join(files.read_text(path, HINT) for path in paths) if paths else shipped()
    if not text.strip():
        raise InvalidValue(f"{', '.join(map(str, paths))}: no text in it; give a file with text to read.")
    return text


def known_tokens(ids: Tensor, model: PreTrainedModel) -> Tensor:
    """Token ids as they are; an error unless they are one sequence of tokens that the model has embeddings for.

    Parameters
    ----------
    ids : (tokens,) whole numbers
    model : a Hugging Face model

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> known_tokens(torch.tensor([0, 8]), GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9)))
    tensor([0, 8])
    """
    if ids.ndim != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InvalidValue(
            f"text has shape {tuple(ids.shape)} and dtype {ids.dtype}: token ids must be one sequence of whole "
            "numbers, (tokens,)."
        )
    check_reads_tokens(model)
    embeddings: Any = model.get_input_embeddings()
    known = int(embeddings.num_embeddings)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < known:
        raise InvalidValue(
            f"text holds token ids from {int(ids.min())} to {int(ids.max())}: {type(model).__name__} knows 0 to "
            f"{known - 1}."
        )
    return ids
