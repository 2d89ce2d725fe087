"""α-entmax against independent solvers, the entmax package, and its own limits."""

from __future__ import annotations

import entmax as package
import mpmath  # comes with torch
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import undilute as ud
from tests.cases import rows, some_mask
from undilute.rules import Entmax, LearnableEntmax, Rule


def bisected(z: Tensor, alpha: float) -> Tensor:
    """α-entmax of rows (..., n) straight from its definition: bisect τ in [max − 1, max − n^(1−α)] on (α−1)z."""
    x = (alpha - 1) * z
    top = x.amax(-1, keepdim=True)
    low, high = top - 1, top - z.shape[-1] ** (1 - alpha)
    for _ in range(100):  # float64 has 53 bits
        middle = (low + high) / 2
        is_below = (x - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return (x - low).clamp(min=0).pow(1 / (alpha - 1))


@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 1.7, 2.0, 2.5, 4.0])
def test_agrees_with_bisection_of_the_definition(alpha: float) -> None:
    for seed, spread in enumerate((0.01, 0.3, 1.0, 5.0, 100.0)):
        z = rows(20, 33, seed=seed, spread=spread)
        torch.testing.assert_close(Rule(map=Entmax(alpha))(z), bisected(z, alpha), rtol=0, atol=1e-9)


@given(
    row=st.lists(st.floats(-30, 30), min_size=1, max_size=20),
    alpha=st.one_of(st.sampled_from([1.5, 2.0]), st.floats(1.05, 3.5)),
)
def test_agrees_with_bisection_on_any_row(row: list[float], alpha: float) -> None:
    z = torch.tensor(row, dtype=torch.float64)
    torch.testing.assert_close(Rule(map=Entmax(alpha))(z), bisected(z, alpha), rtol=0, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_fast_path_equals_the_general_one(alpha: float) -> None:
    for n in (1, 2, 7, 1000):
        z = rows(20, n, seed=n, spread=0.5)
        general = Rule(map=Entmax(alpha + 1e-12))(z)
        torch.testing.assert_close(Rule(map=Entmax(alpha))(z), general, rtol=0, atol=1e-10)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3, 1.75])
def test_value_and_gradients_equal_the_entmax_packages(alpha: float) -> None:
    z, upstream = rows(40, 25, seed=1, spread=1.0), rows(40, 25, seed=2)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    our_alpha, their_alpha = (torch.tensor(alpha, dtype=torch.float64, requires_grad=True) for _ in range(2))
    p = Rule(map=Entmax(our_alpha))(ours)
    solver = {1.5: package.entmax15, 2.0: package.sparsemax}.get(alpha)
    q = solver(theirs, dim=-1) if solver else package.entmax_bisect(theirs, their_alpha, dim=-1, n_iter=80)
    torch.testing.assert_close(p, q, rtol=0, atol=1e-9)
    (p * upstream).sum().backward()
    (q * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9)
    if solver is None:
        torch.testing.assert_close(our_alpha.grad, their_alpha.grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("alpha", [1.0001, 1.01, 1.2, 1.5, 1.8, 2.0, 2.6])
def test_gradient_in_alpha(alpha: float) -> None:
    z = rows(5, 6, seed=3, spread=0.7).requires_grad_()
    a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t, b: Rule(map=Entmax(b))(t), (z, a), eps=1e-6, atol=1e-5)


def test_gradient_in_alpha_at_the_softmax_limit() -> None:
    """dp/dα → p·(Σp·log²p − log²p)/2 as α → 1."""
    z = rows(1, 6, seed=4)
    p = z.softmax(-1)
    limit = p * ((p * p.log() ** 2).sum(-1, keepdim=True) - p.log() ** 2) / 2
    a = torch.tensor(1 + 1e-7, dtype=torch.float64)
    got = torch.autograd.functional.jacobian(lambda b: Rule(map=Entmax(b))(z), a)
    torch.testing.assert_close(got, limit, rtol=1e-4, atol=1e-7)


def test_one_alpha_per_head_with_gradient() -> None:
    z = rows(2, 3, 4, 6, seed=5).requires_grad_()
    alphas = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64, requires_grad=True)
    mask = some_mask(2, 1, 4, 6, seed=6)
    p = Rule(map=Entmax(alphas))(z, mask)
    for head, alpha in enumerate(alphas.tolist()):
        torch.testing.assert_close(p[:, head], Rule(map=Entmax(alpha))(z[:, head], mask[:, 0]), rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda t, b: Rule(map=Entmax(b))(t, mask), (z, alphas))


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_twice_differentiable(alpha: float) -> None:
    assert torch.autograd.gradgradcheck(Rule(map=Entmax(alpha)), (rows(3, 5, seed=7, spread=0.5).requires_grad_(),))


