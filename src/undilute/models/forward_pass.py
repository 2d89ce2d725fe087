"""How is a model run just to watch it?  Once, without its language-model head, without a cache, without dropout.

Only token ids are available, so a model that also needs images, sounds or a decoder's input is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue, UndiluteError
from undilute.models.reasons import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def forward_pass(model: PreTrainedModel, ids: Tensor) -> None:
    """One pass without the language-model head, whose logits would be the largest tensor of all."""
    body = model.base_model
    output = body(input_ids=ids[None].to(model.device), **({"use_cache": False} if _has_cache(body) else {}))
    hidden: Tensor = output[0]
    if not bool(hidden.isfinite().all()):
        raise InvalidValue(
            f"{type(model).__name__} computes numbers that are not finite (NaN or infinity): its weights are "
            f"broken, or {hidden.dtype} is too narrow for them."
        )


def first_pass(model: PreTrainedModel, ids: Tensor) -> None:
    """:func:`forward_pass` over a few tokens of a model that may be of another kind; an error that says so if it is."""
    try:
        forward_pass(model, ids)
    except UndiluteError:
        raise
    except Exception as error:  # whatever a model of another kind makes of token ids
        reads = model.main_input_name
        raise _unreadable(model, one_line(error) if reads == "input_ids" else f"it reads {reads}") from None


def check_reads_tokens(model: PreTrainedModel) -> None:
    """Raise if it is plain that ``model`` does not read token ids."""
    if model.main_input_name != "input_ids":
        raise _unreadable(model, f"it reads {model.main_input_name}")
    try:
        embeddings: Any = model.get_input_embeddings()
    except NotImplementedError:
        embeddings = None
    if not isinstance(getattr(embeddings, "num_embeddings", None), int):
        raise _unreadable(model, "it has no table of embeddings for them")


def _unreadable(model: PreTrainedModel, why: str) -> InvalidValue:
    return InvalidValue(
        f"{type(model).__name__} cannot be run on token ids alone ({why}): must be a language model or a text encoder; "
        "for any other, undilute.capture(model) measures a pass that you run yourself, and "
        "attn_implementation='undilute:ssmax' changes the rule."
    )


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout; each part is put back into the mode it was in."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _has_cache(body: torch.nn.Module) -> bool:
    return hasattr(getattr(body, "config", None), "use_cache")
