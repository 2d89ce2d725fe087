"""Numbers and ticks."""

from __future__ import annotations

import pytest

from tests.report.charts.samples import NAN
from undilute.report.charts.writing import label, ticks


@pytest.mark.parametrize(
    ("values", "base", "measured", "expected"),
    [
        ([16, 16384], 2, [], [16, 64, 256, 1024, 4096, 16384]),
        ([32, 1024], 2, [32, 64, 128, 256, 512, 1024], [32, 64, 128, 256, 512, 1024]),
        ([1, 100], 10, [1, 5, 10, 20, 100], [1, 5, 10, 20, 100]),
        ([1, 1000], 10, [1, 999, 1000], [1, 10, 100, 1000]),  # 999 would touch 1,000
        ([1e-3, 10], 10, [], [1e-3, 1e-2, 1e-1, 1, 10]),
        ([30, 400], 10, [], [50, 100, 200]),
        ([3.0, 3.1], 10, [], [3.0, 3.1]),
        ([5.0, 5.0], 2, [5.0], [5.0]),
    ],
)
def test_logarithmic_ticks(values: list[float], base: int, measured: list[float], expected: list[float]) -> None:
    assert ticks(values, base, measured) == pytest.approx(expected)


def test_ticks_never_crowd_the_axis() -> None:
    for decades in range(1, 40):
        assert len(ticks([1.0, 10.0**decades], 10)) <= 9


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16384, "16,384"),
        (1_048_576, "1,048,576"),
        (0.001, "0.001"),
        (0.0001, "0.0001"),
        (1e-5, "10⁻⁵"),
        (-2.5e-7, "−2.5·10⁻⁷"),
        (0, "0"),
        (-0.0, "0"),
        (NAN, "–"),
        (99.996, "100"),
        (999_999.7, "1,000,000"),
        (9_999_999.7, "10⁷"),
        (10_000_000, "10,000,000"),
        (5e-324, "4.941·10⁻³²⁴"),
    ],
)
def test_numbers_are_written_as_people_write_them(value: float, text: str) -> None:
    assert label(value) == text
