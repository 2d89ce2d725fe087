"""A model that does not read token ids alone is named in one sentence, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import undilute as ud
from tests.models.architectures import built
from tests.models.attending import tokens
from undilute.errors import InvalidValue
from undilute.evaluation import evaluate
from undilute_papers.reproduction.attended import each_layer

IDS = tokens(400)
USES: dict[str, Callable[[Any], object]] = {
    "diagnose": lambda model: ud.diagnose(model, None, IDS, length=64),
    "diagnose text": lambda model: ud.diagnose(model, None, "text"),
    "apply": lambda model: ud.apply(model, "ssmax"),
    "calibrate": lambda model: ud.calibrate(model, None, IDS, length=64),
    "each_layer": lambda model: each_layer(model, IDS[:64], print),
}
WHY = {"vit": "it reads pixel_values", "siglip": "it reads pixel_values", "whisper": "it reads input_features"}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["vit", "siglip", "clip", "whisper", "t5", "pegasus"])
def test_other_inputs_than_tokens_are_named(kind: str, use: str) -> None:
    model = built(kind)
    if use == "diagnose text" and kind in ("t5", "pegasus"):
        return  # they do read text; what they lack shows when they run
    why = WHY.get(kind, ".*")
    with pytest.raises(
        InvalidValue, match=rf"{type(model).__name__} cannot be run on token ids alone \({why}\): .*undilute.capture"
    ):
        USES[use](model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", ["vit", "clip"])
def test_evaluation_names_them_too(kind: str) -> None:
    with pytest.raises(InvalidValue, match="cannot be run on token ids alone"):
        evaluate(built(kind), None, IDS, length=64, haystacks=0)


def test_a_pass_of_ones_own_is_measured() -> None:
    model = built("vit")
    with ud.capture(model, measures=["entropy"]) as c, torch.no_grad():
        model(torch.randn(1, 3, 16, 16))
    assert len(c.layers) == 2
    assert set(c.layers[0].n.tolist()) == {5}
