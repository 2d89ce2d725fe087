"""Theorem 2 against exact laws, simulation and the direct definition."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute_papers.theory import distance, separability


def sphere(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def weights_of(size: int, seed: int, spread: float = 1.0, total: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return total * (spread * torch.randn(size, generator=generator, dtype=torch.float64)).softmax(-1)


rows = st.builds(
    weights_of, st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 4.0]), st.sampled_from([0.3, 1.0])
)


def test_distances_against_the_definition() -> None:
    weights, x = weights_of(6, 1), sphere(6, 3, seed=2)
    selected = torch.tensor([True, False, True, True, False, False])
    s = sum(weights[i] * x[i] for i in (0, 2, 3))
    expected = torch.stack([(s - weights[i] * x[i]).norm() for i in range(6)])
    torch.testing.assert_close(separability.distances_to_context(weights, x, selected), expected)


@given(rows, st.floats(0.0, 1.4), st.floats(0.5, 3.0))
@settings(max_examples=60, deadline=None)
def test_xi_is_the_double_sum_over_ordered_pairs(weights: Tensor, delta: float, norm: float) -> None:
    delta = float(torch.tensor(delta, dtype=torch.float32))
    norm = float(torch.tensor(norm, dtype=torch.float32))
    got = separability.xi(weights, delta, norm)
    for i in range(len(weights)):
        others = [j for j in range(len(weights)) if j != i]
        squares = sum(float(weights[j]) ** 2 for j in others) * norm**2
        pairs = sum(float(weights[j] * weights[k]) for j, k in itertools.permutations(others, 2))
        expected = squares + (norm**2 - delta**2 / 2) * pairs
        assert float(got[i]) ** 2 == pytest.approx(max(expected, 0.0), abs=1e-9)


@given(st.integers(2, 7), st.integers(0, 10**6), st.floats(0.05, 1.5))
@settings(max_examples=60, deadline=None)
def test_distances_never_exceed_xi(size: int, seed: int, radius: float) -> None:
    weights, x = weights_of(size, seed, 2.0), sphere(size, 4, seed=seed)
    delta = torch.pdist(x).min()
    X = separability.distances_to_context(weights, x, torch.ones(size, dtype=torch.bool))
    cap = separability.xi(weights, delta)
    assert (cap + 1e-12 - X >= 0).all()
    fraction = (radius + 1e-9 - X >= 0).double().mean()
    assert fraction >= separability.certain_fraction(weights, radius - 1e-9, delta)


def test_the_equilateral_cluster_attains_xi() -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    delta = torch.tensor(0.3, dtype=torch.float64)
    gram = (1 - delta**2 / 2) + delta**2 / 2 * torch.eye(4, dtype=torch.float64)
    X = separability.distances_to_context(weights, torch.linalg.cholesky(gram), torch.ones(4, dtype=torch.bool))
    torch.testing.assert_close(X, separability.xi(weights, delta))
    assert [round(float(each), 3) for each in X] == [0.592, 0.691, 0.789, 0.887]
    torch.testing.assert_close(separability.xi(weights, delta, norm=3.0)[0], 3 * separability.xi(weights, delta / 3)[0])


def test_lower_bounds_on_the_fraction() -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    cap = separability.xi(weights, 0.3)
    expected = (1 - cap / 0.7).clamp(min=0.0).mean()
    torch.testing.assert_close(separability.fraction_lower_bound(weights, 0.7, 0.3), expected, atol=1e-7, rtol=0)
    assert separability.certain_fraction(weights, 0.7, 0.3) == 0.5
    assert separability.certain_fraction([1.0], 0.0, 0.3) == 1


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_bounds_against_the_exact_law_of_three(dim: int) -> None:
    """N = 3: Xᵢ² = α²ⱼ + α²ₖ + 2αⱼαₖc, and (1 + c)/2 is Beta((d−1)/2, (d−1)/2)."""
    for seed in range(40):
        weights = weights_of(3, seed, spread=2.0)
        for radius in (0.1, 0.3, 0.5, 0.7, 0.9):
            found = separability.probability_bounds(weights, radius, dim)
            for i, (j, k) in enumerate(((1, 2), (0, 2), (0, 1))):
                a, b = float(weights[j]), float(weights[k])
                cosine = (radius**2 - a * a - b * b) / (2 * a * b)
                exact = float(betainc((dim - 1) / 2, (dim - 1) / 2, min(max((1 + cosine) / 2, 0.0), 1.0)))
                assert found.lower[i] - 1e-6 <= exact <= found.upper[i] + 1e-6
            assert found.fraction_lower == found.lower.mean()
            assert found.fraction_upper == found.upper.mean()


@given(rows, st.floats(0.0, 1.0))
@settings(max_examples=80, deadline=None)
def test_bounds_in_one_dimension(weights: Tensor, radius: float) -> None:
    """Vectors are signs: the law is a finite sum."""
    found = separability.probability_bounds(weights, torch.tensor(radius, dtype=torch.float64), 1)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(weights))), dtype=torch.float64)
    terms = signs * weights
    X = torch.stack(
        [terms[:, [j for j in range(len(weights)) if j != i]].sum(-1).abs() for i in range(len(weights))], -1
    )
    for slip, side in ((-1e-12, "upper"), (1e-12, "lower")):
        exact = (radius + slip - X >= 0).double().mean(0)
        if side == "upper":
            assert (exact <= found.upper + 1e-12).all()
        else:
            assert (exact >= found.lower - 1e-12).all()


@pytest.mark.parametrize(("size", "dim"), [(4, 2), (6, 5), (12, 24), (30, 64)])
def test_bounds_and_moments_against_simulation(size: int, dim: int) -> None:
    samples = 4000
    x = sphere(samples, size, dim, seed=size)
    weights = weights_of(size, dim)
    v = weights[:, None] * x
    X = (v.sum(1, keepdim=True) - v).norm(dim=-1)
    a2 = weights.square().sum() - weights.square()
    a4 = weights.pow(4).sum() - weights.pow(4)
    squares = X.square()
    assert ((squares.mean(0) - a2).abs() <= 6 * squares.std(0) / math.sqrt(samples)).all()
    torch.testing.assert_close(squares.var(0), 2 / dim * (a2.square() - a4), rtol=0.25, atol=0)
    for radius in torch.linspace(0.3, 1.7, 12, dtype=torch.float64) * a2.mean().sqrt():
        p = (radius - X >= 0).double().mean(0)
        found = separability.probability_bounds(weights, radius, dim)
        for bound, sign in ((found.upper, 1), (found.lower, -1)):
            error = 6 * (bound * (1 - bound) / samples).clamp(min=0).sqrt() + 8 / samples
            assert (sign * (bound - p) >= -error).all()
        assert (found.lower <= found.upper).all()


def test_quoted_examples() -> None:
    flat = torch.full((16,), 1 / 16, dtype=torch.float64)
    assert round(float(separability.probability_bounds(flat, 0.15, 64).fraction_upper), 4) == 0.0147
    assert round(float(separability.probability_bounds(flat, 0.35, 64).fraction_lower), 4) == 0.9981
    seven = separability.probability_bounds([0.5, 0.2, 0.1, 0.05, 0.05, 0.03, 0.02], 0.3, 32)
    assert round(float(seven.fraction_lower), 4) == 0.1323
    assert round(float(seven.fraction_upper), 4) == 0.1429


def test_degenerate_sets() -> None:
    one = separability.probability_bounds([0.7], 0.0, 8)
    assert one.lower == one.upper == 1
    pair = torch.tensor([0.7, 0.3], dtype=torch.float64)
    for radius, expected in ((pair[1], [1.0, 0.0]), (0.29, [0.0, 0.0]), (0.5, [1.0, 0.0]), (pair[0], [1.0, 1.0])):
        found = separability.probability_bounds(pair, radius, 5)
        assert found.lower.tolist() == found.upper.tolist() == expected
    zeros = separability.probability_bounds([0.5, 0.0, 0.0], 0.1, 3)
    assert zeros.lower.tolist() == zeros.upper.tolist() == [1.0, 0.0, 0.0]
    assert separability.probability_bounds([0.0, 0.0], 0.0, 3).lower.tolist() == [1.0, 1.0]


def test_only_the_ratio_of_radius_and_norm_counts() -> None:
    weights = weights_of(6, 3)
    first = separability.probability_bounds(weights, 0.25, 16)
    second = separability.probability_bounds(weights, 1.0, 16, norm=4.0)
    torch.testing.assert_close(first.upper, second.upper)
    torch.testing.assert_close(first.lower, second.lower)


def test_conditioning_widens_the_bounds_and_holds() -> None:
    """Vectors that are at least δ apart, kept from independent ones: P(·|condition) ≤ P/π."""
    weights, x = weights_of(4, 5), sphere(20000, 4, 3, seed=6)
    apart = torch.cdist(x, x) + 9 * torch.eye(4)
    kept = apart.amin((-2, -1)) >= 0.7
    share = float(kept.double().mean())
    v = weights[:, None] * x[kept]
    X = (v.sum(1, keepdim=True) - v).norm(dim=-1)
    for radius in (0.1, 0.2, 0.4, 0.6):
        p = (radius - X >= 0).double().mean(0)
        found = separability.probability_bounds(weights, radius, 3, condition=share)
        plain = separability.probability_bounds(weights, radius, 3)
        assert (found.lower - 0.03 <= p).all()
        assert (p <= found.upper + 0.03).all()
        assert (found.upper >= plain.upper).all()
        assert (found.lower <= plain.lower).all()


def test_measured_fraction_against_the_definition() -> None:
    for seed in range(20):
        weights, x = weights_of(9, seed), sphere(9, 3, seed=seed)
        for top in range(1, 10):
            best = weights.argsort(descending=True)
            s = (weights[:, None] * x)[best[:top]].sum(0)
            X = (weights[:, None] * x - s).norm(dim=-1)
            radius = X[best[top:]].min() if top < 9 else torch.tensor(math.inf)
            found = separability.separable_fraction(weights, x, top)
            assert found.separable == (X[best[:top]] < radius).sum()
            assert float(found.fraction) == int(found.separable) / top
            assert found.intruders == 0
            torch.testing.assert_close(found.radius, radius.double())
            closed = separability.separable_fraction(weights, x, top, strict=False)
            assert closed.intruders == (0 if top == 9 else 1)
            fixed = separability.separable_fraction(weights, x, top, radius=0.2, strict=False)
            assert fixed.separable == (X[best[:top]] <= 0.2).sum()
            assert fixed.intruders == (X[best[top:]] <= 0.2).sum()


def test_degeneracies_of_the_metric() -> None:
    weights, x = weights_of(12, 1, spread=3.0), sphere(12, 2, seed=1)
    assert separability.separable_fraction(weights, x, 1).fraction == 1
    assert separability.separable_fraction(weights, x, 12).fraction == 1
    assert separability.separable_fraction(weights, x, 12).radius == math.inf
    orthonormal = torch.eye(12, dtype=torch.float64)
    for top in range(1, 13):
        assert separability.separable_fraction(weights, orthonormal, top).fraction == 1
    nothing = separability.separable_fraction(weights, x, 3, visible=torch.zeros(12, dtype=torch.bool))
    assert nothing.fraction.isnan()


@pytest.mark.parametrize("top", [1, 2, 5])
def test_a_mask_is_a_truncation(top: int) -> None:
    x = sphere(5, 7, 3, seed=2)
    visible = torch.arange(7) < torch.tensor([[1], [3], [5], [6], [7]])
    weights = torch.stack([weights_of(7, seed) for seed in range(5)])
    found = separability.separable_fraction(weights, x, top, visible=visible)
    bounds = separability.probability_bounds(weights, 0.3, 8, visible=visible)
    cap = separability.xi(weights, 0.2, visible=visible)
    low = separability.fraction_lower_bound(weights, 0.5, 0.2, visible=visible)
    sure = separability.certain_fraction(weights, 0.5, 0.2, visible=visible)
    for row, seen in enumerate((1, 3, 5, 6, 7)):
        w, points = weights[row, :seen], x[row, :seen]
        alone = separability.separable_fraction(w, points, min(top, seen))
        for together, value in zip(found, alone, strict=True):
            torch.testing.assert_close(together[row], value)
        few = separability.probability_bounds(w, 0.3, 8)
        torch.testing.assert_close(bounds.upper[row, :seen], few.upper)
        torch.testing.assert_close(bounds.lower[row, :seen], few.lower)
        assert (bounds.upper[row, seen:] == 0).all()
        torch.testing.assert_close(bounds.fraction_upper[row], few.fraction_upper)
        torch.testing.assert_close(bounds.fraction_lower[row], few.fraction_lower)
        torch.testing.assert_close(cap[row, :seen], separability.xi(w, 0.2))
        torch.testing.assert_close(low[row], separability.fraction_lower_bound(w, 0.5, 0.2))
        torch.testing.assert_close(sure[row], separability.certain_fraction(w, 0.5, 0.2))


def test_rows_are_independent() -> None:
    weights = torch.stack([weights_of(5, seed) for seed in range(6)]).view(2, 3, 5)
    radius = torch.linspace(0.1, 0.6, 6, dtype=torch.float64).view(2, 3)
    x = sphere(5, 4, seed=3)
    found = separability.probability_bounds(weights, radius, 4)
    measured = separability.separable_fraction(weights, x, 2, radius)
    for i, j in itertools.product(range(2), range(3)):
        alone = separability.probability_bounds(weights[i, j], radius[i, j], 4)
        torch.testing.assert_close(found.upper[i, j], alone.upper)
        torch.testing.assert_close(found.fraction_lower[i, j], alone.fraction_lower)
        one = separability.separable_fraction(weights[i, j], x, 2, radius[i, j])
        torch.testing.assert_close(measured.fraction[i, j], one.fraction)


def test_real_lengths_are_cheap() -> None:
    weights, x = weights_of(16384, 1), sphere(16384, 32, seed=1)
    assert 0 < separability.separable_fraction(weights, x, 64).fraction <= 1
    found = separability.probability_bounds(weights, 0.1, 32)
    assert (found.lower <= found.upper).all()
    assert distance.top_set(weights, 64).sum() == 64


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(InvalidValue, match="top = 0: must be at least 1"):
        separability.separable_fraction([0.5, 0.5], [[1.0], [1.0]], 0)
    with pytest.raises(InvalidValue, match="dim = 0"):
        separability.probability_bounds([0.5], 0.1, 0)
    with pytest.raises(InvalidValue, match="condition = 0"):
        separability.probability_bounds([0.5], 0.1, 3, condition=0.0)
    with pytest.raises(InvalidValue, match="radius = -1"):
        separability.probability_bounds([0.5], -1.0, 3)
    with pytest.raises(InvalidTensor, match=r"weights has shape \(\)"):
        separability.xi(0.5, 0.1)
