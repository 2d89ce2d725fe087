"""How each rule behaves as n grows: a PNG of small multiples, a page that needs no network, and a terminal table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from rich.table import Table

from undilute.report import charts, result_page
from undilute.report.result import Chart, Result, Series
from undilute_papers.rule_curves.curves import Point

KEYS = "n, keys the row can see"
TITLE = "What each rule does as the context grows"
LESSON = (
    "Softmax hands out exactly 1.0 of attention, so the token that matters gets a thinner slice with every token that "
    "does not. Click a name to hide its curve, double-click to see it alone."
)


def _curves(points: Sequence[Point]) -> dict[str, list[Point]]:
    return {name: list(group) for name, group in groupby(points, key=lambda point: point.rule)}


def png(points: Sequence[Point], subtitle: str) -> bytes:
    """Small multiples: a panel for each rule with the needle's weight, the entropy / log n, and softmax's weight."""
    curves = _curves(points)
    panels = [_panel(name, curve, curves.get("softmax", [])) for name, curve in curves.items()]
    return charts.multiples(panels, f"{TITLE} ({subtitle})", "", columns=6, panel=(2.25, 1.85))


def _panel(name: str, curve: Sequence[Point], softmax: Sequence[Point]) -> Chart:
    def series(name: str, some: Sequence[Point], field: str, bound: bool = False) -> Series:
        return Series(name, [point.n for point in some], [getattr(point, field) for point in some], bound=bound)

    drawn = [
        series("weight of the token that matters", curve, "needle_weight"),
        series("entropy / log n (1 = uniform)", curve, "normalised_entropy"),
        series("softmax's weight", softmax, "needle_weight", bound=True),
    ]
    return Chart(name, name, KEYS, "", drawn, x_log=2)


def page(points: Sequence[Point], subtitle: str, command: str = "") -> str:
    """A self-contained HTML page: two charts and the numbers."""
    fields = {"needle_weight": "weight of the token that matters", "entropy": "entropy of the row, nats"}
    curves = _curves(points)
    drawn = []
    for field, label in fields.items():
        series = [Series(name, [p.n for p in own], [getattr(p, field) for p in own]) for name, own in curves.items()]
        drawn.append(Chart(field, label.capitalize(), KEYS, label, series, x_log=2))
    tables = {"rules": [asdict(point) for point in points]}
    result = Result("plot rules", {}, [LESSON], [], tables, drawn, seconds=float("nan"), command=command)
    return result_page.page([result], {result.id: (TITLE, subtitle)})


def terminal(points: Sequence[Point]) -> Table:
    """The needle's weight per rule at a handful of lengths, with the row's effective number of keys."""
    curves = _curves(points)
    lengths = [point.n for point in next(iter(curves.values()))]
    shown = lengths[::-1][::4][::-1] if len(lengths) > 6 else lengths  # every fourth, the longest included
    table = Table(
        title="weight of the token that matters (effective keys, e^entropy)", header_style="bold", title_justify="left"
    )
    table.add_column("rule", no_wrap=True)
    for n in shown:
        table.add_column(f"n = {n:,}", justify="right")
    for name, curve in curves.items():
        at = {point.n: point for point in curve}
        table.add_row(name, *(f"{at[n].needle_weight:.3f} ({at[n].effective_keys:,.0f})" for n in shown))
    return table
