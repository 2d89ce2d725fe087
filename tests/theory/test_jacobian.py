"""Norms of the Jacobian against dense matrices, 50-digit arithmetic and enumeration."""

from __future__ import annotations

import itertools

import mpmath  # comes with torch
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import rows, some_mask
from undilute.errors import InvalidTensor, InvalidValue
from undilute.rules import Entmax, Rule
from undilute.theory import jacobian


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def dense(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def largest_eigenvalue(p: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(dense(p))[..., -1]


def awkward(n: int) -> Tensor:
    """Rows of n weights that break careless solvers."""
    uniform = torch.full((n,), 1.0 / n, dtype=torch.float64)
    one_hot = torch.eye(n, dtype=torch.float64)[0]
    cases = [uniform, one_hot, one_hot.flip(0)]
    if n > 1:
        two = torch.zeros(n, dtype=torch.float64)
        two[[0, -1]] = 0.5
        close = uniform.clone()
        close[0] *= 1 + 2.3e-16
        split = torch.full((n,), 1e-9, dtype=torch.float64)
        split[0] = 1.0
        cases += [two, close, split, torch.logspace(0, -40, n).double(), torch.logspace(0, -1, n).double()]
    if n > 3:
        pairs = torch.arange(n).div(2, rounding_mode="floor").double().neg().exp()
        pairs[n // 2 :] = 0
        nearly = pairs.clone()
        nearly[1] -= 1e-16
        cases += [pairs, nearly, pairs.flip(0)]
    p = torch.stack(cases)
    return p / p.sum(-1, keepdim=True)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 17, 100])
def test_spectral_norm_equals_the_dense_eigenvalue(n: int) -> None:
    random = [rows(30, n, seed=n, spread=spread).softmax(-1) for spread in (1e-16, 1e-8, 0.1, 1.0, 5.0, 40.0)]
    p = torch.cat([*random, awkward(n)])
    torch.testing.assert_close(jacobian.spectral_norm(p), largest_eigenvalue(p), rtol=0, atol=1e-14)


def test_spectral_norm_at_2048_keys() -> None:
    tied = rows(2048, seed=1).softmax(-1)
    tied[100:1000] = tied.max()
    p = torch.stack([rows(2048, seed=2, spread=3.0).softmax(-1), tied / tied.sum(), *awkward(2048)[3:6]])
    torch.testing.assert_close(jacobian.spectral_norm(p), largest_eigenvalue(p), rtol=0, atol=1e-12)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.just(0.0), st.sampled_from([1.0, 1 + 2e-16, 1e-16]), st.floats(1e-12, 1)), min_size=1, max_size=9
    )
)
def test_spectral_norm_of_any_row(weights: list[float]) -> None:
    w = real(*weights)
    if float(w.sum()) == 0:
        return
    p = w / w.sum()
    torch.testing.assert_close(jacobian.spectral_norm(p), largest_eigenvalue(p), rtol=0, atol=1e-14)
    direction = jacobian.worst_direction(p)
    moved = p * (direction - (p * direction).sum())
    assert direction.norm().item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(moved.norm(), jacobian.spectral_norm(p), rtol=0, atol=1e-14)
    low, high = jacobian.spectral_bounds(p)
    assert low - 1e-15 <= jacobian.spectral_norm(p) <= high + 1e-15


@pytest.mark.parametrize(
    "weights", [[1, 1e-12], [1, 1e-20, 1e-21], [1, 1e-30, 1e-30], [0.7, 0.2, 0.1], [1, 1 - 1e-9, 0.5]]
)
def test_relative_accuracy_in_fifty_digits(weights: list[float]) -> None:
    """A dense float64 solver cannot see eigenvalues of 1e-20; the secular equation can."""
    with mpmath.workdps(60):
        w = [mpmath.mpf(x) for x in weights]
        p = [x / sum(w) for x in w]
        A = mpmath.matrix(len(p), len(p))
        for i, j in itertools.product(range(len(p)), repeat=2):
            A[i, j] = (p[i] if i == j else 0) - p[i] * p[j]
        expected = float(max(mpmath.eigsy(A, eigvals_only=True)))
    row = real(*weights) / sum(weights)
    assert float(jacobian.spectral_norm(row)) == pytest.approx(expected, rel=1e-13)


def test_newton_needs_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    p = torch.cat([rows(50, 3000, seed=3, spread=spread).softmax(-1) for spread in (0.01, 1.0, 4.0)] + [awkward(3000)])
    expected = jacobian.spectral_norm(p)
    monkeypatch.setattr(jacobian, "NEWTON_STEPS", 15)
    torch.testing.assert_close(jacobian.spectral_norm(p), expected, rtol=1e-14, atol=0)


def test_long_rows_are_cheap() -> None:
    p = rows(4, 200_000, seed=4).softmax(-1)
    assert jacobian.spectral_norm(p).isfinite().all()  # a dense matrix would take 320 GB


NORMS = [
    jacobian.spectral_norm,
    jacobian.frobenius_norm,
    jacobian.largest_entry,
    jacobian.infinity_norm,
    lambda *arguments, **named: jacobian.infinity_to_one_norm(*arguments, **named).lower,
    lambda *arguments, **named: jacobian.infinity_to_one_norm(*arguments, **named).upper,
    lambda *arguments, **named: jacobian.spectral_bounds(*arguments, **named).lower,
    lambda *arguments, **named: jacobian.spectral_bounds(*arguments, **named).upper,
    jacobian.mean_square_sensitivity,
    lambda p, T=1.0, visible=None: jacobian.entmax_spectral_norm(p, 1.5, T, visible=visible),
]


