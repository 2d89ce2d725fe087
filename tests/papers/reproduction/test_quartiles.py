"""Quantiles are torch's, bit for bit, and go on where torch stops."""

from __future__ import annotations

import math

import pytest
import torch

from undilute_papers.reproduction.quartiles import QUARTILES, quantiles, quartiles

AT = torch.tensor([0.0, 0.1, 0.25, 0.5, 0.9, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 270, 1001])
def test_quantiles_are_torchs(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    assert torch.equal(quantiles(values, AT), values.quantile(AT))


def test_more_values_than_torch_takes() -> None:
    values = torch.arange(2**24 + 1, dtype=torch.float64)
    assert torch.equal(quantiles(values, AT), AT * 2**24)


def test_the_five_of_a_box() -> None:
    assert quartiles(torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0], dtype=torch.float64)) == dict(
        zip(QUARTILES, [1.0, 2.0, 3.0, 4.0, 5.0], strict=True)
    )
    assert all(math.isnan(value) for value in quartiles(torch.zeros(0, dtype=torch.float64)).values())
