"""The spread of attention is that of the weights the model uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.models.attending import dense_layers, random_model, tokens
from undilute.errors import InvalidValue
from undilute.evaluation.measure import _stacked, spread, watching
from undilute.rules.entropy import entropy


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3"])
def test_entropy_and_top_weight_are_the_dense_ones(kind: str) -> None:
    model, ids = random_model(kind), tokens(1, 21)
    with watching(model, rows=30) as watched, torch.no_grad():
        model(ids, use_cache=False)
    found, layers = spread(watched), dense_layers(model, ids)
    assert found.n.tolist() == list(range(1, 22))
    assert found.entropy.shape == found.top_weight.shape == (len(layers), 4, 21)
    for index, layer in enumerate(layers):
        assert_allclose(found.entropy[index], entropy(layer.weights[0]), atol=1e-9)
        without = layer.weights[0, :, :, 1:]
        without = without / without.sum(-1, keepdim=True).clamp(min=1e-300)
        assert_allclose(found.top_weight[index][:, 1:], without.amax(-1)[:, 1:], rtol=1e-9, atol=1e-12)


def test_layers_with_fewer_heads_are_filled_up() -> None:
    model = random_model("llama")
    with watching(model, rows=4) as watched, torch.no_grad():
        model(tokens(1, 9))
    layers = watched.layers
    layers[1].measures["entropy"] = layers[1].measures["entropy"][:3]
    layers[1].keys = layers[1].keys[:3]
    made = _stacked(layers, "entropy")
    assert made.shape == (2, 4, 4)
    assert np.isnan(made[1, 3]).all()
    assert np.isfinite(made[1, :3]).all()


def test_an_encoder_is_refused() -> None:
    model = random_model("bert")
    with watching(model) as watched, torch.no_grad():
        model(tokens(1, 9))
    with pytest.raises(InvalidValue, match="looks at later tokens"):
        spread(watched)


def test_a_model_that_made_no_call_is_refused() -> None:
    with watching(random_model("llama")) as watched:
        pass
    with pytest.raises(InvalidValue, match="no attention call was seen"):
        spread(watched)
