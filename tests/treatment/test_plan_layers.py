"""A plan's file names its layers, may be written by hand, and older ones are still read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import undilute as ud
from tests.models.architectures import built
from undilute.errors import InvalidValue

SHIPPED = sorted(Path(__file__).parents[2].glob("docs/treatment/*/[pf]*.json"))


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """What the file of a plan for a hybrid holds."""
    with ud.apply(built("jamba"), {"model.layers.3.*": "ssmax"}) as treated:
        found: dict[str, Any] = json.loads(treated.plan.to_json())
    return found


def _read(content: dict[str, Any], **changes: Any) -> ud.Plan:
    assignment = {**content["assignments"][0], **changes}
    kept = {name: value for name, value in assignment.items() if value is not None}
    return ud.Plan.from_json(json.dumps({**content, "assignments": [kept]}))


def test_a_file_has_index_and_name(content: dict[str, Any]) -> None:
    assert [(each["layer"], each["name"]) for each in content["assignments"]] == [(1, "model.layers.3.self_attn")]
    assert [each["name"] for each in content["layers"]] == ["model.layers.1.self_attn", "model.layers.3.self_attn"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": None},
        {"layer": None},
        {"layer": "model.layers.3.self_attn", "name": None},
        {"layer": "model.layers.3", "name": None},
        {"layer": "layers.1", "name": None},
    ],
)
def test_a_layer_may_be_given_by_index_by_name_or_by_both(content: dict[str, Any], changes: dict[str, Any]) -> None:
    plan = _read(content, **changes)
    assert plan.heads == [(1, head) for head in range(4)]
    with ud.apply(built("jamba"), plan) as treated:
        assert list(treated.rules) == ["model.layers.3.self_attn"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 0}, "a rule for layer 0 with the name 'model.layers.3.self_attn', which is another layer"),
        ({"layer": "model.layers.2", "name": None}, "no head matches 'model.layers.2'"),
        ({"layer": "model", "name": None}, "'model' is 2 layers: must name one"),
        ({"layer": None, "name": None}, "an assignment has no 'layer'"),
    ],
)
def test_a_layer_that_is_none_is_named(content: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        _read(content, **changes)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_plans_of_earlier_versions_are_read(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert all("name" not in each for each in content["assignments"])
    plan = ud.Plan.load(path)
    assert [each.layer for each in plan.assignments] == [each["layer"] for each in content["assignments"]]


def test_there_are_such_plans() -> None:
    assert SHIPPED
