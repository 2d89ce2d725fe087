"""How well does a model predict each next token of a text, depending on how many came before it?

Loss by position is where dilution would show: a model that uses its context gets better along the window. The model is
run once over a window; its logits, the largest tensor of all, are made a few positions at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from undilute.errors import InvalidValue
from undilute.models import texts
from undilute.models.forward_pass import evaluating
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK = 2**24  # logits that exist at a time: 64 MB of float32
FIRST_BUCKET = 64  # tokens before: the first bucket ends here, each further one is twice as wide
SMALLEST_SHARE = 0.25  # of its full width that the last bucket must have to stand alone


def windows(ids: Tensor, length: int, number: int, *, start: tuple[int, ...] = ()) -> Tensor:
    """Windows of a text, evenly spread over it and without overlap.

    Parameters
    ----------
    ids : (tokens,), the text
    length : tokens of a window
    number : how many
    start : tokens that the tokenizer puts before every text, such as a beginning-of-sequence mark; part of ``length``

    Returns
    -------
    (number, length)

    Examples
    --------
    >>> windows(torch.arange(10), 3, 2)
    tensor([[0, 1, 2],
            [7, 8, 9]])
    >>> windows(torch.arange(10), 3, 2, start=(99,))
    tensor([[99,  0,  1],
            [99,  8,  9]])
    """
    if count("length", length) < 2:
        raise InvalidValue(f"length = {length}: must be at least 2 tokens, or there is no next one to predict.")
    needed = (length - len(start)) * count("windows", number)
    if len(ids) < needed:
        raise InvalidValue(
            f"the text has {len(ids):,} tokens: {number} windows of {length:,} need {needed:,}; give a longer text, "
            "fewer windows or a smaller length."
        )
    return texts.windows(ids, length, number, "the text", start=start)


def position_buckets(length: int) -> list[tuple[int, int]]:
    """Ranges of "tokens before", each twice as wide as the one before it; the last ends with a window of ``length``.

    Loss number t of a window, counted from 0, is of a token with t + 1 tokens before it, so that a bucket holds
    ``losses[:, first - 1 : last]``. What is left over at the end joins the bucket before it if it is less than a
    quarter of a bucket.

    Examples
    --------
    >>> position_buckets(512)
    [(1, 63), (64, 127), (128, 255), (256, 511)]
    >>> position_buckets(600)
    [(1, 63), (64, 127), (128, 255), (256, 599)]
    """
    if count("length", length) < 2:
        raise InvalidValue(f"length = {length}: must be at least 2 tokens, or there is no next one to predict.")
    buckets: list[tuple[int, int]] = []
    first, end = 1, FIRST_BUCKET
    while first < length:
        last = min(end, length) - 1
        if buckets and last + 1 - first < SMALLEST_SHARE * (end - first):
            buckets[-1] = (buckets[-1][0], last)
        else:
            buckets.append((first, last))
        first, end = end, 2 * end
    return buckets


def check_head(model: PreTrainedModel) -> Any:
    """The language-model head; an error if there is none, since nothing is predicted then."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None or getattr(model.config, "is_encoder_decoder", False):
        raise InvalidValue(
            f"{type(model).__name__} predicts no next token: must be a causal language model with its head, such as "
            "LlamaForCausalLM."
        )
    return head


def losses(
    model: PreTrainedModel, ids: Tensor, *, on_window: Callable[[int], None] | None = None
) -> NDArray[np.float64]:
    """Next-token loss at every position, in nats.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    ids : (windows, tokens)
    on_window : called with the number of windows done, for progress

    Returns
    -------
    (windows, tokens − 1); entry t is the loss of token t + 1, given t + 1 tokens.

    Examples
    --------
    >>> import transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> ids = torch.arange(40).reshape(2, 20)
    >>> losses(model, ids).shape
    (2, 19)
    """
    check_head(model)
    rows = []
    with torch.inference_mode(), evaluating(model):
        for done, window in enumerate(ids.to(model.device), start=1):
            rows.append(_of_window(model, window))
            if on_window is not None:
                on_window(done)
    return np.stack(rows)


def _of_window(model: PreTrainedModel, ids: Tensor) -> NDArray[np.float64]:
    found = []
    for first, logits in _logits_in_chunks(model, ids[None]):
        wanted = ids[first + 1 : first + 1 + len(logits)]
        logits = logits[: len(wanted)]  # the last position predicts a token beyond the window
        precise = logits if logits.dtype == torch.float64 else logits.float()
        found.append(F.cross_entropy(precise, wanted, reduction="none").double().cpu())
    made = torch.cat(found)
    if not bool(made.isfinite().all()):
        raise InvalidValue(
            f"{type(model).__name__} predicts tokens with probabilities that are not finite numbers above 0: its "
            "weights are broken, its dtype is too narrow, or what was done to its attention is."
        )
    return made.numpy()


def _logits_in_chunks(model: PreTrainedModel, ids: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(first position, logits (positions, vocabulary)) of one window (1, tokens), from one pass of the model's body.

    What a model does between its body and its logits (a head, a scale, a soft cap) is its own forward's business: that
    is run on a few positions at a time, with the body standing still and returning what it has returned for them.
    """
    body: nn.Module = model.base_model
    if body is model:
        yield 0, model(input_ids=ids).logits[0]
        return
    output = body(input_ids=ids, use_cache=False)
    vocabulary = check_head(model).weight.shape[0]
    step = max(1, CHUNK // int(vocabulary))
    for first in range(0, ids.shape[1], step):
        part = copy.copy(output)
        part.last_hidden_state = output.last_hidden_state[:, first : first + step]
        with _returning(body, part):
            yield first, model(input_ids=ids[:, first : first + step], use_cache=False).logits[0]


@contextmanager
def _returning(body: nn.Module, output: Any) -> Iterator[None]:
    """Inside, ``body`` computes nothing and returns ``output``."""
    before = vars(body).get("forward")
    body.forward = lambda *args, **options: output
    try:
        yield
    finally:
        del body.forward
        if before is not None:
            body.forward = before
