"""Measures are found by name, and a user's own file brings its own."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undilute as ud
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue, UnknownName
from undilute.measures import Rows, registry

FILE = """
from torch import Tensor

import undilute as ud


@ud.measures.measure("runner_up", label="second weight", formula="p₂", without_sink=True)
def runner_up(rows: ud.measures.Rows) -> Tensor:
    return rows.weights.topk(2).values[..., 1]
"""


def imported(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "my_measures.py"
    path.write_text(FILE)
    yield path
    ud.measures.unregister("runner_up")


def test_a_measure_of_the_users_own_file_appears_everywhere(mine: Path, tmp_path: Path) -> None:
    before = ud.measures.names()
    imported(mine)
    assert ud.measures.names() == [*before, "runner_up", "runner_up_without_sink"]
    model, ids = random_model("llama"), tokens(128)
    with ud.capture(model, 8) as c, torch.no_grad():
        model(ids[None])
    frame = c.frame()
    assert frame.columns[-2:].tolist() == ["runner_up", "runner_up_without_sink"]
    for layer in c.layers:
        np.testing.assert_allclose(layer.measures["runner_up"], layer.key_weights[..., 1], atol=1e-12)
    assert (frame["runner_up"] < frame["top_weight"]).all()
    diagnosis = ud.diagnose(model, None, ids)
    saved = json.loads(diagnosis.save_json(tmp_path / "diagnosis.json").read_text())
    (described,) = [each for each in saved["measures"] if each["name"] == "runner_up"]
    assert (described["label"], described["formula"]) == ("second weight", "p₂")
    drawn = [each["name"] for each in saved["measures"] if each["drawn"]]
    assert "runner_up_without_sink" in drawn
    assert all(len(head["curves"]) == len(drawn) for head in saved["heads"])


def test_ones_own_may_be_defined_again_but_nobody_elses(mine: Path) -> None:
    imported(mine)
    imported(mine)  # a notebook runs its cells again
    with pytest.raises(InvalidValue, match="a measure 'runner_up' already exists, in my_measures: give yours"):
        ud.measures.measure("runner_up", label="", formula="")(lambda rows: rows.n)
    with pytest.raises(InvalidValue, match="'entropy_without_sink' already exists, in undilute"):
        ud.measures.measure("entropy_without_sink", label="", formula="")(lambda rows: rows.n)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda rows: rows.weights, r"the measure 'wrong' returned \(4, 5, 5\): must be .* \(4, 5\) for these heads"),
        (lambda rows: 0.5, "the measure 'wrong' returned float: must be a tensor with one number for each row"),
    ],
)
def test_a_measure_that_is_no_number_per_row_is_named(wrong: Callable[[Rows], Tensor], message: str) -> None:
    model: Any = random_model("llama")
    ud.measures.measure("wrong", label="", formula="")(wrong)
    try:
        with pytest.raises(InvalidValue, match=message), ud.capture(model, measures=["wrong"]):
            model(tokens(1, 5))
    finally:
        ud.measures.unregister("wrong")
    assert "wrong" not in ud.measures.names()


def test_loading_the_measures_leaves_the_public_functions_alone() -> None:
    registry.every()
    assert float(ud.measures.entropy(torch.tensor([0.5, 0.5]))) == pytest.approx(0.6931, abs=1e-4)


def test_the_old_ending_is_understood_and_named() -> None:
    with pytest.warns(DeprecationWarning, match="'n_eff_beside_sink' is now called 'n_eff_without_sink'"):
        found = registry.chosen(["n_eff_beside_sink", "entropy"])
    assert {each.name for each in found} == {"n_eff_without_sink", "entropy"}


def test_an_unknown_name_with_the_old_ending_stays_unknown() -> None:
    with pytest.raises(UnknownName, match="unknown measure 'logit_spread_beside_sink'"):
        registry.chosen(["logit_spread_beside_sink"])
