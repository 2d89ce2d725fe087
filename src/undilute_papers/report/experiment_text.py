"""Experiments on a terminal: which there are, and what a run found."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undilute.report.result import Result, Verdict
from undilute_papers.report.comparisons import SIGNS, computed, outcome, printed
from undilute_papers.reproduction.experiment import every

COLOURS: dict[Verdict, str] = {"agrees": "green", "differs": "red", "other set-up": "yellow"}


def listing() -> Table:
    """Every experiment: what to type, its source, what it shows, and how long it takes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption="minutes on two cores", caption_justify="left")
    table.add_column("id", no_wrap=True, style="bold")
    table.add_column("what it shows", overflow="fold")
    table.add_column("source", overflow="fold", style="dim")
    for heading in ("--quick", "full"):
        table.add_column(heading, justify="right", no_wrap=True)
    for id, experiment in every().items():
        times = (_minutes(experiment.quick_minutes), _minutes(experiment.full_minutes))
        table.add_row(Text(id), Text(experiment.shows), Text(experiment.source), *times)
    return table


def _minutes(minutes: float) -> str:
    return "< 1" if minutes < 1 else f"{minutes:,.0f}"


def terminal(result: Result) -> list[RenderableType]:
    """What to print, in order: the answer, printed and computed values, and the other findings."""
    parts: list[RenderableType] = []
    if result.findings:
        parts.append(Text(result.findings[0], style="bold"))
    if result.comparisons:
        parts += [_comparisons(result), Text(outcome(result.comparisons))]
    parts += [Padding(Text.assemble(("• ", "dim"), finding), (0, 0, 0, 1)) for finding in result.findings[1:]]
    return parts


def _comparisons(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("what", "printed", "computed", "verdict", "note"):
        words = any(isinstance(getattr(each, heading, ""), str) for each in result.comparisons)
        table.add_column(heading, overflow="fold", justify="left" if words else "right", no_wrap=heading == "verdict")
    for each in result.comparisons:
        verdict = Text(f"{SIGNS[each.verdict]} {each.verdict}", style=COLOURS[each.verdict])
        cells = (each.what, printed(each), computed(each))
        table.add_row(*map(Text, cells), verdict, Text(each.note, style="dim"))
    return table
