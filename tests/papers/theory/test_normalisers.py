"""Norms of any normaliser's Jacobian against dense singular values and 50-digit arithmetic, and their bounds."""

from __future__ import annotations

import itertools
import math

import mpmath  # comes with torch
import pytest
import torch
from torch import Tensor

from tests.cases import rows, some_mask
from tests.theory.test_jacobian import awkward, dense, real
from undilute.errors import InvalidTensor, InvalidValue
from undilute_papers.theory import normalisers


def slopes(*shape: int, seed: int) -> Tensor:
    """Of both signs, over many orders of magnitude, some 0."""
    g = rows(*shape, seed=seed, spread=1.0) * rows(*shape, seed=seed + 1, spread=3.0).exp()
    return g.masked_fill(rows(*shape, seed=seed + 2) > 3, 0.0)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 60])
def test_normaliser_norm_equals_dense_singular_values(n: int) -> None:
    p = torch.cat(
        [rows(40, n, seed=n, spread=spread).softmax(-1) for spread in (0.0, 1e-8, 1.0, 6.0, 40.0)] + [awkward(n)]
    )
    for g in (slopes(*p.shape, seed=20), torch.ones_like(p), slopes(*p.shape, seed=30).sign()):
        scale = g.abs().amax(-1).clamp(min=1e-300)
        expected = torch.linalg.svdvals(dense(p) * g.unsqueeze(-2))[:, 0]
        got = normalisers.normaliser_spectral_norm(p, g)
        torch.testing.assert_close(got / scale, expected / scale, rtol=0, atol=1e-13)
    torch.testing.assert_close(
        normalisers.normaliser_spectral_norm(p, torch.zeros_like(p)), torch.zeros(len(p)).double()
    )


def test_normaliser_norm_with_tied_diagonals() -> None:
    """α²g² equal for many keys: the poles of the secular functions coincide."""
    p = rows(50, 7, seed=40).softmax(-1)
    g = 1 / p
    g[:, 3:] *= 0.5
    expected = torch.linalg.svdvals(dense(p) * g.unsqueeze(-2))[:, 0]
    torch.testing.assert_close(normalisers.normaliser_spectral_norm(p, g), expected, rtol=1e-12, atol=0)


def test_normaliser_bounds_and_masks() -> None:
    F, slope, mask = rows(40, 10, seed=41).exp(), rows(40, 10, seed=42), some_mask(40, 10, seed=43)
    mask[:, 0] = True
    p = (F * mask) / (F * mask).sum(-1, keepdim=True)
    norm = normalisers.normaliser_spectral_norm(p, slope / F, visible=mask)
    bound = normalisers.projector_bound(F, slope, visible=mask)
    caps = normalisers.normaliser_suprema(slope / F, visible=mask)
    assert (norm <= bound + 1e-12).all()
    assert (norm <= caps.spectral + 1e-12).all()
    for i in range(40):
        f, s = F[i, mask[i]], slope[i, mask[i]]
        torch.testing.assert_close(
            norm[i], normalisers.normaliser_spectral_norm(f / f.sum(), s / f), rtol=1e-12, atol=1e-15
        )
        torch.testing.assert_close(bound[i], normalisers.projector_bound(f, s), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(caps.entry[i], normalisers.normaliser_suprema(s / f).entry)
    equal = torch.ones_like(F)
    exact = normalisers.normaliser_spectral_norm(F / F.sum(-1, keepdim=True), equal / F)
    torch.testing.assert_close(normalisers.projector_bound(F, equal), exact, rtol=1e-12, atol=0)
    assert float(normalisers.projector_bound([2.0], [1.0])) == 0


@pytest.mark.parametrize(
    "weights", [[1, 1e-12], [1, 1e-20, 1e-21], [1, 1e-30, 1e-30], [0.7, 0.2, 0.1], [1, 1 - 1e-9, 0.5]]
)
def test_relative_accuracy_in_fifty_digits(weights: list[float]) -> None:
    with mpmath.workdps(60):
        w = [mpmath.mpf(x) for x in weights]
        p = [x / sum(w) for x in w]
        J = mpmath.matrix(len(p), len(p))
        for i, j in itertools.product(range(len(p)), repeat=2):
            J[i, j] = ((p[i] if i == j else 0) - p[i] * p[j]) * (j + 1)
        expected = float(mpmath.sqrt(max(mpmath.eigsy(J * J.T, eigvals_only=True))))
    row, slopes = real(*weights) / sum(weights), torch.arange(1.0, len(weights) + 1).double()
    assert float(normalisers.normaliser_spectral_norm(row, slopes)) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: normalisers.normaliser_spectral_norm([0.5, 0.5], [1.0, 1.0, 1.0]), InvalidTensor, "one per key"),
        (lambda: normalisers.normaliser_spectral_norm([0.5, 0.5], [1.0, math.nan]), InvalidValue, "log_slopes"),
        (lambda: normalisers.projector_bound([0.0, 0.0], [1.0, 1.0]), InvalidValue, "sums to 0"),
    ],
)
def test_errors_name_the_value(call, error: type[Exception], message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()
