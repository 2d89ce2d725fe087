"""Every route is the reference, only faster: values and gradients, on ordinary, awkward and hostile input."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

import undilute as ud
from tests.cases import RULES, rows, some_mask
from tests.engine.ran import watched
from undilute import rules
from undilute.engine import budget, supports
from undilute.engine.call import Call, prepare
from undilute.engine.kernels import flash as flash_kernel
from undilute.engine.routes import choose as routing
from undilute.engine.routes import flash
from undilute.engine.routes import rows as rows_route
from undilute.engine.routes.choose import ROUTES
from undilute.rules import Entmax, Hard, Rule

PAIRS = [
    (name, route)
    for name, rule in RULES.items()
    for route, module in ROUTES.items()
    if route != "reference" and module.obstacle(prepare(*rows(3, 1, 2, 4, 4).unbind(), rule=rule)) is None
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks so small that every test crosses their borders."""
    monkeypatch.setattr(supports, "ROWS", 5)
    monkeypatch.setattr(supports, "TILE", 7)
    monkeypatch.setattr(supports, "ROOM", 3)
    monkeypatch.setattr(flash_kernel, "MASKED_ROWS", 6)
    monkeypatch.setattr(flash, "PART", 1)
    monkeypatch.setattr(rows_route, "FAST_LOGITS", 1)
    monkeypatch.setattr(rows_route, "FAST_ROWS", 5)
    monkeypatch.setattr(rows_route, "TEMPORARIES", 2**14)  # 6 of the 17 rows below
    yield
    ud.set_memory_budget(128)


def same(a: Tensor, b: Tensor, tolerance: float) -> None:
    scale = max(1.0, b.detach().abs().max().item()) if b.numel() else 1.0
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * scale)


def compare(rule: Rule, route: str, q: Tensor, k: Tensor, v: Tensor, tolerance: float, **options: object) -> None:
    """Output, entropy and all gradients of ``route`` against the reference."""
    learned = [t for t in (*rule.parameters(), *rule.buffers()) if t.requires_grad]
    results = []
    for each in (route, "reference"):
        inputs = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        wanted = {} if route == "sdpa" else {"return_entropy": True}
        made = ud.attention(*inputs, **options, **wanted, rule=rule, route=each)
        out, *entropy = made if wanted else (made,)
        objective = (out * rows(*out.shape, seed=91).to(out.dtype)).sum()
        if entropy and not isinstance(rule.map, Hard):
            objective = objective + (entropy[0] * rows(*entropy[0].shape, seed=92).to(entropy[0].dtype)).sum()
        results.append((out, *entropy, *torch.autograd.grad(objective, inputs + learned, allow_unused=True)))
    for got, expected in zip(*results, strict=True):
        same(got, expected, tolerance)


OPTIONS = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"sliding_window": 4},
    "causal window": {"is_causal": True, "sliding_window": 3},
    "keys": {"attn_mask": some_mask(2, 1, 1, 19, seed=1)},
    "boolean": {"attn_mask": some_mask(2, 1, 17, 19, seed=2)},
    "per head": {"attn_mask": some_mask(4, 17, 19, seed=3)},
    "lower right": {"attn_mask": causal_lower_right(17, 19)},
    "nothing to see": {"attn_mask": torch.zeros(17, 19, dtype=torch.bool)},
    "some rows see nothing": {"attn_mask": (torch.arange(17) % 3 > 0)[:, None].expand(17, 19)},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(("name", "route"), PAIRS, ids=str)
def test_every_route_is_the_reference(name: str, route: str, kind: str) -> None:
    q, k, v = rows(2, 4, 17, 6, seed=4), rows(2, 2, 19, 6, seed=5), rows(2, 2, 19, 3, seed=6)
    compare(RULES[name], route, q, k, v, 1e-9, enable_gqa=True, **OPTIONS[kind])


