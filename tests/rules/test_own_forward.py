"""A fast form counts only for the class whose ``forward`` it belongs to."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.cases import rows
from tests.engine.ran import watched
from undilute.engine.routes import choose as routing
from undilute.rules import Entmax, EntropyAdaptive, Focus, LogLength, Map, Rule, Scale, Sigmoid, Sink, Softmax, TopK
from undilute.rules.base import entropy_form, fits_forward, forward_of, softmax_form, sparse_form
from undilute.rules.entropy import entropy_of_logits
from undilute.rules.forms import SoftmaxForm, SparseForm


def halved(base: type[Map]) -> type[Map]:
    """A subclass with a forward of its own and nothing more."""
    return type(
        f"Half{base.__name__}", (base,), {"forward": lambda self, z, visible: base.forward(self, z, visible) / 2}
    )


def doubled(base: type[Scale]) -> type[Scale]:
    return type(f"Double{base.__name__}", (base,), {"forward": lambda self, z, seen: 2 * base.forward(self, z, seen)})


class Loud:
    """A mixin that comes first."""

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return visible / visible.sum(-1, keepdim=True).clamp(min=1) + 0.0 * logits


class LoudSoftmax(Loud, Softmax):
    pass


class Uniform(Rule):
    """A rule that leaves scale and map aside."""

    def forward(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        seen = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask.expand(logits.shape)
        return seen / seen.sum(-1, keepdim=True).clamp(min=1) + 0.0 * logits


class Sharper(Rule):
    """A rule that changes what its map is given, and no more."""

    def scaled(self, logits: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, visible = super().scaled(logits, mask)
        return 3 * z, visible


class Called(Rule):
    """A rule with a call of its own."""

    def __call__(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        weights: Tensor = super().__call__(2 * logits, mask)
        return weights


def sharpened() -> Rule:
    rule, plain = Rule(), Rule()
    rule.scaled = lambda logits, mask=None: plain.scaled(3 * logits, mask)  # type: ignore[method-assign]
    return rule


def hooked() -> Rule:
    map = Softmax()
    map.register_forward_hook(lambda module, given, weights: weights / 2)
    return Rule(map=map)


def patched() -> Rule:
    map, original = Sigmoid(), Sigmoid()
    map.forward = lambda logits, visible: original(logits, visible) / 2  # type: ignore[method-assign]
    return Rule(map=map)


OWN: dict[str, Callable[[], Rule]] = {
    "softmax": lambda: Rule(map=halved(Softmax)()),
    "sink": lambda: Rule(map=halved(Sink)(0.5)),
    "entmax": lambda: Rule(map=halved(Entmax)(1.5)),
    "focus": lambda: Rule(map=halved(Focus)(3)),
    "top-k": lambda: Rule(map=halved(TopK)(3)),
    "sigmoid, which has a form in place": lambda: Rule(map=halved(Sigmoid)()),
    "a mixin": lambda: Rule(map=LoudSoftmax()),
    "a hook": hooked,
    "a forward of the object": patched,
    "a scale of n": lambda: Rule(scale=doubled(LogLength)(0.4)),
    "a scale of entropy": lambda: Rule(scale=doubled(EntropyAdaptive)()),
    "the same with a form in place": lambda: Rule(scale=doubled(EntropyAdaptive)(), map=Sigmoid()),
    "a rule": lambda: Uniform(map=Softmax()),
    "a rule that scales": lambda: Sharper(map=Softmax()),
    "a rule that is called": lambda: Called(map=Softmax()),
    "scaled of the object": sharpened,
    "a rule, per head": lambda: Uniform(scale=LogLength(torch.tensor([0.3, 0.4], dtype=torch.float64))),
}


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": torch.arange(300) % 3 > 0}], ids=str)
@pytest.mark.parametrize("name", OWN)
def test_it_runs_whatever_the_size(name: str, options: dict[str, Tensor | bool]) -> None:
    q, k, v = (rows(2, 300, 8, seed=i, spread=1.0) for i in range(3))
    assert routing.SMALL < 2 * 300 * 300
    rule = OWN[name]()
    assert ud.explain(q, k, v, rule=rule, **options).name == "rows"  # type: ignore[call-overload]
    got = ud.attention(q, k, v, rule=rule, **options)  # type: ignore[call-overload]
    torch.testing.assert_close(got, ud.attention(q, k, v, rule=rule, route="reference", **options))  # type: ignore[call-overload]
    few = ud.attention(q[:, :3], k, v, rule=rule)
    torch.testing.assert_close(few, ud.attention(q[:, :3], k, v, rule=rule, route="reference"))


@pytest.mark.parametrize("route", ["flash", "sdpa", "sparse"])
@pytest.mark.parametrize("name", OWN)
def test_a_forced_route_refuses_it(name: str, route: str) -> None:
    q = rows(2, 9, 4)
    with pytest.raises(ud.InvalidValue, match=f"route = '{route}' cannot run this call"):
        ud.attention(q, q, q, rule=OWN[name](), route=route)


def test_a_subclass_without_a_forward_keeps_the_fast_form() -> None:
    class Named(Softmax):
        def extra_repr(self) -> str:
            return "mine"

    q = rows(2, 300, 8)
    assert ud.explain(q, q, q, rule=Named()).name == "flash"
    assert ud.explain(q, q, q, rule=ud.rules.LearnableEntmax(2)).name == "sparse"


def test_a_subclass_with_a_form_of_its_own_has_that() -> None:
    class Quick(Sigmoid):
        def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
            return super().forward(logits, visible) / 2

        def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: ud.rules.base.Hide) -> float | None:
            super().weigh_(logits, spare, n, hide)
            return 2.0

    assert fits_forward(Quick(), "weigh_", Map)
    assert not fits_forward(halved(Sigmoid)(), "weigh_", Map)
    assert forward_of(Quick()) is Quick
    q, k, v = (rows(2, 300, 8, seed=i) for i in range(3))
    torch.testing.assert_close(
        ud.attention(q, k, v, rule=Quick()), ud.attention(q, k, v, rule=Quick(), route="reference")
    )


def test_what_is_claimed_of_softmax_is_not_claimed_of_its_subclass() -> None:
    for scale in (EntropyAdaptive(), ud.rules.get("adaptive-monotone").scale):
        assert scale.lipschitz(halved(Softmax)(), 16) == torch.inf


def test_a_rule_of_its_own_is_not_written_as_scale_and_map() -> None:
    with pytest.raises(ud.InvalidValue, match="Uniform cannot be written as data"):
        ud.rules.to_data(Uniform())


class MySoftmax(Map):
    """A user's own softmax with a sink of 0.3, which says that it is one."""

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        e = logits.exp().masked_fill(~visible, 0.0)
        return e / (e.sum(-1, keepdim=True) + torch.tensor(0.3, dtype=e.dtype).exp())

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(sink=0.3)


