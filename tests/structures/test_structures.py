"""Differential, selective and linear attention against their definitions, written out plainly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.cases import rows
from undilute.structures.differential import initial_lambda
from undilute.structures.linear import elu_plus_one

SOFTMAX_LIKE = ["softmax", "temperature", "ssmax", "adaptive", "softmax1", "entmax15"]


def heads(count: int, length: int = 6, seed: int = 0) -> list[Tensor]:
    return [rows(2, 3, length, 4, seed=seed + i) for i in range(count)]


@pytest.mark.parametrize("name", SOFTMAX_LIKE)
def test_differential(name: str) -> None:
    q1, k1, q2, k2, v = heads(5)
    lam = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    weights = ud.rules.get(name)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    expected = (weights(q1 @ k1.mT / 2, causal) - lam[:, None, None] * weights(q2 @ k2.mT / 2, causal)) @ v
    got = ud.structures.differential(q1, k1, q2, k2, v, lam, rule=name, is_causal=True)
    torch.testing.assert_close(got, expected)


def test_differential_gradients() -> None:
    tensors = [t[0, :1, :4].requires_grad_() for t in heads(5, seed=5)]
    lam = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ud.structures.differential, (*tensors, lam))


def test_initial_lambda() -> None:
    assert initial_lambda(0) == pytest.approx(0.2)
    assert initial_lambda(10) == pytest.approx(0.8 - 0.6 * math.exp(-3))


def selective_by_loops(q: Tensor, k: Tensor, v: Tensor, rule: str) -> Tensor:
    """Heads (H, L, E): S from head 0, no vote on oneself or on the first token, F_{i,j} = Σ_{m<i} S_{m,j}."""
    length, out = q.shape[1], torch.zeros_like(v)
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    for h in range(len(q)):
        for i in range(length):
            z = []
            for j in range(i + 1):
                votes = [max(logits[0, m, j].item(), 0.0) for m in range(i) if j < m and j != 0]
                z.append(logits[h, i, j] - sum(votes))
            out[h, i] = ud.rules.get(rule)(torch.stack(z)) @ v[h, : i + 1]
    return out


@pytest.mark.parametrize("name", SOFTMAX_LIKE)
def test_selective(name: str) -> None:
    q, k, v = heads(3, seed=7)
    got = ud.structures.selective(q, k, v, rule=name)
    for b in range(2):
        torch.testing.assert_close(got[b], selective_by_loops(q[b], k[b], v[b], name))


def test_selective_with_grouped_keys_and_gradients() -> None:
    q, k, v = heads(3, seed=8)
    grouped = ud.structures.selective(q, k[:, :1], v[:, :1], enable_gqa=True)
    repeated = ud.structures.selective(q, k[:, :1].expand_as(q), v[:, :1].expand_as(q))
    torch.testing.assert_close(grouped, repeated)
    small = [t[0, :2, :4].requires_grad_() for t in (q, k, v)]
    assert torch.autograd.gradcheck(ud.structures.selective, small)


def test_selective_with_padding_equals_no_padding() -> None:
    q, k, v = heads(3, seed=10)
    extra = [rows(2, 3, 2, 4, seed=20 + i) for i in range(3)]
    for order in ((0, 1), (1, 0)):
        padded = [torch.cat([(t, e)[order[0]], (t, e)[order[1]]], 2) for t, e in zip((q, k, v), extra, strict=True)]
        real = slice(0, 6) if order == (0, 1) else slice(2, 8)
        mask = torch.zeros(8, dtype=torch.bool)
        mask[real] = True
        for shaped in (mask, mask[None, None, None], torch.zeros(8).double().masked_fill(~mask, -math.inf)):
            got = ud.structures.selective(*padded, shaped)[:, :, real]
            torch.testing.assert_close(got, ud.structures.selective(q, k, v))


@pytest.mark.parametrize("name", SOFTMAX_LIKE)
def test_selective_in_blocks_and_in_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (t.requires_grad_() for t in heads(3, 13, seed=12))
    mask = torch.arange(13) != 4
    whole = [ud.structures.selective(q, k, v, m, rule=name) for m in (None, mask)]
    monkeypatch.setattr("undilute.engine.routes.rows.TEMPORARIES", 2**19)  # two or three rows to a block
    for expected, m in zip(whole, (None, mask), strict=True):
        got = ud.structures.selective(q, k, v, m, rule=name)
        torch.testing.assert_close(got, expected)
        for a, b in zip(
            torch.autograd.grad(got.square().sum(), (q, k, v)),
            torch.autograd.grad(expected.square().sum(), (q, k, v)),
            strict=True,
        ):
            torch.testing.assert_close(a, b)
    state, steps = ud.structures.SelectiveState(), []
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 13)):
        new, past = slice(start, stop), slice(0, stop)
        steps.append(ud.structures.selective(q[:, :, new], k[:, :, past], v[:, :, past], rule=name, state=state))
    torch.testing.assert_close(torch.cat(steps, 2), whole[0])
    with pytest.raises(ud.InvalidTensor, match="use a new SelectiveState"):
        ud.structures.selective(q[:1], k[:1], v[:1], state=state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    q, k, v = (t.to(dtype) for t in heads(3, 300, seed=11))
    for structure in (ud.structures.selective, ud.structures.linear):
        exact = structure(q.double(), k.double(), v.double())
        torch.testing.assert_close(structure(q, k, v).double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
    many = torch.randn(3, 4096, 32).half().unbind()
    assert ud.structures.linear(*many).abs().max() > 0


def test_linear_features_stay_positive() -> None:
    x = torch.full((1, 2, 3), -40.0)
    torch.testing.assert_close(ud.structures.linear(x, x, x), x)
    assert ud.structures.linear(*torch.zeros(3, 2, 0, 4), is_causal=True).shape == (2, 0, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: ud.structures.selective(q, q, q, scale="x"), "scale = 'x'"),
        (lambda q: ud.structures.selective(q.long(), q, q), "query is torch.int64"),
        (lambda q: ud.structures.linear(q, q, q, key_mask=torch.ones(3)), "key_mask is torch.float32"),
        (lambda q: ud.structures.linear(q, q[..., :1], q), "query has 4 features and key 1"),
    ],
)
def test_bad_input(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ud.UndiluteError, match=message):
        call(torch.zeros(1, 2, 3, 4))


def test_selective_refuses_cross_attention() -> None:
    with pytest.raises(ud.InvalidTensor, match="causal self-attention"):
        ud.structures.selective(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))


@pytest.mark.parametrize("length", [1, 5, 128, 300])
@pytest.mark.parametrize("is_causal", [False, True])
def test_linear(length: int, is_causal: bool) -> None:
    q, k, v = heads(3, length, seed=9)
    scores = elu_plus_one(q) @ elu_plus_one(k).mT
    seen = torch.rand(2, 1, length, generator=torch.Generator().manual_seed(0)) < 0.7
    scores = scores * seen[..., None, :]
    if is_causal:
        scores = scores.tril()
    total = scores.sum(-1, keepdim=True)
    expected = scores @ v / total.masked_fill(total == 0, 1.0)
    got = ud.structures.linear(q, k, v, is_causal=is_causal, key_mask=seen)
    torch.testing.assert_close(got, expected)
    assert (got[(total == 0).expand_as(got)] == 0).all()


def test_linear_attention_dilutes_too() -> None:
    """A token scoring 3 against n − 1 scoring 1 gets 3/(n + 2)."""
    for n in (10, 1000):
        k = torch.zeros(n, 1, dtype=torch.float64)
        k[0] = 2.0  # φ = 3, the others φ(0) = 1
        v = torch.zeros(n, 1, dtype=torch.float64)
        v[0] = 1.0
        assert ud.structures.linear(torch.zeros(1, 1).double(), k, v).item() == pytest.approx(3 / (n + 2))


def test_linear_refuses_unequal_causal_lengths() -> None:
    with pytest.raises(ud.InvalidTensor, match="lengths 3 and 5"):
        ud.structures.linear(torch.zeros(3, 2), torch.zeros(5, 2), torch.zeros(5, 2), is_causal=True)
