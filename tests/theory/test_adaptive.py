"""Where adaptive temperature acts: the roots against the rule itself, entropies against the rows they describe."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undilute.errors import InvalidValue
from undilute.measures import entropy
from undilute.rules import EntropyAdaptive, get
from undilute.rules.scales.entropy_adaptive import PUBLISHED
from undilute.theory.adaptive import (
    active_intervals,
    effective_kappa,
    even_entropy,
    peak,
    switch_off_entropy,
    switch_off_length,
    switch_off_ratio,
    uniform_entropy,
)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestIntervals:
    def test_published_roots_to_many_digits(self) -> None:
        with mpmath.workdps(40):
            shifted = [mpmath.mpf(str(c)) for c in PUBLISHED]
            shifted[-1] -= 1
            real = sorted(float(root.real) for root in mpmath.polyroots(shifted) if abs(root.imag) < 1e-20)
        [(low, high)] = active_intervals()
        assert low == pytest.approx(real[-2], abs=1e-9)
        assert high == pytest.approx(real[-1], abs=1e-9)

    @settings(max_examples=60)
    @given(st.lists(st.integers(-20, 20), min_size=1, max_size=5), st.integers(-10, 30))
    def test_beta_exceeds_one_inside_and_nowhere_else(self, tenths: list[int], floor: int) -> None:
        rule = EntropyAdaptive([each / 10 for each in tenths], min_entropy=floor / 10)
        H = torch.linspace(0.0, 12, 197, dtype=torch.float64)
        inside, near = torch.zeros(197, dtype=torch.bool), torch.zeros(197, dtype=torch.bool)
        for low, high in active_intervals(rule):
            inside |= (low < H) & (high > H)
            near |= ((H - low).abs() < 1e-3) | ((H - high).abs() < 1e-3)
        beta = rule.beta(H)
        assert (inside | near | (beta <= 1 + 1e-6)).all()
        assert (~inside | near | (beta > 1 - 1e-6)).all()

    def test_rules_that_always_or_never_act(self) -> None:
        assert active_intervals(EntropyAdaptive([2.0])) == [(0.5, math.inf)]
        assert active_intervals(EntropyAdaptive([0.5])) == []
        assert active_intervals(EntropyAdaptive([1.0, 0.0])) == [(1.0, math.inf)]
        assert switch_off_entropy(EntropyAdaptive([2.0])) == math.inf
        assert switch_off_entropy(EntropyAdaptive([0.5])) == 0

    def test_a_double_root_does_not_split_an_interval(self) -> None:
        rule = EntropyAdaptive([1.0, -4.0, 5.0], min_entropy=0.0)  # 1 + (H − 2)²
        assert active_intervals(rule) in ([(0.0, math.inf)], [(0.0, 2.0), (2.0, math.inf)])
        assert switch_off_entropy(rule) == math.inf

    def test_two_intervals(self) -> None:
        rule = EntropyAdaptive([-1.0, 10.0, -35.0, 50.0, -23.0], min_entropy=0.0)  # 1 − (H−1)(H−2)(H−3)(H−4)
        intervals = active_intervals(rule)
        assert [round(end, 6) for interval in intervals for end in interval] == [1, 2, 3, 4]


class TestPeak:
    def test_published(self) -> None:
        grid = torch.linspace(0, 8, 400_001, dtype=torch.float64)
        beta = EntropyAdaptive().beta(grid)
        where, largest = peak()
        assert largest == pytest.approx(beta.max().item(), abs=1e-9)
        assert where == pytest.approx(grid[beta.argmax()].item(), abs=1e-3)
        assert largest >= beta.max() - 1e-12

    def test_others(self) -> None:
        assert peak(EntropyAdaptive([0.5])) == (0, 1)
        assert peak(EntropyAdaptive([3.0])) == (0.5, 3)
        assert peak(EntropyAdaptive([1.0, 0.0])) == (math.inf, math.inf)
        where, largest = peak(EntropyAdaptive([-1.0, 4.0], min_entropy=0.5))
        assert (where, largest) == (0.5, 3.5)


class TestEntropy:
    @pytest.mark.parametrize("n", [1, 2, 10, 3000])
    @pytest.mark.parametrize("kappa", [0.01, 1.0, 20.0, 900.0])
    def test_evenly_spaced_rows(self, n: int, kappa: float) -> None:
        row = (-kappa / n * torch.arange(n, dtype=torch.float64)).softmax(-1)
        torch.testing.assert_close(even_entropy(n, double(kappa))[0], entropy(row), rtol=1e-9, atol=1e-9)

    def test_uniform_is_the_limit_of_even(self) -> None:
        kappa = double(0.1, 1, 10, 100)
        for n in (1e4, 1e6):
            step = (kappa / n).square() / 24
            torch.testing.assert_close(even_entropy(n, kappa) - uniform_entropy(n, kappa), step, rtol=1e-2, atol=1e-10)

    def test_random_rows(self) -> None:
        """Standard deviation of one row's entropy is about √(κ/(4n)): 0.035 here, over √400 rows."""
        generator = torch.Generator().manual_seed(1)
        z = 20 * torch.rand(400, 4000, generator=generator, dtype=torch.float64)
        H = entropy(z.softmax(-1))
        assert H.std() < 0.07
        assert H.mean().item() == pytest.approx(uniform_entropy(4000, 20.0).item(), abs=5 * 0.07 / 20)

    def test_wide_intervals_are_asymptotic(self) -> None:
        assert uniform_entropy(16384, 90.0).item() == pytest.approx(math.log(16384 / 90) + 1, abs=1e-12)


