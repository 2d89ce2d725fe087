"""α-normmax against its optimality conditions, the entmax package, and its own limits."""

from __future__ import annotations

import math

import entmax as package
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import rows, some_mask
from undilute.rules import Entmax, Hard, Normmax, Rule

ALPHAS = [1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0]


def thresholds(z: Tensor, p: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """z − ∂‖p‖_α/∂p at its smallest and largest on the support, and z at its largest off it, of each row."""
    norm = (p**alpha).sum(-1, keepdim=True) ** (1 / alpha)
    slack, support = z - (p / norm) ** (alpha - 1), p > 0
    inside = slack.masked_fill(~support, math.inf).amin(-1), slack.masked_fill(~support, -math.inf).amax(-1)
    return *inside, z.masked_fill(support, -math.inf).amax(-1)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("spread", [0.01, 0.3, 1.0, 30.0])
def test_no_other_weights_do_better(alpha: float, spread: float) -> None:
    """At the maximum of ⟨p, z⟩ − ‖p‖_α the slope is one number τ on the support and at most τ off it."""
    z = rows(50, 20, seed=1, spread=spread)
    low, high, outside = thresholds(z, Rule(map=Normmax(alpha))(z), alpha)
    torch.testing.assert_close(low, high, rtol=0, atol=1e-11 * max(1.0, spread))
    assert (outside <= high + 1e-11).all()


@given(row=st.lists(st.floats(-30, 30), min_size=1, max_size=20), alpha=st.floats(1.1, 4.0))
def test_no_other_weights_do_better_on_any_row(row: list[float], alpha: float) -> None:
    z = torch.tensor(row, dtype=torch.float64)
    low, high, outside = thresholds(z, Rule(map=Normmax(alpha))(z), alpha)
    assert low >= high - 1e-9
    assert outside <= low + 1e-9


@pytest.mark.parametrize("alpha", [*ALPHAS, 100.0])
def test_value_and_gradient_equal_the_entmax_packages(alpha: float) -> None:
    z, upstream = rows(40, 25, seed=2, spread=0.7), rows(40, 25, seed=3)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    p, q = Rule(map=Normmax(alpha))(ours), package.normmax_bisect(theirs, alpha, n_iter=100)
    torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    (p * upstream).sum().backward()
    (q * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9)


def test_the_figures_of_the_entmax_packages_own_test() -> None:
    z = torch.tensor([0, 0.25, 0.5, 0.75, 1])
    for alpha, expected in ((2.0, [0, 0.0239, 0.1746, 0.3254, 0.4761]), (1000.0, [0, 0, 0.3330, 0.3334, 0.3336])):
        torch.testing.assert_close(Rule(map=Normmax(alpha))(z), torch.tensor(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 3.0, 8.0, 1000.0])  # the package's gradient is NaN at 1000
def test_gradients_in_logits_and_alpha(alpha: float) -> None:
    z, a = rows(3, 5, seed=4, spread=0.4).requires_grad_(), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    mask = some_mask(3, 5, seed=5)
    assert torch.autograd.gradcheck(lambda t, b: Rule(map=Normmax(b))(t, mask), (z, a), atol=1e-5)
    if alpha <= 2:
        assert torch.autograd.gradgradcheck(lambda t: Rule(map=Normmax(alpha))(t, mask), (z,))


def test_one_alpha_per_head_and_per_row() -> None:
    z, alphas = rows(2, 3, 4, 6, seed=6), torch.tensor([1.2, 2.0, 4.0], dtype=torch.float64)
    p = Rule(map=Normmax(alphas))(z)
    q = Rule(map=Normmax(alphas[:, None]))(z[0, :, 0])
    for head, alpha in enumerate(alphas.tolist()):
        torch.testing.assert_close(p[:, head], Rule(map=Normmax(alpha))(z[:, head]), rtol=0, atol=1e-12)
        torch.testing.assert_close(q[head], p[0, head, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.001, 1.5, 2.0, 10.0])
def test_a_lead_of_one_takes_all(alpha: float) -> None:
    led = torch.zeros(1, 500, dtype=torch.float64)
    led[0, 3] = 1.0
    assert Rule(map=Normmax(alpha))(led)[0, 3] == 1
    led[0, 3] = 1.0 - 1e-6
    assert Rule(map=Normmax(alpha))(led)[0, 3] < 1 or alpha < 1.1  # near 1, the others have less than rounding


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_its_limits(dtype: torch.dtype) -> None:
    z = rows(20, 9, seed=7, dtype=dtype)
    torch.testing.assert_close(Rule(map=Normmax(1 + 1e-9))(z), Rule(map=Hard())(z))
    sparsemax = Rule(map=Entmax(2.0))(z) > 0  # α → ∞ has its threshold: Σ[z − τ]₊ = 1
    torch.testing.assert_close(Rule(map=Normmax(1e300))(z), sparsemax / sparsemax.sum(-1, keepdim=True).to(dtype))


def test_an_alpha_that_drifts_below_one_stays_the_hard_maximum() -> None:
    alpha = torch.nn.Parameter(torch.tensor(1.5))
    rule, z = Rule(map=Normmax(alpha)), rows(3, 6, seed=8).float().requires_grad_()
    with torch.no_grad():
        alpha.fill_(0.9)
    torch.testing.assert_close(rule(z), Rule(map=Hard())(z))
    rule(z).square().sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("n", [2, 5, 40])
def test_the_constant_at_two_is_reached(n: int) -> None:
    """n − 1 equal keys at a lead a little below 1."""
    z = torch.zeros(n, dtype=torch.float64)
    z[0] = 1 - 1e-4 / n
    norm = torch.linalg.matrix_norm(torch.autograd.functional.jacobian(Rule(map=Normmax(2.0)), z), ord=2)
    assert Normmax(2.0).lipschitz(n) == n
    assert 0.999 * n < float(norm) <= n


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.8])
@pytest.mark.parametrize("n", [2, 6, 20])
def test_the_constant_below_two_is_of_the_right_size(alpha: float, n: int) -> None:
    """Never exceeded, and at most 3 times what one key against n − 1 equal ones reaches."""
    top = torch.linspace(1 / n, 1, 401, dtype=torch.float64)[:-1, None]
    led = torch.cat([top, ((1 - top) / (n - 1)).expand(-1, n - 1)], -1)
    p = torch.cat([led, rows(400, n, seed=n, spread=2.0).softmax(-1)])
    weigh = torch.eye(n, dtype=torch.float64) - p[:, None, :]  # I − 1pᵀ
    r = p ** (2 - alpha) * (p**alpha).sum(-1, keepdim=True) ** ((alpha - 1) / alpha)
    norms = torch.linalg.matrix_norm(weigh.mT @ (r[..., None] * weigh), ord=2) / (alpha - 1)
    bound = Normmax(alpha).lipschitz(n)
    assert norms.max() <= bound
    assert norms.max() >= bound / 3


def test_no_constant_above_two() -> None:
    assert math.isinf(Normmax(2.5).lipschitz(2))
    assert math.isinf(Normmax(torch.tensor([1.5, 2.5])).lipschitz(2))
    z = torch.tensor([1 - 1e-12, 0.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(Rule(map=Normmax(2.5)), z)
    assert torch.linalg.matrix_norm(jacobian, ord=2) > 1e3
