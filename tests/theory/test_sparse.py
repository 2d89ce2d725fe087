"""What sparse rules hold, against entmax itself, 50-digit arithmetic and searches; each step of the long proof."""

from __future__ import annotations

import math

import mpmath  # comes with torch
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import rows, some_mask
from undilute.errors import InvalidValue
from undilute.rules import Entmax, Rule
from undilute.theory import sparse
from undilute.theory.jacobian import entmax_spectral_norm

ALPHAS = [1.05, 1.2, 1.5, 1.75, 2.0]


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def led_by(gap: float, n: int) -> Tensor:
    z = torch.zeros(n, dtype=torch.float64)
    z[0] = gap
    return z


@pytest.mark.parametrize("alpha", [*ALPHAS, 3.0])
@pytest.mark.parametrize("n", [2, 50, 5000])
def test_the_gap_theorem(alpha: float, n: int) -> None:
    gap, rule = float(sparse.one_hot_gap(alpha)), Rule(map=Entmax(alpha))
    assert float(rule(led_by(gap * (1 + 1e-12), n))[0]) == pytest.approx(1, abs=1e-11)
    if alpha >= 1.2:
        assert float(rule(led_by(gap * 0.99, n))[0]) < 1
    assert float(sparse.weight_floor(gap, alpha)) == pytest.approx(1, abs=1e-12)
    assert float(sparse.needle_weight(gap * (1 + 1e-12), n, alpha)) == 1


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", [1, 2, 7, 400])
def test_needle_weight_is_entmaxs(alpha: float, n: int) -> None:
    for gap in (0.0, 1e-6, 0.3, 0.9, 1.7, 5.0):
        expected = Rule(map=Entmax(alpha))(led_by(gap, n))[0]
        got = sparse.needle_weight(gap, n, alpha)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        assert got >= sparse.weight_floor(gap, alpha) - 1e-12
    assert float(sparse.needle_weight(0.0, n, alpha)) == pytest.approx(1 / n)


@given(st.floats(0, 0.999), st.integers(1, 10**9))
def test_closed_forms(gap: float, n: int) -> None:
    assert float(sparse.needle_weight(gap, n, 2.0)) == pytest.approx((1 + (n - 1) * gap) / n, rel=1e-10)
    root = ((n - 1) * gap + math.sqrt(4 * n - (n - 1) * gap**2)) / (2 * n)
    assert float(sparse.needle_weight(gap, n, 1.5)) == pytest.approx(root**2, rel=1e-10)
    assert float(sparse.needle_weight(gap, n, 1.0)) == pytest.approx(1 / (1 + (n - 1) * math.exp(-gap)), rel=1e-12)


@given(st.floats(1.001, 3), st.floats(0.01, 5), st.floats(2, 1e6))
def test_lead_and_weight_are_inverse(alpha: float, gap: float, n: float) -> None:
    c = float(sparse.needle_weight(gap, n, alpha))
    if c >= 1 - 1e-9:
        return
    lead = float(sparse.gap_to_hold(c, n, alpha))
    assert float(sparse.needle_weight(lead, n, alpha)) == pytest.approx(c, rel=1e-6)
    assert lead <= c ** (alpha - 1) / (alpha - 1) * (1 + 1e-12)


def test_lead_against_fifty_digits_and_softmax() -> None:
    with mpmath.workdps(50):
        e, c, n = mpmath.mpf(1.0001) - 1, mpmath.mpf(0.3), 1000
        expected = float((c**e - ((1 - c) / (n - 1)) ** e) / e)
    assert float(sparse.gap_to_hold(0.3, 1000, 1.0001)) == pytest.approx(expected, rel=1e-11)
    softmax = float(sparse.gap_to_hold(0.3, 1000, 1.0))
    assert softmax == pytest.approx(math.log(0.3 * 999 / 0.7))
    assert float(sparse.gap_to_hold(0.3, 1000, 1 + 1e-8)) == pytest.approx(softmax, rel=1e-6)
    assert float(sparse.gap_to_hold(1.0, 1000, 1.5)) == 2
    assert float(sparse.gap_to_hold(1.0, 1000, 1.0)) == math.inf