@pytest.mark.parametrize("norm", NORMS)
def test_a_mask_is_truncation(norm) -> None:  # type: ignore[no-untyped-def]
    z, mask = rows(30, 12, seed=5), some_mask(30, 12, seed=6)
    mask[:, 0] = True
    p = z.masked_fill(~mask, -torch.inf).softmax(-1)
    T = torch.linspace(0.1, 3, 30).double()
    dirty = torch.where(mask, p, 0.3)  # what lies under the mask does not matter
    got = norm(dirty, T, visible=mask)
    for i in range(30):
        torch.testing.assert_close(got[i], norm(p[i, mask[i]], T[i]), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("norm", NORMS)
def test_rows_are_independent_and_scale_with_temperature(norm) -> None:  # type: ignore[no-untyped-def]
    p = rows(2, 3, 7, seed=7).softmax(-1)
    alone = torch.stack([norm(row) for row in p.reshape(6, 7)]).reshape(2, 3)
    torch.testing.assert_close(norm(p), alone, rtol=1e-14, atol=0)
    power = 2 if norm is jacobian.mean_square_sensitivity else 1
    torch.testing.assert_close(norm(p, 0.25), alone * 4**power, rtol=1e-14, atol=0)
    torch.testing.assert_close(norm(p.numpy()), alone, rtol=1e-14, atol=0)
    torch.testing.assert_close(norm(p.tolist()), alone, rtol=1e-14, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_no_sensitivity_where_there_is_no_choice(norm) -> None:  # type: ignore[no-untyped-def]
    assert float(norm([1.0])) == 0
    assert float(norm([0.0, 1.0, 0.0])) == 0


@pytest.mark.parametrize("n", [1, 2, 6])
def test_the_other_norms_by_brute_force(n: int) -> None:
    p = torch.cat([rows(40, n, seed=8, spread=spread).softmax(-1) for spread in (0.1, 2.0, 20.0)] + [awkward(n)])
    J = dense(p)
    signs = torch.cartesian_prod(*[real(-1, 1)] * n).reshape(-1, n).T
    to_one = (J @ signs).abs().sum(-2).amax(-1)
    for got, expected in [
        (jacobian.frobenius_norm(p), J.square().sum((-1, -2)).sqrt()),
        (jacobian.largest_entry(p), J.abs().amax((-1, -2))),
        (jacobian.infinity_norm(p), J.abs().sum(-1).amax(-1)),
        (jacobian.infinity_norm(p), J.abs().sum(-2).amax(-1)),
        (jacobian.infinity_to_one_norm(p).lower, to_one),
        (jacobian.infinity_to_one_norm(p).upper, to_one),
    ]:
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


def test_frobenius_norm_does_not_cancel() -> None:
    """q₂ − 2q₃ + q₂² would be 0 here; the norm is 2·1e-20."""
    assert float(jacobian.frobenius_norm(real(1.0, 1e-20))) == pytest.approx(2e-20, rel=1e-12)


def test_infinity_to_one_of_long_rows() -> None:
    low, high = jacobian.infinity_to_one_norm(rows(20, 500, seed=9, spread=1.0).softmax(-1))
    assert (low <= high).all()
    assert (low > 1 - 1e-6).all()
    heavy = rows(20, 500, seed=9)
    heavy[:, 0] = 30
    low, high = jacobian.infinity_to_one_norm(heavy.softmax(-1))
    assert torch.equal(low, high)


def test_suprema_are_reached_by_two_equal_weights() -> None:
    p, T = [0.5, 0.5], real(0.2)
    norms = jacobian.Norms(*(norm(p, T) for norm in NORMS[:5]))
    torch.testing.assert_close(norms, jacobian.suprema(T), rtol=1e-14, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_entmax_norm_is_that_of_autograd(alpha: float) -> None:
    z = rows(25, 9, seed=10, spread=0.7)
    rule = torch.nn.Softmax(-1) if alpha == 1 else Rule(map=Entmax(alpha))
    J = torch.stack([torch.autograd.functional.jacobian(rule, row) for row in z])
    got = jacobian.entmax_spectral_norm(rule(z), alpha)
    torch.testing.assert_close(got, torch.linalg.svdvals(J)[:, 0], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(jacobian.entmax_spectral_norm(rule(z), alpha, 0.5), 2 * got)


def test_mean_square_over_random_directions() -> None:
    p = rows(20, seed=60).softmax(-1)
    v = rows(20_000, 20, seed=61)
    v = v / v.norm(dim=-1, keepdim=True)
    squares = (p * (v - (v * p).sum(-1, keepdim=True))).square().sum(-1)
    error = 5 * squares.std() / len(v) ** 0.5
    assert abs(squares.mean() - jacobian.mean_square_sensitivity(p)) < error


def test_worst_direction_under_a_mask() -> None:
    z, mask = rows(20, 9, seed=70), some_mask(20, 9, seed=71)
    mask[:, 0] = True
    p = z.masked_fill(~mask, -torch.inf).softmax(-1)
    direction = jacobian.worst_direction(p, visible=mask)
    assert (direction[~mask] == 0).all()
    for i in range(20):
        torch.testing.assert_close(
            direction[i, mask[i]], jacobian.worst_direction(p[i, mask[i]]), rtol=1e-10, atol=1e-14
        )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jacobian.spectral_norm([0.5, 0.5], 0.0), InvalidValue, "temperature = 0"),
        (lambda: jacobian.spectral_norm([0.5, 0.1]), InvalidValue, "sums to 0.6"),
        (lambda: jacobian.spectral_norm(1.0), InvalidTensor, "single number"),
        (lambda: jacobian.entmax_spectral_norm([0.5, 0.5], 0.5), InvalidValue, "alpha = 0.5"),
    ],
)
def test_errors_name_the_value(call, error: type[Exception], message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()
