"""The folded network is the published one, and the task is what it says."""

from __future__ import annotations

import pytest
import torch

from undilute import rules
from undilute_papers.sharpness.max_retrieval.network import Network
from undilute_papers.sharpness.max_retrieval.task import CLASSES, draw


@pytest.mark.parametrize("name", rules.names())
@pytest.mark.parametrize("scaled", [True, False])
def test_folding_changes_nothing(name: str, scaled: bool) -> None:
    network = Network(name, [0, 7], scaled).double()
    sets = draw(2, 5, 9, torch.Generator().manual_seed(1))
    x, query = sets.x.double(), sets.query.double()
    folded, plain = network(x, query), network.plainly(x, query)
    assert torch.allclose(folded, plain, rtol=1e-10, atol=1e-12)
    weights = torch.randn(plain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    every = list(network.parameters())
    gradients = [torch.autograd.grad((out * weights).sum(), every, allow_unused=True) for out in (folded, plain)]
    for mine, wanted in zip(*gradients, strict=True):
        assert (mine is None) == (wanted is None)
        assert mine is None or torch.allclose(mine, wanted, rtol=1e-8, atol=1e-12)


def test_the_answer_is_the_class_of_the_largest_priority() -> None:
    sets = draw(2, 150, 16, torch.Generator().manual_seed(0))
    for x, largest, answer in zip(*(each.flatten(0, 1) for each in (sets.x, sets.largest, sets.answer)), strict=True):
        best = max(range(16), key=lambda i: float(x[i, 0]))
        assert best == int(largest)
        assert x[best, 1:].tolist() == [float(k == int(answer)) for k in range(CLASSES)]
    assert (sets.x[..., 1:].sum(-1) == 1).all()
    assert sets.answer.flatten().bincount(minlength=CLASSES).min() > 10  # every class is asked for


def test_a_set_may_be_read_in_any_order() -> None:
    network = Network("entmax15", [3]).double()
    sets = draw(1, 3, 12, torch.Generator().manual_seed(0))
    x, query = sets.x.double(), sets.query.double()
    assert torch.allclose(network(x, query), network(x[:, :, torch.randperm(12)], query))


def test_seeds_do_not_know_of_each_other() -> None:
    """A network trained beside others is the one that is trained alone, to rounding."""
    sets = draw(3, 4, 6, torch.Generator().manual_seed(0))
    together = Network("as-entmax", [5, 6, 7]).double()
    for i, seed in enumerate((5, 6, 7)):
        alone = Network("as-entmax", [seed]).double()
        x, query = sets.x[i : i + 1].double(), sets.query[i : i + 1].double()
        assert torch.allclose(alone(x, query)[0], together(sets.x.double(), sets.query.double())[i], rtol=1e-12)
    outputs = together(sets.x[:1].double().expand(3, -1, -1, -1), sets.query[:1].double().expand(3, -1, -1))
    assert not torch.allclose(outputs[0], outputs[1])


def test_a_step_keeps_nothing() -> None:
    """The two gradients that wait for each other must not keep the graph, or training fills the memory."""
    network = Network("softmax", [0])
    sets = draw(1, 2, 3, torch.Generator().manual_seed(0))
    seen = network.attend(sets.x, sets.query)
    network.read(seen, network.weigh(seen)).sum().backward()
    assert seen.of_pooled == []


def test_weights_start_as_in_flax() -> None:
    weight = Network("softmax", [0]).K.weight
    deviation = 128**-0.5
    assert weight.std().item() == pytest.approx(deviation, rel=0.02)
    assert weight.abs().max().item() < 2 * deviation / 0.8796
    biases = [value for name, value in Network("softmax", [0]).named_parameters() if name.endswith("bias")]
    assert len(biases) == 6
    assert not any(bias.any() for bias in biases)
