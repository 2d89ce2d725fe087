"""A call as part of a longer one: n from outside, keys that stand elsewhere, and parts put together by log-sum-exp."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.cases import RULES, rows, some_mask
from undilute.engine.call import prepare
from undilute.engine.routes.choose import ROUTES
from undilute.rules import Rule
from undilute.rules.base import softmax_form
from undilute.rules.masked import count_visible

Q, K, V = rows(2, 4, 12, 6, seed=1), rows(2, 2, 15, 6, seed=2), rows(2, 2, 15, 3, seed=3)
GQA: dict[str, Any] = {"enable_gqa": True}
PER_HEAD = torch.tensor([0.2, 0.5, -0.3, 0.9], dtype=torch.float64)
TELLABLE = {name: rule for name, rule in RULES.items() if rule.deaf_part() is None}
SOFTMAX_LIKE = {name: rule for name, rule in RULES.items() if softmax_form(rule.map) is not None}
OF_LENGTH: dict[str, Rule] = {
    **{name: rule for name, rule in SOFTMAX_LIKE.items() if name in TELLABLE},
    "ssmax per head": Rule(ud.rules.LogLength(PER_HEAD, 0.1)),
    "ssmax per row": Rule(ud.rules.PowLogLength(rows(4, 12, 1, seed=4), 0.7)),
    "ssmax with sinks": Rule(ud.rules.LogLength(0.4), ud.rules.Sink(PER_HEAD)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "sliding_window": 5},
}
HALVES = (slice(0, 7), slice(7, 15))


def seen_by(options: dict[str, Any]) -> Tensor:
    """(12, 15): who sees whom in the whole call."""
    ahead = torch.arange(15) - torch.arange(12)[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool) if not options.get("is_causal") else ahead <= 0
    return seen & (ahead.abs() < options.get("sliding_window", 99))


def routes_for(rule: Rule, **options: Any) -> list[str]:
    call = prepare(Q, K, V, **GQA, **options, rule=rule)
    return [name for name, module in ROUTES.items() if module.obstacle(call) is None]


def merged(parts: list[tuple[Tensor, Tensor]], rule: Rule) -> Tensor:
    """Outputs over parts of the keys, put together: a sink counts once, not in every part."""
    form = softmax_form(rule.map)
    assert form is not None
    sink = None
    if form.sink is not None:
        sink = torch.as_tensor(ud.rules.parameters.per_head("s", form.sink, Q)).double().expand(4, 12, 1)[..., 0]
    lse = torch.stack([lse for _, lse in parts])
    total = lse.logsumexp(0) if sink is None else torch.logaddexp(lse.logsumexp(0), sink)
    own = lse if sink is None else torch.logaddexp(lse, sink)
    shares = (own - total).exp().nan_to_num(0.0)
    return sum(out * share[..., None] for (out, _), share in zip(parts, shares, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("name", OF_LENGTH)
def test_parts_of_the_keys_given_n_make_up_the_whole(name: str, kind: str) -> None:
    rule, options = OF_LENGTH[name], OPTIONS[kind]
    whole = ud.attention(Q, K, V, **GQA, **options, rule=rule, route="reference")
    n = seen_by(options).sum(-1)
    ran = routes_for(rule, return_lse=True)
    assert {"flash", "rows", "reference"} == set(ran)
    for route in ran:
        parts = [
            ud.attention(
                Q, K[:, :, keys], V[:, :, keys], **GQA, **options,
                rule=rule, n=n, key_offset=keys.start, return_lse=True, route=route,
            )
            for keys in HALVES
        ]  # fmt: skip
        torch.testing.assert_close(merged(parts, rule), whole, rtol=1e-11, atol=1e-12)


def test_without_n_they_would_not() -> None:
    parts = [ud.attention(Q, K[:, :, at], V[:, :, at], **GQA, rule="ssmax", return_lse=True) for at in HALVES]
    assert (merged(parts, RULES["ssmax"]) - ud.attention(Q, K, V, **GQA, rule="ssmax")).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["sigmoid", "length-scaled sigmoid", "sigmoid bias"])
def test_sigmoid_adds_up(name: str) -> None:
    whole = ud.attention(Q, K, V, **GQA, rule=RULES[name])
    for route in ("rows", "reference"):
        parts = [ud.attention(Q, K[:, :, at], V[:, :, at], **GQA, rule=RULES[name], n=15, route=route) for at in HALVES]
        torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("name", TELLABLE)
def test_a_part_of_the_queries_is_rows_of_the_whole(name: str, kind: str) -> None:
    """Queries 5 … 11 on every route, with the n that they have anyhow; as a number where it is one."""
    rule, options = TELLABLE[name], OPTIONS[kind]
    whole = ud.attention(Q, K, V, **GQA, **options, rule=rule, route="reference")[:, :, 5:]
    given: list[Any] = [seen_by(options).sum(-1)[5:], None, *([15] if kind == "full" else [])]
    for route in routes_for(rule):
        for n in given:
            part = ud.attention(
                Q[:, :, 5:], K, V, **GQA, **options, rule=rule, n=n, key_offset=-5, route=route,
            )  # fmt: skip
            torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("n", [1, 4096, torch.arange(12) * 100, (torch.arange(4)[:, None] + torch.arange(12)) ** 3])
@pytest.mark.parametrize("name", TELLABLE)
def test_n_is_what_the_scale_is_given(name: str, n: int | Tensor) -> None:
    """By hand: the scale at n, and the map on that; gradients too."""
    rule = TELLABLE[name]
    counted = torch.as_tensor(n).clamp(min=1).double()
    counted = counted[..., None].expand(4, 12, 1) if counted.dim() else counted.expand(4, 12, 1)
    keys = K.repeat_interleave(2, 1)
    visible = seen_by({"is_causal": True})

    def by_hand(q: Tensor) -> Tensor:
        z = (rule.scale.at_length(counted) * (q @ keys.mT / math.sqrt(6))).masked_fill(~visible, 0.0)
        if name in ("sigmoid", "length-scaled sigmoid"):
            return torch.sigmoid(z - counted.log()).masked_fill(~visible, 0.0) @ V.repeat_interleave(2, 1)
        return rule.map(z, visible.expand(z.shape)) @ V.repeat_interleave(2, 1)

    q = Q.clone().requires_grad_()
    expected = by_hand(q)
    (wanted,) = torch.autograd.grad(expected.square().sum(), q)
    for route in routes_for(rule):
        out = ud.attention(q, K, V, **GQA, is_causal=True, rule=rule, n=n, route=route)
        torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), q)[0], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [*OPTIONS, "mask", "nothing", "added"])
@pytest.mark.parametrize("name", SOFTMAX_LIKE)
def test_log_sum_exp_is_that_of_the_scaled_logits(name: str, kind: str) -> None:
    rule = SOFTMAX_LIKE[name]
    bias = rows(12, 15, seed=6)
    more: dict[str, dict[str, Any]] = {
        "mask": {"attn_mask": some_mask(2, 1, 12, 15, seed=5) & (torch.arange(12) % 4 > 0)[:, None]},
        "nothing": {"attn_mask": torch.zeros(1, dtype=torch.bool)},
        "added": {"attn_mask": bias},
    }
    options = OPTIONS[kind] if kind in OPTIONS else more[kind]
    visible = options["attn_mask"] if kind in ("mask", "nothing") else seen_by(options)
    z = Q @ K.repeat_interleave(2, 1).mT / math.sqrt(6) + (bias if kind == "added" else 0.0)
    visible = visible.expand(z.shape)
    z = z.masked_fill(~visible, 0.0)
    expected = (rule.scale(z, visible) * z).masked_fill(~visible, -math.inf).logsumexp(-1)
    for route in routes_for(rule, return_lse=True, **options):
        out, lse = ud.attention(Q, K, V, **GQA, **options, rule=rule, return_lse=True, route=route)
        torch.testing.assert_close(lse, expected, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(out, ud.attention(Q, K, V, **GQA, **options, rule=rule), rtol=1e-9, atol=1e-10)
    with torch.no_grad():
        out, lse, entropy = ud.attention(
            Q, K, V, **GQA, **options, rule=rule, return_lse=True, return_entropy=True, route="rows"
        )
    torch.testing.assert_close(lse, expected, rtol=1e-9, atol=1e-10)
    assert entropy.shape == lse.shape == out.shape[:-1]


@pytest.mark.parametrize("name", SOFTMAX_LIKE)
@pytest.mark.parametrize("route", ["flash", "rows", "reference"])
def test_gradients_flow_through_log_sum_exp(route: str, name: str) -> None:
    q, k, v = (rows(1, 5, 2, seed=7 + i, spread=1.0).requires_grad_() for i in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[1] = False  # sees nothing: −inf, which is no number to differentiate

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = ud.attention(q, k, v, mask, rule=SOFTMAX_LIKE[name], return_lse=True, route=route)
        assert lse[0, 1] == -math.inf
        return out, lse.masked_fill(lse == -math.inf, 0.0)

    assert torch.autograd.gradcheck(both, (q, k, v))


def test_log_sum_exp_of_large_calls_and_heads_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients the flash route takes a few heads at a time."""
    from undilute.engine.routes import flash

    monkeypatch.setattr(flash, "PART", 1)
    with torch.no_grad():
        made = ud.attention(Q, K, V, **GQA, rule="ssmax", return_lse=True, return_entropy=True, route="flash")
    wanted = ud.attention(Q, K, V, **GQA, rule="ssmax", return_lse=True, return_entropy=True, route="reference")
    torch.testing.assert_close(made, wanted, rtol=1e-9, atol=1e-9)