def test_random_calls() -> None:
    """400 calls with shapes, masks, rules and routes drawn at random."""
    draw = random.Random(0)
    for seed in range(400):
        name, route = draw.choice(PAIRS)
        batch = draw.choice([(), (1,), (3,), (2, 2)])
        kv_heads, groups = draw.randint(1, 2), draw.choice([1, 2, 3])
        length, keys, features, width = draw.randint(1, 30), draw.randint(1, 30), draw.randint(1, 9), draw.randint(1, 9)
        spread = draw.choice([0.0, 0.01, 1.0, 3.0])
        q = rows(*batch, kv_heads * groups, length, features, seed=seed, spread=spread)
        k, v = (rows(*batch, kv_heads, keys, f, seed=seed + i) for i, f in ((1, features), (2, width)))
        options: dict[str, object] = {"enable_gqa": True, "scale": draw.choice([None, 0.0, 0.5, -1.0])}
        match draw.choice(["none", "causal", "mask", "keys"]):
            case "causal":
                options["is_causal"] = True
            case "mask":
                options["attn_mask"] = torch.rand(*batch, 1, length, keys) < 0.5
            case "keys":
                options["attn_mask"] = torch.rand(keys) < 0.5
        if draw.random() < 0.3:
            options["sliding_window"] = draw.randint(1, 20)
        try:
            compare(RULES[name], route, q, k, v, 2e-7 if "entmax 3" in name else 1e-8, **options)
        except AssertionError as error:
            raise AssertionError(f"{seed} {name} {route} {q.shape} {k.shape} {v.shape} {options}") from error


@pytest.mark.parametrize(("name", "route"), PAIRS, ids=str)
def test_gradcheck(name: str, route: str) -> None:
    if isinstance(RULES[name].map, Hard):
        return  # straight-through by definition
    q, k, v = (rows(1, 7, 2, seed=7 + i, spread=1.0).requires_grad_() for i in range(3))  # two blocks
    assert torch.autograd.gradcheck(
        lambda *t: ud.attention(*t, is_causal=True, rule=RULES[name], route=route), (q, k, v)
    )


LEARNED = {
    "ssmax": lambda t: rules.LogLength(t, t),
    "temperature": lambda t: rules.Temperature(t.exp()),
    "sink": lambda t: rules.Sink(t),
    "entmax": lambda t: Entmax(1 + t.sigmoid()),
    "entmax above 2": lambda t: Entmax(2 + t.sigmoid()),
    "as-entmax": lambda t: Rule(rules.PowLogLength(t, t), Entmax(1.5)),
    "as-entmax per row": lambda t: Rule(rules.PowLogLength(t[:, None, None].expand(3, 11, 1), 0.3), Entmax(1.5)),
    "focus, every limit": lambda t: rules.Focus(3, 1 + t.sigmoid(), (t - 2).exp(), (t + 1).exp()),
    "focus, limits crossed": lambda t: rules.Focus(3, 1 + t.sigmoid(), (t + 1).exp(), (t - 1).exp()),
    "focus, mostly tied": lambda t: rules.Focus(3, 1 + t.sigmoid(), (t - 2).exp(), (t - 1).exp()),
    "focus, mostly sparse": lambda t: rules.Focus(3, 1 + t.sigmoid(), (t + 1).exp(), (t + 2).exp()),
    "sigmoid": lambda t: rules.Sigmoid(t),
    "adaptive sink": lambda t: Rule(rules.EntropyAdaptive(), rules.Sink(t)),
    "curve": lambda t: rules.EntropyCurve([0.5, 1.0, 2.0], 1.0 + t.exp().cumsum(0)),
    "curve per head": lambda t: rules.EntropyCurve(*_knots_per_head(t)),
    "curve per head, entmax": lambda t: Rule(rules.EntropyCurve(*_knots_per_head(t)), Entmax(1.5)),
    "curve per head, sigmoid": lambda t: Rule(rules.EntropyCurve(*_knots_per_head(t)), rules.Sigmoid()),
}


