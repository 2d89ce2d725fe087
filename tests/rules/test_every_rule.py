"""What must hold for every rule, whatever it does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.cases import RULES, rows, some_mask
from undilute.rules import Hard, Rule, Softmax


def gradient(rule: Rule, logits: Tensor, upstream: Tensor, mask: Tensor | None = None) -> Tensor:
    z = logits.clone().requires_grad_()
    (rule(z, mask) * upstream).sum().backward()
    assert z.grad is not None
    return z.grad


def test_gradient_is_exact(rule: Rule) -> None:
    z = rows(3, 7, seed=1).requires_grad_()
    mask = some_mask(3, 7, seed=2)
    if isinstance(rule.map, Hard):  # straight-through by definition: softmax's gradient, not its own
        soft = Rule(rule.scale, Softmax())
        upstream = rows(3, 7, seed=3)
        assert torch.equal(gradient(rule, z.detach(), upstream, mask), gradient(soft, z.detach(), upstream, mask))
        return
    assert torch.autograd.gradcheck(rule, (z,))
    assert torch.autograd.gradcheck(lambda t: rule(t, mask), (z,))


def test_mask_equals_truncation(rule: Rule) -> None:
    z, mask, upstream = rows(20, 9, seed=4), some_mask(20, 9, seed=5), rows(20, 9, seed=6)
    weights, grad = rule(z, mask), gradient(rule, z, upstream, mask)
    for i in range(20):
        seen = mask[i]
        torch.testing.assert_close(weights[i, seen], rule(z[i, seen]), rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(grad[i, seen], gradient(rule, z[i, seen], upstream[i, seen]), rtol=1e-12, atol=1e-13)
        assert (weights[i, ~seen] == 0).all()
        assert (grad[i, ~seen] == 0).all()


def test_hidden_values_do_not_matter(rule: Rule) -> None:
    z, mask = rows(10, 9, seed=7), some_mask(10, 9, seed=8)
    expected = rule(z, mask)
    for junk in (-math.inf, math.inf, math.nan, 1e300):
        assert torch.equal(rule(z.masked_fill(~mask, junk), mask), expected)
    assert torch.equal(rule(z.masked_fill(~mask, -math.inf)), expected)  # −inf hides by itself


def test_shift_invariance_is_as_declared(rule: Rule) -> None:
    z = rows(50, 9, seed=9)
    moved = (rule(z + 3.7) - rule(z)).abs().max()
    if rule.is_shift_invariant:
        assert moved < 1e-12
    else:
        assert moved > 1e-3


def test_permutation_equivariance(rule: Rule) -> None:
    z, order = rows(50, 9, seed=10), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rule(z)[:, order], rule(z[:, order]), rtol=1e-13, atol=1e-15)
    tied = z.round()
    torch.testing.assert_close(rule(tied)[:, order], rule(tied[:, order]), rtol=1e-13, atol=1e-15)


def test_monotonicity_is_as_declared(rule: Rule) -> None:
    ordered = rows(200, 9, seed=11).sort(-1).values
    falls = rule(ordered).diff(dim=-1).min()
    if rule.is_monotone:
        assert falls >= -1e-14
    else:
        assert falls < -1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_as_good_as_its_type(rule: Rule, dtype: torch.dtype) -> None:
    z = rows(30, 40, seed=12).to(dtype)
    exact, got = rule(z.double()), rule(z)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=2e-6)
    mask = some_mask(30, 40, seed=13)
    torch.testing.assert_close(
        rule(z, mask).double(), rule(z.double(), mask), rtol=4 * torch.finfo(dtype).eps, atol=2e-6
    )


def test_low_precision_gradients_are_finite_and_close(rule: Rule) -> None:
    z, upstream = rows(30, 40, seed=14).to(torch.bfloat16), rows(30, 40, seed=15).to(torch.bfloat16)
    exact = gradient(rule, z.double(), upstream.double())
    error = (gradient(rule, z, upstream).double() - exact).abs().max()
    assert error <= 4 * torch.finfo(torch.bfloat16).eps * max(1.0, float(exact.abs().max()))


def test_one_key(rule: Rule) -> None:
    weights = rule(rows(20, 1, seed=16))
    assert weights.isfinite().all()
    if rule.sums_to_one:
        assert (weights == 1).all()


def test_equal_logits_share_equally(rule: Rule) -> None:
    weights = rule(torch.full((3, 8), 0.7, dtype=torch.float64))
    torch.testing.assert_close(weights, weights[:, :1].expand(3, 8), rtol=1e-13, atol=0)
    if rule.sums_to_one:
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / 8), rtol=1e-13, atol=0)


EXTREME = [
    [1e4, -1e4, 0.0, 1e4],
    [-1e4, -1e4, -1e4 - 5, -2e4],
    [math.inf, 0.0, 1.0, -1.0],
    [math.inf, math.inf, 1.0, -math.inf],
    [-math.inf, 0.0, -math.inf, 1.0],
    [0.0, 0.0, 0.0, 0.0],
    [1e-320, -1e-320, 0.0, 5e-324],
    [1e30, 1e30, 1e30, -1.0],
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_extreme_logits(rule: Rule, dtype: torch.dtype) -> None:
    """Each extreme row beside an ordinary one, which must not notice."""
    z = torch.tensor([[row, [0.3, 0.1, -0.2, 2.0]] for row in EXTREME], dtype=dtype)
    upstream = torch.tensor([0.3, -1.1, 0.7, 2.0], dtype=dtype).expand_as(z)
    weights, grad = rule(z), gradient(rule, z, upstream)
    assert not weights.isnan().any()
    beyond_range = gradient(rule, z.double(), upstream.double()).abs() > torch.finfo(dtype).max
    assert (grad.isfinite() | beyond_range).all()  # softpick's slope at 0 is 1/ε, more than float16 can say
    assert (weights[z == -math.inf] == 0).all()
    alone = rule(z[0, 1]).expand_as(weights[:, 1])
    torch.testing.assert_close(weights[:, 1], alone, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
    if rule.sums_to_one:
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(z[..., 0]), rtol=tolerance, atol=0)
        won = z[:, 0, 0] == math.inf
        winners = (z[won, 0] == math.inf).to(dtype)
        torch.testing.assert_close(weights[won, 0], winners / winners.sum(-1, keepdim=True), rtol=tolerance, atol=0)


def test_fully_masked_rows_are_zero_with_zero_gradient(rule: Rule) -> None:
    z = rows(2, 3, 5, seed=17)
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    mask[0, 0] = True
    weights, grad = rule(z, mask), gradient(rule, z, rows(2, 3, 5, seed=18), mask)
    assert (weights[~mask] == 0).all()
    assert (grad[~mask] == 0).all()
    torch.testing.assert_close(weights[0, 0], rule(z[0, 0]), rtol=1e-13, atol=1e-15)
    assert (rule(torch.full((4,), -math.inf)) == 0).all()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (3, 0), (0,)])
def test_empty_input(rule: Rule, shape: tuple[int, ...]) -> None:
    z = torch.zeros(*shape, requires_grad=True)
    weights = rule(z)
    assert weights.shape == shape
    weights.sum().backward()


def test_batches_are_independent_rows(rule: Rule) -> None:
    z = rows(2, 3, 4, 6, seed=19)
    weights = rule(z)
    for index in ((0, 0, 0), (1, 2, 3), (0, 1, 2)):
        torch.testing.assert_close(weights[index], rule(z[index]), rtol=1e-13, atol=1e-15)


def test_gradients_survive_a_second_derivative(rule: Rule) -> None:
    z = rows(2, 6, seed=20).requires_grad_()
    first = torch.autograd.grad((rule(z) ** 2).sum(), z, create_graph=True)[0]
    assert torch.autograd.grad(first.pow(2).sum(), z)[0].isfinite().all()


def test_nan_shows(rule: Rule) -> None:
    """A NaN that a row can see must not vanish: that is how training notices it."""
    assert rule(torch.tensor([1.0, math.nan, 0.0], dtype=torch.float64)).isnan().any()


def test_in_place_form_is_the_same(rule: Rule) -> None:
    """``weigh_``, where a map has it, agrees with ``forward`` on ordinary and hostile rows, or declines."""
    scales = (0.0, 1e-9, 1.0, 30.0, 79.9, 1e4)
    z = torch.cat([rows(6, 40, seed=i, spread=1.0) * s for i, s in enumerate(scales)] + [torch.full((2, 40), 79.9)])
    for mask in (torch.ones_like(z, dtype=torch.bool), some_mask(*z.shape, seed=1), torch.zeros_like(z).bool()):
        for part in range(0, len(z), 2):
            logits, seen = z[part : part + 2].float(), mask[part : part + 2]
            expected = rule.map(logits.masked_fill(~seen, 0.0), seen)
            work = logits.clone()
            n = seen.sum(-1, keepdim=True).clamp(min=1).float()
            got = rule.map.weigh_(
                work, torch.empty_like(work), n, lambda value, w=work, s=seen: w.masked_fill_(~s, value)
            )
            if got is not None:
                torch.testing.assert_close(work / got, expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("transform", ["grad", "vmap", "jacrev", "jvp"])
def test_torch_func(rule: Rule, transform: str) -> None:
    z = rows(3, 5, seed=22)
    if transform == "vmap":
        torch.testing.assert_close(torch.func.vmap(rule)(z), rule(z))
    elif transform == "grad":
        got = torch.func.grad(lambda t: (rule(t) ** 2).sum())(z)
        torch.testing.assert_close(got, gradient(rule, z, 2 * rule(z)))
    else:
        dense = torch.autograd.functional.jacobian(rule, z[0])
        if transform == "jacrev":
            torch.testing.assert_close(torch.func.jacrev(rule)(z[0]), dense)
        else:
            torch.testing.assert_close(torch.func.jvp(rule, (z[0],), (z[1],))[1], dense @ z[1])


logits_rows = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=24)


@given(row=logits_rows, hidden=st.lists(st.booleans(), min_size=24, max_size=24))
def test_any_row_any_mask(row: list[float], hidden: list[bool]) -> None:
    """One property for all rules: making a row takes Hypothesis longer than weighing it takes a rule."""
    z = torch.tensor(row, dtype=torch.float64)
    mask = ~torch.tensor(hidden[: len(row)])
    order = z[mask].argsort()
    for name, rule in RULES.items():
        weights = rule(z, mask)
        assert weights.isfinite().all(), name
        assert (weights[~mask] == 0).all(), name
        torch.testing.assert_close(
            weights[mask], rule(z[mask]), rtol=1e-12, atol=1e-15, msg=lambda m, n=name: f"{n}: {m}"
        )
        if rule.is_monotone:
            assert (weights[mask][order].diff() >= -1e-14).all(), name
            assert (weights >= 0).all(), name
        if rule.sums_to_one and mask.any():
            assert abs(float(weights.sum()) - 1) < 1e-12, name


def test_softmax_is_torchs() -> None:
    z = rows(100, 50, seed=21)
    torch.testing.assert_close(RULES["softmax"](z), F.softmax(z, -1), rtol=1e-14, atol=0)
