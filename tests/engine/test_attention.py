"""ud.attention beyond what torch defines: n per row, windows, masks, entropy, errors, for every rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

import undilute as ud
from tests.cases import RULES, rows
from undilute.rules import Rule


def qkv(*shape: int, seed: int = 0, keys: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    *lead, length, features = shape
    k_shape = (*lead, length if keys is None else keys, features)
    return rows(*shape, seed=seed), rows(*k_shape, seed=seed + 1), rows(*k_shape, seed=seed + 2)


def by_hand(q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
    """One query row against exactly the keys it sees."""
    weights: Tensor = rule(k @ q / math.sqrt(len(q)))
    return weights @ v


def test_causal_rows_equal_truncation(rule: Rule) -> None:
    q, k, v = qkv(2, 6, 4)
    out = ud.attention(q, k, v, is_causal=True, rule=rule)
    for h in range(2):
        for i in range(6):
            expected = by_hand(q[h, i], k[h, : i + 1], v[h, : i + 1], rule)
            torch.testing.assert_close(out[h, i], expected, rtol=1e-11, atol=1e-12)


def test_padding_equals_no_padding_forward_and_backward(rule: Rule) -> None:
    q, k, v = qkv(2, 5, 4, seed=3)
    left, right = rows(2, 2, 4, seed=9), rows(2, 3, 4, seed=10)
    padded_k, padded_v = (torch.cat([left, t, right], 1).requires_grad_() for t in (k, v))
    mask = (torch.arange(10) >= 2) & (torch.arange(10) < 7)
    k, v = k.requires_grad_(), v.requires_grad_()
    plain, padded = ud.attention(q, k, v, rule=rule), ud.attention(q, padded_k, padded_v, mask, rule=rule)
    torch.testing.assert_close(padded, plain, rtol=1e-11, atol=1e-12)
    grads = torch.autograd.grad(plain.square().sum(), (k, v))
    padded_grads = torch.autograd.grad(padded.square().sum(), (padded_k, padded_v))
    for a, b in zip(grads, padded_grads, strict=True):
        torch.testing.assert_close(b[:, 2:7], a, rtol=1e-9, atol=1e-10)
        assert (b[:, ~mask] == 0).all()


def test_additive_masks_hide_like_boolean_ones(rule: Rule) -> None:
    q, k, v = qkv(2, 5, 4, seed=4)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = ud.attention(q, k, v, mask, rule=rule)
    for hidden in (-math.inf, torch.finfo(torch.float64).min):
        additive = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~mask, hidden)
        assert torch.equal(ud.attention(q, k, v, additive, rule=rule), expected)
    lowest = torch.zeros(5, 5).masked_fill(~mask, torch.finfo(torch.bfloat16).min)  # as Hugging Face casts it
    assert torch.equal(ud.attention(q, k, v, lowest, rule=rule), expected)


def test_windows_equal_truncation(rule: Rule) -> None:
    q, k, v = qkv(7, 4, seed=5)
    for window in (1, 3, 100):
        causal = ud.attention(q, k, v, is_causal=True, sliding_window=window, rule=rule)
        both = ud.attention(q, k, v, sliding_window=window, rule=rule)
        for i in range(7):
            start = max(0, i - window + 1)
            past = by_hand(q[i], k[start : i + 1], v[start : i + 1], rule)
            torch.testing.assert_close(causal[i], past, rtol=1e-11, atol=1e-12)
            around = by_hand(q[i], k[start : i + window], v[start : i + window], rule)
            torch.testing.assert_close(both[i], around, rtol=1e-11, atol=1e-12)


def test_last_queries_against_a_cache_equal_the_full_call(rule: Rule) -> None:
    q, k, v = qkv(2, 3, 8, 4, seed=6)
    for window in (None, 3):
        full = ud.attention(q, k, v, is_causal=True, sliding_window=window, rule=rule)
        for new in (1, 3):
            step = ud.attention(q[..., -new:, :], k, v, causal_lower_right(new, 8), sliding_window=window, rule=rule)
            torch.testing.assert_close(step, full[..., -new:, :], rtol=1e-11, atol=1e-12)


def test_gqa_equals_repeated_keys(rule: Rule) -> None:
    q, (_, k, v) = rows(2, 6, 5, 4, seed=7), qkv(2, 3, 5, 4, seed=8)
    grouped = ud.attention(q, k, v, is_causal=True, enable_gqa=True, rule=rule)
    repeated = ud.attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True, rule=rule)
    torch.testing.assert_close(grouped, repeated, rtol=1e-12, atol=1e-13)


def test_gradcheck(rule: Rule) -> None:
    if "Hard" in repr(rule):
        return  # its gradient is softmax's by definition; tests/rules checks that
    q, k, v = (t.requires_grad_() for t in qkv(1, 5, 2, seed=9))
    assert torch.autograd.gradcheck(lambda *t: ud.attention(*t, is_causal=True, rule=rule), (q, k, v))


def test_rows_that_see_nothing_are_zero_with_zero_gradient(rule: Rule) -> None:
    q, k, v = (t.requires_grad_() for t in qkv(2, 4, 3, seed=10))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    out, entropy = ud.attention(q, k, v, mask, rule=rule, return_entropy=True)
    assert (out[:, 2] == 0).all()
    assert (entropy[:, 2] == 0).all()
    out.square().sum().backward()
    assert q.grad is not None
    assert (q.grad[:, 2] == 0).all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_entropy_is_that_of_the_weights(rule: Rule) -> None:
    q, k, v = (t.requires_grad_() for t in qkv(2, 5, 4, seed=11))
    out, entropy = ud.attention(q, k, v, is_causal=True, rule=rule, return_entropy=True)
    torch.testing.assert_close(out, ud.attention(q, k, v, is_causal=True, rule=rule))
    weights = rule(q @ k.mT / 2, torch.ones(5, 5, dtype=torch.bool).tril())
    for h in range(2):
        for i in range(5):
            p = weights[h, i].abs()
            p = p[p > 0] / p.sum()
            assert entropy[h, i].item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-12)
    entropy.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(rule: Rule, dtype: torch.dtype) -> None:
    q, k, v = (t.to(dtype) for t in qkv(2, 30, 16, seed=12))
    out = ud.attention(q, k, v, is_causal=True, rule=rule)
    exact = ud.attention(q.double(), k.double(), v.double(), is_causal=True, rule=rule)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("value", [1e30, -1e30, 1e-300, 0.0, 1e4])
def test_hostile_values(rule: Rule, value: float) -> None:
    q, k, v = (t.float() for t in qkv(2, 5, 4, seed=13))
    q[:, 1] = value
    k[:, 2] = value
    out = ud.attention(q.requires_grad_(), k, v, is_causal=True, rule=rule)
    assert not out.isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_torchs_autocast(dtype: torch.dtype) -> None:
    q, k, v = (t.float() for t in qkv(1, 2, 64, 64, seed=18))
    with torch.autocast("cpu", dtype=dtype):
        out, entropy = ud.attention(3 * q, k, v, return_entropy=True)
        theirs = torch.nn.functional.scaled_dot_product_attention(3 * q, k, v)
        ud.attention(q, k, v.to(dtype))  # a mixture is fine, as with torch
        rotated = ud.nn.Attention(16, 4, rotate=lambda a, b, _: (a * torch.ones(3, 1), b * torch.ones(3, 1)))
        rotated(torch.randn(1, 3, 16))
    assert out.dtype == theirs.dtype == dtype
    assert entropy.dtype == torch.float32
    exact = ud.attention(*((t.to(dtype).double()) for t in (3 * q, k, v)))
    assert (out - exact).abs().max() <= 1.1 * (theirs - exact).abs().max()


def test_a_mask_may_get_its_batch_from_the_values() -> None:
    q, k, v = rows(1, 5, 4, seed=19), rows(1, 6, 4, seed=20), rows(3, 6, 4, seed=21)
    mask = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    out = ud.attention(q, k, v, mask)
    for b in range(3):
        torch.testing.assert_close(out[b : b + 1], ud.attention(q, k, v[b : b + 1], mask[b : b + 1]))


def test_ssmax_uses_each_rows_own_n() -> None:
    q, k, v = qkv(6, 4, seed=14)
    logits = q @ k.T / 2
    out = ud.attention(q, k, v, is_causal=True, rule="ssmax")
    for i in range(6):
        weights = (0.43 * math.log(i + 1) * logits[i, : i + 1]).softmax(-1)
        torch.testing.assert_close(out[i], weights @ v[: i + 1])


def test_bias_is_part_of_the_logits_a_rule_scales() -> None:
    q, k, v = qkv(2, 5, 4, seed=15)
    bias = rows(5, 5, seed=16)
    expected = ((q @ k.mT / 2 + bias) / 0.25).softmax(-1) @ v
    torch.testing.assert_close(ud.attention(q, k, v, bias, rule=ud.rules.Temperature(0.25)), expected)


def test_per_head_parameters_meet_heads() -> None:
    q, k, v = qkv(2, 3, 5, 4, seed=17)
    s = torch.tensor([0.2, 0.6, 1.5], dtype=torch.float64)
    out = ud.attention(q, k, v, rule=ud.rules.LogLength(s))
    for head in range(3):
        alone = ud.attention(q[:, head], k[:, head], v[:, head], rule=ud.rules.LogLength(float(s[head])))
        torch.testing.assert_close(out[:, head], alone)


@given(
    length=st.integers(1, 9),
    keys=st.integers(1, 9),
    window=st.one_of(st.none(), st.integers(1, 10)),
    causal=st.sampled_from(["no", "upper left", "lower right"]),
    name=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 10**6),
)
def test_any_shape_any_mask_equals_row_by_row(
    length: int, keys: int, window: int | None, causal: str, name: str, seed: int
) -> None:
    rule = RULES[name]
    q, k, v = qkv(length, 3, keys=keys, seed=seed)
    mask = causal_lower_right(length, keys) if causal == "lower right" else None
    out = ud.attention(q, k, v, mask, is_causal=causal == "upper left", sliding_window=window, rule=rule)
    offset = keys - length if causal == "lower right" else 0
    for i in range(length):
        seen = [
            j
            for j in range(keys)
            if (causal == "no" or j <= i + offset) and (window is None or abs(j - i - offset) < window)
        ]
        expected = by_hand(q[i], k[seen], v[seen], rule) if seen else torch.zeros(3, dtype=torch.float64)
        torch.testing.assert_close(out[i], expected, rtol=1e-10, atol=1e-11)


Q = torch.zeros(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((Q, Q, Q), {"rule": "entmaxx"}, ud.UnknownName, "did you mean 'entmax'"),
        ((Q, Q, Q), {"rule": 1.5}, ud.InvalidValue, "rule = 1.5 of type float"),
        ((Q, Q, Q), {"scale": math.nan}, ud.InvalidValue, "scale = nan"),
        ((Q, Q, Q), {"scale": "big"}, ud.InvalidValue, "scale = 'big'"),
        ((Q, Q, Q), {"scale": torch.tensor(0.5)}, ud.InvalidValue, "scale is a tensor: .*Temperature"),
        ((Q, Q, Q), {"dropout_p": "x"}, ud.InvalidValue, "dropout_p = 'x'"),
        ((Q, Q, Q), {"dropout_p": 1.5}, ud.InvalidValue, "dropout_p = 1.5"),
        ((Q, Q, Q), {"sliding_window": 0}, ud.InvalidValue, "sliding_window = 0: must be a whole number"),
        ((Q, Q, Q), {"sliding_window": -3}, ud.InvalidValue, "sliding_window = -3"),
        ((Q, Q, Q), {"sliding_window": 2.5}, ud.InvalidValue, "sliding_window = 2.5"),
        ((Q, Q, Q, Q[..., :3].bool()), {"is_causal": True}, ud.InvalidValue, "give one of the two"),
        ((Q, Q.double(), Q), {}, ud.InvalidTensor, "dtypes differ .*key torch.float64"),
        ((Q, Q, Q.to("meta")), {}, ud.InvalidTensor, "devices differ .*value meta"),
        ((Q.long(), Q, Q), {}, ud.InvalidTensor, "query is torch.int64"),
        ((Q, [1], Q), {}, ud.InvalidTensor, "key is list"),
        ((Q[0, 0, 0], Q, Q), {}, ud.InvalidTensor, r"query has shape \(4,\)"),
        ((Q[..., :3], Q, Q), {}, ud.InvalidTensor, "query has 3 features and key 4"),
        ((Q, Q[..., :2, :], Q), {}, ud.InvalidTensor, "key has length 2 and value 3"),
        ((torch.zeros(1, 4, 3, 4), Q, Q), {}, ud.InvalidTensor, "enable_gqa = True"),
        ((torch.zeros(1, 3, 3, 4), Q, Q), {"enable_gqa": True}, ud.InvalidTensor, "query has 3 heads and key 2"),
        ((Q, Q, Q[:, :1]), {"enable_gqa": True}, ud.InvalidTensor, "key has 2 heads and value 1"),
        ((Q[0, 0], Q[0, 0], Q[0, 0]), {"enable_gqa": True}, ud.InvalidTensor, "needs a head dimension"),
        ((Q, Q, Q, torch.ones(2, 2).bool()), {}, ud.InvalidTensor, r"attn_mask has shape \(2, 2\)"),
        ((Q, Q, Q, torch.ones(3, 3).long()), {}, ud.InvalidTensor, "attn_mask has dtype torch.int64"),
        ((Q, Q, Q, "causal"), {}, ud.InvalidTensor, "attn_mask is str"),
        ((Q, Q, Q, torch.ones(3, 3, device="meta").bool()), {}, ud.InvalidTensor, "attn_mask is on meta"),
        ((Q, Q, Q, causal_lower_right(2, 2)), {}, ud.InvalidTensor, "causal bias for 2 × 2"),
        ((Q[..., :0], Q[..., :0], Q), {}, ud.InvalidTensor, "query has 0 features"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_error(arguments: tuple, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ud.attention(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"is_causal": "no"}, "is_causal = 'no': must be True or False"),
        ({"is_causal": 1}, "is_causal = 1: must be True or False"),
        ({"enable_gqa": "False"}, "enable_gqa = 'False': must be True or False"),
        ({"return_entropy": "yes"}, "return_entropy = 'yes': must be True or False"),
        ({"scale": "1"}, "scale = '1': must be one finite number"),
        ({"scale": True}, "scale = True: must be one finite number"),
        ({"scale": 10**400}, "must be one finite number"),
        ({"dropout_p": "0"}, "dropout_p = '0': must be one finite number"),
        ({"sliding_window": 10**30}, "must be a whole number of at most"),
    ],
)
def test_what_only_looks_like_an_argument_is_refused(options: dict[str, Any], said: str) -> None:
    q = torch.randn(1, 2, 4, 8)
    for call in (ud.attention, ud.explain):
        with pytest.raises(ud.InvalidValue, match=said):
            call(q, q, q, **options)


def test_numbers_and_switches_of_numpy_are_arguments() -> None:
    q = torch.randn(1, 2, 4, 8)
    expected = ud.attention(q, q, q, is_causal=True, scale=0.5)
    for scale in (np.float32(0.5), np.float64(0.5), np.array(0.5)):
        assert torch.equal(ud.attention(q, q, q, is_causal=np.True_, scale=scale), expected)
