"""How is a result kept?  A folder with results.json (everything), a CSV file a table, a PNG file a chart, and a page.

results.json holds all of a result, so that its page can be made anew from it. Floats come back exactly as they were.
JSON has no NaN and no infinity: they are written as null, and null comes back as NaN where a number must be, and as
None in a table. results.json is written last: a folder that has it is complete.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from undilute import files
from undilute.errors import InvalidValue
from undilute.report import charts, result_page
from undilute.report.result import Better, Chart, Comparison, HeatMap, Result, Row, Series, Verdict
from undilute.report.result_page import chart_files, table_files

SCHEMA = "undilute.experiment/1"
HALVES = re.compile("[\ud800-\udfff]")  # of characters, which no file can hold as they are
LARGEST = sys.float_info.max
RESULTS, PAGE = "results.json", "index.html"


# ---------------------------------------------------------------- folders


def save(
    result: Result,
    folder: Path,
    also: Mapping[str, str] | None = None,
    elsewhere: Mapping[Path, str] | None = None,
    headings: result_page.Headings | None = None,
) -> list[Path]:
    """Write everything into ``folder``, or nothing if a chart cannot be drawn or a file cannot be written.

    Other files of the folder stay, except those of an earlier run of the same experiment that this run does not have.

    Parameters
    ----------
    result : what a run found
    folder : where to; made if it is not there
    also : further files that belong to it, by name
    elsewhere : further files that belong to it and lie in other places
    headings : as for :func:`undilute.report.result_page.page`
    """
    contents: dict[str, str | bytes] = dict(also or {})
    for name, rows in zip(table_files(result), result.tables.values(), strict=True):
        contents[name] = csv_bytes(rows)
    for name, chart in zip(chart_files(result), result.charts, strict=True):
        contents[name] = charts.png(chart)
    contents[PAGE] = result_page.page([result], headings)
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
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"it is not JSON ({error}).") from None
    schema = content.pop("schema", None) if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise InvalidValue(f"its schema is {schema!r}: must be {SCHEMA!r}.")
    made: Result = _read(Result)(content, "result")
    return made


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


# ---------------------------------------------------------------- reading JSON that may be anything

Reader = Callable[[Any, str], Any]


def _wrong(value: object, where: str, wanted: str) -> InvalidValue:
    shown = repr(value)
    return InvalidValue(f"its {where} is {shown if len(shown) < 60 else f'{shown[:60]} …'}: must be {wanted}.")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, where, "text")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")
    return value


def _number(value: Any, where: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise _wrong(value, where, "a number that a float can hold")
    return value


def _base(value: Any, where: str) -> int:
    if value not in (0, 2, 10):
        raise _wrong(value, where, "0, 2 or 10")
    return int(value)


def _one_of(known: tuple[str, ...]) -> Reader:
    def reader(value: Any, where: str) -> str:
        if value not in known:
            raise _wrong(value, where, f"one of {', '.join(known)}")
        return str(value)

    return reader


def _figure(value: Any, where: str) -> float | str:
    return value if isinstance(value, str) else _number(value, where)


def _cell(value: Any, where: str) -> Any:
    if isinstance(value, dict | list):
        raise _wrong(value, where, "one value")
    return value if value is None or isinstance(value, str | bool) else _number(value, where)


def _setting(value: Any, where: str) -> Any:
    return tuple(_setting(each, where) for each in value) if isinstance(value, list) else value


def _or_none(read: Reader) -> Reader:
    return lambda value, where: None if value is None else read(value, where)


def _list(read: Reader) -> Reader:
    def reader(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        return [read(each, f"{where}[{number}]") for number, each in enumerate(value)]

    return reader


def _named(read: Reader) -> Reader:
    def reader(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        return {name: read(each, f"{where}.{name}") for name, each in value.items()}

    return reader


def _read(cls: type) -> Reader:
    """Read an object of a class: all its fields and no other."""

    def reader(value: Any, where: str) -> Any:
        readers = READERS[cls]
        if not isinstance(value, dict) or set(value) != set(readers):
            raise _wrong(value, where, f"an object of {', '.join(readers)}")
        return cls(**{name: read(value[name], f"{where}.{name}") for name, read in readers.items()})

    return reader


def _series(value: Any, where: str) -> Series:
    made: Series = _read(Series)(value, where)
    columns = [each for each in (made.y, made.low, made.high, made.boxes) if each is not None]
    if any(len(each) != len(made.x) for each in columns) or any(len(box) != 5 for box in made.boxes or ()):
        raise _wrong(made.name, where, "a series of columns of equal length, and boxes of five numbers")
    return made


def _picture(value: Any, where: str) -> Chart | HeatMap:
    """A heat map has values, a chart has none."""
    made: Chart | HeatMap = _read(HeatMap if isinstance(value, dict) and "values" in value else Chart)(value, where)
    return made


READERS: dict[type, dict[str, Reader]] = {
    Comparison: {
        "what": _text,
        "printed": _or_none(_figure),
        "computed": _figure,
        "verdict": _one_of(get_args(Verdict)),
        "low": _or_none(_number),
        "high": _or_none(_number),
        "note": _text,
    },
    Series: {
        "name": _text,
        "x": _list(_number),
        "y": _list(_number),
        "low": _or_none(_list(_number)),
        "high": _or_none(_list(_number)),
        "printed": _flag,
        "bound": _flag,
        "boxes": _or_none(_list(_list(_number))),
    },
    Chart: {
        "name": _text,
        "title": _text,
        "x_label": _text,
        "y_label": _text,
        "series": _list(_series),
        "x_log": _base,
        "y_log": _base,
        "note": _text,
    },
    HeatMap: {
        "name": _text,
        "title": _text,
        "x_label": _text,
        "y_label": _text,
        "x": _list(_text),
        "y": _list(_text),
        "values": _list(_list(_or_none(_number))),
        "value_label": _text,
        "better": _or_none(_one_of(get_args(Better))),
        "centre": _or_none(_text),
        "note": _text,
    },
    Result: {
        "id": _text,
        "settings": _named(_setting),
        "findings": _list(_text),
        "comparisons": _list(_read(Comparison)),
        "tables": _named(_list(_named(_cell))),
        "charts": _list(_picture),
        "seconds": _number,
        "made": _named(_text),
        "command": _text,
    },
}
