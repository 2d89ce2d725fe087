"""How is a model run just to watch it?  Once, without its language-model head, without a cache, without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undilute.errors import InvalidValue

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
