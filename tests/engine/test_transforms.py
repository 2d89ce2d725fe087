"""Inside torch.func and forward-mode autograd a call of any size runs dense, and right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import undilute as ud
from tests.cases import rows

ROUTES = {"flash": "ssmax", "sparse": "entmax15", "rows": "sigmoid"}
Q, K, V = (rows(2, 200, 4, seed=seed) for seed in range(3))


def attend(q: Tensor, route: str) -> Tensor:
    return ud.attention(q, K, V, rule=ROUTES[route], is_causal=True)


@pytest.mark.parametrize("route", ROUTES)
def test_outside_the_call_is_fast(route: str) -> None:
    assert ud.explain(Q, K, V, rule=ROUTES[route], is_causal=True).name == route


@pytest.mark.parametrize("route", ROUTES)
def test_vmap_and_grad(route: str) -> None:
    q = torch.stack([Q, 2 * Q]).requires_grad_()
    wanted = torch.stack([attend(each, route) for each in q])
    torch.testing.assert_close(torch.vmap(lambda each: attend(each, route))(q), wanted)
    (gradient,) = torch.autograd.grad(wanted.square().sum(), q)
    found = torch.vmap(torch.func.grad(lambda each: attend(each, route).square().sum()))(q)
    torch.testing.assert_close(found, gradient)


@pytest.mark.parametrize("route", ROUTES)
def test_forward_mode(route: str) -> None:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(attend(forward_ad.make_dual(Q, K), route)).tangent
    step = 1e-6
    wanted = (attend(Q + step * K, route) - attend(Q - step * K, route)) / (2 * step)
    torch.testing.assert_close(tangent, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("route", ROUTES)
def test_a_forced_fast_route_is_refused(route: str) -> None:
    def forced(q: Tensor) -> Tensor:
        return ud.attention(q, K, V, rule=ROUTES[route], route=route).sum()

    with pytest.raises(ud.InvalidValue, match=r"cannot run inside torch\.func .*: leave route unset"):
        torch.func.grad(forced)(Q)
