"""The matrix products equal the definitions of ``undilute_papers.theory``, for any rows and shared vectors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from undilute.measures.weighted_vectors import WeightedVectors
from undilute_papers.theory import distance as theory

HEADS, ROWS, KEYS, FEATURES = 4, 5, 13, 6
KEY_HEADS = {"one head's": 0, "one matrix": 1, "two heads each": 2, "a head each": HEADS}
KINDS = ["random", "sharp", "one-hot", "equal", "aligned", "zero vectors", "long vectors", "short vectors"]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case(kind: str, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """p (..., rows, keys), x as the class takes it, and visible (rows, keys): the last row sees every key."""
    visible = torch.arange(KEYS) < torch.tensor([4, 5, 8, 12, KEYS])[:, None]
    shape = (ROWS, KEYS) if key_heads == 0 else (HEADS, ROWS, KEYS)
    logits = {"sharp": 20.0, "one-hot": 2000.0, "equal": 0.0}.get(kind, 2.0) * normal(*shape, seed=1)
    p = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    x = normal(max(key_heads, 1), KEYS, FEATURES, seed=2)
    x = {"zero vectors": 0.0, "long vectors": 1e6, "short vectors": 1e-6}.get(kind, 1.0) * x
    if kind == "aligned":
        x = x[:, :1].expand_as(x)
    return p, x[0] if key_heads == 0 else x, visible


def per_head(x: Tensor) -> Tensor:
    """What the theory takes: (heads, 1, keys, features), or (keys, features)."""
    return x if x.ndim == 2 else x.repeat_interleave(HEADS // len(x), 0)[:, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key_heads", KEY_HEADS.values(), ids=KEY_HEADS.keys())
@pytest.mark.parametrize("top", [1, 3])
def test_they_are_the_theorys(kind: str, key_heads: int, top: int) -> None:
    p, x, visible = case(kind, key_heads)
    seen = visible.expand(p.shape)
    vectors = WeightedVectors(p, x, shown=visible.double())
    chosen = theory.top_set(p, top, seen)
    s = vectors.sum(p * chosen)
    near = {"rtol": 1e-9, "atol": 1e-7 * float(x.norm(dim=-1).max())}  # a root of what cancels keeps half the digits
    assert_close(s, theory.context(p, per_head(x), chosen, seen), **near)
    exact = (p[..., None] * per_head(x) - s[..., None, :]).norm(dim=-1)
    offsets = vectors.offsets(s)
    assert_close(offsets, exact.square() - s.square().sum(-1, keepdim=True), rtol=1e-9, atol=near["atol"] ** 2)
    lengths = vectors.lengths(offsets, s)
    assert_close(lengths, exact, **near)
    left_out = lengths.masked_fill(chosen | ~seen, 0.0).sum(-1)
    assert_close(left_out, theory.selection_distance(p, per_head(x), chosen, seen), **near)
    n, expected = seen.sum(-1, keepdim=True).double(), theory.expected_distance(p, per_head(x), top, seen)
    assert_close(vectors.expected(n, top), expected.lower, **near)
    assert_close(vectors.expected_upper(n, top), expected.upper, **near)


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_rows_that_select_all_they_see_leave_nothing_out(keys: int) -> None:
    p, x, _ = case("random", 2)
    vectors = WeightedVectors(p[..., :keys], x[:, :keys])
    n = torch.full((HEADS, ROWS, 1), float(keys), dtype=torch.float64)
    assert (vectors.expected(n, n) == 0).all()
    assert (vectors.expected_upper(n, n) == 0).all()


def test_a_row_that_sees_one_key_more_than_it_selects() -> None:
    """Then Vᵢ = 0, since all the other keys are drawn, and both ends are the mean itself."""
    p, x, _ = case("random", 0)
    p, x = p[-1:, :4] / p[-1:, :4].sum(), x[:4]
    vectors, n = WeightedVectors(p, x), torch.tensor([[4.0]], dtype=torch.float64)
    exact = theory.enumerated_distance(p, x, 3)
    assert_close(vectors.expected(n, 3), exact)
    assert_close(vectors.expected_upper(n, 3), exact)


def test_single_precision_is_near() -> None:
    p, x, visible = case("random", 2)
    n, shown = visible.sum(-1, keepdim=True).double().expand(HEADS, -1, -1), visible.double()
    double = WeightedVectors(p, x, shown=shown)
    single = WeightedVectors(p.float(), x.float(), shown=shown.float())
    for name in ("expected", "expected_upper"):
        assert_close(getattr(single, name)(n.float(), 3).double(), getattr(double, name)(n, 3), rtol=1e-5, atol=1e-6)
