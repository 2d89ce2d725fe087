"""The fast form of every quantity equals ``undilute_papers.theory.distance`` and the printed formula, term by term."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from undilute_papers.limitations import row_distances
from undilute_papers.limitations.row_distances import QUANTITIES, RowDistances, Vectors
from undilute_papers.theory import distance as theory

KEYS, ROWS, FEATURES = 17, 6, 5


def case(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (rows, keys), visible (rows, keys) and x (keys, features), float64."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(ROWS, KEYS, generator=generator, dtype=torch.float64)
    x = torch.randn(KEYS, FEATURES, generator=generator, dtype=torch.float64)
    visible = torch.arange(KEYS) < torch.tensor([2, 6, 7, 12, 16, 17])[:, None]
    if kind == "equal weights":
        logits.zero_()
    if kind == "one-hot":
        logits[:, 0] = 1000.0
    if kind == "zero vectors":
        x[::2] = 0.0
    if kind == "all zero":
        x.zero_()
    if kind == "aligned":
        x[:] = x[0]
    if kind == "scattered":
        visible = torch.rand(ROWS, KEYS, generator=generator) < 0.7
        visible[:, 3:5] = True
        visible[0] = True
    return logits.masked_fill(~visible, -torch.inf), visible, x


KINDS = ["random", "equal weights", "one-hot", "zero vectors", "all zero", "aligned", "scattered"]
TOPS = [1, 2, 5, 6, 11, 16]


def rows_of(logits: Tensor, visible: Tensor, x: Tensor, **options: Any) -> RowDistances:
    vectors = Vectors(x)
    return RowDistances(logits, visible, vectors, vectors.farthest([len(x)])[len(x)], **options)


def expected_of(logits: Tensor, visible: Tensor, x: Tensor, top: int) -> dict[str, Tensor]:
    """From the theory, which takes L to be what a row sees."""
    p = logits.softmax(-1)
    selected = theory.top_set(logits.masked_fill(~visible, -1e9), top, visible)
    bounds = theory.expected_distance(p, x, top, visible)
    return {
        "distance": theory.selection_distance(p, x, selected, visible),
        "main": bounds.lower,
        "upper": bounds.upper,
        "bound": theory.distance_bound(p, x, selected, visible),
        "norms": (p[..., None] * x).norm(dim=-1).sum(-1),
        "printed": printed(p, x, top, visible),
    }


def printed(p: Tensor, x: Tensor, top: int, visible: Tensor) -> Tensor:
    """Theorem 1(2) as it stands in the paper, token by token."""
    found = []
    for weights, seen in zip(p, visible, strict=True):
        L = max(2, int(seen.sum()))  # a row of one key selects it, and is not asked for
        mean = (weights[:, None] * x).sum(0)
        terms = [((weights[i] + top / (L - 1)) * x[i] - mean).norm() for i in seen.nonzero().squeeze(-1).tolist()]
        found.append((L - top) / L * torch.stack(terms).sum())
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top", TOPS)
def test_quantities_are_the_theorys(kind: str, top: int) -> None:
    logits, visible, x = case(kind)
    long = visible.sum(-1) > top
    assert long.any()
    got = rows_of(logits, visible, x)
    for name, values in expected_of(logits, visible, x, top).items():
        assert_close(
            getattr(got, name)(top)[long], values[long], atol=1e-6, rtol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_single_precision_is_near() -> None:
    logits, visible, x = case("random")
    for top in (1, 5):
        long = visible.sum(-1) > top
        single, double = rows_of(logits.float(), visible, x.float()), rows_of(logits, visible, x)
        for name in set(QUANTITIES) - {"expected"}:
            assert_close(
                getattr(single, name)(top)[long].double(), getattr(double, name)(top)[long], rtol=2e-4, atol=1e-5
            )


@pytest.mark.parametrize("top", [1, 3])
def test_drawn_sets_have_the_expectation_as_their_mean(top: int) -> None:
    logits, visible, x = case("random")
    times, draws = 5_000, 4  # the row of 12 keys, again and again
    logits, visible = logits[3].expand(times, -1), visible[3].expand(times, -1)
    generator = np.random.default_rng(0)

    def random() -> Tensor:
        return torch.from_numpy(generator.random((times, KEYS)))

    got = rows_of(logits, visible, x, random=random, draws=draws)
    exact = float(theory.enumerated_distance(logits[0, :12].softmax(-1), x[:12], top))
    v = logits[0, :12].softmax(-1)[:, None] * x[:12]
    values = []
    for chosen in itertools.combinations(range(12), top):
        left = [i for i in range(12) if i not in chosen]
        values.append(float((v[left] - v[list(chosen)].sum(0)).norm(dim=-1).sum()))
    assert np.mean(values) == pytest.approx(exact)
    assert float(got.expected(top).mean()) == pytest.approx(exact, abs=4 * np.std(values) / (times * draws) ** 0.5)


@pytest.mark.parametrize("most", [1, 2, 8, KEYS])
def test_largest_distance_is_exact_however_few_are_known(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_distances, "FARTHEST", most)
    generator = torch.Generator().manual_seed(0)
    x = 10 + torch.randn(KEYS, FEATURES, generator=generator, dtype=torch.float64)
    x[0] *= 5  # an outlier that every row selects
    logits = torch.randn(60, KEYS, generator=generator, dtype=torch.float64)
    logits[:, 0] = 9.0
    visible = torch.ones(60, KEYS, dtype=torch.bool).tril(1)
    visible[20:] = torch.rand(40, KEYS, generator=generator) < 0.8
    visible[:, :2] = True
    logits = logits.masked_fill(~visible, -torch.inf)
    for top in (1, 3, 9):
        long = visible.sum(-1) > top
        expected = expected_of(logits, visible, x, top)["bound"]
        assert_close(rows_of(logits, visible, x).bound(top)[long], expected[long])