def _knots_per_head(t: Tensor) -> tuple[Tensor, Tensor]:
    """(3, 3) each: as many knots as heads, so that neither may be taken for the other."""
    climb = torch.tensor([0.0, 0.7, 1.9], dtype=t.dtype)
    return 0.2 + climb * t.exp()[:, None], 1.0 + climb * t.exp()[:, None].square()


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_reach_learned_parameters(name: str) -> None:
    q, k, v = rows(3, 11, 4, seed=8), rows(3, 11, 4, seed=9), rows(3, 11, 4, seed=10)
    for route, module in ROUTES.items():
        grads = []
        for each in (route, "reference"):
            t = rows(3, seed=11, spread=0.3).requires_grad_()
            rule = rules.get(LEARNED[name](t))
            if module.obstacle(prepare(q, k, v, rule=rule)) is not None:
                break
            wanted = {} if route == "sdpa" else {"return_entropy": True}
            made = ud.attention(q, k, v, is_causal=True, rule=rule, route=each, **wanted)
            out, *entropy = made if wanted else (made,)
            (out.square().sum() + sum(each.sum() for each in entropy)).backward()
            assert t.grad is not None
            grads.append(t.grad)
        else:
            same(grads[0], grads[1], 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "route"), PAIRS, ids=str)
def test_lower_precision(name: str, route: str, dtype: torch.dtype) -> None:
    q, k, v = (rows(1, 2, 40, 16, seed=12 + i, spread=1.0).to(dtype) for i in range(3))
    exact = ud.attention(q.double(), k.double(), v.double(), is_causal=True, rule=RULES[name], route="reference")
    got = ud.attention(q, k, v, is_causal=True, rule=RULES[name], route=route)
    assert got.dtype == dtype
    # scales fold into the queries, which rounds them once more: a few units of the dtype in each logit
    sharpness = 8 * max(1.0, RULES[name].scale.bound(40))
    tolerance = sharpness * torch.finfo(dtype).eps + (1e-4 if "entmax 3" in name else 2e-6)
    if isinstance(RULES[name].map, Hard | rules.TopK) and dtype != torch.float32:
        assert (got.double() - exact).abs().median() < tolerance  # a near-tie may fall either way
    else:
        same(got.double(), exact, tolerance)


HOSTILE = [0.0, 1.0, -1.0, 1e4, -1e4, 1e30, -1e30, 1e-40, math.inf, -math.inf, 3e38]


def test_ten_thousand_hostile_calls() -> None:
    """No NaN where the reference has none, no crash, no thread left, torch's settings as they were."""
    import threading

    before = threading.active_count(), torch.get_num_threads(), torch.get_default_dtype()
    draw = random.Random(1)
    for seed in range(10_000):
        generator = torch.Generator().manual_seed(seed)
        name = draw.choice(list(RULES))
        length, keys = draw.randint(1, 6), draw.randint(1, 9)
        q, k, v = (torch.randn(2, n, 2, generator=generator) for n in (length, keys, keys))
        for t in (q, k):
            for _ in range(draw.randint(0, 3)):
                t[draw.randrange(2), draw.randrange(t.shape[1])] = draw.choice(HOSTILE)
        mask = (torch.rand(length, keys, generator=generator) < 0.7) if draw.random() < 0.4 else None
        is_causal = mask is None and draw.random() < 0.5
        call = prepare(q, k, v, mask, is_causal=is_causal, rule=RULES[name])
        got = ROUTES[routing._fast_route(call).name].run(call)[0]
        if got.isnan().any():
            expected = ud.attention(q, k, v, mask, is_causal=is_causal, rule=RULES[name], route="reference")
            assert expected.isnan().any(), (seed, name)
    assert (threading.active_count(), torch.get_num_threads(), torch.get_default_dtype()) == before