@pytest.mark.parametrize("alpha", ALPHAS)
def test_floor_holds_wherever_the_competitors_are_and_is_the_limit(alpha: float) -> None:
    for seed, gap in enumerate((0.1, 0.5, 0.9, 1.5)):
        z = -gap - rows(200, 60, seed=seed).abs() * rows(200, 1, seed=seed + 9).exp()
        z[:, 0] = 0
        assert (Rule(map=Entmax(alpha))(z)[:, 0] >= sparse.weight_floor(gap, alpha) - 1e-10).all()
        limit = sparse.needle_weight(gap, real(1e300), alpha)
        torch.testing.assert_close(limit, sparse.weight_floor(gap, alpha).expand(1), rtol=1e-4, atol=1e-15)
    assert float(sparse.weight_floor(1.0, 1.0)) == 0
    assert float(sparse.weight_floor(0.0, alpha)) == 0


def kappa(alpha: float, k: int) -> float:
    """κ(k) as written in the module's docstring."""
    return k * (k - 1) ** (alpha - 2) / (1 + (k - 1) ** ((alpha - 1) / (3 - alpha))) ** (3 - alpha)


@pytest.mark.parametrize("alpha", [1.01, *ALPHAS])
@pytest.mark.parametrize("n", [2, 3, 9, 47, 48, 3000])
def test_lipschitz_constant_is_reached(alpha: float, n: int) -> None:
    L = sparse.lipschitz_constant(alpha, n)
    assert pytest.approx(max(2 ** (alpha - 2), kappa(alpha, n)), rel=1e-12) == L
    weights = sparse.steepest_weights(alpha, n)
    assert float(weights.sum()) == pytest.approx(1)
    assert float(entmax_spectral_norm(weights, alpha)) == pytest.approx(L, rel=1e-12)
    assert L <= 1


@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 1.8])
@pytest.mark.parametrize("n", [3, 5, 12, 60])
def test_nothing_beats_the_lipschitz_constant(alpha: float, n: int) -> None:
    """Ascent on the dual, ‖y‖₂²/‖y‖_r² over Σy = 0, from random starts."""
    r, L = 2 / (3 - alpha), sparse.lipschitz_constant(alpha, n)
    y = rows(100, n, seed=n, spread=1.0)
    y[:30, 1:] = y[:30, 1:].sign()
    y[30:50, 2:] *= 0.01
    y[50:70, 1:] = -1 + 0.01 * y[50:70, 1:]
    best = torch.zeros(100, dtype=torch.float64)
    for _ in range(300):
        y = y - y.mean(-1, keepdim=True)
        y = y / y.abs().pow(r).sum(-1, keepdim=True).pow(1 / r)
        square = y.square().sum(-1, keepdim=True)
        best = torch.maximum(best, square.squeeze(-1))
        y = y + 0.3 * (y / square - y.sign() * y.abs().pow(r - 1))
    assert (best <= L * (1 + 1e-9)).all()
    assert best.max() >= L * 0.95


def test_dual_ratio_of_one_against_the_rest() -> None:
    """The ratio of the dual problem at one against the rest is κ."""
    for alpha, n in ((1.3, 200), (1.5, 100), (1.8, 10)):
        y = torch.full((n,), -1.0, dtype=torch.float64)
        y[0] = n - 1
        r = 2 / (3 - alpha)
        ratio = y.square().sum() / y.abs().pow(r).sum().pow(2 / r)
        assert float(ratio) == pytest.approx(kappa(alpha, n), rel=1e-12)


def three_levels(omega: Tensor, B1: Tensor) -> tuple[Tensor, Tensor]:
    """B₂ and A for κ₀ = 1: (1+ω)ln|x + ω| − ln|x| is the same at B₁ < 1 < B₂ and −A, by bisection of the logarithm."""
    level = (1 + omega) * (B1 + omega).log() - B1.log()

    def bisect(low: Tensor, high: Tensor, shift: Tensor, back: Tensor) -> Tensor:
        for _ in range(200):
            middle = (low + high) / 2
            x = middle.exp() + shift
            below = (1 + omega) * (x + back).log() - x.log() < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return low.exp() + shift

    zero = torch.zeros_like(omega)
    B2 = bisect(zero, zero + 700, zero, omega)
    return B2, bisect(zero - 60, zero + 700, omega, -omega)


