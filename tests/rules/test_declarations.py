"""Does each rule do what it states about itself: sum, sparsity, Lipschitz constant?"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.cases import RULES, rows
from undilute.rules import Entmax, Hard, Rule, get


def jacobians(rule: Rule, z: Tensor) -> Tensor:
    """∂weights/∂logits of each row, (rows, n, n), itself differentiable."""
    copies = z[:, None].expand(-1, z.shape[-1], -1)  # of each row as many as it has weights: one backward pass for all
    return torch.autograd.grad(rule(copies).diagonal(dim1=-2, dim2=-1).sum(), copies, create_graph=True)[0]


def spectral_norms(rule: Rule, z: Tensor) -> Tensor:
    """‖∂weights/∂logits‖₂ of each row, exactly."""
    return torch.linalg.matrix_norm(jacobians(rule, z.clone().requires_grad_()).detach(), ord=2)


def hostile_rows(n: int) -> Tensor:
    """Random rows of many spreads, near-ties, one against many, two levels, near zero."""
    made = [rows(60, n, seed=seed, spread=spread) for seed, spread in enumerate((1e-3, 0.1, 1.0, 4.0, 20.0))]
    made.append(1e-9 * rows(20, n, seed=7))
    for gap in torch.linspace(-8, 8, 65, dtype=torch.float64):
        row = 1e-7 * rows(1, n, seed=8)
        row[:, 0] += gap
        made.append(row)
        pair = row - 50.0
        pair[:, :2] = row[:, :1] + 1e-7 * rows(1, min(n, 2), seed=9)
        made.append(pair)
    return torch.cat(made)


def climb(rule: Rule, start: Tensor, steps: int = 60) -> Tensor:
    """Gradient ascent on the Jacobian's norm from each row; the largest norm met for each."""
    z, best = start.clone().requires_grad_(), torch.zeros(len(start), dtype=start.dtype)
    optimiser = torch.optim.Adam([z], lr=0.05)
    for _ in range(steps):
        jacobian = jacobians(rule, z)
        norms = torch.linalg.eigvalsh(jacobian.mT @ jacobian)[:, -1].clamp(min=0).sqrt()
        best = torch.maximum(best, norms.detach().nan_to_num(0.0))
        optimiser.zero_grad()
        (-norms.sum()).backward()
        if z.grad is not None:
            z.grad.nan_to_num_(0.0)
        optimiser.step()
    return best


def test_sum(rule: Rule) -> None:
    z = hostile_rows(12)
    error = (rule(z).sum(-1) - 1).abs().max()
    if rule.sums_to_one:
        assert error < 1e-12
    else:
        assert error > 1e-3


def test_sparsity(rule: Rule) -> None:
    def zeros(spread: float) -> float:
        return float((rule(rows(200, 64, seed=1, spread=spread)) == 0).double().mean(-1).max())

    if rule.is_sparse:
        assert max(zeros(5.0), zeros(500.0)) > 0.4
    else:
        assert zeros(5.0) <= 1 / 64  # self-adjusted variants give 0 to the smallest logit and to no other


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_lipschitz_bound_holds(rule: Rule, n: int) -> None:
    bound = rule.lipschitz(n)
    z = hostile_rows(n)
    if isinstance(rule.map, Hard):
        jump = (rule(z + 1e-6 * rows(*z.shape, seed=2)) - rule(z)).norm(dim=-1) / 1e-6
        assert (float(jump.max()) > 1e3) == math.isinf(bound)
        return
    norms = spectral_norms(rule, z)
    if math.isfinite(bound):
        assert norms.max() <= bound * (1 + 1e-6) + 1e-12
        if n > 1:
            start = z[norms.topk(min(12, len(norms))).indices]
            assert climb(rule, start).max() <= bound * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    "name",
    ["softmax", "temperature 0.3", "ssmax", "yarn", "sparsemax", "entmax15", "entmax 1.2", "sigmoid", "sink -1.5"],
)
@pytest.mark.parametrize("n", [2, 8])
def test_lipschitz_constant_is_reached(name: str, n: int) -> None:
    rule = RULES[name]
    z = hostile_rows(n)
    if name == "sink -1.5":
        z = z + 30.0  # far above the sink
    if name == "sigmoid":
        z = torch.full((1, n), math.log(n), dtype=torch.float64)
    assert float(spectral_norms(rule, z).max()) > 0.99 * rule.lipschitz(n)