@pytest.mark.parametrize(("epsilon", "error"), [(1e-2, 0.1), (1e-4, 1e-3), (1e-8, 1e-7)])
def test_tends_to_softmax(epsilon: float, error: float) -> None:
    for dtype in (torch.float64, torch.float32):
        z = rows(50, 40, seed=8, dtype=dtype)
        got = Rule(map=Entmax(1 + epsilon))(z)
        floor = 4e-6 if dtype == torch.float32 else 0.0
        torch.testing.assert_close(got, z.softmax(-1), rtol=0, atol=error + floor)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_support_lies_within_reach_of_the_top(alpha: float) -> None:
    z = rows(100, 200, seed=9)
    p = Rule(map=Entmax(alpha))(z)
    assert (z[p > 0] > (z.max(-1, keepdim=True).values - 1 / (alpha - 1)).expand_as(z)[p > 0]).all()
    led = torch.cat([torch.full((3, 1), 1 / (alpha - 1), dtype=torch.float64), torch.zeros(3, 500).double()], -1)
    assert (Rule(map=Entmax(alpha))(led)[:, 0] == 1).all()  # a gap of 1/(α−1) is enough at every n


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_float32_is_accurate_on_long_diffuse_rows(alpha: float) -> None:
    z = rows(4, 50_000, seed=10, spread=0.05)
    exact, got = Rule(map=Entmax(alpha))(z), Rule(map=Entmax(alpha))(z.float())
    assert abs(float(got.double().sum(-1).mean()) - 1) < 1e-4
    assert (got.double() - exact).abs().sum(-1).max() < 2e-3


@pytest.mark.parametrize(("alpha", "error"), [(1.05, 2e-6), (2.5, 2e-5), (4.0, 2e-4)])
def test_float32_for_other_alphas(alpha: float, error: float) -> None:
    for spread in (1e-6, 1e-2, 1.0):
        z = rows(50, 30, seed=12, spread=spread).float()
        got, exact = Rule(map=Entmax(alpha))(z), Rule(map=Entmax(alpha))(z.double())
        assert (got.double() - exact).abs().max() < error


@pytest.mark.parametrize("alpha", [7.0, 20.0])
def test_large_alpha_in_float64(alpha: float) -> None:
    """The equation itself: w = top^ε + ε·t, Σ w^(1/ε) = 1, solved in 200 digits."""
    z = [0.3, 0.2, 0.0, -0.1]
    with mpmath.workdps(200):
        e = mpmath.mpf(alpha) - 1
        low, high = mpmath.mpf(0), mpmath.mpf(1)
        for _ in range(600):
            w = (low + high) / 2
            total = sum(max(w + e * (mpmath.mpf(x) - mpmath.mpf(z[0])), 0) ** (1 / e) for x in z)
            low, high = (w, high) if total < 1 else (low, w)
        expected = [float(max(w + e * (mpmath.mpf(x) - mpmath.mpf(z[0])), 0) ** (1 / e)) for x in z]
    got = Rule(map=Entmax(alpha))(torch.tensor(z, dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_learned_alpha_at_its_limits(dtype: torch.dtype) -> None:
    z = rows(2, 1, 4, 6, seed=13).to(dtype)
    learned = LearnableEntmax(1)
    for logit, limit in ((-60.0, z.softmax(-1)), (60.0, Rule(map=Entmax(2.0))(z))):
        torch.nn.init.constant_(learned.alpha_logit, logit)
        got = Rule(map=learned.to(dtype))(z)
        torch.testing.assert_close(got, limit, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 0.75, 0.99])
def test_below_one_it_is_the_entmax_packages(alpha: float) -> None:
    z, upstream = rows(40, 25, seed=15, spread=1.0), rows(40, 25, seed=16)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    our_alpha, their_alpha = (torch.tensor(alpha, dtype=torch.float64, requires_grad=True) for _ in range(2))
    p = Rule(map=Entmax(our_alpha))(ours)
    q = package.entmax_bisect(theirs, their_alpha, dim=-1, n_iter=80)
    torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    (p * upstream).sum().backward()
    (q * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(our_alpha.grad, their_alpha.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.9, 0.9999])
def test_gradients_below_one(alpha: float) -> None:
    z = rows(3, 5, seed=17).requires_grad_()
    a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t, b: Rule(map=Entmax(b))(t), (z, a), eps=1e-6, atol=1e-5)
    assert torch.autograd.gradgradcheck(Rule(map=Entmax(alpha)), (z,))


