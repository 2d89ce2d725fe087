"""How does a chart become a PNG?  With matplotlib, without its state: title above, legend and note below the axes."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from undilute.errors import MissingExtra
from undilute.experiments.result import Chart
from undilute.report.experiment_charts.curve import (
    NOTHING,
    PRINTED_WIDTH,
    WIDTH,
    Curve,
    axis_ticks,
    curves,
    explained,
    has_boxes,
    place,
)
from undilute.report.experiment_charts.writing import label, writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def png(chart: Chart) -> bytes:
    """The chart as a picture; the same bytes for the same chart."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    drawn = curves(chart)
    title, note = _lines_of(chart.title, 74), _lines_of(chart.note, 112)
    columns = _columns(drawn)
    above, below = 0.16 + 0.24 * len(title), 0.14 + 0.17 * len(note)  # inches
    legend = 0.3 + 0.19 * -(-len(drawn) // columns)
    tall = 3.9 + above + below + legend
    figure = Figure(figsize=(7.6, tall), dpi=160)
    FigureCanvasAgg(figure)
    rect = (0.01, (below + legend) / tall, 0.98, 1 - (above + below + legend) / tall)
    figure.set_layout_engine("constrained", rect=rect)
    figure.text(0.02, 1 - 0.1 / tall, "\n".join(title), va="top", fontsize=12, weight="bold", parse_math=False)
    figure.text(0.02, 0.08 / tall, "\n".join(note), va="bottom", fontsize=8.5, color="#444444", parse_math=False)
    axis = figure.subplots()
    for each in drawn:
        _draw(axis, each, chart)
    _scale(axis, chart, drawn)
    _legend(figure, drawn, columns, below / tall)
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # drawn as an empty box
        figure.savefig(image, format="png", metadata={"Software": None})
    return image.getvalue()


def _lines_of(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters and of about equal length."""
    text = writable(text)
    lines = textwrap.wrap(text, width)
    even = textwrap.wrap(text, len(text) // max(1, len(lines)) + 8)
    return even if len(even) == len(lines) and max(map(len, even), default=0) <= width else lines


def _draw(axis: Axes, curve: Curve, chart: Chart) -> None:
    if curve.band:
        x, low, high = zip(*curve.band, strict=True)
        axis.fill_between([place(each, chart) for each in x], low, high, color=curve.colour, alpha=0.16, lw=0)
    if curve.boxes:
        _draw_boxes(axis, curve, chart)
    elif curve.points:
        x, y = zip(*curve.points, strict=True)
        axis.plot([place(each, chart) for each in x], y, **_line(curve), zorder=3 if curve.printed else 2.5)


def _line(curve: Curve) -> dict[str, Any]:
    """Colour, marker and line of a curve, for matplotlib."""
    style: dict[str, Any] = {
        "color": curve.colour,
        "ls": (0, curve.dashes) if curve.dashes else "-",
        "lw": PRINTED_WIDTH if curve.printed else WIDTH,
    }
    if not curve.bound:
        face = "white" if curve.printed else curve.colour
        style |= {"marker": curve.marker[0], "ms": 6.5, "markerfacecolor": face, "markeredgewidth": 1.5}
    return style


def _draw_boxes(axis: Axes, curve: Curve, chart: Chart) -> None:
    positions = [place(box[0], chart) + curve.shift for box in curve.boxes]
    names = ("whislo", "q1", "med", "q3", "whishi")
    statistics = [dict(zip(names, box[1:], strict=True)) for box in curve.boxes]
    line = {"color": curve.colour, "lw": 1.3}
    axis.bxp(
        statistics,
        positions=positions,
        widths=curve.width,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={
            "facecolor": "white" if curve.printed else f"{curve.colour}40",
            "edgecolor": curve.colour,
            "lw": 1.3,
        },
        medianprops=line,
        whiskerprops=line,
        capprops=line,
    )
    medians = [box[3] for box in curve.boxes]
    face = "white" if curve.printed else curve.colour
    axis.plot(positions, medians, ls="", marker=curve.marker[0], ms=5, color=curve.colour, markerfacecolor=face)


def _scale(axis: Axes, chart: Chart, drawn: Sequence[Curve]) -> None:
    across, up = axis_ticks(chart, drawn)
    if chart.x_log and not has_boxes(chart) and drawn:
        axis.set_xscale("log", base=chart.x_log)
    if chart.y_log and drawn:
        axis.set_yscale("log", base=chart.y_log)
    for which, places in ((axis.xaxis, across), (axis.yaxis, up)):
        which.set_major_formatter(lambda value, _: label(value, 6))
        if places is not None:
            at = [place(x, chart) for x in places] if which is axis.xaxis else places
            which.set_ticks(at, labels=[label(each) for each in places])
            which.set_ticks([], minor=True)
    if not drawn:
        axis.text(0.5, 0.5, NOTHING, ha="center", transform=axis.transAxes, color="#666666")
    axis.set_xlabel(writable(chart.x_label), fontsize=10, parse_math=False)
    axis.set_ylabel(writable(textwrap.fill(chart.y_label, 48)), fontsize=10, parse_math=False)
    axis.tick_params(labelsize=9, colors="#333333")
    axis.grid(alpha=0.25, lw=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.04, y=0.06)


def _columns(drawn: Sequence[Curve]) -> int:
    longest = max((len(each.name) for each in drawn), default=0)
    return max(1, min(3, len(drawn), 100 // (longest + 8)))


def _legend(figure: Figure, drawn: Sequence[Curve], columns: int, above: float) -> None:
    from matplotlib.lines import Line2D

    if not drawn:
        return
    handles = [Line2D([], [], **(_line(each) | ({"ls": ""} if each.boxes else {}))) for each in drawn]
    names = [textwrap.shorten(writable(each.name), 96, placeholder=" …") for each in drawn]
    legend = figure.legend(
        handles,
        names,
        loc="lower left",
        bbox_to_anchor=(0.01, above),
        borderaxespad=0,
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=3.6,
        title=explained(drawn),
        title_fontsize=8.5,
        alignment="left",
    )
    legend.get_title().set_color("#444444")
    for text in legend.get_texts():
        text.set_parse_math(False)
