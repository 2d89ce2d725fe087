"""A fast form counts only for the class whose ``forward`` it belongs to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.cases import rows
from undilute.engine.routes import choose as routing
from undilute.rules import Entmax, EntropyAdaptive, Focus, LogLength, Map, Rule, Scale, Sigmoid, Sink, Softmax, TopK
from undilute.rules.base import fits_forward, forward_of


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


@pytest.mark.parametrize("route", ["flash", "sparse"])
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
