"""A treatment on a terminal: the verdict first, then the figures behind it, then the other findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undilute.evaluation.changes import LOG_PROBABILITY, LOSS, RECALL
from undilute.evaluation.result import COSTS
from undilute.report.charts import label
from undilute.report.result import Result, Row

SIGNS = {"better": "✓", "worse": "✗", "no clear difference": "○"}
COLOURS = {"better": "green", "worse": "red", "no clear difference": "yellow"}
KEY = "✓ better, ✗ worse: p below 0.05, and a 95 % interval without 0. ○ no clear difference."
HEADINGS = {LOSS: "loss, nats", RECALL: "recall, %"}
RATIOS = ("reading ×", "token ×", "memory ×")  # in the order of COSTS


def terminal(result: Result) -> list[RenderableType]:
    """What to print, in order: the answer, a table, what its signs mean, and the other findings."""
    return [
        Text(result.findings[0], style="bold"),
        _rules(result) if result.id == "compare" else _changes(result.tables["changes"]),
        Text(KEY, style="dim"),
        *(Padding(Text.assemble(("• ", "dim"), finding), (0, 0, 0, 1)) for finding in result.findings[1:]),
    ]


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _number(value: object, unit: object, sign: str = "") -> str:
    """A figure with as many decimals as its unit deserves."""
    if not isinstance(value, int | float):
        return "–"
    shown = f"{value:{sign}.{1 if unit == '%' else 3}f}"
    return label(value, 1) if float(shown) == 0 else shown.replace("-", "−")  # what is not 0 is not called 0


def _signed(row: Row, text: str) -> Text:
    """Text with the sign and the colour of the verdict; attention that is narrower or wider is neither good nor bad."""
    verdict = str(row["verdict"])
    return Text(f"{text} {SIGNS.get(verdict, verdict)}".strip(), style=COLOURS.get(verdict, ""))


# ---------------------------------------------------------------- one rule


def _changes(rows: Sequence[Row]) -> Table:
    """Every change of one rule; the log-probabilities by task and length are in the files alone."""
    table = _table("what", "before", "after", "difference", "95 % interval", "p")
    table.add_column("")
    for row in rows:
        if not str(row["what"]).startswith((f"{LOG_PROBABILITY},", f"{LOG_PROBABILITY} at")):
            table.add_row(*map(Text, (f"{row['what']}, {row['unit']}", *_figures(row))), _signed(row, ""))
    return table


def _figures(row: Row) -> list[str]:
    unit = row["unit"]
    before, after = (_number(row[name], unit) for name in ("before", "after"))
    interval = "–"
    if row["low"] is not None and row["high"] is not None:
        interval = f"{_number(row['low'], unit, '+')} to {_number(row['high'], unit, '+')}"
    p = row["p"]
    likely = "–" if not isinstance(p, float) else "< 0.001" if p < 0.001 else f"{p:.3f}"
    return [before, after, _number(row["difference"], unit, "+"), interval, likely]


# ---------------------------------------------------------------- many rules


def _rules(result: Result) -> Table:
    """A line for each rule: loss, recall, and what it costs."""
    changes, costs = result.tables["changes"], result.tables.get("cost", [])
    found = {(str(row["rule"]), str(row["what"])): row for row in changes}
    asked = [what for what in (LOSS, RECALL) if any(name == what for _, name in found)]
    headings = [heading for what in asked for heading in (HEADINGS[what], "change")]
    table = _table("rule", *headings, *(RATIOS if costs else ()))
    ratios = {str(row["rule"]): [_ratio(row[f"{name}, ratio"]) for name in COSTS] for row in costs}
    baseline, *rules = dict.fromkeys(str(row["rule"]) for row in result.tables["loss by position"])
    starts = [text for what in asked for text in (_start(found[rules[0], what]), "")]
    table.add_row(*map(Text, (baseline, *starts, *ratios.get(baseline, []))))
    for rule in rules:
        cells = [cell for what in asked for cell in _after(found[rule, what])]
        table.add_row(Text(rule), *cells, *map(Text, ratios.get(rule, [])))
    return table


def _start(row: Row) -> str:
    return _number(row["before"], row["unit"])


def _after(row: Row) -> tuple[Text, Text]:
    return Text(_number(row["after"], row["unit"])), _signed(row, _number(row["difference"], row["unit"], "+"))


def _ratio(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) and math.isfinite(value) else "–"
