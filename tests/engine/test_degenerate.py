"""Calls with nothing in them, masks of one number, tensors without numbers, keys that are no numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import undilute as ud
from tests.cases import RULES, rows
from tests.engine.ran import watched
from undilute.engine.routes import choose as routing
from undilute.engine.routes.choose import ROUTES

ON = {"flash": "ssmax", "sdpa": "ssmax", "sparse": "entmax15", "rows": "sigmoid", "reference": "ssmax"}
EMPTY = {
    "no queries": ((2, 0, 4), (2, 5, 4), (2, 5, 3)),
    "no keys": ((2, 5, 4), (2, 0, 4), (2, 0, 3)),
    "no values": ((2, 5, 4), (2, 5, 4), (2, 5, 0)),
    "no batch": ((0, 2, 5, 4), (0, 2, 5, 4), (0, 2, 5, 3)),
    "no heads": ((0, 5, 4), (0, 5, 4), (0, 5, 3)),
}


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"sliding_window": 2}], ids=str)
@pytest.mark.parametrize("shapes", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("route", [None, *ROUTES])
def test_nothing_gives_nothing_on_every_route(
    route: str | None, shapes: tuple[tuple[int, ...], ...], options: dict[str, object]
) -> None:
    inputs = [rows(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    wanted = {} if route == "sdpa" else {"return_entropy": True}
    made = ud.attention(*inputs, rule=ON[route or "flash"], route=route, **wanted, **options)
    out, *entropy = made if wanted else (made,)
    assert out.shape == (*shapes[0][:-1], shapes[2][-1])
    assert not out.any()
    assert all(each.shape == shapes[0][:-1] for each in entropy)
    gradients = torch.autograd.grad(out.sum() + sum(each.sum() for each in entropy), inputs, allow_unused=True)
    assert all(g is None or g.shape == t.shape for g, t in zip(gradients, inputs, strict=True))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_a_mask_of_one_number(route: str, dtype: torch.dtype) -> None:
    q, k, v = (rows(2, 9, 4, seed=i) for i in range(3))
    rule = {"flash": "softmax", "sdpa": "sink"}.get(route, ON[route])
    shown, hidden = (torch.tensor(True), torch.tensor(False)) if dtype == torch.bool else (
        torch.tensor(0.0, dtype=dtype),
        torch.tensor(-torch.inf, dtype=dtype),
    )  # fmt: skip
    torch.testing.assert_close(
        ud.attention(q, k, v, shown, rule=rule, route=route), ud.attention(q, k, v, rule=rule, route=route)
    )
    assert not ud.attention(q, k, v, hidden, rule=rule, route=route).any()


@pytest.mark.parametrize("shape", [(2, 3, 8, 4), (2, 3, 400, 4)])
def test_tensors_without_numbers_have_shapes(rule: ud.rules.Rule, shape: tuple[int, ...]) -> None:
    q = torch.empty(shape, device="meta", requires_grad=True)
    out, entropy = ud.attention(q, q, q[..., :3], rule=rule, is_causal=True, return_entropy=True)
    assert (out.shape, entropy.shape) == ((*shape[:-1], 3), shape[:-1])
    assert out.is_meta
    assert out.requires_grad


def test_while_torch_traces_a_model() -> None:
    with FakeTensorMode():
        q = torch.randn(2, 3, 400, 4)
        assert ud.attention(q, q, q, rule="entmax15").shape == q.shape


@pytest.mark.parametrize("name", ["ssmax", "entmax15", "sink", "sigmoid", "top-k"])
@pytest.mark.parametrize("length", [8, 200])
def test_an_exported_model_has_its_rule(name: str, length: int) -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return ud.attention(q, q, q, rule=name, is_causal=True)

    q = rows(2, length, 4)
    torch.testing.assert_close(torch.export.export(Attend(), (q,)).module()(q), Attend()(q))


@pytest.mark.parametrize("name", ["ssmax", "sparsemax", "entmax15", "sigmoid"])
def test_a_traced_function_has_its_rule(name: str) -> None:
    def attend(q: Tensor) -> Tensor:
        return ud.attention(q, q, q, rule=name)

    q = rows(2, 8, 4)
    for mode in ("real", "fake"):
        torch.testing.assert_close(make_fx(attend, tracing_mode=mode)(q)(2 * q), attend(2 * q))


@pytest.mark.parametrize("route", ["flush", 1, ["flash"], True])
def test_a_route_that_is_none(route: object) -> None:
    q = rows(2, 9, 4)
    with pytest.raises(ud.UnknownName, match="unknown route"):
        ud.attention(q, q, q, route=route)


@pytest.mark.parametrize("route", ["sparse", "rows", "reference"])
def test_values_for_other_heads_are_refused(route: str) -> None:
    q, each = rows(2, 9, 4), torch.full((3,), 1.5)
    for map in (ud.rules.Entmax(each), ud.rules.Focus(s_min=each), ud.rules.Focus(s_max=each)):
        with pytest.raises(ud.InvalidTensor, match=r"has shape \(3,\), which does not fit logits"):
            ud.attention(q, q, q, rule=map, route=route)


def test_sparse_tensors_are_refused() -> None:
    q = torch.eye(3).to_sparse()
    with pytest.raises(ud.InvalidTensor, match=r"layout torch.sparse_coo: must be dense, as query.to_dense\(\)"):
        ud.attention(q, q, q)


def test_a_forced_route_says_that_there_is_nothing_to_compute() -> None:
    q = torch.empty(1, 8, 16, device="meta")
    with pytest.raises(ud.InvalidValue, match="not on meta"):
        ud.attention(q, q, q, route="flash")
    assert "only shapes" in str(ud.explain(q, q, q))


def _results(q: Tensor, k: Tensor, v: Tensor, rule: str, **options: object) -> list[Tensor]:
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    out, entropy = ud.attention(*inputs, rule=RULES[rule], return_entropy=True, **options)
    return [out, entropy, *torch.autograd.grad((out * out.detach()).sum() + entropy.sum(), inputs)]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", ["softmax", "ssmax", "adaptive", "sink", "entmax15", "top-k 2", "sigmoid", "focus 2"])
def test_a_hidden_key_does_not_matter_whatever_it_holds(
    name: str, large: bool, broken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and gradients are those with a zero in its place; a row that sees it has itself to blame."""
    monkeypatch.setattr(routing, "SMALL", 0 if large else 2**16)
    q, k, v = (rows(2, 12, 4, seed=i) for i in range(3))
    with_broken = k.clone()
    with_broken[:, [3, 7]] = broken
    seen = torch.ones(12, dtype=torch.bool)
    seen[[3, 7]] = False
    expected = _results(q, k, v, name, attn_mask=seen)
    with watched() as ran:
        got = _results(q, with_broken, v, name, attn_mask=seen)
    assert ("rows" in ran) == large
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    causal = _results(q, with_broken, v, name, is_causal=True)  # rows 0 to 2 see no broken key
    clean = _results(q[:, :3], k[:, :3], v[:, :3], name, is_causal=True)
    for got_, want in zip(causal[:3], clean[:3], strict=True):  # output, entropy, gradient of the queries
        torch.testing.assert_close(got_[:, :3], want)


def test_a_row_that_sees_a_nan_is_nan() -> None:
    q, k, v = (rows(1, 4, 2, seed=i) for i in range(3))
    k[:, 2] = torch.nan
    out = ud.attention(q, k, v, is_causal=True)
    assert out[:, :2].isfinite().all()
    assert out[:, 2:].isnan().all()


@pytest.mark.parametrize("queries", [200, 2])
@pytest.mark.parametrize("large", [torch.inf, 1e38, 1e18])
@pytest.mark.parametrize("name", ["softmax", "ssmax", "sink", "entmax15", "sparsemax", "top-k"])
def test_an_additive_mask_may_hold_any_number(name: str, large: float, queries: int) -> None:
    q, k, v = (
        rows(2, size, 8, seed=i).float() for i, size in enumerate((queries, 40_000 // queries, 40_000 // queries))
    )
    bias = torch.zeros(k.shape[-2])
    bias[3] = large
    assert 2 * queries * k.shape[-2] > routing.SMALL
    got = ud.attention(q, k, v, bias, rule=name)
    torch.testing.assert_close(got, ud.attention(q, k, v, bias, rule=name, route="reference"))
