"""How are a few rows after a text computed again and again, with gradients?  Over what was kept of the text.

All items of a sample go into one pass, in which none sees another, where the model takes that; one by one otherwise.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from undilute.errors import InvalidValue
from undilute.models.read_once import ReadOnce, takes_together
from undilute.tuning.samples import Item, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRIED = 64  # tokens of a text that show whether items can go together


class Kept:
    """A sample whose text the untreated model has read.

    Parameters
    ----------
    model : a causal Hugging Face language model, untreated
    sample : the text, and what comes after it
    """

    def __init__(self, model: PreTrainedModel, sample: Sample) -> None:
        self.sample = sample
        with torch.no_grad():
            read = ReadOnce(model, sample.ids)
        if read.cache is None:
            raise InvalidValue(
                f"{type(model).__name__} keeps no keys and values that can be trusted: it cannot be tuned over texts "
                "that are read once."
            )
        self.cache = copy.deepcopy(read.cache)  # outside of inference mode, so that gradients may use it


def together(model: PreTrainedModel, sample: Sample) -> bool:
    """Whether the model takes several items in one pass; it is tried on the beginning of a text."""
    items = [item.ids for item in sample.items[:2]]
    return len(items) == 2 and takes_together(ReadOnce(model, sample.ids[:TRIED]), items)


def predicted(model: PreTrainedModel, kept: Kept, values: Mapping[str, Tensor], joint: bool) -> list[Tensor]:
    """Logits (targets, vocabulary) of every item's last rows, with these values for the model's learned parameters."""
    items = kept.sample.items
    if joint:
        return _pass(model, kept, items, values)
    return [made for item in items for made in _pass(model, kept, [item], values)]


def _pass(model: PreTrainedModel, kept: Kept, items: Sequence[Item], values: Mapping[str, Tensor]) -> list[Tensor]:
    sizes = [len(item.ids) for item in items]
    wanted = _wanted(items)
    text, device = len(kept.sample.ids), model.device
    given: dict[str, Any] = {"input_ids": torch.cat([item.ids for item in items])[None].to(device)}
    if len(items) > 1:
        own = torch.block_diag(*(torch.ones(size, size).tril() for size in sizes)).bool()
        visible = torch.cat([torch.ones(sum(sizes), text, dtype=torch.bool), own], 1)
        lowest = torch.finfo(model.dtype).min
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill_(~visible, lowest)
        given["attention_mask"] = mask[None, None].to(device)
        given["position_ids"] = torch.cat([text + torch.arange(size) for size in sizes])[None].to(device)
    only = "logits_to_keep" in inspect.signature(model.forward).parameters
    if only:
        given["logits_to_keep"] = wanted.to(device)
    given |= {"past_key_values": copy.deepcopy(kept.cache), "use_cache": True}
    here = {name: value.to(device) for name, value in values.items()}
    logits: Tensor = functional_call(model, here, (), given).logits[0]
    rows = logits if only else logits[wanted.to(device)]
    precise = rows if rows.dtype == torch.float64 else rows.float()
    return list(precise.split([len(item.targets) for item in items]))


def _wanted(items: Sequence[Item]) -> Tensor:
    """Places of the rows that predict something, in a pass of all items."""
    ends = torch.tensor([len(item.ids) for item in items]).cumsum(0).tolist()
    return torch.cat([torch.arange(end - len(item.targets), end) for item, end in zip(items, ends, strict=True)])


def cross_entropy(logits: Sequence[Tensor], kept: Kept) -> Tensor:
    """Mean over items of the mean over their targets, in nats."""
    losses = [
        F.cross_entropy(rows, item.targets.to(rows.device))
        for rows, item in zip(logits, kept.sample.items, strict=True)
    ]
    return torch.stack(losses).mean()


def right(logits: Sequence[Tensor], kept: Kept) -> list[float]:
    """For every item, whether it is answered: by its candidates' ranking, or by all of its tokens where it has none."""
    found = []
    for rows, item in zip(logits, kept.sample.items, strict=True):
        if item.candidates is not None:
            best = int(rows[-1][item.candidates.to(rows.device)].argmax())
            found.append(float(int(item.candidates[best]) == int(item.targets[-1])))
        else:
            found.append(float((rows.argmax(-1) == item.targets.to(rows.device)).all()))
    return found
