"""The speed figures as a terminal table, a chart and JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from undilute.errors import MissingExtra
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