class MySparsemax(Map):
    """A user's own sparsemax of twice the logits, by bisection, which says how its support is found."""

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        z = (2 * logits).masked_fill(~visible, -torch.inf)
        high = z.amax(-1, keepdim=True).clamp(min=-1e9)
        low = high - 1
        for _ in range(60):
            middle = (low + high) / 2
            is_low = (z - middle).clamp(min=0.0).sum(-1, keepdim=True) > 1
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        support = (z > high) & visible
        size = support.sum(-1, keepdim=True).clamp(min=1)
        tau = ((2 * logits * support).sum(-1, keepdim=True) - 1) / size
        return (2 * logits - tau).clamp(min=0.0) * support

    def as_sparse(self) -> SparseForm:
        return SparseForm(epsilon=1.0, s_min=2.0)


class MyTop(Map):
    """A user's own top-2 softmax."""

    is_continuous = False

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        z = logits.masked_fill(~visible, -torch.inf)
        kept = z.topk(min(2, z.shape[-1])).values[..., -1:]
        return torch.softmax(z.masked_fill(z < kept, -torch.inf), -1).nan_to_num(0.0)

    def as_sparse(self) -> SparseForm:
        return SparseForm(epsilon=None, k=lambda n: torch.full_like(n, 2))


class MyScale(Scale):
    """A user's own factor of the row's entropy."""

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        return 1 + entropy_of_logits(logits, visible)[..., None] / 4

    def as_entropy(self) -> Callable[[Tensor], Tensor]:
        return lambda entropy: 1 + entropy / 4

    def bound(self, n: int) -> float:
        return 1 + math.log(n) / 4