def test_no_keys_have_no_log_sum_exp() -> None:
    for name in SOFTMAX_LIKE:
        _, lse = ud.attention(Q, K[:, :, :0], V[:, :, :0], **GQA, rule=SOFTMAX_LIKE[name], return_lse=True)
        assert (lse == -math.inf).all()


class Counts(ud.rules.Map):
    """A user's map that counts the visible keys on its own."""

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return torch.sigmoid(logits) * visible / count_visible(visible, logits.dtype)

    def lipschitz(self, n: int) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n": 0}, ud.InvalidValue, "n = 0: must be a whole number of at least 1"),
        ({"n": 1.5}, ud.InvalidValue, "n = 1.5: must be a whole number"),
        ({"n": True}, ud.InvalidValue, "n = True: must be a whole number"),
        ({"n": torch.ones(12)}, ud.InvalidTensor, "n has dtype torch.float32: must be a whole number, or whole"),
        ({"n": torch.ones(11).long()}, ud.InvalidTensor, r"n has shape \(11,\): .* broadcasts to \(2, 4, 12\)"),
        ({"n": -torch.ones(12).long()}, ud.InvalidValue, "n holds -1: no row can see fewer than 0 keys"),
        ({"n": torch.ones(12, device="meta").long()}, ud.InvalidTensor, "n is on meta, query on cpu"),
        ({"n": 9, "rule": "adaptive"}, ud.InvalidValue, "n was given, but EntropyAdaptive takes what it needs"),
        ({"n": 9, "rule": Counts()}, ud.InvalidValue, "n was given, but Counts takes what it needs"),
        ({"n": 9, "rule": RULES["top-k 30%"]}, ud.InvalidValue, "n was given, but TopK takes"),
        ({"n": 9, "rule": RULES["focus growing"]}, ud.InvalidValue, "n was given, but Focus takes"),
        ({"key_offset": 1.5}, ud.InvalidValue, "key_offset = 1.5: must be a whole number from -"),
        ({"key_offset": True}, ud.InvalidValue, "key_offset = True: must be a whole number"),
        ({"key_offset": 2**60}, ud.InvalidValue, "must be a whole number from -281,474,976,710,656 to"),
        ({"softcap": 0.0}, ud.InvalidValue, "softcap = 0.0: must be one finite number > 0, or None"),
        ({"softcap": "2"}, ud.InvalidValue, "softcap = '2': must be one finite number"),
        ({"softcap": torch.tensor(2.0)}, ud.InvalidValue, "softcap is a tensor"),
        ({"return_lse": 1}, ud.InvalidValue, "return_lse = 1: must be True or False"),
        ({"return_lse": True, "rule": "entmax15"}, ud.InvalidValue, "return_lse = True with Entmax, which is not"),
        ({"return_lse": True, "rule": "sigmoid"}, ud.InvalidValue, "return_lse = True with Sigmoid"),
        ({"return_lse": True, "route": "sdpa"}, ud.InvalidValue, "does not return the log-sum-exp"),
        ({"softcap": 2.0, "route": "flash"}, ud.InvalidValue, "capped logits are not a product of queries and keys"),
        ({"softcap": 2.0, "route": "sdpa"}, ud.InvalidValue, "capped logits are not a product of queries and keys"),
        ({"softcap": 2.0, "route": "sparse", "rule": "entmax15"}, ud.InvalidValue, "capped logits are not a product"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_error(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ud.explain(Q, K, V, **GQA, **options)


def capped_by_hand(q: Tensor, k: Tensor, v: Tensor, rule: Rule, cap: float, bias: Tensor | None = None) -> Tensor:
    """Causal attention in dense float64, each row on the keys it sees alone."""
    out = []
    for i in range(q.shape[-2]):
        z = cap * torch.tanh(q[..., i : i + 1, :] @ k[..., : i + 1, :].mT / math.sqrt(q.shape[-1]) / cap)
        z = z if bias is None else z + bias[..., i : i + 1, : i + 1]
        out.append(rule(z) @ v[..., : i + 1, :])
    return torch.cat(out, -2)


@pytest.mark.parametrize("cap", [0.5, 2.0, 50.0])
def test_a_soft_cap(rule: Rule, cap: float) -> None:
    """Forward and backward, on every route that takes it; a mask is a truncation, capped or not."""
    if not rule.map.is_continuous:
        cap = 64.0  # a cap brings logits together, and rounding decides which is larger
    q, k, v = (rows(2, 9, 4, seed=20 + i).requires_grad_() for i in range(3))
    bias = rows(9, 9, seed=23) if rule.map.is_continuous else None
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    for added in (None, bias):
        expected = capped_by_hand(q, k, v, rule, cap, added)
        wanted = torch.autograd.grad(expected.square().sum(), (q, k, v), retain_graph=True)
        mask = None if added is None else added.masked_fill(hidden, -math.inf)
        for route in ("rows", "reference"):
            out = ud.attention(q, k, v, mask, is_causal=mask is None, rule=rule, softcap=cap, route=route)
            torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
            if not rule.map.is_continuous:
                continue
            for got, want in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), wanted, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


def test_a_capped_call_hides_what_a_hidden_key_holds() -> None:
    q, k, v = (rows(2, 9, 4, seed=30 + i) for i in range(3))
    broken = k.clone()
    broken[:, 4] = math.nan
    seen = torch.arange(9) != 4
    for route in ("rows", "reference"):
        made = []
        for key in (k, broken):
            inputs = [t.clone().requires_grad_() for t in (q, key, v)]
            out = ud.attention(*inputs, seen, rule="ssmax", softcap=3.0, route=route)
            made.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
        torch.testing.assert_close(made[1], made[0])


def test_a_large_capped_call_runs_in_blocks() -> None:
    q = torch.randn(1, 2, 300, 8)
    for name in ("softmax", "entmax15", "sigmoid"):
        assert ud.explain(q, q, q, rule=name, softcap=5.0).name == "rows"
    assert ud.explain(q[..., :1, :], q, q, softcap=5.0).name == "reference"
