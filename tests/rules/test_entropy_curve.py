"""A curve through knots: what it is at every entropy, what it does to a row, and which knots are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import undilute as ud
from tests.cases import rows, some_mask
from undilute import rules
from undilute.measures import entropy
from undilute.rules import Entmax, EntropyAdaptive, EntropyCurve, Rule, Sigmoid
from undilute.theory import adaptive as theory

ENTROPIES, BETAS = [0.3, 1.0, 2.5, 4.0], [1.0, 1.8, 1.8, 3.0]
BY_HEAD = EntropyCurve([[0.3, 1.0], [0.0, 2.0], [1.0, 1.5]], [[1.0, 2.0], [1.5, 4.0], [1.0, 1.0]])
PUBLISHED, MONOTONE = EntropyAdaptive(), rules.get("adaptive-monotone").scale
GRID = torch.linspace(0.0, 12.0, 4801, dtype=torch.float64)


def test_it_is_numpys_interpolation() -> None:
    expected = torch.from_numpy(np.interp(GRID.numpy(), ENTROPIES, BETAS))
    for lists in (True, False):
        given = (
            (ENTROPIES, BETAS) if lists else [torch.tensor(knots, dtype=torch.float64) for knots in (ENTROPIES, BETAS)]
        )
        curve = EntropyCurve(*given)
        torch.testing.assert_close(curve.beta(GRID), expected, rtol=1e-14, atol=0)
        assert curve.beta(GRID.view(1, -1, 1)).shape == (1, len(GRID), 1)
        assert curve.beta(1.75) == pytest.approx(1.8)
        assert (curve.beta(-1.0), curve.beta(0.0), curve.beta(1e9)) == (1.0, 1.0, pytest.approx(3.0))


def test_one_knot_is_a_constant() -> None:
    curve = EntropyCurve([2.0], [1.5])
    assert (curve.beta(GRID) == 1.5).all()
    assert Rule(curve, Sigmoid()).lipschitz(9) == 1.5 * Sigmoid().lipschitz(9)
    z = rows(5, 9, seed=1)
    torch.testing.assert_close(Rule(curve)(z), rules.get("temperature", T=1 / 1.5)(z))


@given(
    knots=st.lists(st.tuples(st.floats(0.01, 3.0), st.floats(0.0, 2.0)), min_size=1, max_size=8),
    entropies=st.lists(st.floats(0.0, 20.0), min_size=2, max_size=20),
)
def test_beta_never_falls_and_never_leaves_its_knots(knots: list[tuple[float, float]], entropies: list[float]) -> None:
    h, rise = (np.cumsum([each[i] for each in knots]) for i in (0, 1))
    betas = (1.0 + rise).tolist()
    beta = EntropyCurve(h.tolist(), betas).beta(torch.tensor(sorted(entropies), dtype=torch.float64))
    assert (beta.diff() >= -1e-13 * betas[-1]).all()
    assert (beta >= betas[0]).all()
    assert (beta <= betas[-1] * (1 + 1e-13)).all()


def test_knots_that_rounding_makes_equal_are_a_step() -> None:
    curve = EntropyCurve([1.0, 1.0 + 1e-12, 5.0], [1.0, 2.0, 2.0])
    entropies = torch.tensor([0.9, 1.1, 9.0], requires_grad=True)
    assert curve.beta(entropies).tolist() == [1.0, 2.0, 2.0]
    assert torch.autograd.grad(curve.beta(entropies).sum(), entropies)[0].tolist() == [0.0, 0.0, 0.0]


def test_the_preset_is_the_published_curves_envelope() -> None:
    published = PUBLISHED.beta(GRID)
    envelope = published.cummax(0).values
    assert (MONOTONE.beta(GRID) - envelope).abs().max() < 0.003
    assert (MONOTONE.beta(GRID).diff() >= -1e-14).all()
    first, peak = theory.active_intervals(PUBLISHED)[0][0], theory.peak(PUBLISHED)
    assert MONOTONE.entropies[0] == pytest.approx(first, abs=1e-9)
    assert (MONOTONE.entropies[-1], MONOTONE.betas[-1]) == pytest.approx(tuple(peak), abs=1e-6)
    assert 16 <= len(MONOTONE.betas) <= 24


def test_it_acts_where_the_published_curve_is_off() -> None:
    assert PUBLISHED.beta(5.95) == 1.0 < 2.4 < MONOTONE.beta(5.95) == MONOTONE.beta(11.0)
    z = torch.zeros(4096, dtype=torch.float64)
    z[0] = 6.0  # a needle that softmax gives 9 % of the row
    before = rules.get("softmax")(z)
    assert entropy(before).item() > 5.94
    assert torch.equal(rules.get("adaptive")(z), before)
    after = rules.get("adaptive-monotone")(z)
    gap = math.exp(6.0 * MONOTONE.beta(float(entropy(before))))
    assert after[0].item() == pytest.approx(gap / (gap + 4095)) == pytest.approx(0.998, abs=5e-4)


@pytest.mark.parametrize("n", [2, 10, 100, 3000])
def test_it_never_raises_entropy_and_keeps_the_argmax(n: int) -> None:
    z = rows(200, n, seed=n, spread=1.0) * torch.logspace(-2, 1, 200, dtype=torch.float64)[:, None]
    for curve in (MONOTONE, EntropyCurve(ENTROPIES, BETAS), EntropyCurve([0.0, 0.01, 7.0], [1.0, 5.0, 50.0])):
        before, after = rules.get("softmax")(z), Rule(curve)(z)
        assert (entropy(after) <= entropy(before) + 1e-12).all()
        assert (before.argmax(-1) == after.argmax(-1)).all()


def test_every_head_has_its_own_curve() -> None:
    z, mask = rows(2, 3, 4, 6, seed=2), some_mask(2, 1, 4, 6, seed=3)
    weights = Rule(BY_HEAD)(z, mask)
    for head in range(3):
        alone = Rule(EntropyCurve(BY_HEAD.entropies[head].tolist(), BY_HEAD.betas[head].tolist()))
        torch.testing.assert_close(weights[:, head], alone(z[:, head], mask[:, 0]), rtol=1e-12, atol=0)
    assert BY_HEAD.beta(torch.full((3, 1, 1), 9.0)).flatten().tolist() == [2.0, 4.0, 1.0]
    assert BY_HEAD.bound(1000) == 4.0
    assert BY_HEAD.bound(1) == 1.5
    with pytest.raises(ud.InvalidTensor, match=r"knots for 3 heads.*\(\): must be \(..., 3, rows, 1\)"):
        BY_HEAD.beta(2.0)


def test_cutting_heads_and_rows() -> None:
    cut = BY_HEAD.for_heads(slice(1, 3), 3)
    assert torch.equal(cut.betas, BY_HEAD.betas[1:])
    assert torch.equal(cut.entropies, BY_HEAD.entropies[1:])
    assert BY_HEAD.betas.shape == (3, 2)
    for curve in (BY_HEAD, EntropyCurve(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))):
        for length in (2, 3):
            assert curve.for_rows(slice(0, 1), length) is curve
    shared = EntropyCurve(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 2.0]))
    assert shared.for_heads(slice(0, 1), 3) is shared
    with pytest.raises(ud.InvalidTensor, match="knots for 3 heads, and there are 4"):
        BY_HEAD.for_heads(slice(0, 2), 4)


def test_gradients_reach_logits_and_knots() -> None:
    z, mask = rows(2, 3, 4, 6, seed=4).requires_grad_(), some_mask(2, 1, 4, 6, seed=5)
    h = torch.tensor([[0.2, 0.9, 1.6]] * 3, dtype=torch.float64).requires_grad_()
    beta = torch.tensor([[1.1, 1.5, 3.0], [1.05, 2.0, 2.5], [1.2, 1.3, 1.4]], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t, a, b: Rule(EntropyCurve(a, b))(t, mask), (z, h, beta))
    assert torch.autograd.gradcheck(lambda t: Rule(EntropyCurve(ENTROPIES, BETAS))(t, mask), (z,))
    learned = EntropyCurve([0.2, 0.9], torch.nn.Parameter(torch.tensor([1.0, 2.0])))
    assert [name for name, _ in learned.named_parameters()] == ["betas"]


@pytest.mark.parametrize("n", [2, 3, 8, 40])
def test_lipschitz_bound(n: int) -> None:
    """No row's Jacobian exceeds the bound, which is the steepest reachable line's and no other's."""
    curve = EntropyCurve([0.2, 0.6, 3.0, 3.1], [1.0, 2.0, 2.2, 9.0])
    slope = 2.5 if n <= 20 else 68.0  # the last line starts at 3 nats: log n > 3 only from n = 21 on
    top = curve.beta(math.log(n))
    expected = top / 2 + slope * (math.log(n - 1) ** 2 / 4 + 1)
    assert Rule(curve).lipschitz(n) == pytest.approx(expected)
    spreads = torch.logspace(-2, 1, 60, dtype=torch.float64)[:, None]
    z = rows(60, n, seed=n, spread=1.0) * spreads
    norms = [torch.linalg.matrix_norm(torch.autograd.functional.jacobian(Rule(curve), row), 2) for row in z]
    assert max(norms) <= expected
    assert max(norms) > 0.5 * top * 0.1
    assert math.isinf(Rule(curve, Entmax(2.0)).lipschitz(n))


