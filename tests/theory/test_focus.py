"""What focus promises: each step of the proofs by numbers, searches for counterexamples, and the rule itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.cases import rows
from undilute.errors import InvalidValue
from undilute.rules import Entmax, Focus, Rule, Temperature, get
from undilute.rules.maps.focus import scale_for
from undilute.theory import focus, sparse
from undilute_papers.audit.focus import dense_norms

ALPHAS = [1.02, 1.25, 1.5, 1.75, 2.0]
KEPT = [2, 3, 16]


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def some_weights(K: int, count: int = 400, seed: int = 0) -> Tensor:
    """Rows of weights of every spread; some with zeros, with ties, with one against the rest."""
    z = rows(count, K, seed=seed, spread=1.0) * rows(count, 1, seed=seed + 1, spread=1.0).exp()
    z[: count // 8, K // 2 + 1 :] = -torch.inf
    z[count // 8 : count // 4] = z[count // 8 : count // 4].round()
    z[count // 4 : count // 2, 1:] = 0
    return z.softmax(-1)


def slopes(p: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """u = p^(2−α) on the support, and U."""
    u = torch.where(p > 0, p ** (2 - alpha), 0.0)
    return u, u.sum(-1, keepdim=True)


def spread(alpha: float, K: int) -> float:
    """A as written in the module's docstring."""
    e = 2 - alpha
    if e >= 0.5:
        return 2 * math.pow(2 * e, 2 * e) / math.pow(2 * e + 1, 2 * e + 1)
    q = torch.linspace(0, 0.5, 20_001).double()
    return math.pow(K, 1 - 2 * e) * float((q ** (2 * e) * (1 - q) ** (1 - 2 * e)).max())


def pull(p: Tensor, alpha: float) -> Tensor:
    """U²P − 2UQ + R, R at its bound if e > 1/2."""
    e = 2 - alpha
    u, U = slopes(p, alpha)
    P, Q = p.square().sum(-1), (p * u).sum(-1)
    R = Q ** ((2 * e - 1) / e) if e > 0.5 else u.square().sum(-1)
    return U.squeeze(-1) ** 2 * P - 2 * U.squeeze(-1) * Q + R


