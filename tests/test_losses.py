"""The Fenchel–Young losses against the entmax package and their defining properties."""

from __future__ import annotations

import entmax as package
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import undilute as ud
from tests.cases import rows
from undilute.losses import (
    Entmax15Loss,
    EntmaxLoss,
    NormmaxLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_loss,
    normmax_loss,
    sparsemax_loss,
)

TARGET = torch.arange(20) % 7
LOSSES = [(SparsemaxLoss, sparsemax_loss), (Entmax15Loss, entmax15_loss), (NormmaxLoss, normmax_loss)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sparsemax_loss, package.sparsemax_loss),
        (entmax15_loss, package.entmax15_loss),
        (lambda x, y: entmax_loss(x, y, 1.3), lambda x, y: package.entmax_bisect_loss(x, y, 1.3, 80)),
        (lambda x, y: entmax_loss(x, y, 0.4), lambda x, y: package.entmax_bisect_loss(x, y, 0.4, 80)),
        (normmax_loss, lambda x, y: package.normmax_bisect_loss(x, y, 2, 80)),
        (lambda x, y: normmax_loss(x, y, 1.3), lambda x, y: package.normmax_bisect_loss(x, y, 1.3, 80)),
        (lambda x, y: normmax_loss(x, y, 5.0), lambda x, y: package.normmax_bisect_loss(x, y, 5.0, 80)),
    ],
    ids=["sparsemax", "entmax15", "entmax 1.3", "entmax 0.4", "normmax", "normmax 1.3", "normmax 5"],
)
def test_value_and_gradient_equal_the_entmax_packages(ours, theirs) -> None:  # type: ignore[no-untyped-def]
    a, b = (rows(20, 7, seed=1).requires_grad_() for _ in range(2))
    x, y = ours(a, TARGET), theirs(b, TARGET)
    torch.testing.assert_close(x, y, rtol=0, atol=1e-9)
    x.sum().backward()
    y.sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("loss", "alpha"),
    [*((entmax_loss, alpha) for alpha in (0.3, 1.2, 1.5, 2.0, 2.5)), (normmax_loss, 1.2), (normmax_loss, 2.0)],
)
def test_gradients_in_logits_and_alpha(loss, alpha: float) -> None:  # type: ignore[no-untyped-def]
    x, a = rows(5, 4, seed=2).requires_grad_(), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, b: loss(z, TARGET[:5] % 4, b), (x, a))


@pytest.mark.parametrize(("name", "alpha"), [("entmax", 1.7), ("entmax", 0.6), ("normmax", 1.4), ("normmax", 2.0)])
def test_gradient_is_weights_minus_target(name: str, alpha: float) -> None:
    x = rows(20, 7, seed=3).requires_grad_()
    {"entmax": entmax_loss, "normmax": normmax_loss}[name](x, TARGET, alpha).sum().backward()
    expected = ud.rules.get(name, alpha=alpha)(x.detach()) - F.one_hot(TARGET, 7)
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1 + 1e-6, 1 - 1e-6])
def test_tends_to_cross_entropy(alpha: float) -> None:
    x = rows(20, 7, seed=4)
    torch.testing.assert_close(
        entmax_loss(x, TARGET, alpha), F.cross_entropy(x, TARGET, reduction="none"), rtol=0, atol=1e-4
    )


@given(row=st.lists(st.floats(-20, 20), min_size=2, max_size=10), alpha=st.floats(1.1, 3.0))
def test_never_negative_and_zero_exactly_beyond_the_margin(row: list[float], alpha: float) -> None:
    x = torch.tensor([row], dtype=torch.float64)
    loss = entmax_loss(x, torch.tensor([0]), alpha).item()
    assert loss >= -1e-9
    margin = row[0] - max(row[1:])
    if margin > 1 / (alpha - 1) + 1e-6:
        assert abs(loss) < 1e-9
    elif margin < 1 / (alpha - 1) - 0.1:
        assert loss > 0


@given(row=st.lists(st.floats(-20, 20), min_size=2, max_size=10), alpha=st.floats(1.1, 3.0))
def test_normmax_has_the_margin_one(row: list[float], alpha: float) -> None:
    x = torch.tensor([row], dtype=torch.float64)
    loss = normmax_loss(x, torch.tensor([0]), alpha).item()
    assert loss >= -1e-9
    margin = row[0] - max(row[1:])
    if margin > 1 + 1e-6:
        assert abs(loss) < 1e-9
    elif margin < 0.9:
        assert loss > 0


@given(row=st.lists(st.floats(-20, 20), min_size=2, max_size=10), alpha=st.floats(0.05, 0.95))
def test_below_one_no_lead_is_enough(row: list[float], alpha: float) -> None:
    assert entmax_loss(torch.tensor([row], dtype=torch.float64), torch.tensor([0]), alpha).item() > 0


