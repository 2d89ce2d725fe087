"""Small random models that generate, of every kind of attention that matters to a treatment."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.models.attending import CLASSES, CONFIGURATIONS, SIZES

KINDS = ("gpt2", "llama", "gemma3", "bert")


def generating_model(kind: str, implementation: str = "sdpa") -> Any:
    """A causal language model in float64, so that greedy choices have no ties; BERT as a decoder."""
    torch.manual_seed(0)
    if kind == "bert":
        sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
        model: Any = transformers.BertLMHeadModel(transformers.BertConfig(**sizes, is_decoder=True))
    else:
        model = CLASSES[kind](CONFIGURATIONS[kind]())
    model.set_attn_implementation(implementation)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, do_sample=False)
    return model.double().eval()


def generated(model: Any, ids: torch.Tensor, new: int = 6, **options: Any) -> list[list[int]]:
    """The tokens that follow, greedily, for each sequence of the batch."""
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=new, min_new_tokens=new, **options)
    found: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return found
