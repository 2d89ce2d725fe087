"""Entropy against the obvious formula, and where the obvious formula fails."""

from __future__ import annotations

import math

import torch

import undilute
from tests.cases import rows, some_mask
from undilute.measures import entropy, entropy_of_logits, registry


def test_both_ways_agree_with_the_definition() -> None:
    z, mask = rows(50, 20, seed=1), some_mask(50, 20, seed=2)
    for i in range(50):
        p = z[i, mask[i]].softmax(-1)
        expected = -(p * p.log()).sum()
        torch.testing.assert_close(entropy_of_logits(z, mask)[i], expected)
        torch.testing.assert_close(entropy(p), expected)


def test_no_bias_at_large_n() -> None:
    """−Σ p·log(p + 1e-9) would be off by n·1e-9."""
    z = torch.zeros(10**6, dtype=torch.float64)
    got = entropy_of_logits(z, torch.ones_like(z, dtype=torch.bool)).item()
    assert abs(got - math.log(10**6)) < 1e-10


def test_extremes() -> None:
    everything = torch.ones(3, dtype=torch.bool)
    assert entropy_of_logits(torch.tensor([1e4, 0.0, -1e4]), everything) == 0
    assert entropy_of_logits(torch.zeros(3), ~everything) == 0
    assert entropy(torch.zeros(3)) == 0
    assert entropy(torch.tensor([1.0, 0.0, 0.0])) == 0
    torch.testing.assert_close(entropy(torch.tensor([2.0, -2.0])), torch.tensor(math.log(2)))


def test_gradients() -> None:
    z, mask = rows(3, 6, seed=3).requires_grad_(), some_mask(3, 6, seed=4)
    assert torch.autograd.gradcheck(lambda t: entropy_of_logits(t, mask), (z,))
    sparse = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    entropy(sparse).backward()
    assert sparse.grad is not None
    assert sparse.grad.isfinite().all()


def test_the_function_is_not_hidden_by_the_file_of_its_name() -> None:
    """Python makes a file that is imported an attribute of its folder: it must be imported before the function."""
    registry.every()
    assert undilute.measures.entropy is entropy
    assert undilute.measures.entropy_of_logits is entropy_of_logits
