"""Each scale against the numbers its paper, or the released model, gives."""

from __future__ import annotations

import math

import pytest
import torch

from tests.cases import rows
from undilute import rules
from undilute.rules import (
    EntropyAdaptive,
    LearnableLogLength,
    LearnablePowLogLength,
    LearnableTemperature,
    Llama4,
    LogLength,
    LogN,
    PowLogLength,
    Rule,
    Temperature,
    YaRN,
)


def factor(scale: rules.Scale, n: int) -> float:
    z = torch.zeros(n, dtype=torch.float64)
    return float(torch.as_tensor(scale(z, torch.ones(n, dtype=torch.bool))).reshape(-1)[0])


def test_temperature() -> None:
    assert factor(Temperature(0.25), 7) == 4.0


def test_log_length_uses_natural_logarithm_of_n() -> None:
    assert factor(LogLength(0.43, 0.1), 1000) == pytest.approx(0.43 * math.log(1000) + 0.1)


def test_log_length_with_a_floor() -> None:
    scale = LogLength(0.25, 0.1, floor=1.0)
    assert factor(scale, 8) == scale.bound(8) == 1.0
    assert factor(scale, 1000) == pytest.approx(0.25 * math.log(1000) + 0.1)
    assert scale.bound(1000) == pytest.approx(0.25 * math.log(1000) + 0.1)
    assert LogLength(-2.0, floor=0.5).bound(1000) == 0.5
    assert LogLength(-2.0, floor=-3.0).bound(1000) == 3.0
    assert LogLength(-2.0).bound(1000) == pytest.approx(2.0 * math.log(1000))
    by_head = rules.get("ssmax", s=torch.tensor([0.1, 0.5]), floor=1.0).scale
    assert by_head.at_length(torch.full((2, 1, 1), 100.0)).flatten().tolist() == pytest.approx([1, 0.5 * math.log(100)])
    assert by_head.bound(100) == pytest.approx(0.5 * math.log(100))


def test_ssmax_figure_one_of_its_paper() -> None:
    """−2 everywhere but +3 once, s = 0.43: the top weight stays near 1; softmax's falls like 1/n."""
    for n in (10, 1000, 100_000):
        z = torch.full((n,), -2.0, dtype=torch.float64)
        z[-1] = 3.0
        assert rules.get("ssmax")(z)[-1] > 0.94
        assert rules.get("softmax")(z)[-1] == pytest.approx(math.exp(5) / (math.exp(5) + n - 1))


@pytest.mark.parametrize(("gap", "limit"), [(0.8, 0.0), (1.0, 0.5), (1.25, 1.0)])
def test_ssmax_holds_the_top_weight_only_at_one(gap: float, limit: float) -> None:
    n = 10**6
    z = torch.zeros(n, dtype=torch.float64)
    z[0] = gap
    expected = 1 / (1 + (n - 1) * n**-gap)
    assert float(rules.get("ssmax", s=1.0)(z)[0]) == pytest.approx(expected)
    assert abs(expected - limit) < 0.07


def test_pow_log_length() -> None:
    assert factor(PowLogLength(0.7, 1.5, 2.0), 50) == pytest.approx(2 + 0.7 * math.log(50) ** 1.5)
    assert factor(PowLogLength(0.7, -1.5), 1) == pytest.approx(1 + 0.7 * math.log(2) ** -1.5)


BETAS = {1: 1.27, 2: 2.099, 3: 2.25, 4: 2.389, 5: 2.294, 5.5: 1.8466, 5.9: 1.1094, 6: 1.0, 0: 1.0, 0.4: 1.0}


def test_adaptive_check_vector() -> None:
    beta = EntropyAdaptive().beta
    for entropy, expected in BETAS.items():
        assert beta(float(entropy)) == pytest.approx(expected, abs=5e-5)
    entropies = torch.tensor(list(BETAS), dtype=torch.float64)
    torch.testing.assert_close(beta(entropies), torch.tensor(list(BETAS.values())).double(), rtol=0, atol=5e-5)


def test_adaptive_acts_exactly_between_its_roots() -> None:
    beta = EntropyAdaptive().beta
    assert beta(0.848581) == 1.0 < beta(0.848583)
    assert beta(5.944520) > 1.0 == beta(5.944522)
    assert beta(4.4124) == pytest.approx(2.4214, abs=1e-4)


def test_adaptive_never_raises_entropy_and_keeps_the_argmax() -> None:
    from undilute.measures import entropy

    for n in (2, 10, 100, 1000):
        z = rows(500, n, seed=n, spread=1.5)
        before, after = rules.get("softmax")(z), rules.get("adaptive")(z)
        assert (entropy(after) <= entropy(before) + 1e-12).all()
        assert (before.argmax(-1) == after.argmax(-1)).all()


