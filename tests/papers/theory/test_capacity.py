"""Information of weights against its definitions, coverage against enumeration of the heads."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import rows, some_mask
from undilute.errors import InvalidTensor, InvalidValue
from undilute.measures import entropy
from undilute_papers.theory.capacity import (
    capacity_deficit,
    coverage,
    coverage_bounds,
    effective_keys,
    heads_needed,
    mutual_information,
    needle_deficit,
    output_capacity,
    pointwise_gain,
    surprisal,
)

shares = st.floats(0, 1)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestRows:
    def test_deficit_is_ln_n_minus_entropy(self) -> None:
        p = rows(5, 40, 17, seed=1).softmax(-1)
        torch.testing.assert_close(capacity_deficit(p), math.log(17) - entropy(p))
        torch.testing.assert_close(effective_keys(p), entropy(p).exp())

    def test_deficit_is_the_divergence_from_uniform(self) -> None:
        p = rows(40, 17, seed=2).softmax(-1)
        uniform = torch.full_like(p, 1 / 17)
        expected = torch.nn.functional.kl_div(uniform.log(), p.log(), reduction="none", log_target=True).sum(-1)
        torch.testing.assert_close(capacity_deficit(p), expected)

    def test_mask_is_truncation(self) -> None:
        z, mask = rows(30, 12, seed=3), some_mask(30, 12, seed=4)
        p = z.masked_fill(~mask, -torch.inf).softmax(-1)
        noise = p.masked_fill(~mask, 0.4)
        for i in range(30):
            alone = p[i, mask[i]]
            torch.testing.assert_close(capacity_deficit(noise, mask)[i], capacity_deficit(alone))
            torch.testing.assert_close(effective_keys(noise, mask)[i], effective_keys(alone))

    def test_extremes(self) -> None:
        assert capacity_deficit([1.0]) == 0
        assert effective_keys([1.0]) == 1
        assert capacity_deficit([0.25] * 4) == 0
        assert capacity_deficit([1.0, 0.0, 0.0]).item() == pytest.approx(math.log(3))
        assert effective_keys([0.0, 0.5, 0.5]).item() == pytest.approx(2)

    def test_pointwise(self) -> None:
        p = rows(20, 9, seed=5).softmax(-1)
        torch.testing.assert_close(surprisal(p), -p.log())
        torch.testing.assert_close((p * pointwise_gain(p, 9)).sum(-1), capacity_deficit(p))
        assert surprisal(0.0) == math.inf
        assert surprisal(1.0) == 0
        assert pointwise_gain(0.0, 5) == -math.inf


class TestNeedle:
    @pytest.mark.parametrize("n", [1, 2, 5, 1000])
    @pytest.mark.parametrize("gap", [-4.0, 0.0, 0.5, 6.0])
    @pytest.mark.parametrize("temperature", [0.5, 1.0])
    def test_is_the_deficit_of_the_row(self, n: int, gap: float, temperature: float) -> None:
        z = torch.zeros(n, dtype=torch.float64)
        z[0] = gap
        expected = capacity_deficit((z / temperature).softmax(-1))
        torch.testing.assert_close(needle_deficit(n, gap, temperature), expected, rtol=1e-9, atol=1e-15)

    @pytest.mark.parametrize(("n", "gap"), [(10**9, 0.5), (10**6, 30), (10**3, 599), (10**3, 601), (10, 5000)])
    def test_against_fifty_digits(self, n: int, gap: float) -> None:
        with mpmath.workdps(50):
            R = mpmath.exp(gap)
            alpha = R / (R + n - 1)
            expected = float(alpha * gap - mpmath.log((R + n - 1) / n))
        assert needle_deficit(n, double(gap)).item() == pytest.approx(expected, rel=1e-6, abs=1e-13)

    def test_tends_to_its_leading_term(self) -> None:
        gap = double(0.5, 1.0, 3.0)
        leading = (gap.exp() * (gap - 1) + 1) / 1e7
        torch.testing.assert_close(needle_deficit(1e7, gap), leading, rtol=1e-4, atol=0)


class TestMutualInformation:
    def test_against_the_entropies(self) -> None:
        joint = rows(50, 12, seed=6, spread=4.0).softmax(-1).reshape(50, 3, 4)
        expected = entropy(joint.sum(-1)) + entropy(joint.sum(-2)) - entropy(joint.flatten(-2))
        torch.testing.assert_close(mutual_information(joint), expected, rtol=1e-9, atol=1e-12)
        assert (mutual_information(joint) <= entropy(joint.sum(-1)) + 1e-12).all()

    def test_extremes(self) -> None:
        p, q = rows(4, seed=7).softmax(-1), rows(5, seed=8).softmax(-1)
        assert mutual_information(p[:, None] * q).item() == pytest.approx(0, abs=1e-12)
        torch.testing.assert_close(mutual_information(torch.diag(p)), entropy(p))
        assert mutual_information([[1.0]]) == 0

    def test_zeros_cost_nothing(self) -> None:
        padded = torch.zeros(3, 4, dtype=torch.float64)
        padded[:2, :2] = torch.tensor([[0.4, 0.1], [0.2, 0.3]])
        torch.testing.assert_close(mutual_information(padded), mutual_information(padded[:2, :2]))


class TestCoverage:
    @given(shares, st.integers(0, 6))
    def test_against_enumeration(self, p: float, heads: int) -> None:
        patterns = itertools.product((0, 1), repeat=heads)
        expected = sum(math.prod(p if hit else 1 - p for hit in each) for each in patterns if any(each))
        assert coverage(double(p), heads).item() == pytest.approx(expected, abs=1e-12)

    @given(st.floats(0.01, 1), st.floats(0, 0.9999))
    def test_heads_needed_is_the_smallest_number(self, p: float, target: float) -> None:
        share, goal = double(p), double(target)
        heads = heads_needed(share, goal)
        assert heads == heads.round()
        assert coverage(share, heads) >= goal - 1e-15
        if heads > 0:
            assert coverage(share, heads - 1) < goal

    def test_exact_powers_do_not_ask_for_one_more(self) -> None:
        for p in (0.1, 0.5, 0.7, 0.8, 0.9):
            for heads in range(1, 12):
                goal = coverage(double(p), heads)
                assert heads_needed(double(p), goal) == heads

    def test_extremes(self) -> None:
        assert heads_needed(0.0, 0.5) == math.inf
        assert heads_needed(0.5, 1.0) == math.inf
        assert heads_needed(1.0, 1.0) == 1
        assert heads_needed(0.0, 0.0) == 0
        assert coverage(1.0, 0) == 0
        assert coverage(1.0, 3) == 1
        assert coverage(0.0, 3) == 0

    @given(st.lists(st.floats(0, 1), min_size=8, max_size=8).filter(lambda law: sum(law) > 0.1))
    def test_bounds_hold_for_any_joint_law(self, law: list[float]) -> None:
        patterns = list(itertools.product((0, 1), repeat=3))
        total = 6 * sum(law)
        p = covered = 0.0
        for weight, pattern in zip(law, patterns, strict=True):
            for order in itertools.permutations(pattern):
                p += weight / total * order[0]
                covered += weight / total * any(order)
        lower, upper = coverage_bounds(double(p).clamp(max=1.0), 3)
        assert lower - 1e-9 <= covered <= upper + 1e-9

    def test_bounds_contain_independence(self) -> None:
        p = torch.linspace(0, 1, 50, dtype=torch.float64)
        for heads in (1, 2, 7):
            lower, upper = coverage_bounds(p, heads)
            value = coverage(p, heads)
            assert ((lower <= value + 1e-12) & (value <= upper + 1e-12)).all()


def test_output_capacity_counts_values() -> None:
    values = {tuple(each) for each in itertools.product(range(2**3), repeat=4)}
    assert output_capacity(4, 3) == math.log2(len(values))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: surprisal(1.5), "weight = 1.5"),
        (lambda: pointwise_gain(0.5, 0), "n = 0"),
        (lambda: capacity_deficit([0.5, 0.2]), "sums to 0.7"),
        (lambda: effective_keys([1.5, -0.5]), "weights = -0.5"),
        (lambda: needle_deficit(5, 1.0, 0.0), "temperature = 0"),
        (lambda: mutual_information([[0.5, 0.2]]), "sums to 0.7"),
        (lambda: coverage(1.2, 3), "probability = 1.2"),
        (lambda: coverage(0.5, -1), "heads = -1"),
        (lambda: coverage_bounds(0.5, 0), "heads = 0"),
        (lambda: heads_needed(0.5, -0.1), "target = -0.1"),
        (lambda: output_capacity(0, 8), "dimension = 0"),
    ],
)
def test_errors_name_the_value(call: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        call()


def test_a_table_is_needed() -> None:
    with pytest.raises(InvalidTensor, match="tables"):
        mutual_information([0.5, 0.5])