@pytest.mark.parametrize("name", ["adaptive", "adaptive-monotone", "softmax", "sigmoid"])
def test_a_step_with_huge_logits(name: str) -> None:
    """Logits that are finite and whose differences are not: the reference takes over."""
    q, v = torch.tensor([[2e19, 0.0]]), rows(3, 2, seed=58).float()
    for first, hidden, last in ((1e19, 0.0, -1e19), (1.0, 1e19, 2.0), (-1e19, 1e19, -1e19)):
        k = torch.tensor([[first, 0.0], [hidden, 0.0], [last, 0.0]])
        call = prepare(q, k, v, torch.tensor([True, False, True]), scale=1.0, rule=rules.get(name))
        same(rows_route.run(call)[0], ROUTES["reference"].run(call).output, 1e-6)


@pytest.mark.parametrize("name", ["adaptive", "softmax", "softmax1", "ssmax", "sa-softmax", "hard"])
@pytest.mark.parametrize("huge", [1e30, 3e38])
def test_rows_whose_products_overflow(name: str, huge: float) -> None:
    """Of more than a few queries nobody looks at the logits, so the in-place forms must not be given infinite ones."""
    q, k, v = rows(2, 40, 8, seed=59).float(), rows(2, 48, 8, seed=60).float(), rows(2, 48, 8, seed=61).float()
    q[:, 3], k[:, 5] = huge, 1e10
    call = prepare(q, k, v, rule=rules.get(name))
    same(rows_route.run(call)[0], ROUTES["reference"].run(call).output, 1e-5)


def test_a_support_of_everything_and_ties() -> None:
    for value in (0.0, 1e-3):
        q, k, v = torch.full((2, 9, 4), value).double(), rows(2, 23, 4, seed=13), rows(2, 23, 4, seed=14)
        for name in ("entmax15", "sparsemax", "entmax 1.2", "entmax 3", "top-k 2", "top-k 30%"):
            compare(RULES[name], "sparse", q, k, v, 1e-7)
    tied = torch.zeros(1, 12, 4).double()
    tied[:, ::3] = 1.0
    for name in ("entmax15", "sparsemax", "top-k 2"):
        compare(RULES[name], "sparse", tied, tied, rows(1, 12, 4, seed=15), 1e-9)


@pytest.mark.parametrize("k", [1, 2, 6, 40])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_focus_among_equal_logits(alpha: float, k: int) -> None:
    """Small whole numbers: every row has ties, at the top, at the threshold and beyond."""
    q, k_, v = (rows(2, 31, 2, seed=13 + i, spread=1.0).round() for i in range(3))
    for s_max in (0.1, 0.7, 3.0, 50.0):  # the first is below s_min
        compare(Rule(map=rules.Focus(k, alpha, 0.3, s_max)), "sparse", q, k_, v, 1e-9, scale=1.0, is_causal=True)


def test_focus_keeps_its_promise_on_the_sparse_route() -> None:
    """At most K keys have weight, unless K + 1 logits lie within 1/(ε·s_max)."""
    q, k = rows(2, 300, 8, seed=14), rows(2, 300, 8, seed=15)
    weights = ud.attention(q.float(), k.float(), torch.eye(300).expand(2, -1, -1), rule=rules.Focus(5), route="sparse")
    top = (q @ k.mT / math.sqrt(8)).topk(6).values
    free = top[..., 0] - top[..., 5] >= 2 / 16.0
    assert free.float().mean() > 0.9
    assert (weights[free] > 0).sum(-1).max() <= 5
    assert weights[free].amax(-1).min() >= 1 / 5


