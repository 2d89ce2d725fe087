"""Numbers are numbers, switches are switches, and what only looks like one is refused in a sentence."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import undilute as ud
from undilute.rules.parameters import count, flag, number, shown, whole

HUGE = 10**400


@pytest.mark.parametrize(
    "value", [2, 2.0, Fraction(2), np.float32(2), np.int64(2), np.array(2.0), np.array(2, dtype=np.float16)]
)
def test_real_numbers_of_every_kind_are_numbers(value: object) -> None:
    assert number("x", value) == 2.0


def test_what_only_looks_like_a_number_is_refused() -> None:
    texts = ("1", b"1", True, np.True_, np.array(True), None, [1.0], {}, 1j, torch.ones(()))
    for value in (*texts, HUGE, 10**5000, math.nan, math.inf):
        with pytest.raises(ud.InvalidValue, match=r"^x .*must be one finite number\.$") as caught:
            number("x", value)
        assert len(str(caught.value)) < 200


def test_a_count_is_a_whole_number_that_torch_can_count_with() -> None:
    for value in (0, -1, True, 1.0, "1", None, np.float64(1), 2**63, 10**30, HUGE, 10**5000):
        with pytest.raises(ud.InvalidValue, match=r"^n = .*must be a whole number of at"):
            count("n", value)


def test_whole_numbers_keep_their_value() -> None:
    assert [count("n", value) for value in (1, np.int64(7), 2**63 - 1)] == [1, 7, 2**63 - 1]
    assert whole("n", 0, 0) == 0


@pytest.mark.parametrize("value", ["no", "", 0, 1, None, 1.0, torch.tensor(True)])
def test_a_switch_is_true_or_false(value: object) -> None:
    with pytest.raises(ud.InvalidValue, match=r"^is_causal = .*: must be True or False\.$"):
        flag("is_causal", value)
    assert (flag("x", True), flag("x", np.False_)) == (True, False)


def test_long_values_are_shown_in_part() -> None:
    assert shown([1, 2]) == "[1, 2]"
    assert len(shown("x" * 10_000)) < 80
    assert shown(10**5000) == "something of type int, too long to show"
