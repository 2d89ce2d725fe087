"""How does a chart become a PNG?  With matplotlib, without its state: title above, legend and note below the axes."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from undilute.errors import MissingExtra
from undilute.report.charts import cells
from undilute.report.charts.curve import (
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
from undilute.report.charts.writing import label, writable
from undilute.report.result import Chart, HeatMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def png(chart: Chart | HeatMap) -> bytes:
    """The chart as a picture; the same bytes for the same chart."""
    figure = _heat_map(chart) if isinstance(chart, HeatMap) else _curves(chart)
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # drawn as an empty box
        figure.savefig(image, format="png", metadata={"Software": None})
    return image.getvalue()


def _curves(chart: Chart) -> Figure:
    drawn = curves(chart)
    columns = _columns(drawn)
    figure, axis, below = _framed(chart, 3.9, 0.3 + 0.19 * -(-len(drawn) // columns))
    for each in drawn:
        _draw(axis, each, chart)
    _scale(axis, chart, drawn)
    _legend(figure, drawn, columns, below)
    return figure


def _framed(chart: Chart | HeatMap, plot: float, legend: float) -> tuple[Figure, Axes, float]:
    """A figure with title and note, its axes ``plot`` inches high, and the height below the legend as a share."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    title, note = _lines_of(chart.title, 74), _lines_of(chart.note, 112)
    above, below = 0.16 + 0.24 * len(title), 0.14 + 0.17 * len(note)  # inches
    tall = plot + above + below + legend
    figure = Figure(figsize=(7.6, tall), dpi=160)
    FigureCanvasAgg(figure)
    rect = (0.01, (below + legend) / tall, 0.98, 1 - (above + below + legend) / tall)
    figure.set_layout_engine("constrained", rect=rect)
    figure.text(0.02, 1 - 0.1 / tall, "\n".join(title), va="top", fontsize=12, weight="bold", parse_math=False)
    figure.text(0.02, 0.08 / tall, "\n".join(note), va="bottom", fontsize=8.5, color="#444444", parse_math=False)
    return figure, figure.subplots(), below / tall


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


def _heat_map(heat_map: HeatMap) -> Figure:
    meaning = _lines_of(cells.explained(heat_map), 112)
    figure, axis, below = _framed(heat_map, 0.9 + 0.38 * max(2, len(heat_map.y)), 0.12 + 0.17 * len(meaning))
    figure.text(0.02, below, "\n".join(meaning), va="bottom", fontsize=8.5, color="#444444", parse_math=False)
    if heat_map.x and heat_map.y:
        _draw_cells(axis, heat_map)
    else:
        axis.text(0.5, 0.5, NOTHING, ha="center", transform=axis.transAxes, color="#666666")
    _name_cells(axis, heat_map)
    return figure


def _draw_cells(axis: Axes, heat_map: HeatMap) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("worse to better", [cells.WORSE, cells.SAME, cells.BETTER])
    shades = [[math.nan if each is None else each for each in row] for row in cells.shades(heat_map)]
    axis.imshow(shades, cmap=scale, vmin=-1, vmax=1, aspect="auto")
    size = min(9.5, 72 / len(heat_map.x))
    for row, written in enumerate(cells.texts(heat_map)):
        for column, text in enumerate(written):
            axis.text(column, row, text, ha="center", va="center", fontsize=size, color=cells.INK)


def _name_cells(axis: Axes, heat_map: HeatMap) -> None:
    for which, names in ((axis.xaxis, heat_map.x), (axis.yaxis, heat_map.y)):
        which.set_ticks(range(len(names)), labels=[cells.short(name) for name in names])
        for text in which.get_ticklabels():
            text.set_parse_math(False)
    axis.set_xlabel(writable(heat_map.x_label), fontsize=10, parse_math=False)
    axis.set_ylabel(writable(textwrap.fill(heat_map.y_label, 48)), fontsize=10, parse_math=False)
    axis.tick_params(labelsize=9, colors="#333333", length=0)
    axis.spines[:].set_visible(False)


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