def test_supports_beyond_the_budget_are_found_again() -> None:
    q, k, v = rows(2, 33, 4, seed=16), rows(2, 33, 4, seed=17), rows(2, 33, 4, seed=18)
    for megabytes in (1e-6, 1e-3, 128):
        ud.set_memory_budget(megabytes, supports=megabytes)
        for name in ("entmax15", "top-k 2"):
            compare(RULES[name], "sparse", q, k, v, 1e-9, is_causal=True)
        compare(RULES["sa-softmax V1"], "rows", q, k, v, 1e-9, is_causal=True)
    with pytest.raises(ud.InvalidValue, match="megabytes = 0"):
        ud.set_memory_budget(0)
    with pytest.raises(ud.InvalidValue, match="supports = -1"):
        ud.set_memory_budget(64, supports=-1)
    assert (budget.memory_budget(), budget.support_budget()) == (128 * 2**20, 128 * 2**20)


def test_odd_memory_layouts() -> None:
    base = rows(2, 13, 3, 8, seed=19)
    q, k = base.transpose(1, 2), base.flip(1).transpose(1, 2)
    v = rows(1, 1, 1, 8, seed=20).expand(2, 3, 13, 8)
    for name, route in PAIRS:
        out = ud.attention(q, k, v, is_causal=True, rule=RULES[name], route=route)
        same(out, ud.attention(q, k, v, is_causal=True, rule=RULES[name], route="reference"), 1e-9)


def test_additive_masks() -> None:
    q, k, v, bias = (rows(2, 14, 4, seed=21 + i) for i in range(4))
    bias = (bias @ bias.mT).masked_fill(~some_mask(2, 14, 14, seed=30), -math.inf)
    for name in ("softmax", "softmax1", "entmax15", "top-k 2", "ssmax", "adaptive", "sigmoid"):
        for route, module in ROUTES.items():
            for learned in (False, True):
                mask = bias.clone().requires_grad_(learned)
                call = prepare(q, k, v, mask, rule=RULES[name])
                if module.obstacle(call) is None:
                    got = ud.attention(q, k, v, mask, rule=RULES[name], route=route)
                    expected = ud.attention(q, k, v, mask, rule=RULES[name], route="reference")
                    same(got, expected, 1e-9)
                    if learned:
                        seen = bias > -math.inf
                        a, b = (torch.autograd.grad(t.square().sum(), mask)[0][seen] for t in (got, expected))
                        same(a, b, 1e-9)


