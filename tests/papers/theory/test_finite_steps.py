"""Steps of any size against two softmaxes, the Jacobian for small ones, and the supremum for all."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import rows, some_mask
from tests.theory.test_jacobian import dense, real
from undilute.errors import InvalidValue
from undilute_papers.theory import finite_steps


def test_sensitivity_tends_to_the_jacobian() -> None:
    l, v = rows(30, 8, seed=50), rows(30, 8, seed=51)
    T = torch.linspace(0.5, 2, 30).double()
    p = (l / T.unsqueeze(-1)).softmax(-1)
    unit = v / v.norm(dim=-1, keepdim=True)
    slope = (dense(p) @ unit.unsqueeze(-1)).squeeze(-1).norm(dim=-1) / T
    for epsilon in (1e-9, 1e-13):
        torch.testing.assert_close(finite_steps.sensitivity(l, v, epsilon, T), slope, rtol=1e-7, atol=0)


@pytest.mark.parametrize("epsilon", [1e-3, 0.4, 1.1, 30.0])
def test_sensitivity_is_the_difference_of_two_softmaxes(epsilon: float) -> None:
    l, v, mask = rows(30, 8, seed=52), rows(30, 8, seed=53), some_mask(30, 8, seed=54)
    mask[:, 0] = True
    got = finite_steps.sensitivity(l, v, epsilon, 0.7, visible=mask)
    for i in range(30):
        a, b = l[i, mask[i]], v[i, mask[i]]
        moved = ((a + epsilon * b / b.norm()) / 0.7).softmax(-1) - (a / 0.7).softmax(-1)
        torch.testing.assert_close(got[i], moved.norm() / epsilon, rtol=1e-9, atol=1e-12)


@given(
    st.floats(1e-3, 50), st.floats(1e-2, 10), st.lists(st.floats(-20, 20), min_size=4, max_size=4), st.integers(0, 99)
)
def test_no_step_beats_the_supremum(epsilon: float, T: float, logits: list[float], seed: int) -> None:
    g = finite_steps.sensitivity(real(*logits), rows(4, seed=seed), epsilon, T)
    largest = finite_steps.largest_sensitivity(epsilon, T)
    assert g <= largest * (1 + 1e-9)
    assert largest <= finite_steps.sensitivity_cap(epsilon, T) * (1 + 1e-12)
    half = epsilon / math.sqrt(8)
    best = finite_steps.sensitivity(real(-half, half), real(1, -1), epsilon, T)
    assert float(best) == pytest.approx(float(largest), rel=1e-9)


def test_two_logit_example() -> None:
    epsilon = torch.logspace(-6, 2, 50).double()
    first = torch.stack([torch.zeros(50), epsilon], -1).softmax(-1)
    second = torch.stack([2 * epsilon, torch.zeros(50)], -1).softmax(-1)
    torch.testing.assert_close(finite_steps.swap_distance(epsilon), (first - second).norm(dim=-1), rtol=1e-9, atol=0)
    assert float(finite_steps.swap_distance(real(1e-8), real(1.0))) * 1e8 == pytest.approx(
        3 * math.sqrt(2) / 4, rel=1e-12
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: finite_steps.sensitivity([0.0, 1.0], [0.0, 0.0], 0.1), InvalidValue, "row of zeros"),
        (lambda: finite_steps.sensitivity([0.0, 1.0], [1.0, 0.0], 0.0), InvalidValue, "epsilon = 0"),
        (lambda: finite_steps.largest_sensitivity(0.1, -1.0), InvalidValue, "temperature = -1"),
    ],
)
def test_errors_name_the_value(call, error: type[Exception], message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()
