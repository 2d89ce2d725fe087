"""The bounds on softmax weights against the weights themselves, extreme rows and 50-digit arithmetic."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import rows, some_mask
from undilute.errors import InvalidTensor, InvalidValue
from undilute.measures import entropy, entropy_of_logits
from undilute.rules import Entmax, Rule, get
from undilute.theory import dispersion
from undilute.theory.dispersion import (
    dispersed_length,
    doubling_ratio,
    effective_keys_bounds,
    entropy_deficit_bound,
    entropy_slope,
    gap_to_hold,
    general_weight_bounds,
    logit_spread,
    relevant_weight,
    scale_to_hold,
    spread_bound,
    spread_to_hold,
    ssmax_limit,
    ssmax_weight,
    weight_bounds,
)

logits = st.lists(st.floats(-30, 30), min_size=1, max_size=12)
temperatures = st.floats(0.1, 10)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def needle(n: int, gap: float) -> torch.Tensor:
    z = torch.zeros(n, dtype=torch.float64)
    z[0] = gap
    return z


class TestDilutionLaw:
    @pytest.mark.parametrize("n", [1, 2, 7, 1000])
    @pytest.mark.parametrize("gap", [-5.0, 0.0, 0.5, 8.0])
    @pytest.mark.parametrize("temperature", [0.5, 1.0, 8.0])
    def test_is_the_weight_of_the_row(self, n: int, gap: float, temperature: float) -> None:
        expected = (needle(n, gap) / temperature).softmax(-1)[0]
        torch.testing.assert_close(relevant_weight(n, gap, temperature), expected, rtol=1e-13, atol=0)

    @pytest.mark.parametrize(("n", "gap"), [(10**6, 8), (10**12, 3), (2, 700), (100, 5000), (10**9, -800)])
    def test_against_fifty_digits(self, n: int, gap: int) -> None:
        with mpmath.workdps(50):
            once = 1 / (1 + (n - 1) * mpmath.exp(-gap))
            twice = 1 / (1 + (2 * n - 1) * mpmath.exp(-gap))
            expected, ratio = float(once), float(twice / once)
        assert relevant_weight(n, float(gap)).item() == pytest.approx(expected, rel=1e-12, abs=1e-320)
        assert doubling_ratio(n, float(gap)).item() == pytest.approx(ratio, rel=1e-12)

    def test_doubling_is_between_a_half_and_one(self) -> None:
        n, gap = double(1, 3, 100, 1e6)[:, None], double(0, 1, 8, 30)
        ratio = doubling_ratio(n, gap)
        assert ratio.shape == (4, 4)
        assert ((ratio >= 0.5 - 1e-12) & (ratio <= 1)).all()
        torch.testing.assert_close(ratio, relevant_weight(2 * n, gap) / relevant_weight(n, gap))


class TestHoldingAWeight:
    @given(st.floats(0.001, 0.999), st.integers(2, 10**9), temperatures)
    def test_gap_inverts_the_law(self, c: float, n: int, theta: float) -> None:
        weight, temperature = double(c), double(theta)
        gap = gap_to_hold(weight, n, temperature)
        torch.testing.assert_close(relevant_weight(n, gap, temperature), weight, rtol=1e-9, atol=0)
        assert spread_to_hold(weight, n, temperature) == gap.clamp(min=0.0)

    @given(logits.filter(lambda z: len(z) > 1), temperatures)
    def test_no_row_does_with_less_spread(self, z: list[float], theta: float) -> None:
        top = (double(*z) / theta).softmax(-1).max()
        if top < 1 - 1e-9:
            needed = spread_to_hold(top, len(z), double(theta))
            assert logit_spread(double(*z)) >= needed * (1 - 1e-6) - 1e-6

    def test_scale(self) -> None:
        scale = scale_to_hold(0.5, [100, 10_000], gap=6.0)
        for n, factor in zip((100, 10_000), scale, strict=True):
            assert (factor * needle(n, 6.0)).softmax(-1)[0].item() == pytest.approx(0.5)
        assert scale_to_hold(0.25, 4, gap=1.0) == 0
        assert scale_to_hold(0.125, 4, gap=1.0) == 0


class TestWeightBounds:
    @given(logits, temperatures)
    def test_hold_for_any_row(self, z: list[float], theta: float) -> None:
        p = (double(*z) / theta).softmax(-1)
        lower, upper = weight_bounds(len(z), logit_spread(double(*z)), double(theta))
        assert p.min() >= lower * (1 - 1e-9)
        assert p.max() <= upper * (1 + 1e-9)

    @pytest.mark.parametrize("n", [1, 2, 3, 500])
    @pytest.mark.parametrize("spread", [0.0, 0.5, 5.0, 60.0])
    def test_are_attained(self, n: int, spread: float) -> None:
        lower, upper = weight_bounds(n, spread)
        torch.testing.assert_close(needle(n, spread).softmax(-1)[0], upper, rtol=1e-12, atol=0)
        torch.testing.assert_close(needle(n, -spread).softmax(-1)[0], lower, rtol=1e-12, atol=0)

    def test_are_inside_the_printed_ones(self) -> None:
        n, spread = double(1, 2, 100, 1e6)[:, None], double(0, 1, 10)
        lower, upper = weight_bounds(n, spread)
        assert (lower >= (-spread).exp() / n * (1 - 1e-12)).all()
        assert (upper <= spread.exp() / n * (1 + 1e-12)).all()
        assert (upper <= 1).all()

    def test_of_real_heads_at_once(self) -> None:
        z, mask = rows(4, 6, 40, seed=3), some_mask(4, 6, 40, seed=4)
        n = mask.sum(-1)
        p = z.masked_fill(~mask, -torch.inf).softmax(-1)
        lower, upper = weight_bounds(n, logit_spread(z, mask))
        assert (p.amax(-1) <= upper + 1e-12).all()
        assert (p.masked_fill(~mask, 1.0).amin(-1) >= lower - 1e-12).all()

    def test_huge_spread_does_not_overflow(self) -> None:
        lower, upper = weight_bounds(1000, 1e6)
        assert (lower, upper) == (0, 1)


class TestGeneralWeightBounds:
    @given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
    def test_hold_for_any_positive_values(self, values: list[float]) -> None:
        f = double(*values)
        p = f / f.sum()
        lower, upper = general_weight_bounds(len(values), f.min(), f.max())
        assert p.min() >= lower * (1 - 1e-12)
        assert p.max() <= upper * (1 + 1e-12)

    def test_softmax_is_the_special_case(self) -> None:
        spread = double(0, 1, 7)
        expected = weight_bounds(50, spread)
        got = general_weight_bounds(50, torch.ones(3), spread.exp())
        torch.testing.assert_close(got, expected)

    def test_zeros_lift_the_bound(self) -> None:
        """Sparse rules: nothing forces a weight below 1, at any n, and entmax attains it."""
        assert general_weight_bounds(10**6, 0.0, 2.0) == (0, 1)
        p = Rule(map=Entmax(1.5))(needle(10**4, 2.0))
        assert p[0] == 1.0

    def test_one_key(self) -> None:
        for low in (0.0, 1.0, 3.0):
            assert general_weight_bounds(1, low, 3.0) == (1, 1)


class TestSpread:
    def test_mask_is_truncation(self) -> None:
        z, mask = rows(30, 12, seed=5), some_mask(30, 12, seed=6)
        got = logit_spread(z.masked_fill(~mask, -torch.inf), mask)
        expected = torch.stack([z[i, mask[i]].max() - z[i, mask[i]].min() for i in range(30)])
        torch.testing.assert_close(got, expected)

    def test_degenerate_rows(self) -> None:
        assert logit_spread([3.0]) == 0
        assert logit_spread([2.0, 2.0, 2.0]) == 0
        assert logit_spread([1.0, 5.0], torch.tensor([False, False])) == 0

    def test_bound_by_the_weights(self) -> None:
        generator = torch.Generator().manual_seed(7)
        query, key = torch.randn(2, 200, 5, 5, generator=generator, dtype=torch.float64).unbind()
        y, x = rows(200, 5, seed=8), rows(200, 9, 5, seed=9)
        z = ((query @ y[..., None]).mT @ key @ x.mT)[:, 0] / math.sqrt(5)
        sigma = [torch.linalg.matrix_norm(each, ord=2) for each in (query, key)]
        bound = spread_bound(y.norm(dim=-1), x.norm(dim=-1).amax(-1), *sigma, temperature=double(5).sqrt())
        assert (logit_spread(z) <= bound).all()

    def test_bound_is_tight(self) -> None:
        assert spread_bound(2.0, 3.0, 4.0, 5.0) == 240
        assert logit_spread([4.0 * 2 * 5 * 3, -4.0 * 2 * 5 * 3]) == 240
        assert spread_bound(0.0, 3.0) == 0


class TestDispersedLength:
    @given(st.floats(0.01, 0.99), st.floats(0, 12))
    def test_is_the_first_length(self, epsilon: float, spread: float) -> None:
        share, delta = double(epsilon), double(spread)
        n = dispersed_length(share, delta)
        assert weight_bounds(n, delta).upper < share * (1 + 1e-12)
        if n > 1:
            assert weight_bounds(n - 1, delta).upper >= share * (1 - 1e-12)
        assert n <= delta.exp() / share + 1 + 1e-6

    def test_extremes(self) -> None:
        assert dispersed_length(0.5, 0.0) == 3
        assert dispersed_length(0.5, 5.69) == 297
        assert dispersed_length(0.5, 1e4) == math.inf


class TestEntropy:
    @settings(max_examples=300)
    @given(logits, temperatures)
    def test_deficit_is_bounded(self, z: list[float], theta: float) -> None:
        n, row = len(z), double(*z)
        H = entropy((row / theta).softmax(-1))
        deficit = math.log(n) - H
        assert -1e-12 <= deficit <= entropy_deficit_bound(logit_spread(row), double(theta)) + 1e-12
        lower, upper = effective_keys_bounds(n, logit_spread(row), double(theta))
        assert lower * (1 - 1e-12) <= H.exp() <= upper * (1 + 1e-12)

    def test_both_branches_are_tight(self) -> None:
        halves = double(0.0, 0.01).softmax(-1)
        assert (math.log(2) - entropy(halves)) / entropy_deficit_bound(double(0.01)) == pytest.approx(1, abs=1e-4)
        assert entropy_deficit_bound([2.0, 8.0, 10.0]).tolist() == [0.5, 8.0, 10.0]

    def test_effective_keys_of_wide_rows(self) -> None:
        assert effective_keys_bounds(10, 50.0) == (1, 10)
        assert effective_keys_bounds(1, 0.0) == (1, 1)

    def test_slope_against_autograd(self) -> None:
        z, mask = rows(40, 9, seed=10), some_mask(40, 9, seed=11)
        scale = torch.linspace(0.1, 3, 40, dtype=torch.float64).requires_grad_()
        H = entropy_of_logits(scale[:, None] * z, mask)
        (expected,) = torch.autograd.grad(H.sum(), scale)
        torch.testing.assert_close(entropy_slope(z, scale, mask), expected, rtol=1e-9, atol=1e-12)

    def test_slope_of_one_key_and_of_ties_is_zero(self) -> None:
        assert entropy_slope([3.0]) == 0
        assert entropy_slope([2.0, 2.0]) == 0
        assert entropy_slope([0.0, 1.0], scale=0.0) == 0


class TestScalableSoftmax:
    @pytest.mark.parametrize("n", [1, 2, 50])
    @pytest.mark.parametrize("gap", [-1.0, 0.8, 1.0, 2.5])
    def test_is_the_weight_of_the_rule(self, n: int, gap: float) -> None:
        expected = get("ssmax", s=0.7)(needle(n, gap))[0]
        torch.testing.assert_close(ssmax_weight(n, double(gap), double(0.7))[0], expected)

    def test_tends_to_its_limit(self) -> None:
        gap = double(0.5, 0.9, 1.0, 1.1, 2.0)
        far = ssmax_weight(double(1e300), gap)
        torch.testing.assert_close(far, ssmax_limit(gap), rtol=0, atol=1e-12)
        assert ssmax_limit(double(10.0), double(0.1)) == 0.5


def test_takes_arrays_lists_and_numbers() -> None:
    expected = weight_bounds(torch.tensor([2, 3]), torch.tensor([1.0, 2.0])).upper
    assert expected.dtype == torch.float64
    for n, spread in (([2, 3], [1.0, 2.0]), (torch.tensor([2.0, 3.0]).numpy(), torch.tensor([1.0, 2.0]).numpy())):
        torch.testing.assert_close(weight_bounds(n, spread).upper, expected)
    one_by_one = [weight_bounds(n, spread).upper for n, spread in ((2, 1.0), (3, 2.0))]
    torch.testing.assert_close(torch.stack(one_by_one), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: relevant_weight(0, 1.0), "n = 0"),
        (lambda: relevant_weight(5, 1.0, temperature=0.0), "temperature = 0"),
        (lambda: relevant_weight(5, math.nan), "gap = nan"),
        (lambda: gap_to_hold(1.0, 5), "weight = 1"),
        (lambda: gap_to_hold(0.5, 1), "n = 1"),
        (lambda: scale_to_hold(0.5, 5, gap=0.0), "gap = 0"),
        (lambda: weight_bounds(5, -1.0), "spread = -1"),
        (lambda: general_weight_bounds(5, 2.0, 1.0), "smallest"),
        (lambda: general_weight_bounds(5, 0.0, 0.0), "largest = 0"),
        (lambda: dispersed_length(0.0, 1.0), "epsilon = 0"),
        (lambda: spread_bound(-1.0, 1.0), "query_norm = -1"),
        (lambda: logit_spread([1.0, math.inf]), "logits = inf"),
        (lambda: ssmax_weight(5, math.inf), "gap = inf"),
    ],
)
def test_errors_name_the_value(call: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        call()


def test_a_row_is_needed() -> None:
    with pytest.raises(InvalidTensor, match="at least one key"):
        logit_spread(3.0)
    assert dispersion.Bounds._fields == ("lower", "upper")
