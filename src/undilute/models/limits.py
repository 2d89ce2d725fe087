"""How many tokens can this model see at once?

A model with learned or rotary positions states it in its configuration; one whose positions have no end (ALiBi,
relative positions without a table, state-space layers) states nothing, and the answer is ``None``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from undilute.errors import InvalidValue
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

USUAL_LENGTH = 2048  # tokens to read where nobody says how many
STATED_AS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")


def maximum_length(model: PreTrainedModel) -> int | None:
    """The longest input, in tokens, or ``None`` if the model sets no limit.

    RoBERTa-type models number positions from ``padding_idx + 1``, so that many rows of their table are never
    used: 514 rows are 512 tokens.

    >>> from transformers import GPT2Config, GPT2Model
    >>> maximum_length(GPT2Model(GPT2Config(n_positions=48, n_embd=8, n_layer=1, n_head=2, vocab_size=9)))
    48
    """
    config = model.config.get_text_config()
    if getattr(config, "alibi", False):
        return None
    stated = (getattr(config, name, None) for name in STATED_AS)
    length = next((value for value in stated if isinstance(value, int) and value > 0), None)
    if length is None:
        return None
    return length - _positions_never_used(model)


def readable_length(model: PreTrainedModel, length: int | None = None, *, name: str = "length") -> int:
    """``length``, if the model reads so many tokens at once; without one 2,048, or as many as the model reads.

    Parameters
    ----------
    model : a Hugging Face model
    length : tokens, at least 1
    name : what an error calls the length

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_positions=48, n_embd=8, n_layer=1, n_head=2, vocab_size=9))
    >>> readable_length(model), readable_length(model, 32)
    (48, 32)
    """
    limit = maximum_length(model)
    if length is None:
        return min(USUAL_LENGTH, limit or USUAL_LENGTH)
    wanted = count(name, length)
    if limit is not None and wanted > limit:
        raise InvalidValue(f"{name} = {wanted:,}: {type(model).__name__} reads at most {limit:,} tokens.")
    return wanted


def _positions_never_used(model: PreTrainedModel) -> int:
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0
