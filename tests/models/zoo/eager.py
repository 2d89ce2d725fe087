"""What did transformers' own eager attention attend to?  Its weights, call by call, and the measures of each row.

The weights are what the model's modules return, so nothing of Undilute is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from undilute.measures.attention_rows import RANKED

Values = NDArray[np.float64]


@dataclass
class Call:
    """One call of one layer.

    Attributes
    ----------
    name : the layer's name in the model
    weights : (batch, heads, queries, keys)
    """

    name: str
    weights: Tensor

    def attended(self, mask: Tensor | None) -> Attended:
        """The rows of all tokens but the padding; ``mask`` is what was read with, (batch, tokens), None without."""
        batch, _, queries, keys = self.weights.shape
        real, shown = _of_length(mask, batch, queries), _of_length(mask, batch, keys)
        parts, places = [], []
        for sequence in range(batch):
            first = int(shown[sequence].int().argmax())
            asked = real[sequence].nonzero().squeeze(-1)
            weights = self.weights[sequence, :, asked, first:].double()
            parts.append(nn.functional.pad(weights, (0, first)))
            places += [(sequence, query) for query in (asked - asked[0]).tolist()]
        return Attended(torch.cat(parts, 1).numpy(), np.array(places), queries == keys)


@dataclass
class Attended:
    """Some rows of one call, in the order in which they are captured.

    Attributes
    ----------
    weights : (heads, rows, keys), from the first token that is no padding; 0 where there are fewer keys
    places : (rows, 2), each row's sequence and its position in it
    by_itself : whether keys are the queries' own; not so where a decoder looks at its encoder
    """

    weights: Values
    places: NDArray[np.int64]
    by_itself: bool

    @property
    def n(self) -> NDArray[np.int64]:
        """(rows,): how many keys each row sees."""
        return np.asarray((self.weights[0] > 0).sum(-1))

    @property
    def measures(self) -> dict[str, Values]:
        """(heads, rows) each, by their definitions."""
        w = self.weights
        kept = w.sum(-1)
        p = w / kept[..., None]
        found = {
            "entropy": -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1),
            "top_weight": w.max(-1),
            "collision": (p**2).sum(-1),
            "top_mass": -np.sort(-w, -1)[..., :5].sum(-1),
            "sink_share": w[..., 0] + 1.0 - kept,
        }
        behind = np.abs(self.places[:, 1, None] - np.arange(w.shape[-1]))
        return found | ({"attended_distance": (p * behind).sum(-1)} if self.by_itself else {})

    @property
    def heaviest(self) -> Values:
        """(heads, rows, 8): the largest weights, heaviest first; 0 where there are fewer keys."""
        largest = -np.sort(-self.weights, -1)[..., :RANKED]
        return np.pad(largest, [(0, 0), (0, 0), (0, RANKED - largest.shape[-1])])


def _of_length(mask: Tensor | None, batch: int, length: int) -> Tensor:
    """(batch, length) bool: the mask, if it is of this length; the other text of a call is not padded."""
    fits = mask is not None and mask.shape == (batch, length)
    return mask.bool() if mask is not None and fits else torch.ones(batch, length, dtype=torch.bool)


def are_weights(found: Any) -> bool:
    """Whether something that a module returns is a row of weights for each query; biases and states are not."""
    if not isinstance(found, Tensor) or found.ndim != 4:
        return False
    shares = found.sum(-1)
    return bool((found >= 0).all() and (shares > 0).any() and (shares < 1.001).all())


def eager_calls(model: Any, inputs: dict[str, Tensor]) -> list[Call]:
    """Every attention call of one pass, in order."""
    calls: list[Call] = []
    hooks = []

    def watch(name: str, module: nn.Module) -> None:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            for found in output[1:] if isinstance(output, tuple) else ():
                # a layer hands on what its part has returned
                if are_weights(found) and all(found is not call.weights for call in calls):
                    calls.append(Call(name, found))

        hooks.append(module.register_forward_hook(keep))

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    for name, module in model.named_modules():
        if "attention" in type(module).__name__.lower():
            watch(name, module)
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    return calls