@pytest.mark.parametrize("rows_", [1, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["entmax15", "sparsemax", "entmax 1.2", "entmax 1.8", "focus"])
def test_large_logits_that_differ_by_little(
    name: str, dtype: torch.dtype, rows_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thresholds are differences of logits; where those run out of digits, another route takes over."""
    monkeypatch.setattr(routing, "SMALL", 0)
    routes = set()
    for power in (4, 10, 16, 20, 30, 40, 55, 60):
        step = max(0.125, 2.0**power * torch.finfo(dtype).eps)
        offsets = torch.randint(-8, 8, (1, 300, 1), generator=torch.Generator().manual_seed(power)).to(dtype) * step
        q, v = torch.ones(1, rows_, 1, dtype=dtype), rows(1, 300, 4, seed=power).to(dtype)
        exact = ud.attention(q.double(), offsets.double(), v.double(), scale=1.0, rule=RULES[name], route="reference")
        with watched() as ran:
            got = ud.attention(q, 2.0**power + offsets, v, scale=1.0, rule=RULES[name])
        torch.testing.assert_close(got.double(), exact, atol=1e-4, rtol=0.0)
        routes |= set(ran)
    assert {"sparse", "rows"} <= routes


def test_dropout_on_the_rows_route() -> None:
    q, v = rows(1, 50, 8, seed=24).requires_grad_(), torch.ones(1, 50, 8).double()
    torch.manual_seed(0)
    out = ud.attention(q, q, v, dropout_p=0.5, rule="sigmoid", route="rows")
    torch.manual_seed(0)
    assert torch.equal(out, ud.attention(q, q, v, dropout_p=0.5, rule="sigmoid", route="rows"))
    assert (out != ud.attention(q, q, v, rule="sigmoid", route="rows")).any()

    def again(t: Tensor) -> Tensor:
        torch.manual_seed(0)
        return ud.attention(t, t, v[:, :9], dropout_p=0.5, rule="softmax", route="rows")

    assert torch.autograd.gradcheck(again, (q[:, :9].detach().requires_grad_(),))


def test_dropout_leaves_the_generators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws one seed, as any other random number, and seeds nothing but a generator of its own.

    ``torch.manual_seed`` also seeds those of CUDA, MPS and XPU.
    """

    def forbidden(*arguments: object) -> None:
        raise AssertionError("this seeds every device")

    q = rows(1, 50, 8, seed=24).requires_grad_()
    torch.manual_seed(0)
    torch.randint(2**62, ())
    after_one = torch.get_rng_state()
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "manual_seed", forbidden)
    monkeypatch.setattr(torch.random, "manual_seed", forbidden)
    out = ud.attention(q, q, q, dropout_p=0.5, rule="sigmoid", route="rows")
    torch.autograd.grad(out.sum(), q)
    assert torch.equal(torch.get_rng_state(), after_one)


def test_dropout_is_the_same_backward_whatever_the_memory_budget_is_by_then() -> None:
    q, v = rows(1, 50, 8, seed=24).requires_grad_(), rows(1, 50, 8, seed=25)
    gradients = []
    for later in (128, 1):
        torch.manual_seed(0)
        ud.set_memory_budget(128)
        out = ud.attention(q, q, v, dropout_p=0.5, rule="sigmoid", route="rows")
        ud.set_memory_budget(later)
        gradients.append(torch.autograd.grad(out.square().sum(), q)[0])
    assert torch.equal(*gradients)


def test_dropout_keeps_the_mean() -> None:
    q, v = rows(1, 400, 8, seed=26), torch.ones(1, 400, 1, dtype=torch.float64)
    for route in ("rows", "reference"):
        out = ud.attention(q, q, v, dropout_p=0.3, rule="hard" if route == "rows" else "softmax", route=route)
        assert abs(out.mean().item() - 1.0) < 0.1
        assert not ud.attention(q, q, v, dropout_p=1.0, route=route).any()


@pytest.mark.parametrize("name", ["softmax", "entmax15", "sigmoid", "top-k"])
def test_one_query_against_a_long_cache(name: str) -> None:
    q, k, v = rows(2, 3, 1, 8, seed=25), rows(2, 3, 500, 8, seed=26), rows(2, 3, 500, 8, seed=27)
    for route, module in ROUTES.items():
        if module.obstacle(prepare(q, k, v, rule=rules.get(name))) is None:
            compare(rules.get(name), route, q, k, v, 1e-9)


@pytest.mark.parametrize("name", ["softmax", "adaptive", "entmax15", "sigmoid", "top-k"])
@pytest.mark.parametrize("queries", [1, 3])
def test_a_few_queries_with_every_kind_of_mask(name: str, queries: int) -> None:
    q, k, v = rows(2, 4, queries, 8, seed=41), rows(2, 2, 60, 8, seed=42), rows(2, 2, 60, 8, seed=43)
    bias = rows(2, 4, queries, 60, seed=44)
    for options in ({"attn_mask": some_mask(2, 1, queries, 60, seed=45)}, {"attn_mask": bias}, {"sliding_window": 9}):
        for route, module in ROUTES.items():
            call = prepare(0.01 * q, k, v, enable_gqa=True, rule=rules.get(name), return_entropy=True, **options)
            if module.obstacle(call) is None:
                compare(rules.get(name), route, 0.01 * q, k, v, 1e-7, enable_gqa=True, **options)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("route", "number"), [("flash", 2), ("sparse", 2), ("rows", 1)])  # rows has none of its own
