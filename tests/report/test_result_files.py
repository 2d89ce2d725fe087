"""Results on disk: what comes back, what is refused, and what a failure leaves."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.disk import full_disk
from tests.report.results import ROWS, dilution, hostile, temperature
from undilute.errors import InvalidValue, MissingExtra
from undilute.report import result_files
from undilute.report.result import Chart, HeatMap, Result, Series
from undilute.report.result_reading import read

SMALL = Result(
    "dilution",
    {"gaps": (0.5, 4.0), "nested": ((1, 2), ("a",)), "name": "x", "flag": True, "none": None},
    ["It holds.", "“Quoted” ☃"],
    [],
    {"figures": [{"n": 3, "weight": 0.1 + 0.2, "flag": False, "word": "a", "none": None}]},
    [Chart("c", "t", "x", "y", [Series("s", [1, 2.5], [0.1, 0.2], boxes=[[1, 2, 3, 4, 5.5]] * 2)], x_log=2)],
    seconds=1.5,
    made={"date": "2025-01-01"},
)


RECALL = HeatMap(
    "recall",
    "t",
    "tokens",
    "rule",
    ["512", "1,024"],
    ["softmax", "ssmax"],
    [[0.1 + 0.2, 1.0], [2.5, None]],
    "recall, %",
    better="higher",
    centre="softmax",
    note="n",
)
MAPPED = replace(SMALL, charts=[*SMALL.charts, RECALL, replace(RECALL, name="plain", better=None, centre=None)])
LATER = replace(SMALL, tables={"later": [{"n": 1}]}, charts=[])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    "result", [dilution(), temperature(), SMALL, MAPPED], ids=lambda result: f"{result.id}-{len(result.charts)}"
)
def test_a_result_comes_back_the_same(result: Result) -> None:
    text = result_files.to_json(result)
    assert result_files.from_json(text) == result
    assert result_files.to_json(result_files.from_json(text)) == text


def test_settings_come_back_as_tuples() -> None:
    again = result_files.from_json(result_files.to_json(SMALL))
    assert again.settings == SMALL.settings
    assert isinstance(again.settings["nested"][0], tuple)


@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 1 / 3, 2**53 + 1, 1e22])
def test_numbers_come_back_exactly(value: float) -> None:
    result = replace(SMALL, tables={"t": [{"v": value}]}, seconds=value)
    again = result_files.from_json(result_files.to_json(result))
    for back in (again.tables["t"][0]["v"], again.seconds):
        assert isinstance(back, type(value))
        assert back == value
        assert math.copysign(1, back) == math.copysign(1, value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_becomes_null(value: float) -> None:
    series = Series("s", [1.0, 2.0], [value, 1.0])
    result = replace(SMALL, tables={"t": [{"v": value}]}, charts=[replace(SMALL.charts[0], series=[series])])
    content = strict(result_files.to_json(result))
    assert content["tables"]["t"] == [{"v": None}]
    again = result_files.from_json(result_files.to_json(result))
    assert again.tables["t"] == [{"v": None}]
    assert math.isnan(again.charts[0].series[0].y[0])
    assert again.charts[0].series[0].y[1] == 1.0


def test_a_missing_cell_of_a_heat_map_comes_back_missing() -> None:
    heat_map = replace(RECALL, values=[[math.nan, 1.0], [math.inf, None]])
    (again,) = result_files.from_json(result_files.to_json(replace(SMALL, charts=[heat_map]))).charts
    assert again == replace(RECALL, values=[[None, 1.0], [None, None]])


def test_numbers_of_torch_and_numpy_are_numbers() -> None:
    rows: list[Any] = [{"a": np.float64(0.1), "b": np.int64(7), "c": torch.tensor(0.5), "d": np.bool_(True)}]
    series = Series("s", np.array([1.0, 2.0]), torch.tensor([3.0, 4.0], dtype=torch.float64))  # type: ignore[arg-type]
    result = replace(SMALL, tables={"t": rows}, charts=[replace(SMALL.charts[0], series=[series])])
    again = result_files.from_json(result_files.to_json(result))
    assert again.tables["t"] == [{"a": 0.1, "b": 7, "c": 0.5, "d": True}]
    assert again.charts[0].series[0].y == [3.0, 4.0]


def test_a_setting_of_an_unknown_kind_does_not_lose_the_run() -> None:
    text = result_files.to_json(replace(SMALL, settings={"where": Path("a/b")}))
    assert result_files.from_json(text).settings == {"where": "a/b"}


def test_the_file_has_a_line_for_each_row_and_sentence() -> None:
    lines = result_files.to_json(temperature()).split("\n")
    assert sum('"seed": 3,' in line for line in lines) == 5
    assert any(line.strip().startswith(json.dumps(temperature().findings[0], ensure_ascii=False)) for line in lines)


# ---------------------------------------------------------------- files that are not ours


def broken(change: Callable[[dict[str, Any]], Any], of: Result | None = None) -> str:
    content = json.loads(result_files.to_json(of or dilution()))
    change(content)
    return json.dumps(content)


def series_of(content: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = content["charts"][0]["series"][0]
    return made


FOREIGN = {
    "nothing": ("", "it is not JSON"),
    "half a file": (result_files.to_json(dilution())[:4000], "it is not JSON"),
    "a list": ("[1, 2]", "its schema is None"),
    "nested beyond reason": ("[" * 200_000, "it is not JSON"),
    "another schema": ('{"schema": "undilute.diagnosis/1"}', "its schema is 'undilute.diagnosis/1': must be"),
    "a later schema": (broken(lambda c: c.update(schema="undilute.experiment/2")), "undilute.experiment/2"),
    "a part missing": (broken(lambda c: c.pop("charts")), "its result is .* must be an object with 'charts'"),
    "a part too many": (
        broken(lambda c: c.update(extra=1)),
        r"its result\.extra is unknown: remove it",
    ),
    "a verdict": (
        broken(lambda c: c["comparisons"][2].update(verdict="so-so")),
        r"comparisons\[2\].verdict is 'so-so'",
    ),
    "a finding": (broken(lambda c: c["findings"].append(7)), r"findings\[6\] is 7: must be text"),
    "a table": (broken(lambda c: c["tables"].update(table={})), "tables.table is {}: must be a list"),
    "a row": (broken(lambda c: c["tables"].update(t=[3])), r"tables.t\[0\] is 3: must be an object"),
    "a cell": (broken(lambda c: c["tables"].update(t=[{"a": [1]}])), r"tables.t\[0\].a is \[1\]: must be one value"),
    "a huge number": (broken(lambda c: c["tables"].update(t=[{"a": 10**400}])), "that a float can hold"),
    "a number": (broken(lambda c: c.update(seconds="long")), "seconds is 'long': must be a number"),
    "true for a number": (broken(lambda c: c.update(seconds=True)), "seconds is True: must be a number"),
    "a base": (broken(lambda c: c["charts"][0].update(x_log=3)), "x_log is 3: must be 0, 2 or 10"),
    "a flag": (broken(lambda c: series_of(c).update(printed=1)), "printed is 1: must be true or false"),
    "a shorter y": (broken(lambda c: series_of(c)["y"].pop()), "columns of equal length"),
    "a centre": (
        broken(lambda c: c["charts"][1].update(centre="entmax"), MAPPED),
        "centre = 'entmax' of the heat map 'recall': must be one of its rows",
    ),
    "cells": (broken(lambda c: c["charts"][1]["values"].pop(), MAPPED), "do not fit its labels"),
    "a direction": (broken(lambda c: c["charts"][1].update(better="up"), MAPPED), "better is 'up': must be one of"),
    "a part missing that has a default": (
        broken(lambda c: c["comparisons"][0].pop("note")),
        r"its result.comparisons\[0\] is .*: must be an object with 'note'",
    ),
    "no series": (
        broken(lambda c: c["charts"][0].update(series=[3])),
        r"charts\[0\].series\[0\] is 3: must be an object",
    ),
    "no charts": (broken(lambda c: c.update(charts=None)), "its result.charts is None: must be a list"),
    "a figure": (
        broken(lambda c: c["comparisons"][1].update(computed=[1])),
        r"comparisons\[1\].computed is \[1\]: must be",
    ),
    "an infinite number": (broken(lambda c: c.update(seconds=math.inf)), "seconds is inf: must be a number"),
    "half a character": (broken(lambda c: c["tables"].update({"\ud83e": 3})), "tables is 3: must be a list"),
    "half a character too many": (broken(lambda c: c.update({"\ud83e": 3})), "its result is .*: must be readable"),
    "a box of four": (broken(lambda c: series_of(c).update(boxes=[[1, 2, 3, 4]] * 9)), "boxes of five numbers"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_other_files_are_refused_with_their_path_and_the_reason(what: str, tmp_path: Path) -> None:
    text, reason = FOREIGN[what]
    (tmp_path / result_files.RESULTS).write_text(text)
    with pytest.raises(InvalidValue, match=f"cannot read '{tmp_path / result_files.RESULTS}': .*{reason}") as error:
        result_files.load(tmp_path)
    assert len(str(error.value)) < 500


def test_settings_nested_beyond_reason_are_refused() -> None:
    content, deep = json.loads(result_files.to_json(SMALL)), []
    del content["schema"]
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(InvalidValue, match="nested too deeply"):
        read(content | {"settings": {"deep": deep}})


def test_without_pydantic_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "undilute.report.result_reading", raising=False)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(MissingExtra, match=r"'pydantic'.*undilute\[plot\]"):
        result_files.from_json(result_files.to_json(SMALL))


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"results\.json': No such file"):
        result_files.load(tmp_path)
    (tmp_path / result_files.RESULTS).write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match=r"results\.json': it is not text"):
        result_files.load(tmp_path)


# ---------------------------------------------------------------- folders


def test_a_folder_has_every_file_and_comes_back(tmp_path: Path) -> None:
    written = result_files.save(dilution(), tmp_path / "run")
    assert [path.name for path in written] == [
        "table.csv",
        "law.csv",
        "gap-to-hold-a-weight.csv",
        "weights.png",
        "law.png",
        "gap.png",
        "entropy.png",
        "index.html",
        "results.json",
    ]
    assert names(tmp_path / "run") == {path.name for path in written}
    assert result_files.load(tmp_path / "run") == dilution()
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG") == (path.suffix == ".png")
    with (tmp_path / "run" / "law.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items()} for row in rows] == dilution().tables["law"]


def test_hostile_names_stay_inside_the_folder(tmp_path: Path) -> None:
    written = result_files.save(hostile(), tmp_path / "a" / "run")
    assert all(path.parent == tmp_path / "a" / "run" for path in written)
    assert all(re.fullmatch(r"[a-z0-9-]+\.(csv|png|html|json)", path.name) for path in written)
    assert len({path.name for path in written}) == len(written) == 3 + 4 + 2
    assert names(tmp_path) == {"a"}
    assert names(tmp_path / "a") == {"run"}
    assert (tmp_path / "a" / "run" / "empty.csv").read_bytes() == b""
    assert result_files.load(tmp_path / "a" / "run").findings == list(hostile().findings)
    with written[0].open(newline="") as file:
        assert len(list(csv.reader(file))) == ROWS + 1


def unlucky() -> Result:
    """A result whose last chart cannot be drawn."""
    uneven = Chart("uneven", "t", "x", "y", [Series("s", [1.0, 2.0], [1.0])])
    return replace(SMALL, tables={"later": [{"n": 1}]}, charts=[*SMALL.charts, uneven])


def test_a_chart_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        result_files.save(unlucky(), tmp_path / "run")
    assert names(tmp_path) == set()


def test_a_chart_that_fails_leaves_an_earlier_run_as_it_was(tmp_path: Path) -> None:
    result_files.save(SMALL, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="shorter"):
        result_files.save(unlucky(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_gets_all_its_files_or_none(tmp_path: Path) -> None:
    """The page is larger than the disk has room for: an earlier run stays as it was, and no new folder is left."""
    result_files.save(SMALL, tmp_path / "old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    for folder in ("old", "new"):
        with full_disk(1000), pytest.raises(InvalidValue, match=r"cannot write .*: File too large"):
            result_files.save(LATER, tmp_path / folder, elsewhere={tmp_path / "plan.json": "{}"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    assert names(tmp_path) == {"old"}


def test_a_folder_in_the_place_of_a_file_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / result_files.PAGE).mkdir()
    with pytest.raises(InvalidValue, match="it is a folder"):
        result_files.save(SMALL, tmp_path)
    assert names(tmp_path) == {result_files.PAGE}


def test_results_are_renamed_into_place_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds results.json finds a complete folder."""
    order = []
    replace_file = os.replace
    monkeypatch.setattr("os.replace", lambda old, new: (order.append(Path(new).name), replace_file(old, new)))
    result_files.save(SMALL, tmp_path)
    assert order[-1] == result_files.RESULTS


