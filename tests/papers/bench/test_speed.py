"""The measuring itself, on sizes that take no time."""

from __future__ import annotations

import json

import pytest
import torch

import undilute as ud
from undilute import rules
from undilute_papers.bench import speed, speed_report


def test_every_situation_and_every_contender_is_measured() -> None:
    every = speed.settings([32, 64], ["normal", "sharp"], backward=True, decode=128)
    assert len(every) == 2 * 2 * 2 * 2 + 1
    figures = [
        figure
        for setting in every
        for figure in speed.measure(setting, {"ssmax": rules.get("ssmax")}, heads=2, features=8, repeat=1)
    ]
    assert all(figure.ratio > 0 for figure in figures)
    assert {figure.what for figure in figures} == {"ssmax", "dense softmax", "entmax package"}
    content = json.loads(speed_report.to_json(figures, speed.machine(), "undilute bench"))
    assert len(content["figures"]) == len(figures)
    assert content["machine"]["torch"] == torch.__version__
    for part in (figures, [f for f in figures if f.spread == "sharp"], [f for f in figures if f.queries == 1]):
        assert speed_report.chart(part, "test").startswith(b"\x89PNG")
    assert len(speed_report.terminal(figures)) == 4


def test_extra_memory_sees_an_allocation() -> None:
    def allocate() -> None:
        torch.ones(2**24).sum()

    extra = speed.extra_memory(allocate)
    assert extra is None or 60 < extra < 100


def test_unknown_spread() -> None:
    with pytest.raises(ud.InvalidValue, match="spread"):
        speed.settings([32], ["wide"], backward=False, decode=0)