def test_without_gradients_it_is_the_same(route: str, number: int) -> None:
    """Where no graph is recorded, routes may work in place and a few heads at a time."""
    q, k, v = rows(2, 6, 21, 8, seed=46), rows(2, 3, 21, 8, seed=47), rows(2, 3, 21, 8, seed=48)
    mask = some_mask(2, 6, 21, 21, seed=49)
    with threads(2):
        assert len(flash._head_slices(prepare(q, k, v, enable_gqa=True, rule=rules.get("ssmax")))) == 3
    per_head = rules.Rule(scale=rules.LogLength(torch.rand(6).double() + 0.1), map=rules.Sink(rows(6, seed=50)))
    deep = rules.Rule(scale=rules.Temperature(torch.rand(2, 6, 21, 1).double() + 0.5))
    for rule in (per_head, deep, *RULES.values()):
        for options in ({"is_causal": True}, {"attn_mask": mask}, {}):
            call = prepare(q, k, v, enable_gqa=True, rule=rule, return_entropy=True, **options)
            if ROUTES[route].obstacle(call) is None:
                with torch.no_grad():
                    expected = ROUTES["reference"].run(call)
                    with threads(number):
                        got = ROUTES[route].run(call)
                same(got.output, expected.output, 1e-7)
                assert got.entropy is not None
                same(got.entropy, expected.entropy, 1e-7)


CURVES_PER_HEAD = {
    "softmax": rules.Softmax(),
    "sink": rules.Sink(0.5),
    "entmax15": Entmax(1.5),
    "top-k": rules.TopK(3),
    "sigmoid": rules.Sigmoid(),
}


@pytest.mark.parametrize("kind", ["full", "causal", "causal window", "keys", "per head"])
@pytest.mark.parametrize("name", CURVES_PER_HEAD)
def test_a_curve_for_each_head(name: str, kind: str) -> None:
    """Four query heads on two key heads, in a batch: every head keeps its own curve on every route."""
    q, k, v = rows(2, 4, 17, 6, seed=51), rows(2, 2, 19, 6, seed=52), rows(2, 2, 19, 3, seed=53)
    scale = rules.EntropyCurve(
        [[0.125, 1.0, 2.0]] * 4, [[1.0, 1.5, 2.0], [1.0, 1.0, 1.0], [1.25, 3.0, 3.5], [2.0, 2.0, 9.0]]
    )
    rule = Rule(scale, CURVES_PER_HEAD[name])
    routes = [r for r, m in ROUTES.items() if m.obstacle(prepare(q, k, v, enable_gqa=True, rule=rule)) is None]
    assert len(routes) == (2 if name == "sigmoid" else 3)
    for route in routes:
        compare(rule, route, q, k, v, 1e-9, enable_gqa=True, **OPTIONS[kind])
        with torch.no_grad():
            got, expected = (
                ud.attention(q, k, v, enable_gqa=True, rule=rule, route=r, **OPTIONS[kind])
                for r in (route, "reference")
            )
        same(got, expected, 1e-9)
    one = Rule(rules.EntropyCurve([0.125, 1.0, 2.0], [1.25, 3.0, 3.5]), CURVES_PER_HEAD[name])
    alone = ud.attention(q[:, 2:3], k[:, 1:], v[:, 1:], rule=one, **_of_head(OPTIONS[kind], 2))
    same(alone, ud.attention(q, k, v, enable_gqa=True, rule=rule, **OPTIONS[kind])[:, 2:3], 1e-9)


def _of_head(options: dict[str, object], head: int) -> dict[str, object]:
    mask = options.get("attn_mask")
    by_head = isinstance(mask, Tensor) and mask.shape[0] == 4
    return {**options, "attn_mask": mask[head : head + 1]} if by_head else options


