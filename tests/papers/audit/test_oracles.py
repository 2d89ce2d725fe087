"""The parts of the checks that have an oracle of their own."""

from __future__ import annotations

import math

import pytest
import torch

from undilute_papers.audit import blog, geometry, selection


def test_equilateral_sets_are_equilateral() -> None:
    x = geometry.equilateral(5, torch.tensor([0.3, 1.2], dtype=torch.float64))
    apart = torch.cdist(x, x)[:, ~torch.eye(5, dtype=torch.bool)]
    torch.testing.assert_close(apart, torch.tensor([[0.3], [1.2]], dtype=torch.float64).expand_as(apart))
    torch.testing.assert_close(geometry.smallest_separation(x), torch.tensor([0.3, 1.2], dtype=torch.float64))


def test_the_statistic_is_scipys() -> None:
    from scipy.stats import ks_2samp

    a, b = selection.normal(torch.Generator().manual_seed(0), 2, 90)
    assert selection.largest_gap(a, b) == pytest.approx(ks_2samp(a.numpy(), b.numpy()).statistic)
    cut = selection.critical_distance(144, 0.01)
    assert (
        ks_2samp(torch.arange(144).numpy(), torch.arange(144).numpy() + 144 * (cut + 0.01), method="asymp").pvalue
        < 0.01
    )


def test_the_table_shows_both() -> None:
    rows = blog.table()
    assert list(rows) == list(blog.RECOMPUTED)
    for n, (printed, computed) in rows.items():
        assert printed == blog.PRINTED[n] or math.isnan(printed.effective_keys)
        assert computed.alpha == pytest.approx(math.exp(0.5) / (math.exp(0.5) + n - 1), rel=1e-12)
        assert computed.effective_keys <= n