def test_below_one_every_key_has_weight_and_the_tail_is_a_power() -> None:
    """Far below the top, p·d^(1/(1−α)) no longer changes with the distance d."""
    z = torch.tensor([0.0, -1e3, -1e4, -1e5], dtype=torch.float64)
    for alpha in (0.2, 0.5, 0.8):
        p = Rule(map=Entmax(alpha))(z)
        assert (p > 0).all()
        assert not Entmax(alpha).is_sparse
        slopes = p[1:].log().diff() / (-z[1:]).log().diff()
        torch.testing.assert_close(slopes, torch.full_like(slopes, -1 / (1 - alpha)), rtol=2e-3, atol=0)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.95])
def test_the_constant_below_one_is_reached_and_never_exceeded(alpha: float) -> None:
    """The Jacobian's norm over random weights of 8 keys, and over (1/2, 1/2, 0, …)."""
    p = torch.cat([rows(4000, 8, seed=18, spread=3.0).softmax(-1), torch.tensor([[0.5, 0.5] + [0.0] * 6])])
    u = p ** (2 - alpha)
    jacobian = torch.diag_embed(u) - u[:, :, None] * u[:, None] / u.sum(-1)[:, None, None]
    norms = torch.linalg.matrix_norm(jacobian, ord=2)
    for n in (2, 8, 10**6):
        assert Entmax(alpha).lipschitz(n) == pytest.approx(float(norms[-1]))
    assert norms.max() <= Entmax(alpha).lipschitz(8) * (1 + 1e-12)


def test_alphas_on_both_sides_of_one() -> None:
    """As in the entmax package, each row may have an α of its own."""
    z, alphas = rows(5, 6, seed=19), torch.tensor([0.05, 0.7, 1.2, 1.5, 2.5], dtype=torch.float64)[:, None]
    p = Rule(map=Entmax(alphas))(z)
    for row, alpha in enumerate(alphas[:, 0].tolist()):
        torch.testing.assert_close(p[row], Rule(map=Entmax(alpha))(z[row]), rtol=0, atol=1e-12)
    assert Entmax(alphas).is_sparse


@pytest.mark.parametrize("alpha", [0.5, torch.tensor([1.5, 0.8])], ids=["one", "per head"])
def test_the_sparse_route_leaves_alphas_below_one_to_others(alpha: float | Tensor) -> None:
    """Its kernels know α > 1 only, and would take any other for softmax."""
    q, k, v = (rows(1, 2, 300, 8, seed=20 + i).requires_grad_() for i in range(3))
    rule = Entmax(alpha)
    chosen = ud.explain(q, k, v, rule=rule)
    assert chosen.name == "rows"
    assert "not sparse, since alpha below 1 gives every key some weight" in str(chosen)
    with pytest.raises(ud.InvalidValue, match="route = 'sparse' cannot run this call: alpha below 1"):
        ud.attention(q, k, v, rule=rule, route="sparse")
    found = []
    for route in (None, "reference"):
        out = ud.attention(q, k, v, rule=rule, route=route)
        found.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_a_learned_alpha_may_pass_through_one() -> None:
    alpha = torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    rule, z = Rule(map=Entmax(alpha)), rows(3, 6, seed=14)
    for drifted, expected in ((0.9, Rule(map=Entmax(0.9))(z)), (1.0, z.softmax(-1))):
        with torch.no_grad():
            alpha.fill_(drifted)
        torch.testing.assert_close(rule(z), expected, rtol=0, atol=1e-8)
    (rule(z) ** 2).sum().backward()
    assert alpha.grad is not None
    assert abs(alpha.grad) > 1e-3  # it does not get stuck there


def test_learnable_alpha_starts_at_one_and_a_half_and_learns() -> None:
    learned = LearnableEntmax(num_heads=3)
    assert learned.alpha.tolist() == [1.5, 1.5, 1.5]
    (Rule(map=learned)(rows(3, 4, 6, seed=11).float()) ** 2).sum().backward()
    assert learned.alpha_logit.grad is not None
    assert (learned.alpha_logit.grad != 0).all()
