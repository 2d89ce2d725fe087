"""Which modules of a model attend, in which order, and with how many heads?

Asked of the model itself: a pass over two tokens shows every attention call, whatever the architecture names its
layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from undilute.models.attention_call import AttentionCall
from undilute.models.forward_pass import evaluating, first_pass
from undilute.models.passes import Run, layer_names
from undilute.models.tensor_parallel import share
from undilute.models.watch import check_attended, watch
from undilute.models.watched_call import WatchedCall
from undilute.treatment.patterns import Layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def first_calls(model: PreTrainedModel) -> dict[str, AttentionCall]:
    """The first attention call of each layer, by the layer's name, in the order in which they run.

    Examples
    --------
    >>> import transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1)
    >>> list(first_calls(transformers.GPT2LMHeadModel(config)))
    ['transformer.h.0.attn', 'transformer.h.1.attn']
    """
    calls: dict[Run, AttentionCall] = {}

    def keep(call: WatchedCall) -> None:
        if not call.is_repeat:
            calls.setdefault(call.run, call)

    devices = {parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda}
    with evaluating(model), torch.random.fork_rng(sorted(devices)), watch(model, keep, alone=True), torch.no_grad():
        first_pass(model, torch.zeros(2, dtype=torch.int64))
    check_attended(model, len(calls))
    return dict(zip(layer_names(calls), calls.values(), strict=True))


def layers_of(calls: dict[str, AttentionCall]) -> list[Layer]:
    """Names and numbers of heads; with tensor parallelism, of those in all processes."""
    return [Layer(name, share(call).total) for name, call in calls.items()]
