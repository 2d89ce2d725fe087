"""How is a result saved?  A folder with results.json (everything), a CSV file per table, a PNG per chart, and a page.

results.json holds all of a result, so that its page can be made again from it. Floats come back exactly as they were.
JSON has no NaN and no infinity: they are written as null, and null comes back as NaN where a number must be, and as
None in a table. results.json is written last: a folder that has it is complete.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from undilute import files
from undilute.errors import InvalidValue, MissingExtra
from undilute.report import charts, result_page
from undilute.report.result import Result, Row
from undilute.report.result_page import chart_files, table_files

SCHEMA = "undilute.experiment/1"
HALVES = re.compile("[\ud800-\udfff]")  # of characters, which no file can hold as they are
RESULTS, PAGE = "results.json", "index.html"


# ---------------------------------------------------------------- folders


def save(
    result: Result,
    folder: Path,
    also: Mapping[str, str] | None = None,
    elsewhere: Mapping[Path, str] | None = None,
    page: Callable[[Sequence[Result]], str] = result_page.page,
) -> list[Path]:
    """Write everything into ``folder``, or nothing if a chart cannot be drawn or a file cannot be written.

    Other files of the folder stay, except those of an earlier run of the same experiment that this run does not have.

    Parameters
    ----------
    result : what a run found
    folder : where to; made if it is not there
    also : further files that belong to it, by name
    elsewhere : further files that belong to it and lie in other places
    page : makes the page
    """
    contents: dict[str, str | bytes] = dict(also or {})
    for name, rows in zip(table_files(result), result.tables.values(), strict=True):
        contents[name] = csv_bytes(rows)
    for name, chart in zip(chart_files(result), result.charts, strict=True):
        contents[name] = charts.png(chart)
    contents[PAGE] = page([result])
    contents[RESULTS] = to_json(result)
    outdated = set(_earlier_files(result, folder)) - set(contents)
    written = files.write_all({**(elsewhere or {}), **{folder / name: each for name, each in contents.items()}})
    for name in outdated:
        (folder / name).unlink(missing_ok=True)
    return written


def _earlier_files(result: Result, folder: Path) -> list[str]:
    """The tables and charts of the same experiment's result that lies in the folder now."""
    try:
        before = load(folder)
    except InvalidValue:
        return []
    return [*table_files(before), *chart_files(before)] if before.id == result.id else []


def load(folder: Path) -> Result:
    """The result that was saved in ``folder``."""
    path = folder / RESULTS
    text = files.read_text(path, "choose the folder of a run")
    try:
        return from_json(text)
    except InvalidValue as error:
        raise InvalidValue(f"cannot read {str(path)!r}: {error}") from None


def gathered(folder: Path, order: Sequence[str] = ()) -> list[Result]:
    """The results of all folders directly inside ``folder``: first those in ``order``, then by their names."""
    if not folder.is_dir():
        raise InvalidValue(f"cannot read {str(folder)!r}: no such folder; choose the one that holds the runs.")
    found = [load(path.parent) for path in sorted(folder.glob(f"*/{RESULTS}"))]
    return sorted(found, key=lambda result: order.index(result.id) if result.id in order else len(order))


def csv_bytes(rows: Sequence[Row]) -> bytes:
    """A table as CSV; empty for a table without rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = files.csv_text([{name: row.get(name) for name in columns} for row in rows]) if rows else ""
    return text.encode(errors="replace")


# ---------------------------------------------------------------- JSON


def to_json(result: Result) -> str:
    """Everything in a result as JSON; NaN and infinities become null, and what JSON does not know its text."""
    content = {"schema": SCHEMA, **{each.name: getattr(result, each.name) for each in fields(result)}}
    text = _laid_out(_plain(content), 0) + "\n"
    return HALVES.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def from_json(text: str) -> Result:
    """The result of :func:`to_json`: its settings with tuples, everything else with lists.

    Examples
    --------
    >>> result = Result("x", {"gaps": (0.5, 4.0)}, ["It holds."], [], {"figures": [{"n": 3, "weight": 0.1 + 0.2}]}, [])
    >>> from_json(to_json(result)) == result
    True
    """
    try:
        from undilute.report.result_reading import read
    except ImportError:
        raise MissingExtra("pydantic", "plot") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"it is not JSON ({error}).") from None
    schema = content.pop("schema", None) if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise InvalidValue(f"its schema is {schema!r}: must be {SCHEMA!r}.")
    return read(content)


def _plain(value: object) -> Any:
    """``value`` in JSON's types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if hasattr(value, "tolist"):  # tensors, arrays and their numbers
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return str(value)


def _laid_out(value: Any, depth: int) -> str:
    """JSON with one line a sentence, and for whatever holds nothing that holds anything: a row, a curve's x."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    sentences = isinstance(value, list) and any(isinstance(each, str) for each in value)
    if not sentences and not any(isinstance(each, dict | list) and each for each in inside):
        return json.dumps(value, ensure_ascii=False)
    margin, before = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        parts = [f"{_laid_out(name, 0)}: {_laid_out(each, depth + 1)}" for name, each in value.items()]
        return "{" + margin + f",{margin}".join(parts) + before + "}"
    return "[" + margin + f",{margin}".join(_laid_out(each, depth + 1) for each in value) + before + "]"
