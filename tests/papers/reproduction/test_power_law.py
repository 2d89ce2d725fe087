"""The exponent of powers, of what is no power, and by NumPy's least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from undilute_papers.reproduction.power_law import exponent


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 2.5])
def test_the_exponent_of_a_power_is_its_power(power: float) -> None:
    x = [1e-3, 1e-2, 0.05, 7.0, 1024]
    assert exponent(x, [7 * each**power for each in x]) == pytest.approx(power, abs=1e-12)


def test_least_squares_are_numpys() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.random(20).tolist(), generator.random(20).tolist()
    assert exponent(x, y) == pytest.approx(np.polyfit(np.log(x), np.log(y), 1)[0])


@pytest.mark.parametrize(
    ("x", "y"), [([1.0], [1.0]), ([2.0, 2.0], [1.0, 3.0]), ([1.0, 2.0, 4.0], [1.0, 0.0, 2.0]), ([], [])]
)
def test_what_has_no_exponent(x: list[float], y: list[float]) -> None:
    assert math.isnan(exponent(x, y))
