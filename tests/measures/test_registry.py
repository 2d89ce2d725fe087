"""Measures are found by name."""

from __future__ import annotations

import pytest

from undilute.errors import UnknownName
from undilute.measures import registry


def test_the_old_ending_is_understood_and_named() -> None:
    with pytest.warns(DeprecationWarning, match="'n_eff_beside_sink' is called 'n_eff_without_sink' now"):
        found = registry.chosen(["n_eff_beside_sink", "entropy"])
    assert {each.name for each in found} == {"n_eff_without_sink", "entropy"}


def test_an_unknown_name_with_the_old_ending_stays_unknown() -> None:
    with pytest.raises(UnknownName, match="unknown measure 'logit_spread_beside_sink'"):
        registry.chosen(["logit_spread_beside_sink"])