@pytest.mark.parametrize("name", CURVES_PER_HEAD)
def test_gradcheck_of_a_curve_for_each_head(name: str) -> None:
    q, k, v = (rows(2, 4, 2, seed=54 + i, spread=1.0).requires_grad_() for i in range(3))
    given = [[0.1, 0.6, 1.3], [0.2, 0.5, 1.5]], [[1.1, 1.4, 3.0], [1.2, 1.3, 2.0]]
    knots = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in given]
    map = CURVES_PER_HEAD[name]
    for route, module in ROUTES.items():
        if module.obstacle(prepare(q, k, v, rule=Rule(rules.EntropyCurve(*knots), map))) is None:
            assert torch.autograd.gradcheck(
                lambda q, k, v, h, b, r=route: ud.attention(
                    q, k, v, is_causal=True, rule=Rule(rules.EntropyCurve(h, b), map), route=r
                ),
                (q, k, v, *knots),
            )


def test_curves_for_another_number_of_heads_are_refused() -> None:
    q = rows(2, 4, 17, 6, seed=57)
    curve = rules.EntropyCurve([[0.1, 1.0]] * 2, [[1.0, 2.0]] * 2)
    for route in ("flash", "rows", "reference"):
        with pytest.raises(ud.InvalidTensor, match="knots for 2 heads"):
            ud.attention(q, q, q, rule=curve, route=route)
        with pytest.raises(ud.InvalidTensor, match="knots for 2 heads"):
            ud.attention(q[0, 0], q[0, 0], q[0, 0], rule=curve, route=route)


def test_explain_and_choice() -> None:
    q = torch.randn(1, 2, 300, 8)
    wanted = {"softmax": "flash", "adaptive": "flash", "sink": "flash", "entmax15": "sparse", "top-k": "sparse"}
    wanted["adaptive-monotone"] = "flash"
    for name in rules.names():
        route = ud.explain(q, q, q, rule=name, is_causal=True)
        if name in wanted:
            assert route.name == wanted[name]
        assert str(route).startswith(route.name)
    assert "not flash, since the map Sigmoid is not softmax-like" in str(ud.explain(q, q, q, rule="sigmoid"))
    assert ud.explain(q[..., :9, :], q, q).name == "reference"
    assert "dropout" in str(ud.explain(q, q, q, dropout_p=0.1))
    assert "too large" in str(ud.explain(q * 1e25, q, q))
    assert ud.explain(q, q, q, route="rows").reason == "asked for"
    assert ud.explain(q, q, q, route="rows")._repr_html_() == "<p><b>rows</b>: asked for</p>"
    assert routing.Route("rows", "1 < 2 & so")._repr_html_() == "<p><b>rows</b>: 1 &lt; 2 &amp; so</p>"
    with pytest.raises(ud.InvalidValue, match="route = 'flash' cannot run this call: the map Entmax"):
        ud.attention(q, q, q, rule="entmax15", route="flash")
    with pytest.raises(ud.UnknownName, match="unknown route 'flsh': did you mean 'flash'"):
        ud.attention(q, q, q, route="flsh")


def test_without_numba_the_rows_route_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    q = torch.randn(1, 2, 300, 8)
    route = ud.explain(q, q, q, rule="entmax15")
    assert route.name == "rows"
    assert "pip install 'undilute[fast]'" in str(route)


def test_a_users_rule_runs_in_blocks() -> None:
    class Cubed(rules.Map):
        is_shift_invariant = False

        def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
            w = (logits.relu() ** 3 + 1e-3).masked_fill(~visible, 0.0)
            return rules.masked.divide(w, w.sum(-1, keepdim=True))

        def lipschitz(self, n: int) -> float:
            return math.inf

    q, k, v = (rows(2, 23, 4, seed=28 + i) for i in range(3))
    compare(Rule(map=Cubed()), "rows", q, k, v, 1e-9, is_causal=True)


def test_blocks_of_a_call_are_its_rows(rule: Rule) -> None:
    q, k, v = (rows(2, 20, 4, seed=31 + i) for i in range(3))
    call: Call = prepare(q, k, v, is_causal=True, sliding_window=6, rule=rule)
    whole = ROUTES["reference"].run(call).output
    part = ROUTES["reference"].run(replace(call.block(7, 13))).output
    same(part, whole[:, 7:13], 1e-12)
