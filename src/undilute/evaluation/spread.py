"""How widely do the heads attend?  Entropy and top weight of sampled rows, as the model uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from undilute.errors import InvalidValue
from undilute.evaluation.outcome import Spread
from undilute.measures.registry import WITHOUT_SINK
from undilute.models.capture import Capture, LayerSample, capture

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 64
ENTROPY = "entropy"
TOP_WEIGHT = "top_weight" + WITHOUT_SINK


def watching(model: PreTrainedModel, rows: int = ROWS) -> Capture:
    """A context in which a pass of the model is measured; give it to :func:`spread` afterwards."""
    return capture(model, rows, measures=[ENTROPY, TOP_WEIGHT])


def spread(watched: Capture) -> Spread:
    """What was measured of one causal pass over one window.

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> with watching(model, rows=8) as watched:
    ...     _ = model(torch.arange(40)[None])
    >>> spread(watched).entropy.shape
    (2, 4, 8)
    """
    layers = watched.layers
    if not layers:
        raise InvalidValue(
            "no attention call was seen: the model's attention does not go through transformers' AttentionInterface, "
            "and cannot be read from outside."
        )
    if ahead := next((layer.name for layer in layers if layer.looks_ahead), None):
        raise InvalidValue(
            f"{ahead} looks at later tokens, as an encoder does: evaluation needs a causal language model, which "
            "predicts each token from those before it."
        )
    longest = max(layers, key=lambda layer: int(layer.n.max()))  # a sliding window sees fewer keys than there are
    return Spread(longest.n, _stacked(layers, ENTROPY), _stacked(layers, TOP_WEIGHT))


def _stacked(layers: list[LayerSample], measure: str) -> NDArray[np.float64]:
    """(layers, heads, rows); NaN where a layer has fewer heads than another."""
    heads = max(layer.heads for layer in layers)
    made = np.full((len(layers), heads, len(layers[0].n)), np.nan)
    for index, layer in enumerate(layers):
        made[index, : layer.heads] = layer.measures[measure]
    return made