class TestSwitchOff:
    @given(st.floats(1e-3, 1e5))
    def test_is_where_the_entropy_reaches_the_root(self, kappa: float) -> None:
        k = double(kappa)
        n = switch_off_length(k)
        torch.testing.assert_close(even_entropy(n, k), double(switch_off_entropy()), rtol=1e-10, atol=0)

    def test_the_rule_itself_stops_there(self) -> None:
        adaptive = get("adaptive")
        n = int(switch_off_length(10.0))
        for size, sharper in ((n - 1, True), (n + 2, False)):
            z = -10.0 / size * torch.arange(size, dtype=torch.float64)
            assert bool(adaptive(z)[0] > z.softmax(-1)[0] * (1 + 1e-9)) is sharper

    def test_asymptotic_ratio(self) -> None:
        assert switch_off_ratio() == pytest.approx(140.4, abs=0.05)
        kappa = double(30, 1000)
        torch.testing.assert_close(
            switch_off_length(kappa) / kappa, double(1, 1) * switch_off_ratio(), rtol=1e-5, atol=0
        )

    def test_no_interval_needs_as_many_keys_as_a_uniform_row(self) -> None:
        assert switch_off_length(1e-9).item() == pytest.approx(math.exp(switch_off_entropy()))

    def test_early_switch_off(self) -> None:
        """An upper root far below 1, where the spacing a is not small."""
        rule = EntropyAdaptive([-10.0, 3.0], min_entropy=0.0)  # β > 1 for H < 0.2
        n = switch_off_length(double(5.0, 50.0), rule)
        torch.testing.assert_close(even_entropy(n, double(5.0, 50.0)), double(0.2, 0.2), rtol=1e-9, atol=0)

    def test_effective_kappa_inverts_the_entropy(self) -> None:
        kappa, n = double(20, 90, 500), 1e6
        torch.testing.assert_close(effective_kappa(n, uniform_entropy(n, kappa)), kappa, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uniform_entropy(0, 1.0), "n = 0"),
        (lambda: even_entropy(5, 0.0), "kappa = 0"),
        (lambda: switch_off_length(-1.0), "kappa = -1"),
        (lambda: switch_off_length(1.0, EntropyAdaptive([0.5])), "entropy of 0"),
        (lambda: switch_off_ratio(EntropyAdaptive([2.0])), "entropy of inf"),
        (lambda: effective_kappa(5, -1.0), "entropy = -1"),
    ],
)
def test_errors_name_the_value(call: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        call()
