"""A plan that somebody wrote by hand, or that came from elsewhere: right, or one sentence."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import undilute as ud

PLAN: dict[str, Any] = {
    "schema": "undilute.plan/1",
    "architecture": "LlamaForCausalLM",
    "layers": [{"name": "model.layers.0.self_attn", "heads": 4}],
    "made": {"rule": "top-k"},
    "assignments": [
        {"layer": 0, "heads": [0, 1], "rule": {"scale": {"kind": "Temperature", "T": 1.0}, "map": {"kind": "Softmax"}}}
    ],
}


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


HOSTILE = [
    *(None, True, "x", [], [[]], {}, {"a": 1}, math.nan, math.inf, -1, 0.7, 10**30, 10**400),
    *([0.5, True], [None], [[1], [2, 3]], ["1"], [math.nan], [10**400], [0.7], "\ud800", nested(600)),
]


def changed(*path: str | int, to: Any) -> str:
    plan = copy.deepcopy(PLAN)
    *outer, last = path
    inner: Any = plan
    for step in outer:
        inner = inner[step]
    inner[last] = to
    return json.dumps(plan)


def every_path(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*path, key)
        yield from every_path(value, (*path, key))


FIRST = ("assignments", 0)
RULE = (*FIRST, "rule")


WRONG = [
    (changed(*FIRST, "heads", to=[]), "its 'assignments\\[0\\].heads' is \\[\\]: must be a list of at least one"),
    (changed(*FIRST, "heads", to=[0.7]), "heads\\[0\\]' is 0.7: must be a whole number"),
    (changed(*FIRST, "heads", to=[True]), "heads\\[0\\]' is True: must be a whole number"),
    (changed(*FIRST, "heads", to="01"), "heads' is '01': must be a list"),
    (changed(*FIRST, "heads", to=[0, 0]), "two rules for head 0"),
    (changed(*FIRST, "layer", to=False), "layer' is False: must be a whole number, or the layer's name"),
    (changed(*FIRST, "layer", to=0.0), "layer' is 0.0: must be a whole number, or the layer's name"),
    (changed(*FIRST, "layer", to=None), "layer' is None: must be a whole number, or the layer's name"),
    (changed("layers", 0, "heads", to=4.5), r"'layers\[0\].heads' is 4.5: must be a whole number"),
    (changed("layers", 0, "heads", to=True), r"'layers\[0\].heads' is True: must be a whole number"),
    (changed("layers", to="ab"), "'layers' is 'ab': must be a list"),
    (changed("architecture", to=1), "'architecture' is 1: must be text"),
    (changed("made", to=["rule"]), r"'made' is \['rule'\]: must be an object"),
    (changed("assignments", to=[3]), r"'assignments\[0\]' is 3: must be an object"),
    (changed(*RULE, "map", to={"kind": "TopK", "k": 10**30}), "k = 1000.*at most 9,223,372,036,854,775,807"),
    (changed(*RULE, "map", to={"kind": "TopK", "k": 8.0}), "k = 8.0: must be a whole number"),
    (changed(*RULE, "map", to={"kind": "LearnableEntmax", "num_heads": -1}), "map of kind 'LearnableEntmax'"),
    (changed(*RULE, "scale", "T", to=math.nan), "T = nan: must be a finite number"),
    (changed(*RULE, "scale", "T", to="1"), "T = '1': must be a finite number"),
    (changed(*RULE, "scale", "T", to=True), "T = True: must be a finite number"),
    (changed(*RULE, "scale", "T", to=[0.5, True]), "must be numbers, in lists of equal length"),
    (changed(*RULE, "scale", "T", to=[10**400]), "must be numbers, in lists of equal length"),
    (changed(*RULE, "scale", "T", to=nested(600)), "must"),
    ("[" * 100_000, "it is not JSON"),
    ("9" * 5000, "it is not JSON"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_a_plan_with_a_wrong_entry_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ud.InvalidValue, match=message) as caught:
        ud.Plan.load(tmp_path / "plan.json")
    assert str(caught.value).startswith("cannot read the plan ")
    assert "\n" not in str(caught.value)


def test_whatever_a_plan_holds_it_is_read_or_refused() -> None:
    for path in every_path(PLAN):
        for value in HOSTILE:
            said = ""
            try:
                plan = ud.Plan.from_json(changed(*path, to=value))
                assert ud.Plan.from_json(plan.to_json()).heads == plan.heads
            except ud.UndiluteError as error:
                said = str(error)
            assert "\n" not in said
            assert len(said) < 700


def test_what_is_missing_is_named() -> None:
    for name in ("architecture", "layers", "assignments"):
        plan = {key: value for key, value in PLAN.items() if key != name}
        with pytest.raises(ud.InvalidValue, match=f"its '{name}' is missing: a plan must have it"):
            ud.Plan.from_json(json.dumps(plan))


def test_a_plan_shows_itself_and_nothing_in_it_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "<script>alert(1)</script>"
    data = json.loads(changed("made", "rule", to=hostile))
    data["layers"] += [{"name": f"model.layers.{index}.self_attn", "heads": 4} for index in (1, 2, 3)]
    data["assignments"] += [{**data["assignments"][0], "layer": index} for index in (1, 3)]
    plan = ud.Plan.from_json(json.dumps(data))
    plan.show()
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{hostile} for 6 of 16 heads of LlamaForCausalLM.",
        "Temperature(T=1) · Softmax() for heads 0–1 of layers 0–1, 3",
    ]
    page = plan._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; for 6 of 16 heads" in page
    assert re.findall("<td[^>]*>(.*?)</td>", page) == ["Temperature(T=1) · Softmax()", "0–1", "0–1, 3"]
