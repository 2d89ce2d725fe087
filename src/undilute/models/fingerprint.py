"""Is this the same model as before?  A short text that changes when its weights, their shape or its rules do.

Hashing every weight of a large model takes longer than using it. So of each tensor its shape, its type and a few
thousand numbers, evenly spread, are hashed: another checkpoint differs in them, and so does a further training step.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undilute.models.head_rules import own_rules

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SAMPLED = 2048  # numbers of each tensor


def of_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """64 hexadecimal digits.

    Parameters
    ----------
    model : of Hugging Face, treated or not
    tokenizer : its tokenizer, which decides what the model reads
    """
    made = hashlib.sha256()
    made.update(type(model).__name__.encode())
    for name, tensor in sorted(model.state_dict().items()):
        made.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        made.update(_sampled(tensor))
    for name, module in sorted(model.named_modules()):
        if (rules := own_rules(module)) is not None:
            made.update(f"{name} {rules!r}".encode())
    made.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    return made.hexdigest()


def _sampled(tensor: Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // SAMPLED)
    return flat[::step].to(torch.float64).cpu().numpy().tobytes() if not flat.is_meta else b""
