"""Pictures of how each rule behaves as n grows: a PNG of small multiples and a page that needs no network."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table

from undilute.errors import MissingExtra
from undilute_papers.rule_curves.curves import Point

if TYPE_CHECKING:
    import plotly.graph_objects as go

WEIGHT, SPREAD, BASELINE = "#0072B2", "#D55E00", "#9a9a9a"  # Okabe–Ito blue and vermilion, told apart by everyone


def _curves(points: Sequence[Point]) -> dict[str, list[Point]]:
    return {name: list(group) for name, group in groupby(points, key=lambda point: point.rule)}


def png(points: Sequence[Point], subtitle: str) -> bytes:
    """Small multiples: one panel per rule, the needle's weight and the normalised entropy, softmax in grey."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    curves = _curves(points)
    columns = min(6, len(curves))
    lines = -(-len(curves) // columns)
    figure = Figure(figsize=(2.25 * columns + 0.6, 1.85 * lines + 1.0), layout="constrained", dpi=160)
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    for axis, (name, curve) in zip(axes.flat, curves.items(), strict=False):
        n = [point.n for point in curve]
        if "softmax" in curves and name != "softmax":
            axis.plot(n, [point.needle_weight for point in curves["softmax"]], color=BASELINE, lw=1.2, ls=":")
        axis.plot(n, [point.normalised_entropy for point in curve], color=SPREAD, lw=1.6, ls="--")
        axis.plot(n, [point.needle_weight for point in curve], color=WEIGHT, lw=2.2)
        axis.set_xscale("log", base=2)
        axis.set_ylim(-0.04, 1.06)
        axis.set_title(name, fontsize=10, fontweight="bold", loc="left")
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles = [
        axes.flat[0].plot([], [], color=WEIGHT, lw=2.2, label="weight of the token that matters")[0],
        axes.flat[0].plot([], [], color=SPREAD, lw=1.6, ls="--", label="entropy / log n (1 = uniform)")[0],
        axes.flat[0].plot([], [], color=BASELINE, lw=1.2, ls=":", label="softmax's weight")[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(f"What each rule does as the context grows  ({subtitle})", fontsize=11)
    for axis in axes[-1]:
        axis.set_xlabel("n, keys the row can see", fontsize=8)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def page(points: Sequence[Point], subtitle: str) -> str:
    """A self-contained HTML page: two interactive charts and the numbers."""
    weight = _chart(points, "needle_weight", "weight of the token that matters").to_html(
        full_html=False, include_plotlyjs=True, div_id="weight", config={"displaylogo": False, "responsive": True}
    )
    spread = _chart(points, "entropy", "entropy of the row, nats").to_html(
        full_html=False, include_plotlyjs=False, div_id="entropy", config={"displaylogo": False, "responsive": True}
    )
    return _PAGE.format(subtitle=html.escape(subtitle), weight=weight, spread=spread, table=_html_table(points))


def _chart(points: Sequence[Point], field: str, title: str) -> go.Figure:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise MissingExtra("plotly", "plot") from None
    figure = go.Figure()
    for name, curve in _curves(points).items():
        figure.add_scatter(
            x=[point.n for point in curve],
            y=[getattr(point, field) for point in curve],
            name=html.escape(name),
            mode="lines+markers",
            marker_size=5,
        )
    figure.update_layout(
        title=title,
        hovermode="x unified",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font_color="#888",
        height=520,
    )
    figure.update_xaxes(type="log", title="n, keys the row can see", gridcolor="rgba(128,128,128,.25)")
    figure.update_yaxes(gridcolor="rgba(128,128,128,.25)", zeroline=False)
    return figure


def _html_table(points: Sequence[Point]) -> str:
    head = "".join(
        f"<th>{h}</th>" for h in ("rule", "n", "needle's weight", "entropy, nats", "effective keys", "total weight")
    )
    body = "".join(
        f"<tr><td>{html.escape(p.rule)}</td><td>{p.n:,}</td><td>{p.needle_weight:.6f}</td><td>{p.entropy:.4f}</td>"
        f"<td>{p.effective_keys:,.2f}</td><td>{p.total_weight:.4f}</td></tr>"
        for p in points
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


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


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Undilute: rules as the context grows</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} p {{ max-width: 70ch; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }}
th, td {{ text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child {{ text-align: left; }} thead th {{ position: sticky; top: 0; background: Canvas; }}
</style></head><body>
<h1>What each rule does as the context grows</h1>
<p>{subtitle}. Softmax hands out exactly 1.0 of attention, so the token that matters gets a thinner slice with every
token that does not. Click a name to hide its curve, double-click to see it alone.</p>
{weight}
{spread}
<h2>The numbers</h2>
{table}
</body></html>
"""
