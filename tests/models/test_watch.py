"""Whoever wants to read or change attention says so if there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import undilute as ud
from undilute.errors import InvalidValue
from undilute_papers.reproduction.attended import each_layer

IDS = torch.arange(128) % 50


@pytest.mark.parametrize(
    "use",
    [
        lambda model: ud.apply(model, "ssmax"),
        lambda model: ud.calibrate(model, None, IDS),
        lambda model: ud.diagnose(model, None, IDS),
        lambda model: each_layer(model, IDS, print),
    ],
    ids=["apply", "calibrate", "diagnose", "each_layer"],
)
def test_a_model_that_never_attends_is_named(use: Callable[[Any], object]) -> None:
    config = transformers.GPT2Config(n_embd=8, n_layer=0, n_head=2, n_positions=128, vocab_size=50, bos_token_id=1)
    model = transformers.GPT2LMHeadModel(config)
    with pytest.raises(InvalidValue, match=r"GPT2LMHeadModel made no attention call .* neither read nor changed"):
        use(model)
    assert model.config._attn_implementation == "sdpa"
