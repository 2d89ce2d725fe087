"""Each map against its definition, written out plainly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.cases import rows
from undilute import rules
from undilute.rules import Rule


def self_adjusted(z: Tensor, variant: str) -> Tensor:
    low, high = z.min(-1, keepdim=True).values, z.max(-1, keepdim=True).values
    zero = torch.zeros_like(low)
    factor = {
        "V0": z,
        "V1": z - low,
        "V2": (z - low) / (high - low),
        "V3": (z - torch.minimum(low, zero)) / (torch.maximum(high, zero) - torch.minimum(low, zero)),
    }[variant]
    return factor * z.softmax(-1)


@pytest.mark.parametrize("variant", ["V0", "V1", "V2", "V3"])
def test_self_adjusted(variant: str) -> None:
    for shift in (-9.0, 0.0, 9.0):
        z = rows(50, 12, seed=1) + shift
        got = rules.get("sa-softmax", variant=variant)(z)
        torch.testing.assert_close(got, self_adjusted(z, variant), rtol=1e-12, atol=1e-14)


def test_sinks() -> None:
    z = rows(50, 12, seed=2)
    torch.testing.assert_close(rules.get("softmax1")(z), z.exp() / (1 + z.exp().sum(-1, keepdim=True)))
    torch.testing.assert_close(rules.get("sink", s=1.3)(z), z.exp() / (math.exp(1.3) + z.exp().sum(-1, keepdim=True)))
    with_sink = torch.cat([z, torch.full((50, 1), 1.3).double()], -1).softmax(-1)
    torch.testing.assert_close(rules.get("sink", s=1.3)(z), with_sink[:, :-1])


def test_sink_far_from_the_logits() -> None:
    z = rows(5, 4, seed=3)
    assert (rules.get("sink", s=1000.0)(z) == 0).all()
    torch.testing.assert_close(rules.get("sink", s=-1000.0)(z), z.softmax(-1))


def test_sigmoid() -> None:
    z = rows(50, 12, seed=4)
    torch.testing.assert_close(rules.get("sigmoid")(z), 1 / (1 + 12 * (-z).exp()))
    torch.testing.assert_close(rules.get("sigmoid", bias=0.5)(z), torch.sigmoid(z + 0.5))


@pytest.mark.parametrize("shift", [-30.0, -2.0, 0.0, 3.0])
def test_softpick(shift: float) -> None:
    z = rows(50, 12, seed=5) + shift
    y = z.exp() - 1
    expected = y.clamp(min=0) / (y.abs().sum(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(rules.get("softpick")(z), expected, rtol=1e-11, atol=1e-14)


def test_softpick_attends_to_nothing_below_zero() -> None:
    assert (rules.get("softpick")(-rows(5, 12, seed=6).abs()) == 0).all()


def test_softpick_near_zero_keeps_its_precision() -> None:
    z = torch.tensor([1e-12, -1e-12, 2e-12], dtype=torch.float64)
    expected = z.clamp(min=0) / (z.abs().sum() + 1e-6)
    torch.testing.assert_close(rules.get("softpick")(z), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("k", "fraction", "kept"),
    [(1, None, 1), (5, None, 5), (99, None, 12), (None, 0.3, 4), (None, 0.25, 3), (None, 1.0, 12), (None, 1e-9, 1)],
)
def test_top_k(k: int | None, fraction: float | None, kept: int) -> None:
    z = rows(50, 12, seed=7)
    weights = rules.get("top-k", k=k, fraction=fraction)(z)
    best = z.topk(kept)
    torch.testing.assert_close(weights.gather(-1, best.indices), best.values.softmax(-1))
    assert ((weights > 0).sum(-1) == kept).all()


def test_top_k_fraction_counts_visible_keys_and_rounds_up_exactly() -> None:
    z, mask = rows(20, 30, seed=8), torch.arange(30) < 10
    assert ((rules.get("top-k", fraction=0.3)(z, mask) > 0).sum(-1) == 3).all()


def test_top_k_keeps_ties() -> None:
    assert rules.get("top-k", k=2)(torch.tensor([1.0, 1.0, 1.0, 0.0])).tolist() == pytest.approx([1 / 3] * 3 + [0.0])


def test_hard() -> None:
    assert rules.get("hard")(torch.tensor([[1.0, 3.0, 2.0], [3.0, 3.0, 0.0]])).tolist() == [[0, 1, 0], [0.5, 0.5, 0]]


def test_degenerate_self_adjusted_rows_are_softmax() -> None:
    assert rules.get("sa-softmax", variant="V2")(torch.full((4,), 2.0)).tolist() == [0.25] * 4
    assert rules.get("sa-softmax", variant="V3")(torch.zeros(4)).tolist() == [0.25] * 4


def test_sink_per_head() -> None:
    z, s = rows(2, 3, 4, 5, seed=9), torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    weights = Rule(map=rules.Sink(s))(z)
    for head in range(3):
        torch.testing.assert_close(weights[:, head], rules.get("sink", s=float(s[head]))(z[:, head]))