@pytest.mark.parametrize(("module", "function"), LOSSES)
def test_modules_reduce_and_ignore(module, function) -> None:  # type: ignore[no-untyped-def]
    x = rows(20, 7, seed=5)
    each = function(x, TARGET)
    torch.testing.assert_close(module()(x, TARGET), each.mean())
    torch.testing.assert_close(module(reduction="sum")(x, TARGET), each.sum())
    torch.testing.assert_close(module(reduction="none")(x, TARGET), each)
    for ignored in (-100, 3):
        target = TARGET.clone()
        target[:5] = ignored
        kept = target != ignored
        torch.testing.assert_close(module(ignore_index=ignored)(x, target), each[kept].mean())


@pytest.mark.parametrize("loss", [entmax_loss, normmax_loss, lambda x, y: entmax_loss(x, y, 0.5)])
def test_half_precision(loss) -> None:  # type: ignore[no-untyped-def]
    x = rows(20, 7, seed=6)
    half = loss(x.bfloat16(), TARGET)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), loss(x.bfloat16().double(), TARGET), rtol=1e-2, atol=1e-2)


def test_large_shifts_leave_the_gradient_alone() -> None:
    x = rows(20, 7, seed=8).float()
    for shift in (0.0, 64.0, 2.0**20):
        z = (x + shift).requires_grad_()
        loss = entmax15_loss(z, TARGET)
        loss.sum().backward()
        exact = ud.rules.get("entmax15")(z.detach().double()) - F.one_hot(TARGET, 7)
        torch.testing.assert_close(z.grad.double(), exact, rtol=0, atol=2e-6)
        assert (loss >= -1e-6).all()


def test_minus_infinity_and_second_derivatives() -> None:
    assert entmax_loss(torch.tensor([[3.0, 1.0, -torch.inf]]), torch.tensor([0])) == entmax_loss(
        torch.tensor([[3.0, 1.0]]), torch.tensor([0])
    )
    x = rows(3, 4, seed=9).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z: entmax_loss(z, TARGET[:3], 1.5), (x,))
    assert torch.autograd.gradgradcheck(lambda z: normmax_loss(z, TARGET[:3], 1.5), (x,))


def test_positions_are_those_of_the_entmax_package() -> None:
    x = rows(20, 7, seed=10)
    torch.testing.assert_close(EntmaxLoss(1.4, 80)(x, TARGET), package.EntmaxBisectLoss(1.4, 80)(x, TARGET))
    torch.testing.assert_close(entmax_loss(x, TARGET, 1.4, 80), package.entmax_bisect_loss(x, TARGET, 1.4, 80))
    torch.testing.assert_close(NormmaxLoss(1.4, 80)(x, TARGET), package.NormmaxBisectLoss(1.4, 80)(x, TARGET))
    torch.testing.assert_close(normmax_loss(x, TARGET, 1.4, 80), package.normmax_bisect_loss(x, TARGET, 1.4, 80))


def test_learned_alpha_gets_its_gradient() -> None:
    loss = EntmaxLoss(torch.nn.Parameter(torch.tensor(1.5)))
    loss(rows(20, 7, seed=7).float(), TARGET).backward()
    assert next(loss.parameters()).grad != 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: entmax_loss(torch.zeros(2, 3).long(), torch.zeros(2).long()), ud.InvalidTensor, "floating-point"),
        (
            lambda: entmax_loss(torch.zeros(2, 3), torch.zeros(2).long(), torch.ones(2) + 1),
            ud.InvalidValue,
            "one number",
        ),
        (lambda: entmax_loss(torch.zeros(2, 3, 4), torch.zeros(2).long()), ud.InvalidTensor, "must be"),
        (lambda: entmax_loss(torch.zeros(2, 3), torch.zeros(3).long()), ud.InvalidTensor, r"target \(3,\)"),
        (lambda: entmax_loss(torch.zeros(2, 3), torch.zeros(2)), ud.InvalidTensor, "dtype torch.float32"),
        (lambda: entmax_loss(torch.zeros(2, 3), torch.tensor([0, 3])), ud.InvalidValue, r"outside 0 … 2"),
        (lambda: entmax_loss(torch.zeros(2, 3), torch.tensor([0, 1]), 1.0), ud.InvalidValue, "alpha = 1.0"),
        (lambda: normmax_loss(torch.zeros(2, 3), torch.tensor([0, 1]), 0.5), ud.InvalidValue, "alpha = 0.5"),
        (lambda: EntmaxLoss(reduction="median"), ud.InvalidValue, "reduction = 'median'"),
    ],
)
def test_bad_input(call, error: type, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()