def one_against_rest(K: int, count: int = 20_001) -> Tensor:
    """Weights (count, K) of one key, from 1/K to almost 1, against K − 1 equal ones."""
    rest = torch.cat([torch.logspace(-14, 0, count // 2), torch.linspace(0, 1, count - count // 2)[1:]]).double()
    rest = rest[rest <= 1 - 1 / K].unsqueeze(-1)
    return torch.cat([1 - rest, (rest / (K - 1)).expand(-1, K - 1)], -1)


def ascend(value: Callable[[Tensor], Tensor], start: Tensor, first: float = 2.0, steps: int = 70) -> Tensor:
    """The largest values met by gradient ascent from each row, by steps that shrink from ``first``."""
    z, best = start.clone(), torch.full((len(start),), -torch.inf, dtype=start.dtype)
    for i in range(steps):
        z = z.detach().requires_grad_()
        found = value(z)
        best = torch.maximum(best, found.detach())
        (slope,) = torch.autograd.grad(found.sum(), z)
        slope = slope.nan_to_num(0.0)
        z = z + first * 0.94**i * slope / slope.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    return best


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("K", [1, 3, 8])
def test_the_fitting_scale_is_the_smallest_that_leaves_K_keys(alpha: float, K: int) -> None:
    z = rows(80, 30, seed=K, spread=1.0)
    s = focus.fitting_scale(z, K, alpha).unsqueeze(-1)
    assert (sparse.support_size(z * s * (1 + 1e-9), alpha) <= K).all()
    assert (sparse.support_size(z * s * (1 - 1e-9), alpha) > K).all()
    entmax = Rule(map=Entmax(alpha))(z * s)
    torch.testing.assert_close(entmax.topk(K).values, focus.fitted_weights(z, K, alpha), rtol=1e-6, atol=1e-9)
    level = z.topk(K + 1).values[:, -1:]
    of_the_rule = scale_for(z, torch.ones_like(z, dtype=torch.bool), level, real(alpha - 1))
    torch.testing.assert_close(of_the_rule, s)


def test_lead_at_a_tie_and_beyond_what_powers_hold() -> None:
    assert float(focus.lead([1.0, 1.0, 1.0], 2, 1.5)) == 0
    assert float(focus.fitting_scale([1.0, 1.0, 1.0], 2, 1.5)) == math.inf
    assert float(focus.lead([1e200, 0.0, 0.0], 2, 1.01)) == pytest.approx(1e200)
    z = rows(50, 9, seed=1)
    assert (focus.lead(z, 4, 1.3) >= z.amax(-1) - z.topk(5).values[:, -1]).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_jacobian_is_that_of_the_fitted_weights(alpha: float) -> None:
    z = torch.tensor([2.0, 1.7, 1.1, 0.4], dtype=torch.float64)

    def weights(z: Tensor) -> Tensor:
        powers = (z[:3] - z[3]) ** (1 / (alpha - 1))
        return powers / powers.sum()

    found = torch.autograd.functional.jacobian(weights, z)
    expected = focus.fitting_scale(z, 3, alpha) * focus.relative_jacobian(weights(z), alpha)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("K", [1, 2, 5, 16])
def test_the_norm_is_that_of_the_jacobian(alpha: float, K: int) -> None:
    p = some_weights(K)
    dense = torch.linalg.matrix_norm(focus.relative_jacobian(p, alpha), ord=2)
    torch.testing.assert_close(focus.relative_norm(p, alpha), dense, rtol=1e-9, atol=1e-7)
    assert (dense <= focus.steepness(alpha, K) + 1e-9).all()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("K", KEPT)
def test_every_step_of_the_bound(alpha: float, K: int) -> None:
    e, p, y = 2 - alpha, some_weights(K), rows(400, K, seed=7)
    y = y / y.norm(dim=-1, keepdim=True)
    u, U = slopes(p, alpha)
    v, b, x = y - (p * y).sum(-1, keepdim=True), u - U * p, p.amax(-1)
    J = focus.relative_jacobian(p, alpha)
    first, second = (u * v).square().sum(-1), (b * y).sum(-1).square()
    torch.testing.assert_close((y.unsqueeze(-2) @ J).square().sum((-2, -1)), first + second)
    variance, q = (p * v.square()).sum(-1), torch.where(x >= 0.5, 2 * x * (1 - x), x)
    assert (variance <= q + 1e-12).all()
    P = p.square().sum(-1)
    assert (v.square().sum(-1) <= K * P + 1e-12).all()
    assert (torch.where(x >= 0.5, 1 - q, x) >= P - 1e-12).all()
    hoelder = variance ** (2 * e) * v.square().sum(-1) ** (1 - 2 * e) if e < 0.5 else x ** (2 * e - 1) * variance
    assert (first <= hoelder + 1e-12).all()
    spreads = torch.linalg.matrix_norm(focus.relative_jacobian(p, alpha)[..., :K], ord=2).square()
    assert (spreads <= spread(alpha, K) + 1e-9).all()
    squared = pull(p, alpha)
    assert (b.square().sum(-1) <= squared + 1e-12).all()
    if e <= 0.5:
        torch.testing.assert_close(b.square().sum(-1), squared, rtol=1e-9, atol=1e-11)
    c = U.squeeze(-1) * P - (p * u).sum(-1)
    assert (c >= -1e-12).all()  # Chebyshev


@pytest.mark.parametrize("alpha", [1.1, 1.4, 1.5, 1.6, 1.9])
def test_the_slope_of_the_lagrangian_changes_sign_once(alpha: float) -> None:
    """φ falls, then rises: whatever weights U, c and Q belong to."""
    e, t = 2 - alpha, torch.logspace(-12, 3, 4000).double()
    for p in some_weights(6, count=30):
        u, U = slopes(p, alpha)
        P, Q = p.square().sum(), (p * u).sum()
        c = U * P - Q
        if c < 1e-9:
            continue
        if e <= 0.5:
            slope = -c * e * (1 - e) / t - e * (1 - 2 * e) * t ** (e - 1) - U * (1 + e) * e + U**2 * t ** (1 - e)
        else:
            m = 2 * U - (2 - 1 / e) * Q ** (1 - 1 / e)
            slope = -c * e * (1 - e) / t - m * (1 + e) * e / 2 + U**2 * t ** (1 - e)
        assert (slope.diff() > 0).all()
        assert slope[0] < 0 < slope[-1]


@pytest.mark.parametrize("alpha", [1.1, 1.4, 1.5, 1.75, 1.95])
def test_the_lagrangian_is_the_gradient_of_what_is_maximised(alpha: float) -> None:
    e = 2 - alpha
    p = some_weights(5, count=1, seed=3)[0].requires_grad_()
    (found,) = torch.autograd.grad(pull(p, alpha), p)
    p = p.detach()
    u, U = slopes(p, alpha)
    P, Q = p.square().sum(), (p * u).sum()
    phi = 2 * (U * P - Q) * e * p ** (e - 1) + 2 * U**2 * p - 2 * U * (1 + e) * p**e
    phi = phi + (2 * e * p ** (2 * e - 1) if e <= 0.5 else (2 - 1 / e) * Q ** (1 - 1 / e) * (1 + e) * p**e)
    torch.testing.assert_close(found, phi)


@pytest.mark.parametrize("alpha", [1.02, 1.3, 1.5, 1.75, 1.95])
@pytest.mark.parametrize("K", [3, 16])
def test_the_pull_is_largest_at_one_against_the_rest(alpha: float, K: int) -> None:
    B = float(pull(one_against_rest(K), alpha).max())
    start = rows(24, K, seed=K, spread=2.0)
    start[:12, 0] += torch.linspace(0, 8, 12, dtype=torch.float64)
    found = ascend(lambda z: pull(z.softmax(-1), alpha), start)
    assert (found <= B * (1 + 1e-6)).all()
    assert float(found.max()) >= 0.98 * B
    assert focus.steepness(alpha, K) ** 2 == pytest.approx(spread(alpha, K) + B, rel=1e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("K", [3, 16])
def test_no_weights_found_are_steeper_than_the_conjecture(alpha: float, K: int) -> None:
    best, bound = focus.steepest(alpha, K), focus.steepness(alpha, K)
    assert best <= bound + 1e-12
    assert best >= 0.75 * bound
    start = rows(24, K, seed=K, spread=2.0)
    start[:12, 0] += torch.linspace(0, 8, 12, dtype=torch.float64)
    found = ascend(lambda z: focus.largest_norm(z.softmax(-1), real(alpha).squeeze()), start)
    assert (found <= best * (1 + 1e-9)).all()
    assert float(found.max()) >= 0.98 * best
    assert float(focus.relative_norm(focus.steepest_weights(alpha, K), alpha)) == pytest.approx(best, rel=1e-6)


def test_constants() -> None:
    for K in (2, 5, 64):
        assert focus.steepness(2.0, K) == pytest.approx(K, rel=1e-12)
        assert focus.steepest(2.0, K) == pytest.approx(K, rel=1e-9)
    assert focus.steepness(1.5, 1) == focus.steepest(1.5, 1) == 0
    assert focus.steepest(1.5, 3) == pytest.approx(math.sqrt(0.5))  # two keys alone
    large = 10**8
    assert focus.steepness(1.5, large) == pytest.approx(math.sqrt(4 * large / 27), rel=1e-3)
    assert focus.steepest(1.5, large) == pytest.approx(math.sqrt(4 * large / 27), rel=1e-3)
    e = 0.25
    assert focus.steepness(1.75, large) == pytest.approx(large**0.75 * e**e / (1 + e) ** (1 + e), rel=1e-3)
    near = [focus.steepness(alpha, 16) for alpha in (1.5 - 1e-9, 1.5, 1.5 + 1e-9)]
    assert near == pytest.approx([near[1]] * 3, rel=1e-6)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_gradient_ascent_through_the_rule_itself(alpha: float) -> None:
    """Differentiated twice, from rows of 1.5 times the steepest's lead: it climbs to near them, and not beyond C."""
    K, s_max = 4, 6.0
    rule_of = Rule(map=Focus(K, alpha, 0.5, s_max))

    def norms(z: Tensor) -> Tensor:
        weights = rule_of(z)
        J = torch.stack([torch.autograd.grad(w.sum(), z, create_graph=True)[0] for w in weights.unbind(-1)], 1)
        eigenvalues: Tensor = torch.linalg.eigvalsh(J @ J.mT)
        return eigenvalues[:, -1].clamp(min=1e-30).sqrt()

    weights = focus.steepest_weights(min(alpha, 1.95), K)
    start = torch.cat([weights ** (alpha - 1), real(0.0, -0.2, -0.4)]) * 1.5 * focus.tie_lead(alpha, s_max)
    start = (start + 0.02 * start[0] * rows(8, 7, seed=2)).detach()
    found = ascend(norms, start, first=0.03, steps=40)
    assert (found <= rule_of.lipschitz(7) * (1 + 1e-9)).all()
    assert float(found.max()) > 0.7 * s_max * focus.steepest(alpha, K)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("K", [1, 2, 5])
def test_pairs_of_rows_keep_to_the_lipschitz_constant(alpha: float, K: int) -> None:
    """Across all borders between regimes, orders and supports, and with near-ties."""
    n, rule_of = 9, Rule(map=Focus(K, alpha, 0.5, 4.0))
    z = rows(3000, n, seed=K, spread=1.0) * rows(3000, 1, seed=9, spread=1.5).exp()
    z[:1000, : K + 1] = z[:1000, :1] + 1e-3 * rows(1000, K + 1, seed=10)
    step = rows(3000, n, seed=11, spread=1.0) * 10 ** rows(3000, 1, seed=12, spread=1.5)
    moved = (rule_of(z + step) - rule_of(z)).norm(dim=-1)
    assert (moved <= rule_of.lipschitz(n) * step.norm(dim=-1) * (1 + 1e-9) + 1e-12).all()


def test_short_rows_have_the_constant_of_entmax() -> None:
    rule_of = Rule(map=Focus(8, 1.5, 0.5, 16.0))
    assert rule_of.lipschitz(8) == 0.5 * sparse.lipschitz_constant(1.5, 8)
    assert rule_of.lipschitz(9) == 16.0 * focus.steepness(1.5, 8)
    assert (dense_norms(rule_of, rows(100, 8, spread=1.0)) <= rule_of.lipschitz(8) + 1e-12).all()


def test_floor_of_a_growing_support() -> None:
    n = real(1, 16, 17, 10**6)
    assert focus.weight_floor(2, n, 0.5).tolist() == [1 / 2, 1 / 8, 1 / 9, 1 / 2000]
    for length in (40, 400):
        grown = Focus(2, 1.5, 0.5, 50.0, power=0.5)
        p = Rule(map=grown)(rows(60, length, spread=1.0))
        assert (p.amax(-1) >= focus.weight_floor(2, length, 0.5) - 1e-12).all()
        assert ((p > 0).sum(-1) <= int(grown.kept(torch.tensor(length)))).all()


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "focus", "adaptive"])
def test_no_lipschitz_rule_is_sparse_near_a_tie(name: str) -> None:
    """Every row of every rule is at least as far from a tie as its own weights need: the general form of theorem 3."""
    n, found = 12, get(name)
    z = rows(500, n, seed=1) * 10 ** rows(500, 1, seed=2, spread=1.0)
    spread_out = (found(z).square().sum(-1) - 1 / n).clamp(min=0).sqrt()
    assert (spread_out <= found.lipschitz(n) * focus.distance_from_tie(z) + 1e-9).all()


def test_sparsemax_reaches_the_distance_needed() -> None:
    for K, n, s in ((1, 2, 1.0), (4, 9, 5.0)):
        z = torch.zeros(n, dtype=torch.float64)
        z[:K] = 1 / (K * s)
        assert float(focus.distance_from_tie(z)) == pytest.approx(float(focus.distance_needed(K, n, s)), rel=1e-12)
        torch.testing.assert_close(Rule(Temperature(1 / s), Entmax(2.0))(z)[:K], torch.full((K,), 1 / K).double())
    assert float(focus.distance_needed(5, 5, 2.0)) == 0


@pytest.mark.parametrize("alpha", ALPHAS)
def test_where_equal_leaders_leave_the_tie_region(alpha: float) -> None:
    for m, n in ((1, 4), (2, 4), (3, 50)):
        z = torch.zeros(n, dtype=torch.float64)
        z[:m] = 1.0
        z = z * (focus.tie_lead(alpha, 7.0) / focus.lead(z, 3, alpha))
        torch.testing.assert_close(focus.distance_from_tie(z), focus.tie_exit(m, n, alpha, 7.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: focus.lead([1.0, 0.0], 2, 1.5), "K = 2 for logits of shape"),
        (lambda: focus.lead([1.0, 0.0], 1, 2.5), "alpha = 2.5"),
        (lambda: focus.lead([1.0, 0.0], 1, 1.0), "alpha = 1"),
        (lambda: focus.fitted_weights([1.0, 1.0, 1.0], 2, 1.5), "top 3 are equal"),
        (lambda: focus.tie_lead(1.5, 0.0), "s_max = 0"),
        (lambda: focus.weight_floor(2, 0.5), "n = 0.5"),
        (lambda: focus.relative_norm([0.5, 0.4], 1.5), "sums to 0.9"),
        (lambda: focus.steepness(1.5, 0), "K = 0"),
        (lambda: focus.steepest(3.0, 4), "alpha = 3"),
        (lambda: focus.steepest_weights(1.5, 1), "K = 1"),
        (lambda: focus.distance_needed(5, 4, 1.0), "K = 5 of n = 4"),
        (lambda: focus.distance_needed(5, 9, 0.0), "lipschitz = 0"),
        (lambda: focus.tie_exit(4, 4, 1.5, 1.0), "m = 4 of n = 4"),
    ],
)
def test_errors_name_the_value(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        call()
