"""The linear path folds like the rest of the network, and is all of the encoding at the start."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from undilute_papers.sharpness.ceiling.anatomy import resolution
from undilute_papers.sharpness.ceiling.network import LinearPathNetwork
from undilute_papers.sharpness.ceiling.set_ups import ARMS, Arm, SetUp
from undilute_papers.sharpness.max_retrieval.network import Network
from undilute_papers.sharpness.max_retrieval.task import CLASSES, ITEM, draw


def unsettled(network: Network) -> Network:
    """The network in float64 with every weight away from where it starts, W₂ from 0."""
    random = torch.Generator().manual_seed(5)
    network = network.double()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, dtype=torch.float64, generator=random)
    return network


def sets() -> tuple[Tensor, Tensor]:
    drawn = draw(2, 5, 9, torch.Generator().manual_seed(1))
    return drawn.x.double(), drawn.query.double()


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_folding_changes_nothing(arm: Arm) -> None:
    network, (x, query) = unsettled(arm.set_up.network((0, 7))), sets()
    folded, plain = network(x, query), network.plainly(x, query)
    assert torch.allclose(folded, plain, rtol=1e-10, atol=1e-12)
    weights = torch.randn(plain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    every = list(network.parameters())
    gradients = [torch.autograd.grad((out * weights).sum(), every, allow_unused=True) for out in (folded, plain)]
    for mine, wanted in zip(*gradients, strict=True):
        assert (mine is None) == (wanted is None)
        assert mine is None or torch.allclose(mine, wanted, rtol=1e-8, atol=1e-12)


def test_the_encoding_is_what_its_formula_says() -> None:
    """ψ_x(x) = W₂·gelu(W₁x + b₁) + b₂ + W_s·x, for one item of one seed."""
    network = unsettled(LinearPathNetwork("softmax", [0, 7]))
    assert isinstance(network, LinearPathNetwork)
    item = sets()[0][1, 0, 0]  # of the second seed
    hidden = torch.nn.functional.gelu(item @ network.item_first.weight[1] + network.item_first.bias[1, 0])
    wanted = hidden @ network.item_last.weight[1] + network.item_last.bias[1, 0] + item @ network.path.weight[1]
    assert torch.allclose(network.encoded_plainly(item.expand(2, 1, ITEM))[1, 0], wanted)


def test_a_head_starts_linear_and_otherwise_like_the_plain_one() -> None:
    network, plain = LinearPathNetwork("ssmax", [0, 7]).double(), Network("ssmax", [0, 7]).double()
    x, query = sets()
    steps = torch.stack([torch.zeros(ITEM), torch.eye(ITEM)[0], 2 * torch.eye(ITEM)[0]]).double() * 0.3
    logits = network.attend(x[:, :, :1] + steps, query).logits  # of an item, and of the same with more priority
    torch.testing.assert_close(logits[..., 2] - logits[..., 1], logits[..., 1] - logits[..., 0])
    curved = plain.attend(x[:, :, :1] + steps, query).logits
    assert not torch.allclose(curved[..., 2] - curved[..., 1], curved[..., 1] - curved[..., 0], rtol=1e-3)
    assert not torch.equal(network.path.weight[0], network.path.weight[1])
    for name, value in plain.named_parameters():
        assert torch.equal(network.get_parameter(name), value) == (name != "item_last.weight"), name


def test_an_arm_makes_its_own_rule() -> None:
    focus = SetUp("focus", {"k": 3, "s_min": 0.5, "s_max": 70.0}).network((0, 1)).rules
    assert [rule.map.k for rule in focus] == [3, 3]
    assert focus[0].map.s_max.tolist() == pytest.approx([70.0])
    assert focus[0].map.log_s_min is not focus[1].map.log_s_min  # each seed learns its own
    constant = SetUp("temperature", {"T": 0.5}, skip=True)
    assert constant.network((0,)).rules[0].scale.T == 0.5
    assert not list(constant.network((0,)).rules.parameters())


class Offset(Network):
    """A head whose logits are a slope times the priority, plus an offset for every class."""

    slopes = torch.tensor([200.0, -3.0])
    offsets = torch.linspace(-0.5, 0.5, CLASSES)

    def attend(self, x: Tensor, query: Tensor) -> object:  # type: ignore[override]
        seen = super().attend(x, query)
        return seen._replace(logits=self.slopes[:, None, None] * x[..., 0] + x[..., 1:] @ self.offsets)


def test_the_resolution_is_the_deviation_of_the_offsets_over_the_slope() -> None:
    rising, falling = resolution(Offset("softmax", [0, 1]))
    assert rising == pytest.approx(float(Offset.offsets.std()) / 200, rel=1e-3)
    assert falling is None
