"""What may happen to a rule or a mask before its backward pass?  The gradients stay right, or torch says why not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import undilute as ud
from tests.cases import rows

ROUTES = {"flash": "softmax", "sparse": "entmax15", "rows": "sigmoid"}
Q, K, V = (rows(2, 9, 4, seed=seed) for seed in range(3))


class Layer(nn.Module):
    """Attention with a scale that learns."""

    def __init__(self, route: str) -> None:
        super().__init__()
        s = nn.Parameter(torch.tensor([0.3, 0.4], dtype=torch.float64))
        self.rule, self.route = ud.rules.Rule(ud.rules.LogLength(s), ud.rules.get(ROUTES[route]).map), route

    def forward(self, q: torch.Tensor, route: str | None = None) -> torch.Tensor:
        return ud.attention(q, K, V, rule=self.rule, is_causal=True, route=route or self.route)


@pytest.mark.parametrize("route", ROUTES)
def test_a_mask_that_is_changed_in_place_is_noticed(route: str) -> None:
    q, mask = Q.clone().requires_grad_(), torch.ones(9, 9, dtype=torch.bool).tril()
    out = ud.attention(q, K, V, mask, rule=ROUTES[route], route=route)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("route", ROUTES)
def test_a_mask_of_inference_mode_is_no_obstacle(route: str) -> None:
    q = Q.clone().requires_grad_()
    with torch.inference_mode():
        mask = torch.ones(9, 9, dtype=torch.bool).tril()
    ud.attention(q, K, V, mask, rule=ROUTES[route], route=route).sum().backward()
    assert q.grad is not None


def test_a_parameter_that_is_changed_in_place_is_noticed() -> None:
    layer = Layer("rows")
    out = layer(Q)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("route", ROUTES)
def test_parameters_that_were_only_lent(route: str) -> None:
    layer, lent = Layer(route), torch.tensor([0.8, 0.9], dtype=torch.float64, requires_grad=True)
    q = Q.clone().requires_grad_()
    made, wanted = (
        torch.autograd.grad(
            torch.func.functional_call(layer, {"rule.scale.s": lent}, (q, each)).square().sum(), [q, lent]
        )
        for each in (route, "reference")
    )
    torch.testing.assert_close(made, wanted)


def test_a_hook_that_is_removed_and_a_number_that_is_replaced() -> None:
    rule = ud.rules.Rule(ud.rules.Temperature(0.5), ud.rules.Sigmoid())
    q, wanted = Q.clone().requires_grad_(), []
    for route in ("rows", "reference"):
        hook = rule.map.register_forward_hook(lambda map, given, weights: weights.square())
        rule.scale.T = 0.5
        out = ud.attention(q, K, V, rule=rule, route=route)
        hook.remove()
        rule.scale.T = 2.0
        wanted.append(torch.autograd.grad(out.square().sum(), q)[0])
    torch.testing.assert_close(*wanted)


class Square(nn.Module):
    """A parametrisation that keeps a number above 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


@pytest.mark.parametrize("route", ROUTES)
def test_parametrised_parameters_are_cut_to_some_heads(route: str) -> None:
    layer = Layer(route)
    wanted = layer(Q)[1]
    with torch.no_grad():
        layer.rule.scale.s.sqrt_()
    parametrize.register_parametrization(layer.rule.scale, "s", Square())
    rule = layer.rule.for_heads([1], 2)
    torch.testing.assert_close(ud.attention(Q[1], K[1], V[1], rule=rule, is_causal=True, route=route), wanted)


def test_a_tensor_that_is_a_plain_attribute_learns_whatever_the_size() -> None:
    class Own(ud.rules.Map):
        def __init__(self, factor: Tensor) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
            return ud.rules.Softmax()(self.factor * logits, visible)

    q, k, v = (rows(2, 300, 8, seed=i) for i in range(3))
    factor = torch.tensor(2.0, dtype=q.dtype, requires_grad=True)
    wanted, got = (
        torch.autograd.grad(ud.attention(q, k, v, rule=Own(factor), route=route).square().sum(), factor)
        for route in ("reference", None)
    )
    assert ud.explain(q, k, v, rule=Own(factor)).name == "rows"
    torch.testing.assert_close(got, wanted)
