"""Theorem 1 and Corollary 2 against exact enumeration, simulation and the direct definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from undilute.errors import InvalidTensor, InvalidValue
from undilute_papers.theory import distance


def head(length: int, dim: int, seed: int, spread: float = 1.5, rows: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = (spread * torch.randn(rows, length, generator=generator, dtype=torch.float64)).softmax(-1)
    return weights, torch.randn(rows, length, dim, generator=generator, dtype=torch.float64)


def by_definition(weights: Tensor, x: Tensor, chosen: tuple[int, ...]) -> float:
    """d̃ of one row, in loops."""
    s = sum((weights[i] * x[i] for i in chosen), torch.zeros(x.shape[-1], dtype=torch.float64))
    return sum(float((weights[i] * x[i] - s).norm()) for i in range(len(weights)) if i not in chosen)


def mask(chosen: tuple[int, ...], length: int) -> Tensor:
    selected = torch.zeros(length, dtype=torch.bool)
    selected[list(chosen)] = True
    return selected


heads = st.builds(
    head,
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 5.0, 300.0]),
    st.just(2),
)


@given(heads, st.data())
@settings(max_examples=60, deadline=None)
def test_distance_and_bounds_against_the_definition(case: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    weights, x = case
    length = weights.shape[-1]
    chosen = tuple(data.draw(st.sets(st.integers(0, length - 1))))
    selected = mask(chosen, length)
    got = distance.selection_distance(weights, x, selected)
    expected = torch.tensor([by_definition(w, points, chosen) for w, points in zip(weights, x, strict=True)])
    torch.testing.assert_close(got, expected.to(torch.float64))
    torch.testing.assert_close(
        distance.context(weights, x, selected), (weights[..., None] * x)[:, selected].sum(1), atol=1e-12, rtol=1e-12
    )
    bound = distance.distance_bound(weights, x, selected)
    assert (bound >= got - 1e-12).all()
    assert (distance.distance_bound(weights, x, selected, exact=False) >= bound - 1e-12).all()


@given(heads, st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_top_set_and_its_bound(case: tuple[Tensor, Tensor], top: int) -> None:
    weights, x = case
    top = min(top, weights.shape[-1])
    selected = distance.top_set(weights, top)
    assert (selected.sum(-1) == top).all()
    if 0 < top < weights.shape[-1]:
        assert (weights.masked_fill(~selected, 2.0).amin(-1) >= weights.masked_fill(selected, -1.0).amax(-1)).all()
    printed = distance.top_distance_bound(weights, x, top)
    torch.testing.assert_close(printed, distance.distance_bound(weights, x, selected))
    assert (printed >= distance.selection_distance(weights, x, selected) - 1e-12).all()


def test_ties_go_to_the_first() -> None:
    assert distance.top_set([0.25] * 4, 2).tolist() == [True, True, False, False]
    hidden = torch.tensor([False, True, True, True])
    assert distance.top_set([0.25] * 4, 2, hidden).tolist() == [False, True, True, False]


@given(heads, st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_expectation_against_enumeration(case: tuple[Tensor, Tensor], top: int) -> None:
    weights, x = case
    length = weights.shape[-1]
    top = min(top, length)
    exact = distance.enumerated_distance(weights, x, top)
    subsets = list(itertools.combinations(range(length), top))
    mean = sum(distance.selection_distance(weights, x, mask(each, length)) for each in subsets) / len(subsets)
    torch.testing.assert_close(exact, torch.as_tensor(mean))
    found = distance.expected_distance(weights, x, top)
    assert (found.lower <= exact + 1e-12).all()
    assert (exact <= found.upper + 1e-12).all()
    assert (found.epsilon_sqrt <= found.epsilon_variance + 1e-12).all()
    assert (found.epsilon_variance <= found.epsilon_paper + 1e-12).all()
    low, high = distance.corollary_range(weights, x, top)
    assert (low <= exact + 1e-12).all()
    assert (exact <= high + 1e-12).all()


@pytest.mark.parametrize(("length", "top"), [(2, 1), (5, 2), (6, 4), (6, 5), (7, 0), (7, 7)])
def test_variances_are_those_without_replacement(length: int, top: int) -> None:
    weights, x = (each[0] for each in head(length, 3, seed=length))
    v = weights[:, None] * x
    variances = distance.expected_distance(weights, x, top).variances
    for i in range(length):
        others = [j for j in range(length) if j != i]
        sums = [v[list(each)].sum(0) for each in itertools.combinations(others, top)]
        if not sums:  # N = L: i is never left out
            assert variances[i] == 0
            continue
        s = torch.stack(sums)
        torch.testing.assert_close(variances[i], (s - s.mean(0)).square().sum(-1).mean(), atol=1e-15, rtol=1e-10)


def test_long_rows_against_simulation() -> None:
    """L = 4,096: the simulated mean lies in the enclosure, up to five standard errors."""
    (weights,), (x,) = head(4096, 16, seed=3)
    generator = torch.Generator().manual_seed(4)
    found = distance.expected_distance(weights, x, 7)
    sets = [torch.randperm(4096, generator=generator)[:7] for _ in range(150)]
    values = torch.stack([distance.selection_distance(weights, x, mask(tuple(each.tolist()), 4096)) for each in sets])
    margin = 5 * float(values.std()) / math.sqrt(150)
    assert float(found.lower) - margin <= float(values.mean()) <= float(found.upper) + margin


def test_closed_forms_against_enumeration() -> None:
    length, norm = 6, 2.0
    flat, first = torch.full((length,), 1 / length, dtype=torch.float64), torch.eye(length, dtype=torch.float64)[0]
    orthonormal, same = norm * torch.eye(length, dtype=torch.float64), norm * torch.ones(length, 1, dtype=torch.float64)
    for top in range(length + 1):
        for closed, weights, x in (
            (distance.expected_orthonormal, flat, orthonormal),
            (distance.expected_aligned, flat, same),
            (distance.expected_one_hot, first, same),
        ):
            torch.testing.assert_close(closed(length, top, norm), distance.enumerated_distance(weights, x, top))
    assert distance.expected_aligned(100, 1) == 0
    with pytest.raises(InvalidValue, match="must not exceed length"):
        distance.expected_aligned(4, 5)


def test_quoted_example() -> None:
    found = distance.expected_distance(np.full(12, 1 / 12), np.ones((12, 1)), 3)
    assert found.main == pytest.approx(1.5, abs=1e-12)
    assert found.upper == pytest.approx(1.5, abs=1e-7)


def test_conventions_at_the_ends() -> None:
    (weights,), (x,) = head(5, 3, seed=8)
    total = (weights[:, None] * x).norm(dim=-1).sum()
    nothing, everything = distance.expected_distance(weights, x, 0), distance.expected_distance(weights, x, 5)
    torch.testing.assert_close(nothing.main, total)
    assert nothing.epsilon_paper == nothing.epsilon_sqrt == 0
    assert everything.main == everything.upper == everything.epsilon_paper == 0
    torch.testing.assert_close(distance.distance_bound(weights, x, mask((), 5)), total)
    torch.testing.assert_close(distance.top_distance_bound(weights, x, 0), total)
    assert distance.top_distance_bound(weights, x, 5) == 0
    alone = torch.tensor([[3.0, 4.0]])
    assert distance.expected_distance([1.0], alone, 0).main == 5
    assert distance.expected_distance([1.0], alone, 1).upper == 0
    assert distance.selection_distance([1.0], alone, torch.tensor([True])) == 0
    assert distance.corollary_range([1.0], alone, 1) == (0, 0)


def test_zero_centres_make_only_the_ratio_infinite() -> None:
    """v = (1, −1, 1, −1)/4 has c > 0; four equal vectors and N = 1 have c = 0 and V = 0: 0/0 is 0."""
    same = distance.expected_distance([0.25] * 4, [[1.0]] * 4, 1)
    assert same.main == same.epsilon_variance == same.epsilon_sqrt == 0
    cross = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    found = distance.expected_distance([0.0, 0.5, 0.5], cross, 1)
    assert found.centres[0] == 0
    assert found.epsilon_variance == math.inf
    assert found.epsilon_sqrt.isfinite()


def test_largest_cross_distance_in_blocks() -> None:
    _, (x,) = head(40, 3, seed=5)
    selected = torch.arange(40) % 3 == 0
    expected = torch.cdist(x[selected], x[~selected]).max()
    for block in (1, 4, 100):
        torch.testing.assert_close(distance.largest_cross_distance(x, selected, block=block), expected)
    assert distance.largest_cross_distance(x, selected, exact=False) >= expected
    for one_sided in (torch.ones(40, dtype=torch.bool), torch.zeros(40, dtype=torch.bool)):
        assert distance.largest_cross_distance(x, one_sided) == 0
        assert distance.largest_cross_distance(x, one_sided, exact=False) == 0


@pytest.mark.parametrize("top", [0, 1, 3, 6])
def test_a_mask_is_a_truncation(top: int) -> None:
    """Hidden tokens change nothing, whatever they hold; rows that see fewer than N tokens select all of them."""
    weights, x = head(6, 3, seed=6, rows=5)
    visible = torch.arange(6) < torch.tensor([[1], [2], [4], [5], [6]])
    weights = weights.masked_fill(~visible, 0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    noisy = weights + (~visible) * 7.0
    selected = distance.top_set(noisy, top, visible)
    found = {
        "d": distance.selection_distance(noisy, x, selected, visible),
        "bound": distance.distance_bound(noisy, x, selected, visible),
        "loose": distance.distance_bound(noisy, x, selected, visible, exact=False),
        "top": distance.top_distance_bound(noisy, x, top, visible),
        "main": distance.expected_distance(noisy, x, top, visible).main,
        "upper": distance.expected_distance(noisy, x, top, visible).upper,
        "paper": distance.expected_distance(noisy, x, top, visible).epsilon_paper,
        "corollary": distance.corollary_range(noisy, x, top, visible)[1],
    }
    for row, seen in enumerate((1, 2, 4, 5, 6)):
        w, points, few = weights[row, :seen], x[row, :seen], min(top, seen)
        alone = distance.expected_distance(w, points, few)
        best = distance.top_set(w, few)
        assert selected[row].tolist() == best.tolist() + [False] * (6 - seen)
        expected = {
            "d": distance.selection_distance(w, points, best),
            "bound": distance.distance_bound(w, points, best),
            "loose": distance.distance_bound(w, points, best, exact=False),
            "top": distance.top_distance_bound(w, points, few),
            "main": alone.main,
            "upper": alone.upper,
            "paper": alone.epsilon_paper,
            "corollary": distance.corollary_range(w, points, few)[1],
        }
        for name, value in expected.items():
            torch.testing.assert_close(found[name][row], value, msg=f"{name}, row {row}", atol=1e-12, rtol=1e-9)


def test_rows_are_independent_and_x_is_shared() -> None:
    weights, x = head(5, 3, seed=7, rows=6)
    grid, shared = weights.view(2, 3, 5), x[0]
    selected = distance.top_set(grid, 2)
    whole = (
        distance.selection_distance(grid, shared, selected),
        distance.distance_bound(grid, shared, selected),
        distance.top_distance_bound(grid, shared, 2),
        distance.expected_distance(grid, shared, 2).upper,
    )
    for i, j in itertools.product(range(2), range(3)):
        w = grid[i, j]
        best = distance.top_set(w, 2)
        one = (
            distance.selection_distance(w, shared, best),
            distance.distance_bound(w, shared, best),
            distance.top_distance_bound(w, shared, 2),
            distance.expected_distance(w, shared, 2).upper,
        )
        for together, alone in zip(whole, one, strict=True):
            torch.testing.assert_close(together[i, j], alone)
    several = distance.expected_distance(weights[0], x, 2).main  # one row, several sets of vectors
    assert several.shape == (6,)
    torch.testing.assert_close(several[3], distance.expected_distance(weights[0], x[3], 2).main)
    assert distance.top_distance_bound(weights[0], x, 2).shape == (6,)


def test_real_lengths_are_cheap() -> None:
    (weights,), (x,) = head(16384, 64, seed=9)
    selected = distance.top_set(weights, 20)
    assert distance.selection_distance(weights, x, selected) <= distance.distance_bound(weights, x, selected)
    assert distance.expected_distance(weights, x, 20).upper.isfinite()


def test_errors_say_what_is_wrong() -> None:
    weights, x = [0.5, 0.5], [[1.0], [2.0]]
    with pytest.raises(InvalidValue, match="top = 3: must be a number of selected tokens between 0 and 2"):
        distance.expected_distance(weights, x, 3)
    with pytest.raises(InvalidValue, match="top = -1"):
        distance.top_set(weights, -1)
    with pytest.raises(InvalidTensor, match=r"x has shape \(3, 1\)"):
        distance.expected_distance(weights, [[1.0]] * 3, 1)
    with pytest.raises(InvalidTensor, match=r"selected has dtype torch.int64"):
        distance.selection_distance(weights, x, torch.tensor([1, 0]))
    with pytest.raises(InvalidTensor, match=r"visible has dtype torch.bool and shape \(3,\)"):
        distance.expected_distance(weights, x, 1, torch.ones(3, dtype=torch.bool))
    with pytest.raises(InvalidTensor, match="at least one weight"):
        distance.top_set(0.5, 0)
    with pytest.raises(InvalidValue, match=r"sums to 1\.5"):
        distance.distance_bound([0.5, 1.0], x, torch.tensor([True, False]))
    with pytest.raises(InvalidValue, match="can be enumerated"):
        distance.enumerated_distance([1 / 40] * 40, [[1.0]] * 40, 20)