def test_every_step_of_the_proof_that_three_levels_are_no_maximum() -> None:
    omega, B1 = torch.meshgrid(
        torch.logspace(-2, 2, 60).double(), torch.linspace(0.02, 0.999, 60).double(), indexing="ij"
    )
    B2, A = three_levels(omega, B1)
    fine = (B2 < 1e12) & (B2 > 1)
    omega, B1, B2, A = omega[fine], B1[fine], B2[fine], A[fine]
    assert len(A) > 2000
    e, f, t = B2 - 1, 1 - B1, (B1 + omega) / (1 + omega)
    q = (1 + 1 / A) * (B2 - B1) ** 2 + (1 - 1 / B2) * (A + B1) ** 2 - (1 - B1) * (A + B2) ** 2 / (A - B2)
    lower = (e + f) ** 2 * (4 + e) / (3 + e) + e * (e + 4 - f) ** 2 / (1 + e) - f * (4 * e + 6) - 2 * B2**2 * (1 - t)
    near = B2 < 1e5  # beyond, A − B₂ is lost in rounding
    assert (2 * (1 + omega) * (1 - 1e-6) < A - B2)[near].all()  # (a)
    assert (f <= e * (1 + 1e-9)).all()
    assert (f <= 2 * e / (2 + e) * (1 + 1e-9))[e < 2].all()  # (b)
    assert (t >= 1 / B2 * (1 - 1e-9)).all()
    assert (lower > 0).all()  # (c)
    assert (q >= lower * (1 - 1e-6))[near].all()


def test_the_polynomials_at_the_end_of_the_proof() -> None:
    e = torch.linspace(1e-3, 2, 1000).double()
    f, B2 = 2 * e / (2 + e), 1 + e

    def lower(f: Tensor, e: Tensor, B2: Tensor) -> Tensor:
        first, second = (e + f) ** 2 * (4 + e) / (3 + e), e * (e + 4 - f) ** 2 / (1 + e)
        return first + second - f * (4 * e + 6) - 2 * B2**2 * (1 - 1 / B2)

    rational = 2 * e * (48 + 30 * e + 5 * e**2 - 3 * e**3 - e**4) / ((1 + e) * (2 + e) ** 2 * (3 + e))
    torch.testing.assert_close(lower(f, e, B2), rational)
    assert (rational > 0).all()
    e = torch.linspace(2, 50, 1000).double()
    far = 2 * (1 + e) - 4 - 8 / ((1 + e) * (3 + e))
    torch.testing.assert_close(lower(torch.ones_like(e), e, 1 + e), far)
    assert (far > 0).all()


def test_the_admissible_direction_of_the_proof() -> None:
    """v ⟂ 1, v ⟂ sgn(y)|y|^s, and Σh′v² = (1−s)·q in units of κ₀, for a three-level critical point."""
    omega, B1 = real(0.7), real(0.2)
    B2, A = three_levels(omega, B1)
    s = 1 / (1 + omega)
    c = (B1 + omega) / B1**s  # |y|^s·c = |y| ∓ ω at the three values
    for value, sign in ((A, -1), (B1, 1), (B2, 1)):
        torch.testing.assert_close(c * value**s, value + sign * omega)
    m = (A - B2) / B1
    v = B2 - B1, A + B1, -(A + B2) / m
    torch.testing.assert_close(v[0] + v[1] + m * v[2], real(0.0), rtol=0, atol=1e-9)
    torch.testing.assert_close(A**s * v[0] - B2**s * v[1] - m * B1**s * v[2], real(0.0), rtol=0, atol=1e-9)
    slope = [1 - c * s * value ** (s - 1) for value in (A, B2, B1)]
    form = slope[0] * v[0] ** 2 + slope[1] * v[1] ** 2 + m * slope[2] * v[2] ** 2
    q = (1 + 1 / A) * (B2 - B1) ** 2 + (1 - 1 / B2) * (A + B1) ** 2 - (1 - B1) * (A + B2) ** 2 / (A - B2)
    torch.testing.assert_close(form, (1 - s) * q)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 2.5])
def test_support_size_counts_the_keys_with_weight(alpha: float) -> None:
    for n in (1, 2, 9, 300):
        for spread in (0.01, 0.5, 4.0):
            z = rows(60, n, seed=n, spread=spread)
            p = Rule(map=Entmax(alpha))(z)
            size, bound = sparse.support_size(z, alpha), sparse.support_bound(z, alpha)
            assert torch.equal(size, (p > 0).sum(-1))
            assert (size <= bound).all()
            assert (bound <= (z > z.amax(-1, keepdim=True) - 1 / (alpha - 1)).sum(-1)).all()


