"""How does a chart become a picture?  With matplotlib, without its state: title above, legend and note below."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from undilute.errors import MissingExtra
from undilute.report.charts import cells
from undilute.report.charts.curve import MARKERS as NAMES
from undilute.report.charts.curve import NOTHING, PRINTED_WIDTH, WIDTH, Curve, axis_ticks, curves, explained
from undilute.report.charts.writing import label, writable
from undilute.report.result import Chart, HeatMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = dict(zip(NAMES, "os^DvPX", strict=True))  # matplotlib's


def png(chart: Chart | HeatMap) -> bytes:
    """The chart as a picture; the same bytes for the same chart."""
    return _saved(_heat_map(chart) if isinstance(chart, HeatMap) else _alone(chart, (7.6, 3.9)), "png")


def svg(chart: Chart) -> str:
    """The chart as an element that can stand in a page; the same text for the same chart."""
    drawn = _saved(_alone(chart, (5.6, 2.5)), "svg").decode()
    return drawn[drawn.index("<svg") :]


def multiples(charts: Sequence[Chart], title: str, note: str, columns: int, panel: tuple[float, float]) -> bytes:
    """Charts that have series of the same names, as panels of one PNG with common axes and one legend.

    Parameters
    ----------
    charts : from left to right, and from the top; their titles stand above the panels
    title, note : above and below all of them
    columns : of panels
    panel : width and height of one, in inches
    """
    return _saved(_panels(charts, title, note, min(columns, len(charts)), panel, scale=0.6), "png")


def _alone(chart: Chart, panel: tuple[float, float]) -> Figure:
    return _panels([replace(chart, title="")], chart.title, chart.note, 1, panel, scale=1.0)


def _panels(
    charts: Sequence[Chart], title: str, note: str, columns: int, panel: tuple[float, float], scale: float
) -> Figure:
    """``scale`` is that of lines and markers."""
    drawn = [curves(chart) for chart in charts]
    every = [each for inside in drawn for each in inside]
    known = list({(each.name, each.style, each.printed, each.bound): each for each in every}.values())
    rows, width = -(-len(charts) // columns), panel[0] * columns
    entries = _columns(known, width)
    figure, foot = _framed(title, note, (width, panel[1] * rows), 0.3 + 0.19 * -(-len(known) // entries))
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(charts) :]:
        axis.set_visible(False)
    for axis, chart, inside in zip(axes.flat, charts, drawn, strict=False):
        for each in inside:
            _draw(axis, each, chart, scale)
        _scale(axis, chart, every, numbers=round(2 * panel[0]))
        axis.set_title(writable(chart.title), fontsize=10, fontweight="bold", loc="left", parse_math=False)
        axis.label_outer()
    _legend(figure, known, entries, foot, explained(known) if len(charts) == 1 else "")
    return figure


def _saved(figure: Figure, kind: Literal["png", "svg"]) -> bytes:
    import matplotlib

    image = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "undilute", "svg.fonttype": "none"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # drawn as an empty box
        figure.savefig(image, format=kind, metadata=metadata)
    return image.getvalue()


def _framed(title: str, note: str, plot: tuple[float, float], legend: float) -> tuple[Figure, float]:
    """A figure with title and note, room for axes and legend in inches, and the height below the legend as a share."""
    width = plot[0]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    heading, footing = _lines_of(title, round(9.8 * width)), _lines_of(note, round(14.8 * width))
    above, below = 0.16 + 0.24 * len(heading), 0.14 + 0.17 * len(footing)  # inches
    tall = plot[1] + above + below + legend
    figure = Figure(figsize=(width, tall), dpi=160)
    FigureCanvasAgg(figure)
    rect = (0.01, (below + legend) / tall, 0.98, 1 - (above + below + legend) / tall)
    figure.set_layout_engine("constrained", rect=rect)
    left = 0.15 / width
    figure.text(left, 1 - 0.1 / tall, "\n".join(heading), va="top", fontsize=12, weight="bold", parse_math=False)
    figure.text(left, 0.08 / tall, "\n".join(footing), va="bottom", fontsize=8.5, color="#444444", parse_math=False)
    return figure, below / tall


def _lines_of(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters and of about equal length."""
    text = writable(text)
    lines = textwrap.wrap(text, width)
    even = textwrap.wrap(text, len(text) // max(1, len(lines)) + 8)
    return even if len(even) == len(lines) and max(map(len, even), default=0) <= width else lines


def _draw(axis: Axes, curve: Curve, chart: Chart, scale: float = 1.0) -> None:
    if curve.band:
        x, low, high = zip(*curve.band, strict=True)
        axis.fill_between(x, low, high, color=curve.colour, alpha=0.16, lw=0)
    if curve.boxes:
        _draw_boxes(axis, curve, chart)
    elif curve.points:
        x, y = zip(*curve.points, strict=True)
        above = 3.0 if curve.printed else 2.25 if curve.bound else 2.5
        axis.plot(x, y, **_line(curve, scale), zorder=above)


def _line(curve: Curve, scale: float = 1.0) -> dict[str, Any]:
    """Colour, marker and line of a curve, for matplotlib."""
    style: dict[str, Any] = {
        "color": curve.colour,
        "ls": (0, curve.dashes) if curve.dashes else "-",
        "lw": (PRINTED_WIDTH if curve.printed else WIDTH) * scale,
    }
    if curve.marker is not None:
        face = "white" if curve.printed else curve.colour
        style |= {"marker": MARKERS[curve.marker], "ms": 6.5 * scale, "markerfacecolor": face}
        style["markeredgewidth"] = 1.5 * scale
    return style


def _draw_boxes(axis: Axes, curve: Curve, chart: Chart) -> None:
    def moved(by: float) -> list[float]:
        """The x of the boxes, moved in units of the axis, which may be those of a logarithm."""
        return [box[0] * chart.x_log**by if chart.x_log else box[0] + by for box in curve.boxes]

    left, right = moved(curve.shift - curve.width / 2), moved(curve.shift + curve.width / 2)
    positions = [(start + end) / 2 for start, end in zip(left, right, strict=True)]
    names = ("whislo", "q1", "med", "q3", "whishi")
    statistics = [dict(zip(names, box[1:], strict=True)) for box in curve.boxes]
    line = {"color": curve.colour, "lw": 1.3}
    axis.bxp(
        statistics,
        positions=positions,
        widths=[end - start for start, end in zip(left, right, strict=True)],
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
    axis.plot(positions, medians, **(_line(curve, scale=0.77) | {"ls": "", "markeredgewidth": 1.0}))


def _scale(axis: Axes, chart: Chart, drawn: Sequence[Curve], numbers: int = 9) -> None:
    """Axes with at most ``numbers`` numbers across."""
    across, up = axis_ticks(chart, drawn)
    if across is not None:
        across = across[:: -(-len(across) // numbers)]
    if chart.x_log and drawn:
        axis.set_xscale("log", base=chart.x_log)
    if chart.y_log and drawn:
        axis.set_yscale("log", base=chart.y_log)
    for which, places in ((axis.xaxis, across), (axis.yaxis, up)):
        which.set_major_formatter(lambda value, _: label(value, 6))
        if places is not None:
            which.set_ticks(places, labels=[label(each) for each in places])
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
    plot = 7.6, 0.9 + 0.38 * max(2, len(heat_map.y))
    figure, below = _framed(heat_map.title, heat_map.note, plot, 0.12 + 0.17 * len(meaning))
    axis = figure.subplots()
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


def _columns(drawn: Sequence[Curve], width: float) -> int:
    longest = max((len(each.name) for each in drawn), default=0)
    return max(1, min(round(width / 2.5), len(drawn), round(13.2 * width) // (longest + 8)))


def _legend(figure: Figure, drawn: Sequence[Curve], columns: int, foot: float, title: str) -> None:
    from matplotlib.lines import Line2D

    if not drawn:
        return
    handles = [Line2D([], [], **(_line(each) | ({"ls": ""} if each.boxes else {}))) for each in drawn]
    names = [textwrap.shorten(writable(each.name), 96, placeholder=" …") for each in drawn]
    legend = figure.legend(
        handles,
        names,
        loc="lower left",
        bbox_to_anchor=(0.01, foot),
        borderaxespad=0,
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=3.6,
        title=title,
        title_fontsize=8.5,
        alignment="left",
    )
    legend.get_title().set_color("#444444")
    for text in legend.get_texts():
        text.set_parse_math(False)
