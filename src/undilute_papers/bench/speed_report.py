"""The speed figures as a terminal table, a chart and JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from undilute.errors import MissingExtra
from undilute.report.markdown_table import table
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


def markdown(figures: Sequence[Figure]) -> str:
    """The table of the README: normal logits, "full / causal" in each cell; of what was measured twice the first."""
    shown = [f for f in figures if f.spread == "normal" and f.queries > 1]
    columns = sorted({(f.backward, f.n) for f in shown})
    steps = {f.what: f.ratio for f in reversed(figures) if f.queries == 1}
    body = []
    for name in dict.fromkeys(f.what for f in shown):
        own: dict[tuple[bool, int, bool], Figure] = {}
        for f in shown:
            if f.what == name:
                own.setdefault((f.backward, f.n, f.causal), f)
        cells = []
        for back, n in columns:
            pair = [own.get((back, n, causal)) for causal in (False, True)]
            cells.append(" / ".join(f"{f.ratio:.2f}" for f in pair if f is not None) or "–")
        route = next(iter(own.values())).route
        body.append([name, route, *cells, f"{steps[name]:.2f}" if name in steps else "–"])
    return table(["rule", "route", *map(_passes, columns), "decode"], body)


def _passes(column: tuple[bool, int]) -> str:
    backward, n = column
    return f"{'+ backward' if backward else 'forward'}, {n:,}"


def beside(figures: Sequence[Figure], rule: str, other: str) -> str:
    """The time of one rule over that of another, a line per spread of the logits; "full / causal" in each cell."""
    seconds = {(f.what, f.spread, f.backward, f.n, f.causal): f.seconds for f in figures if f.queries > 1}
    shown = [(f.spread, f.backward, f.n) for f in figures if f.queries > 1 and f.what == rule]
    columns = sorted({(backward, n) for _, backward, n in shown})
    body = []
    for spread in dict.fromkeys(spread for spread, _, _ in shown):
        cells = []
        for column in columns:
            cases = [(spread, *column, causal) for causal in (False, True)]
            measured = [case for case in cases if (rule, *case) in seconds and (other, *case) in seconds]
            ratios = [seconds[rule, *case] / seconds[other, *case] for case in measured]
            cells.append(" / ".join(f"{ratio:.2f}" for ratio in ratios) or "–")
        body.append([spread, *cells])
    return table(["logits", *map(_passes, columns)], body)


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
    """Ratios over n, one panel per pass, causal dashed; torch's attention is the line at 1."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    shown = [f for f in figures if f.queries > 1] or list(figures)
    shown = [f for f in shown if f.spread == "normal"] or shown
    passes = sorted({f.backward for f in shown})
    canvas = Canvas(figsize=(6.2 * len(passes), 4.8), layout="constrained", dpi=150)
    FigureCanvasAgg(canvas)
    names = list(dict.fromkeys(f.what for f in shown))
    markers = "osD^vP*Xh<>pd8"
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
    for axis, backward in zip(canvas.subplots(1, len(passes), squeeze=False)[0], passes, strict=True):
        for i, name in enumerate(names):
            for causal in (False, True):
                own = sorted(
                    (f.n, f.ratio) for f in shown if (f.what, f.causal, f.backward) == (name, causal, backward)
                )
                axis.plot(
                    [n for n, _ in own],
                    [ratio for _, ratio in own],
                    ls="--" if causal else "-",
                    marker=markers[i % len(markers)],
                    color=colours[i % len(colours)],
                    lw=1.4,
                    ms=5,
                    label=None if causal else name,
                )
        axis.axhline(1.0, color="#666666", lw=1)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("n, tokens")
        axis.set_ylabel("time / torch's attention")
        axis.set_title("forward + backward" if backward else "forward", loc="left", fontsize=10, fontweight="bold")
        axis.grid(alpha=0.25, which="both")
    canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    canvas.suptitle(
        f"Cost of each rule beside torch's attention (solid: full, dashed: causal)\n{subtitle}", fontsize=10
    )
    image = io.BytesIO()
    canvas.savefig(image, format="png")
    return image.getvalue()
