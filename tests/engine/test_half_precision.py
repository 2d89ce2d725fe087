"""In half precision a rule is as exact as torch's own softmax: its scale is not rounded into the queries."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import undilute as ud
from tests.cases import rows
from tests.engine.ran import only
from undilute import rules
from undilute.rules import Rule

PER_HEAD = torch.tensor([0.7, 1.3])
FOLDED = {
    "ssmax": (rules.get("ssmax"), "flash"),
    "logn": (rules.get("logn", train_length=64), "flash"),
    "llama4": (rules.get("llama4", beta=0.5, floor_length=32), "flash"),
    "temperature per head": (rules.get("temperature", T=PER_HEAD), "flash"),
    "adaptive": (rules.get("adaptive"), "flash"),
    "ssmax with a sink": (Rule(rules.LogLength(0.43), rules.Sink(0.5)), "flash"),
    "as-entmax": (rules.get("as-entmax"), "sparse"),
    "adaptive sparsemax": (Rule(rules.EntropyAdaptive(), rules.Entmax(2.0)), "sparse"),
    "ssmax sigmoid": (Rule(rules.LogLength(0.43), rules.Sigmoid()), "rows"),
}


def half_unit(out: Tensor, dtype: torch.dtype) -> float:
    """What rounding the largest output to ``dtype`` costs: no attention can do better."""
    return 2.0 ** math.floor(math.log2(out.abs().max().item())) * torch.finfo(dtype).eps / 2


def drawn(spread: float, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """q, k, v in ``dtype`` with logits of this standard deviation."""
    sizes = (math.sqrt(spread), math.sqrt(spread), 1.0)
    return [rows(2, 512, 64, seed=3 * seed + i, spread=size).to(dtype) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("spread", [1.0, 4.0, 10.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FOLDED)
def test_no_more_error_than_torchs_softmax(name: str, dtype: torch.dtype, spread: float) -> None:
    rule, route = FOLDED[name]
    q, k, v = drawn(spread, dtype, seed=1)
    full = q.double(), k.double(), v.double()
    softmax = F.scaled_dot_product_attention(*full, is_causal=True)
    torchs = (F.scaled_dot_product_attention(q, k, v, is_causal=True).double() - softmax).abs().max().item()
    with only(route):
        got = ud.attention(q, k, v, is_causal=True, rule=rule)
    exact = ud.attention(*full, is_causal=True, rule=rule, route="reference")
    assert got.dtype == dtype
    assert (got.double() - exact).abs().max().item() <= 1.5 * max(torchs, half_unit(exact, dtype))


def test_gradients_too() -> None:
    q, k, v = (t.requires_grad_() for t in drawn(10.0, torch.bfloat16, seed=2))
    with only("flash"):
        out = ud.attention(q, k, v, is_causal=True, rule="ssmax")
    up = rows(*out.shape, seed=9).bfloat16()
    found = torch.autograd.grad(out, (q, k, v), up)
    full = [t.detach().double().requires_grad_() for t in (q, k, v)]
    exact = torch.autograd.grad(ud.attention(*full, is_causal=True, rule="ssmax", route="reference"), full, up.double())
    for got, expected in zip(found, exact, strict=True):
        assert got.dtype == torch.bfloat16
        assert (got.double() - expected).abs().max() <= 3 * half_unit(expected, torch.bfloat16)


def test_a_negative_scale_is_not_rounded_in_either() -> None:
    q, k, v = drawn(10.0, torch.bfloat16, seed=3)
    with only("flash"):
        got = ud.attention(q, k, v, scale=-0.13, rule="softmax")
    torch.testing.assert_close(got, ud.attention(-q, k, v, scale=0.13, rule="softmax"), atol=0.0, rtol=0.0)
