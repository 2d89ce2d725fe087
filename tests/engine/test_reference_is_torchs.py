"""With rule="softmax" the reference is torch's own scaled_dot_product_attention, wherever torch defines it."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import undilute as ud

SHAPES = [  # batch dims, query heads, key heads, L, S, E, Ev
    ((2,), 3, 3, 5, 7, 4, 4),
    ((1,), 4, 2, 7, 5, 8, 6),
    ((2,), 6, 1, 6, 6, 3, 5),
    ((), 2, 2, 1, 9, 4, 4),
    ((2, 2), 2, 2, 4, 4, 2, 3),
    ((3,), 1, 1, 1, 1, 1, 1),
]
MASKS = ["none", "causal", "boolean", "additive", "per head", "keys", "upper left", "lower right", "2-d"]


def make_mask(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor | None:
    *batch, heads, length, keys = shape
    draw = {
        "boolean": (*batch, 1, length, keys),
        "per head": (heads, length, keys),
        "keys": (*batch, 1, 1, keys),
        "2-d": (length, keys),
    }
    if kind in draw:
        return torch.rand(draw[kind], generator=generator) < 0.7
    if kind == "additive":
        bias = torch.randn(*batch, heads, length, keys, generator=generator, dtype=torch.float64)
        return bias.masked_fill(torch.rand(bias.shape, generator=generator) < 0.3, -math.inf).to(dtype)
    if kind == "upper left":
        return causal_upper_left(length, keys)
    if kind == "lower right":
        return causal_lower_right(length, keys)
    return None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_value_and_gradients(case: tuple, kind: str, dtype: torch.dtype) -> None:
    batch, heads, kv_heads, length, keys, features, width = case
    generator = torch.Generator().manual_seed(0)
    for scale, seed in itertools.product((None, 0.3), range(2)):
        generator.manual_seed(seed)
        q, k, v = (
            torch.randn(*batch, h, n, d, generator=generator, dtype=torch.float64).to(dtype)
            for h, n, d in ((heads, length, features), (kv_heads, keys, features), (kv_heads, keys, width))
        )
        mask = make_mask(kind, (*batch, heads, length, keys), dtype, generator)
        causal = {"is_causal": kind == "causal", "scale": scale, "enable_gqa": heads != kv_heads}
        ours = [t.clone().requires_grad_() for t in (q, k, v)]
        theirs = [t.clone().requires_grad_() for t in (q, k, v)]
        out = ud.attention(*ours, mask, **causal)
        # torch's lower-right bias gives NaN for rows that see nothing, and its causal bias lacks some kernels:
        plain = mask._materialize() if kind in ("upper left", "lower right") else mask
        expected = F.scaled_dot_product_attention(*theirs, plain, **causal)
        assert out.dtype == dtype
        # the reference computes half precision in float32, torch may not: allow torch's rounding
        tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-2}[dtype]
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
        upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(dtype)
        for a, b in zip(
            torch.autograd.grad(out, ours, upstream), torch.autograd.grad(expected, theirs, upstream), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=5 * tolerance, atol=5 * tolerance)


def test_random_grid() -> None:
    """300 calls with everything drawn at random."""
    draw = random.Random(0)
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        batch = tuple(draw.choice([(), (1,), (3,), (2, 1), (2, 3)]))
        kv_heads, groups = draw.randint(1, 3), draw.choice([1, 1, 2, 3])
        length, keys, features, width = (draw.randint(1, 20) for _ in range(4))
        shapes = [
            (*batch, kv_heads * groups, length, features),
            (*batch, kv_heads, keys, features),
            (*batch, kv_heads, keys, width),
        ]
        q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) * draw.choice([0.1, 1, 10]) for s in shapes)
        kind = draw.choice(MASKS)
        mask = make_mask(kind, (*batch, kv_heads * groups, length, keys), torch.float64, generator)
        plain = mask._materialize() if kind in ("upper left", "lower right") else mask
        options = {
            "is_causal": kind == "causal",
            "scale": draw.choice([None, 0.0, -0.7, 2.0]),
            "enable_gqa": groups > 1 or (draw.random() < 0.5 and len(batch) == 1),
        }
        got = ud.attention(q, k, v, mask, **options)
        expected = F.scaled_dot_product_attention(q, k, v, plain, **options)
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


def test_broadcasting_of_leading_dimensions() -> None:
    q, k, v = torch.randn(2, 1, 5, 4), torch.randn(1, 3, 6, 4), torch.randn(2, 3, 6, 4)
    torch.testing.assert_close(ud.attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
    q, k, v = torch.randn(5, 4), torch.randn(6, 4), torch.randn(6, 3)
    torch.testing.assert_close(ud.attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_odd_memory_layouts() -> None:
    base = torch.randn(2, 6, 3, 8, dtype=torch.float64)
    q = base.transpose(1, 2)
    k = base.transpose(1, 2).flip(-2)
    v = torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(2, 3, 6, 8)  # zero strides
    torch.testing.assert_close(
        ud.attention(q, k, v, is_causal=True), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    )


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)])
def test_empty_batches_heads_and_queries(shape: tuple[int, ...]) -> None:
    q = torch.randn(shape, requires_grad=True)
    out = ud.attention(q, q, q)
    assert out.shape == shape
    out.sum().backward()


def test_no_keys_give_zeros() -> None:
    out = ud.attention(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4), torch.randn(1, 2, 0, 5))
    assert out.shape == (1, 2, 3, 5)
    assert (out == 0).all()


def test_dropout() -> None:
    q, v = torch.randn(1, 2, 50, 4), torch.ones(1, 2, 50, 4)
    torch.manual_seed(0)
    out = ud.attention(q, q, v, dropout_p=0.5)
    assert 0.9 < out.mean() < 1.1
    assert out.std() > 0.05
    assert (ud.attention(q, q, v, dropout_p=1.0) == 0).all()
    assert torch.equal(ud.attention(q, q, v, dropout_p=0.0), ud.attention(q, q, v))