def test_a_new_run_removes_what_only_the_old_one_had_and_nothing_else(tmp_path: Path) -> None:
    result_files.save(SMALL, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.csv").write_text("mine")
    result_files.save(LATER, tmp_path)
    assert names(tmp_path) == {"notes.txt", "other.csv", "later.csv", result_files.PAGE, result_files.RESULTS}


def test_another_experiment_in_the_same_folder_removes_nothing(tmp_path: Path) -> None:
    result_files.save(replace(SMALL, id="temperature"), tmp_path)
    result_files.save(LATER, tmp_path)
    assert names(tmp_path) == {"figures.csv", "c.png", "later.csv", result_files.PAGE, result_files.RESULTS}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match=r"cannot write '.*file"):
        result_files.save(SMALL, tmp_path / "file")


# ---------------------------------------------------------------- gathering


def put(result: Result, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / result_files.RESULTS).write_text(result_files.to_json(result))


def test_results_are_gathered_in_the_given_order(tmp_path: Path) -> None:
    ids = {"z-first": "dilution", "b": "unknown", "c": "temperature", "a": "temperature", "d": "dilution"}
    for name, id in ids.items():
        put(replace(SMALL, id=id, command=name), tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    put(replace(SMALL, command="deeper"), tmp_path / "empty" / "deeper")
    found = [(result.id, result.command) for result in result_files.gathered(tmp_path, ["dilution", "temperature"])]
    assert found == [
        ("dilution", "d"),
        ("dilution", "z-first"),
        ("temperature", "a"),
        ("temperature", "c"),
        ("unknown", "b"),
    ]


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    put(SMALL, tmp_path / "good")
    put(SMALL, tmp_path / "bad")
    (tmp_path / "bad" / result_files.RESULTS).write_text("{")
    with pytest.raises(InvalidValue, match=str(tmp_path / "bad" / result_files.RESULTS)):
        result_files.gathered(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="nowhere': no such folder"):
        result_files.gathered(tmp_path / "nowhere")