def test_support_with_ties() -> None:
    assert int(sparse.support_size([2.0, 2.0, 2.0], 2.0)) == 3
    assert int(sparse.support_size([1.0, 0.0, 0.0], 2.0)) == 1  # at the gap exactly
    assert int(sparse.support_size([1.0, 1.0, 0.5], 2.0)) == 2  # two keys lead by exactly 1/2
    assert int(sparse.support_bound([1.0, 1.0, 0.5], 2.0)) == 2
    assert int(sparse.support_size([1.0, 0.0, -50.0], 1.0)) == 3
    assert int(sparse.support_bound([1.0, 0.0, -50.0], 1.0)) == 3


@pytest.mark.parametrize("count", [sparse.support_size, sparse.support_bound])
def test_a_mask_is_truncation(count) -> None:  # type: ignore[no-untyped-def]
    z, mask = rows(40, 15, seed=3, spread=0.5), some_mask(40, 15, seed=4)
    mask[:, 0] = True
    alpha = torch.linspace(1.1, 2.5, 40).double()
    got = count(z, alpha, visible=mask)
    assert got.tolist() == [int(count(z[i, mask[i]], alpha[i])) for i in range(40)]
    assert int(count([0.0, 1.0], 1.5, visible=torch.tensor([False, False]))) == 0


@pytest.mark.parametrize(("alpha", "spread"), [(1.5, 0.1), (1.3, 0.5), (2.0, 0.02)])
def test_gaussian_support_is_the_mean_support(alpha: float, spread: float) -> None:
    size = sparse.support_size(rows(100, 4000, seed=5, spread=spread), alpha).double()
    assert float(size.mean()) == pytest.approx(float(sparse.gaussian_support(4000, alpha, spread)), rel=0.03)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 1.8, 2.0])
def test_gaussian_support_solves_its_equation(alpha: float) -> None:
    """n·E[ε(z − t)]₊^(1/ε) = 1 by mpmath's quadrature, at the t that belongs to the support."""
    n, e = 1e5, alpha - 1
    kept = float(sparse.gaussian_support(real(n), real(alpha)))
    with mpmath.workdps(30):
        t = mpmath.findroot(lambda x: mpmath.erfc(x / mpmath.sqrt(2)) / 2 - mpmath.mpf(kept) / n, 3)
        moment = mpmath.quad(lambda z: (e * (z - t)) ** (1 / e) * mpmath.npdf(z), [t, t + 1, t + 3, t + 12])
    assert float(n * moment) == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_gaussian_support_grows_as_a_power_of_the_logarithm(alpha: float) -> None:
    e, n = alpha - 1, real(1e30, 1e100, 1e300)
    leading = ((2 * n.log()).sqrt() / e) ** (1 / e) / math.gamma(1 + 1 / e)
    ratio = sparse.gaussian_support(n, real(alpha)) / leading
    assert (ratio.diff() > 0).all()
    assert 0.95 < float(ratio[-1]) < 1


def test_gaussian_support_of_one_key_and_of_equal_ones() -> None:
    assert float(sparse.gaussian_support(1, 1.5)) == pytest.approx(1, abs=0.2)
    assert float(sparse.gaussian_support(1000, 1.5, 1e-6)) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sparse.one_hot_gap(1.0), "alpha = 1"),
        (lambda: sparse.weight_floor(-1.0, 1.5), "gap = -1"),
        (lambda: sparse.needle_weight(1.0, 0.5, 1.5), "n = 0.5"),
        (lambda: sparse.needle_weight(1.0, 5, 0.9), "alpha = 0.9"),
        (lambda: sparse.gap_to_hold(1.5, 10, 1.5), "weight = 1.5"),
        (lambda: sparse.gap_to_hold(0.05, 10, 1.5), "weight = 0.05 of n = 10"),
        (lambda: sparse.steepest_weights(2.5, 10), "alpha = 2.5"),
        (lambda: sparse.steepest_weights(1.5, 1), "n = 1"),
        (lambda: sparse.gaussian_support(10, 1.0), "alpha = 1"),
        (lambda: sparse.support_size([0.0, math.nan], 1.5), "logits"),
    ],
)
def test_errors_name_the_value(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidValue, match=message):
        call()