DECLARED: dict[str, tuple[Callable[[], Rule], str]] = {
    "softmax": (lambda: Rule(map=MySoftmax()), "flash"),
    "softmax, scaled": (lambda: Rule(LogLength(0.4), MySoftmax()), "flash"),
    "softmax, by entropy": (lambda: Rule(MyScale(), MySoftmax()), "flash"),
    "sparsemax": (lambda: Rule(map=MySparsemax()), "sparse"),
    "sparsemax, scaled": (lambda: Rule(LogLength(0.4), MySparsemax()), "sparse"),
    "sparsemax, by entropy": (lambda: Rule(MyScale(), MySparsemax()), "sparse"),
    "top 2": (lambda: Rule(map=MyTop()), "sparse"),
}


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
@pytest.mark.parametrize("name", DECLARED)
def test_a_map_of_the_users_own_gets_the_route_that_it_declares(name: str, options: dict[str, bool]) -> None:
    make, route = DECLARED[name]
    q, k, v = (rows(2, 300, 8, seed=i, spread=1.0) for i in range(3))
    rule, made = make(), []
    assert ud.explain(q, k, v, rule=rule, **options).name == route
    for each in (None, "reference"):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        with watched() as ran:
            out = ud.attention(*inputs, rule=rule, route=each, **options)
        assert ran == [each or route]
        made.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    torch.testing.assert_close(*made, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", DECLARED)
def test_its_subclass_with_another_forward_does_not(name: str) -> None:
    rule = DECLARED[name][0]()
    kind = type(rule.map)
    other = type("Other", (kind,), {"forward": lambda self, z, seen: kind.forward(self, z, seen).square()})
    rule = Rule(rule.scale, other())
    q = rows(2, 300, 8, spread=1.0)
    assert ud.explain(q, q, q, rule=rule).name == "rows"
    torch.testing.assert_close(ud.attention(q, q, q, rule=rule), ud.attention(q, q, q, rule=rule, route="reference"))


def test_nor_does_what_was_put_into_one_object() -> None:
    """Neither a form without its forward, nor a forward under an old form."""
    map, sigmoid, scale = Sigmoid(), Softmax(), EntropyAdaptive()
    map.as_softmax = SoftmaxForm  # type: ignore[method-assign]
    sigmoid.forward = Sigmoid().forward  # type: ignore[method-assign]
    scale.register_forward_hook(lambda module, given, factor: 2 * factor)
    assert softmax_form(map) is softmax_form(sigmoid) is entropy_form(scale) is None
    map.weigh_ = Softmax().weigh_  # type: ignore[method-assign]
    scale.multiply_ = EntropyAdaptive().multiply_  # type: ignore[method-assign]
    assert not fits_forward(map, "weigh_", Map)
    assert not fits_forward(scale, "multiply_", Scale)
    q = rows(2, 300, 8)
    for rule in (Rule(map=map), Rule(map=sigmoid), Rule(scale=scale)):
        assert ud.explain(q, q, q, rule=rule).name == "rows"
        torch.testing.assert_close(
            ud.attention(q, q, q, rule=rule), ud.attention(q, q, q, rule=rule, route="reference")
        )


def test_a_scale_of_entropy_that_overrides_forward_is_not_one() -> None:
    class Doubled(EntropyAdaptive):
        def at_entropy(self, entropy: Tensor) -> Tensor:
            return super().at_entropy(entropy)

        def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
            return 2 * super().forward(logits, visible)

    assert entropy_form(EntropyAdaptive()) is not None
    assert entropy_form(Doubled()) is None
    assert sparse_form(Entmax(1.5)) == SparseForm(0.5)
    assert sparse_form(halved(Entmax)(1.5)) is None


def test_no_route_knows_a_map_by_its_class_or_another_route() -> None:
    folder = Path(routing.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__", "choose"}
    assert {"flash", "sdpa", "sparse", "rows", "reference"} == names
    for name in names:
        text = (folder / f"{name}.py").read_text()
        assert "rules.maps" not in text
        assert "rules.scales" not in text
        assert "engine.routes" not in text


def test_old_names_of_a_rules_parts_still_work() -> None:
    rule = Rule(LogLength(torch.tensor([0.3, 0.4, 0.5])))
    with pytest.warns(DeprecationWarning, match=r"Rule\.heads is now called Rule\.for_heads"):
        assert torch.equal(rule.heads([1], 3).scale.s, torch.tensor([0.4]))  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match=r"Rule\.rows is now called Rule\.for_rows"):
        assert rule.rows(slice(0, 2), 5) is rule
