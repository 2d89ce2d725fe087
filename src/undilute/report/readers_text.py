"""A comparison of readers on a terminal: the answer first, then a table for each length, then the other findings."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undilute.report.evaluation_text import COLOURS, KEY, SIGNS
from undilute.selection.comparison import Comparison

HEADINGS = ("recall, %", "95 %", "gold kept, %", "to choose", "to answer", "s")


def terminal(found: Comparison) -> list[RenderableType]:
    """What to print, in order."""
    return [
        Text(found.findings[0], style="bold"),
        _table(found),
        Text(
            f"{KEY} Compared with {found.baseline}. Tokens to choose and to answer, and seconds, for a question.",
            style="dim",
        ),
        *(Padding(Text.assemble(("• ", "dim"), finding), (0, 0, 0, 1)) for finding in found.findings[1:]),
    ]


def _table(found: Comparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("reader", overflow="fold")
    for heading in ("length", *HEADINGS):
        table.add_column(heading, justify="right")
    table.add_column("")
    for length in found.lengths:
        for row in found.tables["all tasks"]:
            if row["length"] == length:
                table.add_row(*map(Text, _cells(row)), _verdict(found, row["reader"], length))
        if length != found.lengths[-1]:
            table.add_section()
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    known = math.isfinite(row["low"])
    return [
        row["reader"],
        f"{row['length']:,}",
        f"{row['recall, %']:.1f}",
        f"{row['low']:.0f}–{row['high']:.0f}" if known else "–",
        f"{row['gold kept, %']:.1f}",
        f"{row['tokens to choose']:,.0f}",
        f"{row['tokens to answer']:,.0f}",
        f"{row['seconds a question']:.2g}",
    ]


def _verdict(found: Comparison, reader: str, length: int) -> Text:
    if reader == found.baseline:
        return Text("")
    verdict = found.difference(reader, length=length).verdict
    return Text(SIGNS[verdict], style=COLOURS[verdict])