def test_lipschitz_bound_where_the_curve_is_flat() -> None:
    late = EntropyCurve([3.0, 4.0], [1.5, 2.0])
    assert Rule(late, Entmax(2.0)).lipschitz(10) == 1.5 * Entmax(2.0).lipschitz(10)
    assert math.isinf(Rule(late, Entmax(2.0)).lipschitz(21))
    assert Rule(late).lipschitz(1) == 0.0
    assert EntropyCurve([-1.0, 1.0], [1.0, 3.0]).lipschitz(Sigmoid(), 1) == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EntropyCurve([1.0, 1.0], [1.0, 2.0]), "entropies hold 1 after 1: each knot must be above"),
        (lambda: EntropyCurve([1.0, 3.0, 2.0], [1.0, 2.0, 3.0]), "entropies hold 2 after 3"),
        (lambda: EntropyCurve([[1.0, 2.0], [2.0, 1.5]], [[1.0, 2.0]] * 2), "entropies hold 1.5 after 2"),
        (lambda: EntropyCurve([1.0, 2.0], [0.5, 2.0]), "betas hold 0.5: every value must be at least 1"),
        (lambda: EntropyCurve([1.0, 2.0, 3.0], [1.0, 2.5, 2.0]), "betas hold 2 after 2.5: a flatter row"),
        (lambda: EntropyCurve([1.0, math.nan], [1.0, 2.0]), "entropies holds nan"),
        (lambda: EntropyCurve([1.0, 2.0], [1.0, math.inf]), "betas holds inf"),
        (lambda: EntropyCurve(torch.tensor([1.0, math.nan]), [1.0, 2.0]), "entropies holds nan"),
        (lambda: EntropyCurve([1.0, 2.0], [1.0]), r"entropies have shape \(2,\) and betas \(1,\)"),
        (lambda: EntropyCurve([1.0, 2.0], [[1.0, 2.0]]), r"\(2,\) and betas \(1, 2\)"),
        (lambda: EntropyCurve([], []), r"entropies has shape \(0,\): must be .* at least one knot"),
        (lambda: EntropyCurve([[]], [[]]), "at least one knot"),
        (lambda: EntropyCurve(torch.ones(1, 1, 1), torch.ones(1, 1, 1)), r"entropies has shape \(1, 1, 1\)"),
        (lambda: EntropyCurve(2.0, 1.0), "entropies = 2.0: must be a list of numbers or a tensor"),
        (lambda: EntropyCurve("12", [1.0]), "entropies = '12': must be numbers"),
        (lambda: EntropyCurve([[1.0, 2.0], [1.0]], [[1.0]]), "entropies = .*as many for each head"),
        (lambda: EntropyCurve(torch.tensor([1, 2]), [1.0, 2.0]), "entropies has dtype torch.int64"),
    ],
)
def test_bad_knots_get_one_clear_error(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ud.InvalidValue, match=message):
        make()


def test_knots_may_be_deferred_and_move_with_the_module() -> None:
    with torch.device("meta"):
        assert EntropyCurve(torch.zeros(2, 3), torch.zeros(2, 3)).betas.is_meta
        listed = EntropyCurve(ENTROPIES, BETAS)
    assert listed.beta(4.0) == pytest.approx(3.0)
    assert set(BY_HEAD.state_dict()) == {"entropies", "betas"}
    assert repr(BY_HEAD) == "EntropyCurve(entropies=<3 × 2 values>, betas=<3 × 2 values>)"
    assert repr(listed) == "EntropyCurve(entropies=<4 values>, betas=<4 values>)"
