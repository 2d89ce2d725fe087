"""A rule as text is that rule again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import undilute as ud
from undilute import rules


def test_every_rule_of_the_tests_is_typed_as_itself(rule: rules.Rule) -> None:
    text = rules.text(rule)
    assert rules.to_data(rules.get(text)) == rules.to_data(rule)
    assert rules.text(text) == text


@pytest.mark.parametrize("name", [name for name in rules.names() if name not in ("temperature", "entmax")])
def test_a_preset_is_its_name(name: str) -> None:
    assert rules.text(name) == name


@pytest.mark.parametrize(
    "text",
    [
        "llama4(beta=0.331, floor_length=1025)",
        "top-k(fraction=0.5)",
        "top-k(k=8)",
        "sa-softmax(variant='V1')",
        "as-entmax(beta=0.25, alpha=[1.25, 1.75])",
        "ssmax(s=[0.25, 0.5], floor=1) | entmax(alpha=1.3)",
        "ssmax(s=0.4) | sink(s=2)",
        "temperature(T=0.5)",
    ],
)
def test_what_is_typed_in_full_stays(text: str) -> None:
    assert rules.text(text) == text


def test_what_is_a_default_is_left_out() -> None:
    assert rules.text(rules.Entmax(1.5)) == "entmax15"
    assert rules.text("temperature(T=1)") == "softmax"
    assert rules.text(rules.LogLength(0.43, 0.0, 1.0)) == "ssmax(floor=1)"
    assert rules.text(rules.learnable("ssmax", 8, 2)) == "ssmax(s=[1, 1])"


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e9))
def test_no_digit_is_lost(beta: float, floor_length: float) -> None:
    read = rules.get(rules.text(rules.Llama4(beta, floor_length))).scale
    assert (read.beta, read.floor_length) == (beta, floor_length)


def test_what_no_preset_makes_is_refused() -> None:
    class Odd(rules.Softmax):
        def forward(self, logits: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
            return super().forward(logits, visible) / 2

    with pytest.raises(ud.InvalidValue, match="a rule of Temperature and Odd cannot be written as text"):
        rules.text(Odd())
