"""The sdpa route is the reference by torch's public attention: any dtype, any mask, compiled in one graph."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undilute as ud
from tests.cases import RULES, rows, some_mask
from tests.engine.ran import watched
from undilute.engine import budget
from undilute.engine.call import Call, prepare
from undilute.engine.routes import choose as routing
from undilute.engine.routes import sdpa
from undilute.rules import Rule

COMPILED = ["softmax", "temperature", "ssmax", "logn", "llama4", "yarn", "softmax1"]
Q, K, V = rows(2, 4, 20, 6, seed=1), rows(2, 2, 23, 6, seed=2), rows(2, 2, 23, 3, seed=3)
NOTHING_IN_SOME = some_mask(2, 1, 20, 23, seed=4) & (torch.arange(20) % 3 > 0)[:, None]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every call counts as large."""
    monkeypatch.setattr(routing, "SMALL", 0)
    yield
    ud.set_memory_budget(128)


def results(f: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
    """Output and gradients."""
    inputs = [t.detach().clone().requires_grad_() for t in given]
    out = f(*inputs)
    up = rows(*out.shape, seed=9).to(out.dtype)
    return [out, *torch.autograd.grad((out * up).sum(), inputs)]


def test_chosen_where_the_flash_kernel_cannot_run() -> None:
    assert ud.explain(Q, K, V, enable_gqa=True, rule="ssmax").name == "flash"
    bias = rows(20, 23, seed=5)
    for options in ({"dropout_p": 0.1}, {"attn_mask": bias}, {"attn_mask": bias.requires_grad_()}):
        chosen = ud.explain(Q, K, V, enable_gqa=True, rule="ssmax", **options)
        assert chosen.name == "sdpa"
        assert "not flash, since" in str(chosen)
        with watched() as ran:
            ud.attention(Q, K, V, enable_gqa=True, rule="ssmax", **options)
        assert ran == ["sdpa"]
    for options in ({"return_entropy": True}, {"return_lse": True}, {"softcap": 3.0}, {"rule": "adaptive"}):
        assert ud.explain(Q, K, V, enable_gqa=True, **{"rule": "ssmax", **options}, dropout_p=0.1).name == "rows"
    assert ud.explain(Q * 1e200, K, V, enable_gqa=True, dropout_p=0.1).name == "rows"  # it would overflow


def test_on_another_device_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that say they are elsewhere: a softmax-like rule takes this route without a look at any number."""

    class Elsewhere:
        type = "cuda"

    call = prepare(Q, K, V, enable_gqa=True, rule=RULES["ssmax"], is_causal=True)
    monkeypatch.setattr(Call, "largest_product", property(lambda self: pytest.fail("a look at the numbers")))
    monkeypatch.setattr(Tensor, "device", Elsewhere())
    assert routing.choose(call).name == "sdpa"
    assert "not on cuda" in routing.choose(call).reason
    assert routing.choose(call.block(0, 2)).name == "sdpa"


def test_what_it_writes_out_counts_against_the_memory_budget() -> None:
    ud.set_memory_budget(0.001)
    options: dict[str, Any] = {"enable_gqa": True, "rule": "ssmax", "dropout_p": 0.1}
    assert "more than the memory budget" in str(ud.explain(Q, K, V, **options))
    assert ud.explain(Q, K, V, **options, route="sdpa").name == "sdpa"
    for mask, size in ((None, 0), (some_mask(2, 1, 20, 23), 2 * 9 * 460), (some_mask(20, 23), 9 * 460)):
        assert sdpa.bytes_written(prepare(Q, K, V, mask, enable_gqa=True, rule=RULES["ssmax"])) == size
    assert budget.memory_budget() == 1048


def test_the_memory_budget_counts_one_number_for_all() -> None:
    call = prepare(Q, K, V, torch.tensor(True), enable_gqa=True, rule=RULES["ssmax"])
    assert sdpa.bytes_written(call) == 9 * 460


@pytest.mark.parametrize("name", ["softmax", "ssmax", "sink -1.5"])
def test_masks_of_every_shape(name: str) -> None:
    bias = rows(2, 4, 20, 23, seed=6)
    boolean = [NOTHING_IN_SOME, NOTHING_IN_SOME[:1], some_mask(4, 1, 23), some_mask(23), some_mask(20, 1)]
    boolean += [torch.tensor(False), torch.tensor([True]), torch.zeros(2, 4, 20, 23, dtype=torch.bool)]
    added = [bias, bias[0, 0], bias[0, 0, 0], bias[..., :1], bias.float()]
    masks = [*boolean, *added, bias.masked_fill(~NOTHING_IN_SOME, -math.inf)]
    for mask in masks:
        for more in ({}, {"sliding_window": 5}):
            got, expected = (
                results(
                    lambda q, k, v, route=route, mask=mask, more=more: ud.attention(
                        q, k, v, mask, enable_gqa=True, rule=RULES[name], route=route, **more
                    ), Q, K, V,
                )
                for route in ("sdpa", "reference")
            )  # fmt: skip
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("offset", [-30, -3, -1, 0, 1, 3, 22, 40])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", ["ssmax", "sink"])
def test_positions(name: str, window: int | None, offset: int) -> None:
    got, expected = (
        results(
            lambda q, k, v, route=route: ud.attention(
                q, k, v, is_causal=True, enable_gqa=True, rule=name, route=route, key_offset=offset,
                sliding_window=window,
            ), Q, K, V,
        )
        for route in ("sdpa", "reference")
    )  # fmt: skip
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_row_that_sees_nothing_is_zero_and_moves_nothing() -> None:
    for name in ("softmax", "ssmax", "sink"):
        out, *gradients = results(
            lambda q, k, v, name=name: ud.attention(
                q, k, v, NOTHING_IN_SOME, enable_gqa=True, rule=name, route="sdpa"
            ), Q, K, V,
        )  # fmt: skip
        blind = ~NOTHING_IN_SOME.any(-1)[0, 0]
        assert blind.any()
        assert not out[0, :, blind].any()
        assert not gradients[0][0, :, blind].any()
        assert all(g.isfinite().all() for g in gradients)


def test_dropout_is_of_the_weights() -> None:
    q, v = rows(1, 400, 8, seed=26), torch.ones(1, 400, 1, dtype=torch.float64)
    for name in ("softmax", "ssmax"):
        torch.manual_seed(0)
        out = ud.attention(q, q, v, dropout_p=0.3, rule=name, route="sdpa")
        assert abs(out.mean().item() - 1.0) < 0.1
        assert out.std() > 1e-3
        torch.manual_seed(0)
        assert torch.equal(out, ud.attention(q, q, v, dropout_p=0.3, rule=name, route="sdpa"))
        assert not ud.attention(q, q, v, dropout_p=1.0, rule=name, route="sdpa").any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["softmax", "ssmax", "logn from 4", "sink"])
def test_half_precision_is_not_rounded_once_more(name: str, dtype: torch.dtype) -> None:
    q, k, v = (rows(2, 100, 32, seed=i).to(dtype) for i in range(3))
    for bias in (None, rows(100, 100, seed=4).float()):
        out = ud.attention(q, k, v, bias, rule=RULES[name], route="sdpa")
        exact = ud.attention(q.double(), k.double(), v.double(), bias, rule=RULES[name], route="reference")
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), exact, rtol=0.0, atol=2 * torch.finfo(dtype).eps * 4)


LEARNED: dict[str, Callable[[], Rule]] = {
    "s per head": lambda: Rule(ud.rules.LearnableLogLength(4, bias=True)),
    "a temperature per head": lambda: Rule(ud.rules.LearnableTemperature(4)),
    "a sink per head": lambda: Rule(ud.rules.LogLength(0.4), ud.rules.LearnableSink(4, 0.5)),
}


def compiled(f: Callable[..., Any], backend: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_without_a_break(name: str, backend: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return 2 * ud.engine.attention(q, k, v, is_causal=True, enable_gqa=True, rule=name)

    inputs = Q.float(), K.float(), V.float()
    with watched() as ran:
        got = results(compiled(attend, backend), *inputs)
    assert ran == ["sdpa"]
    for a, b in zip(got, results(attend, *inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", LEARNED)
def test_a_compiled_rule_learns(name: str, backend: str) -> None:
    rule = LEARNED[name]().double()
    mask = some_mask(20, 23)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ud.engine.attention(q, k, v, mask, enable_gqa=True, rule=rule, sliding_window=9, n=50)

    made = []
    for f in (compiled(attend, backend), attend):
        rule.zero_grad()
        f(Q, K, V).square().sum().backward()
        made.append([p.grad.clone() for p in rule.parameters() if p.grad is not None])
    assert made[0]
    torch.testing.assert_close(*made)


def test_a_compiled_layer_takes_other_lengths_and_drops_out() -> None:
    layer = ud.nn.Attention(16, 4, num_kv_heads=2, rule="ssmax", is_causal=True, dropout=0.2)
    forward = compiled(layer, "aot_eager")
    forward(torch.randn(2, 30, 16)).sum().backward()
    assert layer.rule.scale.s.grad is not None  # type: ignore[union-attr]
    layer.eval()
    for length in (30, 12, 77):
        x = torch.randn(2, length, 16)
        torch.testing.assert_close(forward(x), layer(x), rtol=1e-4, atol=1e-5)


def test_one_graph_for_any_length() -> None:
    rule = ud.rules.Rule(ud.rules.LogLength(torch.nn.Parameter(torch.tensor([0.2, 0.4]))))

    def attend(q: Tensor) -> Tensor:
        return ud.engine.attention(q, q, q, is_causal=True, sliding_window=20, rule=rule)

    torch._dynamo.reset()
    forward = torch.compile(attend, fullgraph=True, dynamic=True, backend="eager")
    for length in (30, 41):
        q = torch.randn(1, 2, length, 8)
        torch.testing.assert_close(forward(q), attend(q), rtol=1e-4, atol=1e-5)


def test_what_another_route_has_to_run_breaks_the_graph_and_is_right() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return 2 * ud.engine.attention(q, k, v, enable_gqa=True, rule="entmax15")

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        got = results(torch.compile(attend, backend="eager"), Q, K, V)
    for a, b in zip(got, results(attend, Q, K, V), strict=True):
        torch.testing.assert_close(a, b)


def test_an_exported_layer_calls_torchs_attention_at_any_length() -> None:
    layer = ud.nn.Attention(16, 4, rule="ssmax", is_causal=True).eval()
    shapes = ({1: torch.export.Dim("length", min=2)},)
    exported = torch.export.export(layer, (torch.randn(2, 30, 16),), dynamic_shapes=shapes)
    assert any("scaled_dot_product_attention" in str(node.target) for node in exported.graph.nodes)
    x = torch.randn(2, 77, 16)
    torch.testing.assert_close(exported.module()(x), layer(x), rtol=1e-4, atol=1e-5)


def test_autocast_is_off_inside_a_compiled_call() -> None:
    class Layer(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return ud.engine.attention(q, q, q, rule="ssmax", is_causal=True)

    q = torch.randn(1, 2, 30, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = compiled(Layer(), "aot_eager")(q), Layer()(q)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
