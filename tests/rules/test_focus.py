"""Focus where its regimes meet: exact gradients inside each, continuity across every border."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.cases import rows
from undilute.rules import Entmax, Focus, Rule, Temperature
from undilute.theory import focus

K, S_MIN, S_MAX = 3, 0.5, 8.0
LEADS = {"sparse as it is": 10.0, "fitted": 0.6, "almost tied": 0.05}  # of α = 1.5: s = s_min, s_K, s_max


def leading(lead: float, alpha: float = 1.5, n: int = 6) -> Tensor:
    """A row whose lead is as given."""
    z = torch.tensor([1.0, 0.7, 0.2, 0.0, -0.1, -0.4, -0.5, -0.9], dtype=torch.float64)[:n]
    return z * (lead / focus.lead(z, K, alpha))


def scale(z: Tensor, alpha: float = 1.5) -> float:
    return float(focus.fitting_scale(z, K, alpha))


def test_the_leads_are_in_their_regimes() -> None:
    sparse, fitted, tied = (scale(leading(lead)) for lead in LEADS.values())
    assert sparse < S_MIN < fitted < S_MAX < tied


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_gradient_in_every_regime(alpha: float, lead: float) -> None:
    z = torch.stack([leading(lead, alpha), leading(lead, alpha).flip(0) + 3]).requires_grad_()
    assert torch.autograd.gradcheck(Rule(map=Focus(K, alpha, S_MIN, S_MAX)), (z,))


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
def test_gradient_into_limits_and_alpha_per_head(lead: float) -> None:
    z = torch.stack([leading(lead, 1.4), leading(lead, 1.7)]).unsqueeze(1).requires_grad_()  # (heads, 1, keys)
    alpha = torch.tensor([1.4, 1.7], dtype=torch.float64, requires_grad=True)
    least = torch.tensor([S_MIN, 0.6], dtype=torch.float64, requires_grad=True)
    most = torch.tensor([S_MAX, 7.0], dtype=torch.float64, requires_grad=True)

    def weights(z: Tensor, alpha: Tensor, least: Tensor, most: Tensor) -> Tensor:
        found: Tensor = Rule(map=Focus(K, alpha, least, most))(z)
        return found

    assert torch.autograd.gradcheck(weights, (z, alpha, least, most))
    counts = [
        float(torch.autograd.grad((weights(z, alpha, least, most) * rows(2, 1, 6)).sum(), limit)[0].abs().sum())
        for limit in (least, most)
    ]
    assert [count > 0 for count in counts] == [lead == LEADS["sparse as it is"], lead == LEADS["almost tied"]]


def test_learned_limits_move() -> None:
    least, most = nn.Parameter(torch.tensor([0.5, 0.5])), nn.Parameter(torch.tensor([8.0, 8.0]))
    map_of = Focus(K, 1.5, least, most)
    z = torch.stack([leading(LEADS["sparse as it is"]), leading(LEADS["almost tied"])]).float().unsqueeze(1)
    Rule(map=map_of)(z)[..., 0].sum().backward()
    assert least.grad is not None
    assert most.grad is not None
    assert least.grad[0] > 0 == least.grad[1]
    assert most.grad[1] > 0 == most.grad[0]


BORDERS = {
    "s_K = s_min": (leading(2 / S_MIN), torch.tensor([1.0, 0, 0, 0, 0, 0])),
    "s_K = s_max": (leading(2 / S_MAX), torch.tensor([1.0, 0, 0, 0, 0, 0])),
    "z_K = z_{K+1}": (torch.tensor([1.0, 0.7, 0.3, 0.3, 0.0, -0.1]), torch.tensor([0, 0, 1.0, -1.0, 0, 0])),
    "ranks K + 1 and K + 2": (torch.tensor([1.0, 0.7, 0.5, 0.3, 0.3, -0.1]), torch.tensor([0, 0, 0, 1.0, -1.0, 0])),
    "the top two": (torch.tensor([1.0, 1.0, 0.5, 0.3, 0.2, -0.1]), torch.tensor([1.0, -1.0, 0, 0, 0, 0])),
    "a tie of K + 1": (torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, -0.1]), torch.tensor([1.0, -1.0, 0.5, 0, 0, 0])),
    "a tie of all": (torch.zeros(6), torch.tensor([1.0, -1.0, 0.5, 0, 0.3, 0.2])),
}


@pytest.mark.parametrize("border", BORDERS.values(), ids=BORDERS)
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_continuous_across_borders(alpha: float, border: tuple[Tensor, Tensor]) -> None:
    z, direction = (each.double() for each in border)
    z = z * (focus.lead(z, K, 1.5) / focus.lead(z, K, alpha)).nan_to_num(1.0)
    direction = direction / direction.norm()
    rule_of = Rule(map=Focus(K, alpha, S_MIN, S_MAX))
    for step in (1e-3, 1e-6, 1e-9):
        moved = float((rule_of(z + step * direction) - rule_of(z - step * direction)).norm())
        assert moved <= 2 * step * rule_of.lipschitz(6) * (1 + 1e-6) + 1e-13
        at = rule_of(z)
        assert float((rule_of(z + step * direction) - at).norm()) <= step * rule_of.lipschitz(6) * (1 + 1e-6) + 1e-13


def test_a_border_is_where_it_should_be() -> None:
    for name, limit in (("s_K = s_min", S_MIN), ("s_K = s_max", S_MAX)):
        assert scale(BORDERS[name][0]) == pytest.approx(limit, rel=1e-12)


def test_a_key_far_behind_is_as_good_as_none() -> None:
    """n = K + 1 goes over into n = K as the last key falls away: both take s_min."""
    z, rule_of = leading(LEADS["fitted"], n=6)[:K], Rule(map=Focus(K, 1.5, S_MIN, S_MAX))
    with_one = rule_of(torch.cat([z, torch.tensor([-50.0], dtype=torch.float64)]))
    torch.testing.assert_close(with_one[:K], rule_of(z), rtol=0, atol=0)
    torch.testing.assert_close(rule_of(z), Rule(Temperature(1 / S_MIN), Entmax(1.5))(z))


def test_further_keys_do_not_count_where_the_row_is_fitted() -> None:
    z, rule_of = leading(LEADS["fitted"], n=5), Rule(map=Focus(K, 1.5, S_MIN, S_MAX))
    longer = torch.cat([z, z[K] - rows(1, 3000).abs()[0]])
    assert torch.equal(rule_of(longer)[:5], rule_of(z))
    torch.testing.assert_close(rule_of(1.5 * z - 2), rule_of(z))


def test_a_limit_below_the_other_is_the_largest_scale() -> None:
    z = rows(20, 8, spread=1.0)
    torch.testing.assert_close(Rule(map=Focus(K, 1.5, 5.0, 2.0))(z), Rule(map=Focus(K, 1.5, 2.0, 2.0))(z))
