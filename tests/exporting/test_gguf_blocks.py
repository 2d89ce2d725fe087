"""Blocks multiplied where they lie, against the gguf package's own dequantisation."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from undilute.errors import InvalidValue
from undilute.exporting import gguf_blocks as blocks

ROWS, COLUMNS = 6, 512
HALF = 2.0**-11  # the largest relative rounding error of a normal float16


def random_blocks(kind: str, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Random whole numbers, with d and m that are ordinary numbers."""
    size, per_block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = generator.integers(0, 256, (ROWS, COLUMNS // size, per_block), dtype=np.uint8)
    for place in blocks.SCALES[kind]:
        number = generator.uniform(0.01, 0.1, (ROWS, COLUMNS // size, 1)).astype(np.float16)
        data[..., place : place + 2] = number.view(np.uint8)
    return data.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", blocks.SCALES)
def test_rows_of_every_type_times_powers_of_two_are_exact(kind: str) -> None:
    data = random_blocks(kind, np.random.default_rng(0))
    factors = np.array([[0.5], [2.0], [1.0], [-4.0], [0.0], [0.25]])
    made = blocks.multiplied("w", data, kind, factors)
    expected = blocks.dequantised("w", data, kind) * factors
    assert np.abs(expected).max() > 0
    assert np.array_equal(blocks.dequantised("w", made.data, kind), expected)
    assert made.error == 0.0


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_rows_times_any_factor_round_only_the_scales(kind: str) -> None:
    data = random_blocks(kind, np.random.default_rng(1))
    factors = np.linspace(0.7, 1.4, ROWS)[:, None]
    made = blocks.multiplied("w", data, kind, factors)
    expected = blocks.dequantised("w", data, kind) * factors
    parts = 2 if len(blocks.SCALES[kind]) == 2 else 1  # d · q + m: each part rounds
    largest = np.abs(expected).max() * (2 * parts)  # parts may cancel
    assert np.abs(blocks.dequantised("w", made.data, kind) - expected).max() <= HALF * largest
    assert 0 < made.error <= HALF
    unchanged = made.data.reshape(ROWS, -1) == data
    assert unchanged.mean() > 0.6  # the whole numbers stay


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_columns_in_whole_blocks(kind: str) -> None:
    data = random_blocks(kind, np.random.default_rng(2))
    factors = np.repeat([2.0, 0.5, 1.0, 4.0], COLUMNS // 4)
    made = blocks.multiplied("w", data, kind, factors)
    assert np.array_equal(blocks.dequantised("w", made.data, kind), blocks.dequantised("w", data, kind) * factors)


def test_blocks_with_several_factors_are_seen() -> None:
    heads = np.repeat([1.0, 2.0, 3.0, 4.0], 64)
    assert blocks.shares_blocks("Q4_1", heads)
    assert not blocks.shares_blocks("Q4_1", np.repeat([1.0, 2.0], 80)[: 5 * 32])
    assert not blocks.shares_blocks("Q6_K", heads)
    assert blocks.shares_blocks("Q6_K", np.repeat([1.0, 2.0], 256))
    assert blocks.shares_blocks("F16", np.arange(5.0))
    assert not blocks.shares_blocks("MXFP4", np.ones(64))


@pytest.mark.parametrize(("factor", "word"), [(1e9, "large"), (1e-7, "small")])
def test_scales_that_float16_cannot_hold_are_refused(factor: float, word: str) -> None:
    data = random_blocks("Q8_0", np.random.default_rng(3))
    with pytest.raises(InvalidValue, match=f"'w' times its factors is too {word} for float16"):
        blocks.multiplied("w", data, "Q8_0", np.full((ROWS, 1), factor))


def test_a_block_that_is_almost_zero_does_not_stop_the_rest() -> None:
    data = random_blocks("Q8_0", np.random.default_rng(4)).reshape(ROWS, -1, 34)
    data[0, 0, :2] = np.array([6e-8], np.float16).view(np.uint8)
    made = blocks.multiplied("w", data.reshape(ROWS, -1), "Q8_0", np.full((ROWS, 1), 0.4))
    assert made.error <= HALF


@pytest.mark.parametrize(("kind", "largest"), [("F32", 0.0), ("F16", HALF), ("BF16", 2.0**-8), ("Q8_0", 1 / 250)])
def test_values_in_another_type(kind: str, largest: float) -> None:
    values = np.random.default_rng(5).normal(size=(4, 64))
    made = blocks.rounded("w", values, kind)
    back = blocks.dequantised("w", made.data, kind)
    assert np.abs(back - values).max() <= max(largest, 1e-7) * np.abs(values).max()
    assert made.error <= largest
    assert (made.error > 0) is (kind != "F32")


def test_rows_that_do_not_fit_q8_0_are_refused() -> None:
    with pytest.raises(InvalidValue, match="multiple of 32"):
        blocks.rounded("w", np.ones((2, 48)), "Q8_0")
