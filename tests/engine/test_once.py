"""A second derivative through a fast route is refused; through the reference it is right."""

from __future__ import annotations

import pytest
import torch

import undilute as ud
from tests.cases import rows
from undilute.errors import InvalidValue

ROUTES = {"flash": "softmax", "sparse": "entmax15", "rows": "sigmoid"}
ADAPTIVE = {"flash": "adaptive", "sparse": "as-entmax", "rows": "softpick"}


def penalty(route: str | None, rule: str, spread: float = 1.0, constant: bool = True) -> torch.Tensor:
    """d‖∂out/∂q‖² / dq, as a gradient penalty takes it; with a constant incoming gradient, or one that depends on q."""
    q, k, v = (rows(2, 9, 4, seed=seed, spread=spread) for seed in range(3))
    q.requires_grad_()
    out = ud.attention(q, k, v, rule=rule, route=route)
    objective = out.sum() if constant else out.square().sum()
    (gradient,) = torch.autograd.grad(objective, q, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), q)
    return second


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("rules", [ROUTES, ADAPTIVE])
@pytest.mark.parametrize("route", ROUTES)
def test_a_second_derivative_is_refused(route: str, rules: dict[str, str], constant: bool) -> None:
    with pytest.raises(InvalidValue, match=r"second derivative: .* route='reference'"):
        penalty(route, rules[route], constant=constant)


@pytest.mark.parametrize("route", ROUTES)
def test_also_for_what_the_rule_learns_and_by_backward(route: str) -> None:
    s = torch.tensor([0.3, 0.4], dtype=torch.float64, requires_grad=True)
    map = ud.rules.get(ROUTES[route]).map
    rule = ud.rules.Rule(ud.rules.LogLength(s), map)
    q, k, v = (rows(2, 9, 4, seed=seed) for seed in range(3))
    q.requires_grad_()
    out = ud.attention(q, k, v, rule=rule, route=route)
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(InvalidValue, match="second derivative"):
        torch.autograd.grad(gradient.sum(), s, retain_graph=True)
    with pytest.raises(InvalidValue, match="second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("route", ROUTES)
def test_a_graph_that_nobody_differentiates_is_fine(route: str) -> None:
    q, k, v = (rows(2, 9, 4, seed=seed) for seed in range(3))
    q.requires_grad_()
    grads = [
        torch.autograd.grad(ud.attention(q, k, v, rule=ROUTES[route], route=route).sum(), q, create_graph=graph)[0]
        for graph in (True, False)
    ]
    assert torch.equal(grads[0].detach(), grads[1])


@pytest.mark.parametrize("name", ["softmax", "ssmax", "adaptive", "entmax15", "sigmoid"])
def test_the_reference_has_second_derivatives(name: str) -> None:
    inputs = [rows(1, 4, 2, seed=seed, spread=1.0).requires_grad_() for seed in range(3)]
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: ud.attention(q, k, v, rule=name, is_causal=True, route="reference"), inputs
    )


def test_and_forward_derivatives_and_vmap() -> None:
    q, k, v = (rows(3, 2, 5, 4, seed=seed) for seed in range(3))
    attend = lambda q, k, v: ud.attention(q, k, v, rule="ssmax")  # noqa: E731
    torch.testing.assert_close(torch.vmap(attend)(q, k, v), attend(q, k, v))
    _, forward = torch.func.jvp(attend, (q, k, v), (k, v, q))
    step = 1e-6
    moved = [attend(q + s * k, k + s * v, v + s * q) for s in (step, -step)]
    torch.testing.assert_close(forward, (moved[0] - moved[1]) / (2 * step), atol=1e-6, rtol=1e-6)
    _, of_key = torch.func.jvp(lambda k: attend(q, k, v), (k,), (v,))
    moved = [attend(q, k + s * v, v) for s in (step, -step)]
    torch.testing.assert_close(of_key, (moved[0] - moved[1]) / (2 * step), atol=1e-6, rtol=1e-6)