@pytest.mark.parametrize(
    ("name", "n", "near"),
    [
        ("sa-softmax", 3, [1e-9, 0.0, -1e-9]),
        ("sa-softmax V0", 3, [5e3, 5e3, 0.0]),
        ("sa-softmax V1", 3, [5e3, 5e3, 0.0]),
        ("sa-softmax V2", 3, [1e-9, 0.0, -1e-9]),
        ("softpick", 3, [1e-9, 1e-9, 1e-9]),
        ("top-k 2", 3, [1.0, 0.0, 1e-9]),
        ("entmax 3", 4, None),
    ],
)
def test_infinite_or_huge_constants_are_not_excuses(name: str, n: int, near: list[float] | None) -> None:
    """Where no useful constant is declared, there really are rows where a tiny change moves the weights a lot."""
    rule = RULES[name]
    assert rule.lipschitz(n) > 1e5
    if near is None:  # two keys at the edge of the support
        z = torch.tensor([[1.0, 0.5, 0.5, 0.5]], dtype=torch.float64) * torch.linspace(0.1, 2, 4000)[:, None].double()
        assert spectral_norms(rule, z).max() > 50
        return
    z = torch.tensor([near], dtype=torch.float64)
    step = 1e-7 * rows(4000, n, seed=3)
    slope = ((rule(z + step) - rule(z)).norm(dim=-1) / step.norm(dim=-1)).max()
    assert slope > 1e3


def entmax_jacobians(w: Tensor, alpha: float) -> Tensor:
    """diag(u) − uuᵀ/Σu with u = p^(2−α), for weights p = softmax(w): (rows, n) → (rows, n, n)."""
    u = w.softmax(-1) ** (2 - alpha)
    return torch.diag_embed(u) - u[:, :, None] * u[:, None] / u.sum(-1)[:, None, None]


@pytest.mark.parametrize("alpha", [1.05, 1.5, 1.9])
@pytest.mark.parametrize("n", [3, 6, 20, 100])
def test_entmax_constant_against_a_search_over_weights(alpha: float, n: int) -> None:
    """The closed form is at least what a direct search over all weights finds, and no more than 1 % above it.

    The search climbs on vᵀJv, where v is the top eigenvector of J, followed by a power step at a time; what counts is
    the exact norm on the way.
    """
    bound = Rule(map=Entmax(alpha)).lipschitz(n)
    w = rows(30, n, seed=n, spread=1.0)
    w[0, :2] += 20.0
    w[1:10, 0] += torch.linspace(0, 6, 9, dtype=torch.float64)
    v = torch.linalg.eigh(entmax_jacobians(w, alpha)).eigenvectors[..., -1]
    w.requires_grad_()
    optimiser = torch.optim.Adam([w], lr=0.05)
    best = 0.0
    for step in range(151):
        if step % 10 == 0:
            best = max(best, torch.linalg.matrix_norm(entmax_jacobians(w.detach(), alpha), ord=2).max().item())
        u = w.softmax(-1) ** (2 - alpha)
        moved = u * v - u * (u * v).sum(-1, keepdim=True) / u.sum(-1, keepdim=True)  # J·v, without making J
        optimiser.zero_grad()
        (-(v * moved).sum()).backward()
        optimiser.step()
        v = torch.nn.functional.normalize(moved.detach(), dim=-1)
    assert best <= bound * (1 + 1e-9)
    assert best >= 0.99 * bound


def test_adaptive_bound_uses_a_true_bound_on_the_varentropy() -> None:
    for n in (2, 3, 10, 1000, 100_000):
        top = torch.linspace(1e-6, 1 - 1e-6, 20_001, dtype=torch.float64)
        rest = (1 - top) / (n - 1)
        mean = top * top.log() + (1 - top) * rest.log()
        varentropy = top * top.log() ** 2 + (1 - top) * rest.log() ** 2 - mean**2
        assert float(varentropy.max()) <= math.log(n - 1) ** 2 / 4 + 1


def test_scale_bounds_hold(rule: Rule) -> None:
    for n in (1, 2, 9):
        z = rows(500, n, seed=n, spread=3.0)
        scale = rule.scale(z, torch.ones_like(z, dtype=torch.bool))
        assert float(torch.as_tensor(scale).abs().max()) <= rule.scale.bound(n) * (1 + 1e-12)


def test_composed_adaptive_rules_without_proof_say_so() -> None:
    assert math.isinf(Rule(get("adaptive").scale, Entmax(2.0)).lipschitz(8))
