"""How are many questions asked about one text?  The text is read once, and its cache serves every question.

    read = ReadOnce(model, ids)
    logits, rows = read.attended(question)

``rows`` is what every head attends to from the question's last token, where the answer is about to be said.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models.passes import Run, layer_names
from undilute.models.tensor_parallel import check_whole
from undilute.models.watch import watch
from undilute.models.watched_call import WatchedCall

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class LastRow:
    """What the heads of one layer attend to from the last token.

    Attributes
    ----------
    layer : the layer's name in the model, as of :class:`undilute.models.capture.LayerSample`
    weights : (heads, keys), 0 where hidden
    first : index of the key of the text's first token; below 0 if a cache has dropped it
    """

    layer: str
    weights: Tensor
    first: int

    def on(self, start: int, stop: int) -> Tensor:
        """(heads,): the attention on tokens ``start`` to ``stop`` of the text; those that were dropped have none."""
        begin, end = max(start + self.first, 0), max(stop + self.first, 0)
        return self.weights[:, begin:end].sum(-1)


class ReadOnce:
    """A text that a causal language model has read, for any number of questions, each asked by itself.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    ids : (tokens,), the text; a model that keeps no cache reads it again with every question
    """

    def __init__(self, model: PreTrainedModel, ids: Tensor) -> None:
        self.model, self.ids = model, ids[None].to(model.device)
        with torch.inference_mode():
            self.cache = getattr(model.base_model(input_ids=self.ids, use_cache=True), "past_key_values", None)

    def ask(self, question: Tensor) -> Tensor:
        """Logits (vocabulary,) after the text and the question (tokens,), in double precision.

        Each question gets a copy of the cache: what it adds could be cropped again, but not in a layer with a sliding
        window, which has dropped its oldest keys by then.
        """
        asked = question[None].to(self.model.device)
        with torch.inference_mode():
            if self.cache is None:
                logits: Tensor = self.model(input_ids=torch.cat([self.ids, asked], 1)).logits[0, -1]
            else:
                cache: Any = copy.deepcopy(self.cache)
                logits = self.model(input_ids=asked, past_key_values=cache, use_cache=True).logits[0, -1]
        if not bool(logits.isfinite().all()):
            raise InvalidValue(
                f"{type(self.model).__name__} computes logits that are not finite (NaN or infinity): its weights are "
                "broken, its dtype is too narrow, or what was done to its attention is."
            )
        return logits.double().cpu()

    def attended(self, question: Tensor) -> tuple[Tensor, list[LastRow]]:
        """Logits as of :meth:`ask`, and each layer's attention from the question's last token."""
        seen: dict[Run, tuple[Tensor, int]] = {}

        def on_call(call: WatchedCall) -> None:
            check_whole(call)
            if not call.is_repeat and not call.is_cross:
                last = torch.tensor([call.queries - 1], device=call.query.device)
                seen[call.run] = call.weights(0, last)[:, 0].float().cpu(), call.first_token(0)

        with watch(self.model, on_call):
            logits = self.ask(question)
        named = zip(layer_names(seen), seen.values(), strict=True)
        return logits, [LastRow(name, weights, first) for name, (weights, first) in named]
