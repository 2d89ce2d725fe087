"""The budget map against its optimality conditions, the entmax package, and where the package's bisection ends."""

from __future__ import annotations

import math

import entmax as package
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import rows, some_mask
from undilute.rules import Budget, Entmax, Rule

BUDGETS = [0.0, 0.3, 1.0, 2.0, 2.5, 6.0, 8.7, 9.0, 20.0]


def check(z: Tensor, p: Tensor, budget: float) -> None:
    """p = min(1, [z − τ]₊) for one τ, and the sum is the budget: what makes it the nearest point."""
    assert ((p >= 0) & (p <= 1)).all()
    torch.testing.assert_close(p.sum(-1), torch.full_like(p[..., 0], min(budget, z.shape[-1])), rtol=1e-13, atol=1e-13)
    highest = torch.where(p > 0, z - p, math.inf).amin(-1)  # τ = z − p where 0 < p < 1, τ ≤ z − 1 where p = 1
    lowest = torch.where(p < 1, z - p, -math.inf).amax(-1)  # τ ≥ z where p = 0
    assert (lowest <= highest + 1e-12 * (1 + z.abs().amax(-1))).all()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5, 3.0, 100.0])
def test_no_other_weights_do_better(budget: float, spread: float) -> None:
    z = rows(50, 9, seed=1, spread=spread)
    check(z, Rule(map=Budget(budget))(z), budget)
    tied = (2 * z).round() / 2
    check(tied, Rule(map=Budget(budget))(tied), budget)


@given(row=st.lists(st.floats(-30, 30), min_size=1, max_size=20), budget=st.floats(0, 12))
def test_no_other_weights_do_better_on_any_row(row: list[float], budget: float) -> None:
    z = torch.tensor(row, dtype=torch.float64)
    check(z, Rule(map=Budget(budget))(z), budget)


@pytest.mark.parametrize("budget", [0.3, 1.0, 2.0, 2.5, 6.0, 8.7])
def test_value_and_gradient_equal_the_entmax_packages(budget: float) -> None:
    z, upstream = rows(40, 9, seed=2, spread=0.7), rows(40, 9, seed=3)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    p, q = Rule(map=Budget(budget))(ours), package.budget_bisect(theirs, budget, n_iter=100)
    torch.testing.assert_close(p, q, rtol=0, atol=1e-13)
    (p * upstream).sum().backward()
    (q * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)


def test_the_figures_of_the_entmax_packages_own_test() -> None:
    z = torch.tensor([0, 0.25, 0.5, 0.75, 1])
    assert Rule(map=Budget(2.0))(z).tolist() == [0, 0.125, 0.375, 0.625, 0.875]
    assert Rule(map=Budget(3.0))(2 * z).tolist() == [0, 0.25, 0.75, 1, 1]


def test_a_budget_of_one_is_sparsemax() -> None:
    for spread in (0.01, 1.0, 10.0):
        z = rows(50, 12, seed=4, spread=spread)
        torch.testing.assert_close(Rule(map=Budget(1.0))(z), Rule(map=Entmax(2.0))(z), rtol=0, atol=1e-14)


@pytest.mark.parametrize("budget", [0.0, 1.0, 2.0, 3.0, 6.0, 7.0])
def test_gradient_at_whole_budgets(budget: float) -> None:
    assert torch.autograd.gradcheck(Rule(map=Budget(budget)), (rows(4, 6, seed=5, spread=0.7).requires_grad_(),))


@pytest.mark.parametrize("budget", [0.4, 1.3, 2.2, 3.5, 5.1])
def test_gradients_in_logits_and_budget(budget: float) -> None:
    z, b = rows(4, 6, seed=5, spread=0.7).requires_grad_(), torch.tensor(budget).double().requires_grad_()
    mask = some_mask(4, 6, seed=6)
    assert torch.autograd.gradcheck(lambda t, c: Rule(map=Budget(c))(t, mask), (z, b))
    moved = torch.func.jvp(lambda c: Rule(map=Budget(c))(z, mask), (b,), (torch.ones_like(b),))[1]
    torch.testing.assert_close(moved.sum(-1), (budget < mask.sum(-1)).double())  # a row that is full takes no more


