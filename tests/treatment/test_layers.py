"""Patterns mean the heads that their docstring says, in hybrids and models without their head too."""

from __future__ import annotations

import pytest

import undilute as ud
from tests.models.architectures import built
from undilute.errors import InvalidValue
from undilute.treatment.layers import Layer, described, index_of, matched

HYBRID = [Layer("model.layers.1.self_attn", 2), Layer("model.layers.3.self_attn", 2)]
BODY = [Layer("layers.1.self_attn", 2), Layer("layers.3.self_attn", 2)]
SHARED = [Layer(f"encoder.groups.0.attention.passes.{number}", 2) for number in range(2)]
EVERY = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("pattern", "layers", "found"),
    [
        ("layers.0.*", HYBRID, [(0, 0), (0, 1)]),
        ("layers.1.heads.1", HYBRID, [(1, 1)]),
        ("model.layers.1.*", HYBRID, [(0, 0), (0, 1)]),
        ("model.layers.1", HYBRID, [(0, 0), (0, 1)]),
        ("model.layers.1.self_attn", HYBRID, [(0, 0), (0, 1)]),
        ("model.layers.1.heads.1", HYBRID, [(0, 1)]),
        ("model.layers.1.self_attn.heads.1", HYBRID, [(0, 1)]),
        ("model.layers.*.heads.0", HYBRID, [(0, 0), (1, 0)]),
        ("model.heads.0", HYBRID, [(0, 0), (1, 0)]),
        ("*", HYBRID, EVERY),
        ("layers.1.*", BODY, [(0, 0), (0, 1)]),
        ("layers.3.heads.0", BODY, [(1, 0)]),
        ("layers.*.heads.1", BODY, [(0, 1), (1, 1)]),
        ("*.heads.1", BODY, [(0, 1), (1, 1)]),
        ("layers.1.*", SHARED, [(1, 0), (1, 1)]),
        ("encoder.groups.0.attention", SHARED, EVERY),
        ("encoder.groups.0.attention.heads.1", SHARED, [(0, 1), (1, 1)]),
        ("encoder.groups.0.attention.passes.1", SHARED, [(1, 0), (1, 1)]),
    ],
)
def test_patterns(pattern: str, layers: list[Layer], found: list[tuple[int, int]]) -> None:
    assert matched(pattern, layers) == found


@pytest.mark.parametrize(
    ("pattern", "layers", "message"),
    [
        (
            "model.layers.0.*",
            HYBRID,
            r"are layers.0 \('model.layers.1.self_attn'\) to layers.1 \('model.layers.3",
        ),
        ("layers.0.*", BODY, r"no head matches 'layers.0.\*': there are 'layers.1.self_attn' to 'layers.3.self_attn'"),
        ("layers.2.*", SHARED, r"layers.0 \('encoder.groups.0.attention.passes.0'\) to layers.1"),
    ],
)
def test_what_matches_nothing_is_told_what_there_is(pattern: str, layers: list[Layer], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        matched(pattern, layers)


def test_a_layer_is_named_by_what_means_it_alone() -> None:
    assert [index_of(each, HYBRID) for each in (1, "layers.1", "model.layers.3", "model.layers.3.self_attn")] == [1] * 4
    with pytest.raises(InvalidValue, match=r"'model' is 2 layers: must name one; there are layers\.0"):
        index_of("model", HYBRID)


def test_layers_that_are_counted_alike_are_told_as_before() -> None:
    layers = [Layer(f"transformer.h.{index}.attn", 4) for index in range(3)]
    assert described(layers) == "there are layers.0 to layers.2 ('transformer.h.0.attn', …), with heads.0 to heads.3"


@pytest.mark.parametrize(
    ("kind", "pattern", "module"),
    [
        ("jamba", "layers.0.*", "model.layers.1.self_attn"),
        ("jamba", "model.layers.3.*", "model.layers.3.self_attn"),
        ("jamba without head", "layers.1.*", "layers.1.self_attn"),
    ],
)
def test_a_hybrid_is_treated_where_it_was_meant(kind: str, pattern: str, module: str) -> None:
    with ud.apply(built(kind), {pattern: "ssmax"}) as treated:
        assert list(treated.rules) == [module]
