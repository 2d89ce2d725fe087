"""Losses in chunks are the model's own, windows are evenly spread, and buckets hold every position once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests.models.attending import CLASSES, SIZES, random_model, tokens
from undilute.errors import InvalidValue
from undilute.models import text_loss
from undilute.models.text_loss import losses, position_buckets, windows

CAUSAL = [kind for kind in CLASSES if kind != "bert"]


def causal_model(kind: str) -> Any:
    return random_model(kind, "eager" if kind in ("gemma2", "gpt-oss") else "sdpa")


def scaled_model(kind: str) -> Any:
    """Models that do more to their logits than a head does."""
    torch.manual_seed(0)
    made = {
        "cohere": lambda: transformers.CohereForCausalLM(transformers.CohereConfig(**SIZES, logit_scale=0.25)),
        "granite": lambda: transformers.GraniteForCausalLM(transformers.GraniteConfig(**SIZES, logits_scaling=3.0)),
        "gemma2": lambda: transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=0.5)
        ),
    }[kind]()
    made.set_attn_implementation("eager")
    return made.double().eval()


def dense(model: Any, ids: torch.Tensor) -> np.ndarray:
    """The definition: −ln softmax(logits) of the token that follows, with all logits at once."""
    with torch.no_grad():
        log_p = model(ids, use_cache=False).logits.double().log_softmax(-1)
    return -log_p[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].numpy()


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("chunk", [60, 300, 2**24])  # one position, five, all at a time
def test_losses_are_the_models_own(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = causal_model(kind), tokens(2, 23)
    monkeypatch.setattr(text_loss, "CHUNK", chunk)
    ours = losses(model, ids)
    assert ours.shape == (2, 22)
    assert ours.dtype == np.float64
    assert_allclose(ours, dense(model, ids), rtol=1e-12)
    with torch.no_grad():
        assert ours.mean() == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["cohere", "granite", "gemma2"])
def test_what_a_model_does_to_its_logits_counts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = scaled_model(kind), tokens(1, 17)
    monkeypatch.setattr(text_loss, "CHUNK", 300)
    assert_allclose(losses(model, ids), dense(model, ids), rtol=1e-12)
    with torch.no_grad():
        alone = model.lm_head(model.base_model(ids).last_hidden_state).log_softmax(-1)
    unscaled = -alone[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].numpy()
    assert np.abs(unscaled - dense(model, ids)).max() > 0.01  # the head alone would be wrong


def test_the_model_is_left_as_it_was() -> None:
    model, ids = random_model("llama"), tokens(1, 9)
    model.train()
    with torch.no_grad():
        before = model(ids).logits
    losses(model, ids)
    assert "forward" not in vars(model.base_model)
    assert all(part.training for part in model.modules())
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)


def test_a_body_that_carries_its_own_forward_gets_it_back() -> None:
    model, ids = random_model("llama"), tokens(1, 9)
    plain, body = losses(model, ids), model.base_model
    wrapped = body.forward  # what accelerate does to a model that is spread over devices
    body.forward = wrapped
    assert_allclose(losses(model, ids), plain)
    assert vars(body)["forward"] is wrapped


def test_a_model_that_fails_is_left_as_it_was() -> None:
    model = random_model("llama")
    with pytest.raises(IndexError):
        losses(model, torch.full((1, 5), 10_000))
    assert "forward" not in vars(model.base_model)


def test_windows_report_their_progress() -> None:
    seen: list[int] = []
    losses(random_model("llama"), tokens(3, 8), on_window=seen.append)
    assert seen == [1, 2, 3]


def test_broken_weights_are_named() -> None:
    model = random_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(InvalidValue, match="LlamaForCausalLM predicts tokens with probabilities that are not finite"):
        losses(model, tokens(1, 6))


def test_an_encoder_predicts_no_next_token() -> None:
    with pytest.raises(InvalidValue, match="BertModel predicts no next token"):
        losses(random_model("bert"), tokens(1, 6))


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 60), st.integers(0, 1))
def test_windows_are_apart_and_evenly_spread(length: int, number: int, rest: int, marks: int) -> None:
    own, start = length - marks, (77,) * marks
    ids = torch.arange(1000, 1000 + own * number + rest)
    cut = windows(ids, length, number, start=start)
    assert cut.shape == (number, length)
    assert (cut[:, :marks] == 77).all()
    text = cut[:, marks:]
    assert (text.diff(dim=1) == 1).all()
    starts = text[:, 0].tolist()
    assert starts[0] == 1000
    assert number == 1 or text[-1, -1] == ids[-1]
    gaps = [b - a for a, b in pairwise(starts)]
    assert not gaps or (min(gaps) >= own and max(gaps) - min(gaps) <= 1)


def test_a_text_that_is_too_short_is_named() -> None:
    with pytest.raises(InvalidValue, match="the text has 99 tokens: 5 windows of 20 need 100"):
        windows(torch.arange(99), 20, 5)
    with pytest.raises(InvalidValue, match="length = 1"):
        windows(torch.arange(99), 1, 5)
    with pytest.raises(InvalidValue, match="must be more than the 2 tokens that start every window"):
        windows(torch.arange(99), 2, 1, start=(1, 2))
    with pytest.raises(InvalidValue, match="windows = 0"):
        windows(torch.arange(99), 20, 0)


@given(st.integers(2, 100_000))
def test_buckets_hold_every_position_once(length: int) -> None:
    buckets = position_buckets(length)
    assert [position for first, last in buckets for position in (first, last + 1)] == [
        1,
        *(edge for first, _ in buckets[1:] for edge in (first, first)),
        length,
    ]
    assert all(last <= 4 * first for first, last in buckets[1:])


def test_a_small_rest_joins_the_bucket_before_it() -> None:
    assert position_buckets(2048)[-1] == (1024, 2047)
    assert position_buckets(2100)[-1] == (1024, 2099)
    assert position_buckets(2560)[-1] == (2048, 2559)
    with pytest.raises(InvalidValue, match="length = 1"):
        position_buckets(1)
