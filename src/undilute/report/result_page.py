"""Results as one HTML file: what came out, charts, and every figure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from undilute.report import charts, pages
from undilute.report.result import Chart, Result, Row

Headings = Mapping[str, tuple[str, str]]
SHOWN_ROWS = 200  # of a table; its CSV file has them all
STYLES = ("page.css", "result.css")
SCRIPTS = ("elements.js", "charts.js", "result.js")
TREATMENTS = ("evaluate", "treat", "compare")  # ids of results


def page(results: Sequence[Result], headings: Headings | None = None) -> str:
    """A self-contained page of one result or many; the same results give the same text.

    Parameters
    ----------
    results : in the order of the page
    headings : (title, source) of results by id, of those that are neither a treatment nor a comparison of rules
    """
    treated = results and all(result.id in TREATMENTS for result in results)
    kind = "treatment" if treated else "figures"
    return pages.rendered("result.html", styles=STYLES, kind=kind, heading="Results", **parts(results, headings or {}))


def parts(results: Sequence[Result], headings: Headings) -> dict[str, Any]:
    """What the template of a page of results uses."""
    curves = any(isinstance(chart, Chart) for result in results for chart in result.charts)
    return {
        "scripts": SCRIPTS if curves else (),
        "parts": [_part(number, result, headings) for number, result in enumerate(results, start=1)],
        "chart": lambda chart: json.dumps(charts.drawing(chart), allow_nan=False, separators=(",", ":")),
        "cells": charts.cells,
        "duration": duration,
        "setting": _setting,
    }


def _part(number: int, result: Result, headings: Headings) -> dict[str, Any]:
    """One experiment as the template wants it."""
    title, source = _heading(result, headings)
    tables = zip(result.tables.items(), table_files(result), strict=True)
    return {
        "anchor": f"experiment-{number}",
        "title": title,
        "source": source,
        "result": result,
        "charts": list(zip(result.charts, chart_files(result), strict=True)),
        "tables": [_table(name, rows, file) for (name, rows), file in tables],
    }


def _heading(result: Result, headings: Headings) -> tuple[str, str]:
    """Title and source of a result."""
    if result.id in headings:
        return headings[result.id]
    model, rules = (_setting(result.settings.get(name, "")) for name in ("model", "rules"))
    if result.id == "evaluate":
        return f"{model} as it is", "loss, recall, attention and cost on held-out text"
    if result.id == "treat":
        return f"{model} under {rules}", "before and after, on the same text and the same questions"
    if result.id == "compare":
        return f"Rules compared on {model}", f"{rules}, on the same text and the same questions"
    return result.id, ""


def _table(name: str, rows: Sequence[Row], file: str) -> dict[str, Any]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    shown = rows[:SHOWN_ROWS]
    return {
        "name": name,
        "file": file,
        "rows": len(rows),
        "columns": [(column, _numeric(shown, column)) for column in columns],
        "cells": [[cell(row.get(column)) for column in columns] for row in shown],
    }


def _numeric(rows: Sequence[Row], column: str) -> bool:
    return not any(isinstance(row.get(column), str | bool) for row in rows)


def cell(value: object) -> str:
    """One value of a table, for reading.

    Examples
    --------
    >>> cell(1024), cell(0.123456789), cell(True), cell(None), cell(float("nan"))
    ('1,024', '0.123457', 'yes', '–', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return charts.label(value, 6) if isinstance(value, int | float) else str(value)


def _setting(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_setting, value))
    return cell(value)


def duration(seconds: float) -> str:
    """How long it took, as people say it.

    Examples
    --------
    >>> duration(0.3), duration(75), duration(9000)
    ('less than a second', '1 min 15 s', '2 h 30 min')
    """
    if math.isnan(seconds):
        return "not known"
    if seconds < 1:
        return "less than a second"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def table_files(result: Result) -> list[str]:
    """Names of the CSV files, in the order of the tables.

    Examples
    --------
    >>> table_files(Result("x", {}, [], [], {"Every seed": [], "every-seed": []}, []))
    ['every-seed.csv', 'every-seed-2.csv']
    """
    return _file_names(list(result.tables), "csv")


def chart_files(result: Result) -> list[str]:
    """Names of the PNG files, in the order of the charts."""
    return _file_names([chart.name for chart in result.charts], "png")


def _file_names(names: Sequence[str], ending: str) -> list[str]:
    made: list[str] = []
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "unnamed"
        number, each = 1, f"{plain}.{ending}"
        while each in made:
            number += 1
            each = f"{plain}-{number}.{ending}"
        made.append(each)
    return made
