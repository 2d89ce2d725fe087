"""The speed figures as a terminal table, a chart and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from undilute.report import charts
from undilute.report.result import Chart, Series
from undilute_papers.bench.speed import Figure

SCHEMA = 1


def _column(figure: Figure) -> str:
    if figure.queries == 1:
        return f"1 query,\n{figure.n:,}"
    return f"{figure.n:,}\n{'causal' if figure.causal else 'full'}"


def terminal(figures: Sequence[Figure]) -> list[Table]:
    """One table per spread and pass: rules down, lengths across, ratios inside."""
    groups: dict[tuple[str, bool], list[Figure]] = {}
    for figure in figures:
        groups.setdefault((figure.spread, figure.backward), []).append(figure)
    return [_table(spread, backward, group) for (spread, backward), group in groups.items()]


def _table(spread: str, backward: bool, figures: Sequence[Figure]) -> Table:
    what = "forward + backward" if backward else "forward"
    table = Table(title=f"{what}, {spread} logits: time / torch's attention", title_justify="left")
    columns = list(dict.fromkeys(_column(figure) for figure in figures))
    table.add_column("rule", no_wrap=True)
    table.add_column("route", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name in dict.fromkeys(figure.what for figure in figures):
        own = {_column(figure): figure for figure in figures if figure.what == name}
        route = next(iter(own.values())).route
        table.add_row(name, route, *(f"{own[c].ratio:.2f}" if c in own else "" for c in columns))
    return table


def from_json(text: str) -> list[Figure]:
    """The figures of a file written by ``to_json``."""
    return [Figure(**figure) for figure in json.loads(text)["figures"]]


def to_json(figures: Sequence[Figure], machine: dict[str, str | int], command: str) -> str:
    """Everything measured, with the machine and the command that measured it."""
    content = {
        "schema": SCHEMA,
        "machine": machine,
        "command": command,
        "baseline": "torch.nn.functional.scaled_dot_product_attention, same tensors, same run",
        "figures": [asdict(figure) for figure in figures],
    }
    return json.dumps(content, indent=1) + "\n"


def chart(figures: Sequence[Figure], subtitle: str) -> bytes:
    """Ratios over n, a panel for each pass and mask; torch's attention is the line at 1."""
    shown = [f for f in figures if f.queries > 1] or list(figures)
    shown = [f for f in shown if f.spread == "normal"] or shown
    names = list(dict.fromkeys(f.what for f in shown))
    lengths = sorted({f.n for f in shown})
    panels = []
    for backward, causal in sorted({(f.backward, f.causal) for f in shown}):
        own = [f for f in shown if (f.backward, f.causal) == (backward, causal)]
        series = [_series(name, own) for name in names]
        series.append(Series("torch's attention", lengths, [1.0] * len(lengths), bound=True))
        title = f"{'forward + backward' if backward else 'forward'}, {'causal' if causal else 'full'}"
        panels.append(Chart(title, title, "n, tokens", "time / torch's attention", series, x_log=2, y_log=10))
    heading = "Cost of each rule compared with torch's attention"
    return charts.multiples(panels, heading, subtitle, columns=2, panel=(4.4, 3.4))


def _series(name: str, figures: Sequence[Figure]) -> Series:
    measured = sorted((figure.n, figure.ratio) for figure in figures if figure.what == name)
    return Series(name, [n for n, _ in measured], [ratio for _, ratio in measured])