def test_adaptive_needle_figures() -> None:
    """A needle of gap 6: sharpened at n = 1,024, untouched at 4,096."""
    z = torch.zeros(4096, dtype=torch.float64)
    z[0] = 6.0
    assert rules.get("softmax")(z[:1024])[0].item() == pytest.approx(0.283, abs=5e-4)
    assert rules.get("adaptive")(z[:1024])[0].item() == pytest.approx(0.973, abs=5e-4)
    assert rules.get("adaptive")(z)[0].item() == pytest.approx(0.0897, abs=5e-5)


def test_adaptive_coefficients_are_data() -> None:
    assert EntropyAdaptive([2.0, 0.0], min_entropy=0.0).beta(3.0) == 6.0


def test_shipped_scales() -> None:
    assert factor(LogN(512), 512) == 1.0
    assert factor(LogN(512), 2048) == pytest.approx(math.log(2048, 512))
    assert factor(YaRN(16), 5) == pytest.approx((0.1 * math.log(16) + 1) ** 2)
    assert factor(YaRN(0.5), 5) == 1.0
    assert factor(Llama4(0.1, 100), 99) == 1.0
    assert factor(Llama4(0.1, 100), 250) == pytest.approx(1 + 0.1 * math.log(3))


def test_logn_per_head() -> None:
    lengths = torch.tensor([3.0, 4.0, 100.0])
    z, mask = rows(2, 3, 4, 9, seed=4), torch.ones(4, 9).tril(diagonal=4).bool()
    weights = Rule(LogN(lengths))(z, mask)
    for head, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(weights[:, head], Rule(LogN(length))(z[:, head], mask), rtol=1e-6, atol=0)
    assert LogN(lengths).bound(9) == pytest.approx(2.0)
    assert LogN(lengths).bound(2) == 1.0


def test_parameters_per_head() -> None:
    z = rows(2, 3, 4, 5, seed=1)
    s = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    weights = Rule(LogLength(s))(z)
    for head in range(3):
        torch.testing.assert_close(weights[:, head], Rule(LogLength(float(s[head])))(z[:, head]), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "build",
    [
        lambda t: Rule(Temperature(t.exp())),
        lambda t: Rule(LogLength(t, 0.5)),
        lambda t: Rule(LogLength(0.5, t)),
        lambda t: Rule(PowLogLength(t, 0.5)),
        lambda t: Rule(PowLogLength(0.5, t)),
        lambda t: Rule(map=rules.Sink(t)),
        lambda t: Rule(map=rules.Sigmoid(t)),
    ],
)
def test_gradients_reach_per_head_parameters(build) -> None:  # type: ignore[no-untyped-def]
    z = rows(2, 3, 4, 5, seed=2).requires_grad_()
    t = rows(3, seed=3, spread=0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda logits, value: build(value)(logits), (z, t))


def test_learnable_scales_start_where_they_should() -> None:
    assert LearnableTemperature(4).T.tolist() == [1.0] * 4
    assert LearnableLogLength(4).s.tolist() == [1.0] * 4
    assert LearnableLogLength(4).b == 0.0
    assert LearnableLogLength(4, bias=True).b.tolist() == [0.0] * 4
    assert isinstance(LearnableLogLength(4).s, torch.nn.Parameter)
    assert rules.LearnableSink(4).s.tolist() == [0.0] * 4


def test_content_dependent_scale_is_the_papers() -> None:
    scale, x = LearnablePowLogLength(8, 3), torch.randn(2, 5, 8)
    beta = torch.nn.functional.softplus(x @ scale.beta_projection.weight.T)
    gamma = 2 * torch.tanh(x @ scale.gamma_projection.weight.T)
    z = torch.zeros(2, 3, 5, 40)
    expected = 1 + beta * math.log(40) ** gamma  # (batch, queries, heads)
    got = scale.on(x)(z, torch.ones_like(z, dtype=torch.bool))
    torch.testing.assert_close(got, expected.permute(0, 2, 1)[..., None])


def test_state_follows_the_module() -> None:
    rule = Rule(LogLength(torch.tensor([0.1, 0.2])), rules.Sink(torch.nn.Parameter(torch.zeros(2))))
    assert set(rule.state_dict()) == {"scale.s", "map.s"}
    assert rule.double().scale.s.dtype == torch.float64
    assert [name for name, _ in rule.named_parameters()] == ["map.s"]
