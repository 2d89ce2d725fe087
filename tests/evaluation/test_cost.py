"""Costs are measured in turns, inside each treatment, and never beyond what the model reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue
from undilute.evaluation.cost import STEPS, cost, costs


def test_treatments_take_turns() -> None:
    model, seen = random_model("llama"), []
    calls: list[tuple[str, int, bool]] = []
    now = [""]

    @contextmanager
    def treated(label: str) -> Iterator[None]:
        seen.append(label)
        now[0] = label
        yield
        now[0] = ""

    def note(module: object, args: object, options: dict[str, torch.Tensor]) -> None:
        calls.append((now[0], options["input_ids"].shape[1], model.training))

    hook = model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    model.train()
    try:
        made = costs({"a": lambda: treated("a"), "b": lambda: treated("b")}, model, tokens(40), rounds=3)
    finally:
        hook.remove()
    assert seen == ["a", "b"] * 3
    assert calls[1:] == [(label, size, False) for label in "ababab" for size in (40 - STEPS, *[1] * STEPS)]
    assert model.training
    assert list(made) == ["a", "b"]
    for each in made.values():
        assert each.tokens == 40 - STEPS
        assert each.decode_seconds > 0
        assert each.prefill_seconds > 0
        assert each.extra_megabytes is None or each.extra_megabytes >= 0


def test_a_model_with_learned_positions_is_measured_at_its_full_length() -> None:
    model = random_model("gpt2")
    assert cost(model, tokens(model.config.n_positions), rounds=1).tokens == model.config.n_positions - STEPS


def test_too_few_tokens_are_named() -> None:
    with pytest.raises(InvalidValue, match=f"ids has {STEPS} tokens"):
        cost(random_model("llama"), tokens(STEPS))