def test_one_budget_per_head_and_per_row() -> None:
    z, budgets = rows(2, 3, 4, 6, seed=7), torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64, requires_grad=True)
    p = Rule(map=Budget(budgets))(z)
    q = Rule(map=Budget(budgets[:, None]))(z[0, :, 0])
    for head, budget in enumerate(budgets.tolist()):
        torch.testing.assert_close(p[:, head], Rule(map=Budget(budget))(z[:, head]), rtol=0, atol=1e-14)
        torch.testing.assert_close(q[head], p[0, head, 0], rtol=0, atol=1e-14)
    p[..., 0].sum().backward()
    assert budgets.grad is not None
    assert budgets.grad[2] == 0  # more than there are keys


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("far", [1e4, 1e30, math.inf])
def test_keys_far_above_cost_the_others_no_digits(far: float, dtype: torch.dtype) -> None:
    """The package bisects between the smallest and the largest logit; here only what is near the threshold counts."""
    z = rows(20, 8, seed=8, spread=0.4, dtype=dtype)
    led = torch.cat([torch.full((20, 2), far, dtype=dtype), z, torch.full((20, 1), max(-far, -1e30), dtype=dtype)], -1)
    p = Rule(map=Budget(3.0))(led)
    assert (p[:, :2] == 1).all()
    assert (p[:, -1] == 0).all()
    torch.testing.assert_close(p[:, 2:-1], Rule(map=Budget(1.0))(z), rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_whole_keys_have_no_gradient() -> None:
    """A weight of 1 − 1e-16 in place of 1 would count as free to move, and give two equal keys a gradient of 1/2."""
    z = torch.tensor([[5.0, 5.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [9.0, 3.0, 1.5, -4.0]], requires_grad=True)
    p = Rule(map=Budget(2.0))(z)
    assert p.tolist() == [[1, 1, 0, 0]] * 3
    (p * torch.tensor([1.0, -1.0, 2.0, 0.5])).sum().backward()
    assert (z.grad == 0).all()


def test_more_budget_than_keys() -> None:
    z, mask = rows(30, 7, seed=9).requires_grad_(), some_mask(30, 7, seed=10)
    p = Rule(map=Budget(7.0))(z, mask)
    assert torch.equal(p, mask.double())
    p.square().sum().backward()
    assert (z.grad == 0).all()


@pytest.mark.parametrize("budget", [2.0, 100.3])
def test_float32_is_accurate_on_long_rows(budget: float) -> None:
    z = rows(4, 50_000, seed=11, spread=0.05).float()
    got, exact = Rule(map=Budget(budget))(z), Rule(map=Budget(budget))(z.double())
    assert (got.double().sum(-1) - budget).abs().max() < 1e-4 * budget
    assert (got.double() - exact).abs().max() < 1e-6


def test_a_learned_budget_that_drifts_below_zero_is_zero() -> None:
    budget = torch.nn.Parameter(torch.tensor(1.0))
    rule = Rule(map=Budget(budget))
    with torch.no_grad():
        budget.fill_(-0.5)
    assert (rule(rows(3, 6, seed=12).float()) == 0).all()


def test_the_constant() -> None:
    assert [Budget(2.0).lipschitz(n) for n in (1, 2, 3, 100)] == [0, 0, 1, 1]
    assert [Budget(1.5).lipschitz(n) for n in (1, 2)] == [0, 1]
    assert Budget(0.0).lipschitz(5) == 0
    assert [Budget(torch.tensor([0.0, 4.0])).lipschitz(n) for n in (4, 5)] == [0, 1]
    jacobian = torch.autograd.functional.jacobian(Rule(map=Budget(2.0)), torch.zeros(5, dtype=torch.float64))
    assert float(torch.linalg.matrix_norm(jacobian, ord=2)) == pytest.approx(1)
