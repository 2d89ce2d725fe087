"""How does a chart described by its data become a picture?  As PNG and as an interactive chart, from the same points.

Curves can be told apart without colour: by marker and line style, and by kind. Printed values have hollow markers,
computed ones filled markers; bounds are dashed and have none; intervals are shaded; boxes stand side by side. A series
named "X, printed" takes the colour and the marker of "X" or "X, computed". Values that are not finite, and values that
a logarithmic axis cannot show, are left out.
"""

from __future__ import annotations

import html
import io
import json
import math
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from undilute.errors import MissingExtra
from undilute.experiments.result import Chart, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe–Ito without black and yellow, which vanish on a dark or a white ground, and a grey
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#848484")
MARKERS = (  # in matplotlib and in plotly
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
)
LINES: tuple[tuple[float, ...], ...] = (  # on and off, in line widths
    (),
    (1, 1.2),
    (6, 1.5, 1, 1.5),
    (6, 1.5, 1, 1.5, 1, 1.5),
    (2.5, 1, 1, 1),
    (10, 1.5, 1, 1.5),
    (1, 2.5),
)
DASHES: tuple[tuple[float, ...], ...] = ((4, 2), (8, 2.5), (2.5, 2.5), (6, 5), (11, 4), (3, 1.2), (5, 8))
WIDTH, PRINTED_WIDTH = 2.0, 1.2
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HOLLOW = "#fdfdfd"  # no other part has it, so that a page can put the colour of its ground in its place
NOTHING = "no finite value to draw"


@dataclass(frozen=True)
class Curve:
    """A series that is ready to draw: finite points, and what tells it apart.

    Attributes
    ----------
    name : as in the legend
    points : (x, y)
    band : (x, low, high), the shaded interval
    boxes : (x, lowest, first quartile, median, third quartile, highest)
    shift, width : of the boxes beside their x, in the units of the axis (of its logarithm, where it has one)
    style : number of its colour, marker and line
    """

    name: str
    points: list[tuple[float, float]]
    band: list[tuple[float, float, float]]
    boxes: list[tuple[float, ...]]
    style: int
    printed: bool
    bound: bool
    shift: float = 0.0
    width: float = 0.0

    @property
    def colour(self) -> str:
        return COLOURS[self.style % len(COLOURS)]

    @property
    def marker(self) -> tuple[str, str]:
        return MARKERS[self.style % len(MARKERS)]

    @property
    def dashes(self) -> tuple[float, ...]:
        patterns = DASHES if self.bound else LINES
        return patterns[self.style % len(patterns)]


# ---------------------------------------------------------------- what both kinds of picture share


def curves(chart: Chart) -> list[Curve]:
    """The series of a chart, ready to draw; without those that have no finite value.

    Examples
    --------
    >>> series = Series("top weight, printed", [16, 64, 256], [0.9, float("nan"), 0.5], printed=True)
    >>> curves(Chart("c", "t", "n", "weight", [series]))[0].points
    [(16.0, 0.9), (256.0, 0.5)]
    """
    kin = list(dict.fromkeys(_kin(series) for series in chart.series))
    lowest = min((value for value in _heights(chart) if value > 0), default=1.0)
    made = [_curve(series, kin.index(_kin(series)), chart, lowest) for series in chart.series]
    return _side_by_side([each for each in made if each.points or each.boxes], chart)


def _kin(series: Series) -> str:
    return series.name.removesuffix(", printed").removesuffix(", computed")


def _heights(chart: Chart) -> list[float]:
    """Every finite y of a chart, intervals and boxes included."""
    every: list[Any] = []
    for series in chart.series:
        every += [*series.y, *(series.low or ()), *(series.high or ())]
        every += [value for box in series.boxes or () for value in box]
    return [float(value) for value in every if _finite(value)]


def _finite(value: object) -> bool:
    return value is not None and math.isfinite(value)  # type: ignore[arg-type]


def _curve(series: Series, style: int, chart: Chart, lowest: float) -> Curve:
    def rows(*columns: Iterable[float]) -> list[tuple[float, ...]]:
        finite = [tuple(map(float, row)) for row in zip(*columns, strict=True) if all(map(_finite, row))]
        return [row for row in finite if not chart.x_log or row[0] > 0]

    def visible(row: tuple[float, ...]) -> bool:
        return not chart.y_log or min(row[1:]) > 0

    points = [(x, y) for x, y in rows(series.x, series.y) if visible((x, y))]
    band = [] if series.low is None or series.high is None else rows(series.x, series.low, series.high)
    if chart.y_log:  # an interval that reaches down to 0 is shaded down to the lowest value of the chart
        band = [(x, max(low, lowest), high) for x, low, high in band if high > 0]
    boxes = rows(series.x, *zip(*series.boxes, strict=True)) if series.boxes else []
    boxes = [row for row in boxes if visible(row)]
    name = series.name
    if series.printed and "printed" not in name.lower():
        name = f"{name}, printed"
    return Curve(name, points, [(x, a, b) for x, a, b in band], boxes, style, series.printed, series.bound)


def _side_by_side(found: list[Curve], chart: Chart) -> list[Curve]:
    """Give the boxes of several series room beside each other."""
    boxed = [each for each in found if each.boxes]
    if not boxed:
        return found
    places = sorted({_place(box[0], chart) for each in boxed for box in each.boxes})
    apart = min((after - before for before, after in pairwise(places)), default=1.0)
    slot = min(0.84 * apart / len(boxed), 0.2 * (places[-1] - places[0] or 1.0))
    middle = (len(boxed) - 1) / 2
    moved = {id(each): (number - middle) * slot for number, each in enumerate(boxed)}
    return [
        Curve(**{**vars(each), "shift": moved[id(each)], "width": 0.82 * slot}) if id(each) in moved else each
        for each in found
    ]


def _place(x: float, chart: Chart) -> float:
    """Where x lies on the axis of a chart of boxes, which is always drawn linear."""
    return math.log(x, chart.x_log) if chart.x_log else x


def has_boxes(chart: Chart) -> bool:
    """Whether any series is a row of boxes."""
    return any(series.boxes is not None for series in chart.series)


def label(value: float, digits: int = 4) -> str:
    """A number as people write it.

    Examples
    --------
    >>> label(1024), label(0.25), label(-1.5), label(0.0000032), label(1e-6), label(12_345_678.9)
    ('1,024', '0.25', '−1.5', '3.2·10⁻⁶', '10⁻⁶', '1.235·10⁷')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    sign, size = "−" if value < 0 else "", abs(value)
    mantissa, _, power = f"{size:.{digits - 1}e}".partition("e")
    exponent, whole = int(power), float(size).is_integer()
    if -4 <= exponent < 7 or (whole and exponent < 10):
        decimals = 0 if whole else max(0, digits - 1 - exponent)
        text = f"{size:,.{decimals}f}"
        return sign + (text.rstrip("0").rstrip(".") if "." in text else text)
    ten = "10" + str(exponent).translate(SUPERSCRIPTS)
    mantissa = mantissa.rstrip("0").rstrip(".")
    return sign + (ten if mantissa == "1" else f"{mantissa}·{ten}")


def ticks(values: Sequence[float], base: int, measured: Sequence[float] = ()) -> list[float]:
    """Where to put numbers on a logarithmic axis: at what was measured if that is little, else at powers.

    Examples
    --------
    >>> ticks([16, 16384], 2), ticks([30, 400], 10), ticks([1, 100], 10, measured=[1, 5, 10, 20, 100])
    ([16, 64, 256, 1024, 4096, 16384], [50, 100, 200], [1, 5, 10, 20, 100])
    """
    low, high = min(values), max(values)
    across = math.log(high / low)
    own = sorted(set(measured))
    if 1 < len(own) <= 9 and all(math.log(after / before) > across / 14 for before, after in pairwise(own)):
        return own
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    if last - first >= 2:
        step = -(-(last - first + 1) // 8)
        return [float(base) ** k if k < 0 else base**k for k in range(first, last + 1, step)]
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    nice = [m * 10.0**k if k < 0 else m * 10**k for k in decades for m in (1, 2, 5)]
    inside = [each for each in nice if low * (1 - 1e-9) <= each <= high * (1 + 1e-9)]
    return inside if len(inside) > 1 else sorted({low, high})


def _axis_ticks(chart: Chart, drawn: Sequence[Curve]) -> tuple[list[float] | None, list[float] | None]:
    """Values to number on the x and the y axis; None where the library chooses."""
    marked = [x for each in drawn if not each.bound for x in _across(each)]
    every = [x for each in drawn for x in _across(each)]
    across = None
    if every and has_boxes(chart) and not chart.x_log:
        across = _thinned(sorted({box[0] for each in drawn for box in each.boxes}))
    elif every and chart.x_log:
        across = ticks(every, chart.x_log, marked)
    heights = [y for each in drawn for row in (*each.points, *each.band, *each.boxes) for y in row[1:]]
    return across, ticks(heights, chart.y_log) if heights and chart.y_log else None


def _across(curve: Curve) -> list[float]:
    return [row[0] for row in (*curve.points, *curve.boxes)]


def _thinned(values: list[float]) -> list[float]:
    return values[:: -(-len(values) // 9)]


def explained(drawn: Sequence[Curve]) -> str:
    """What markers and lines mean, as far as a chart has them."""
    parts = []
    if any(each.printed for each in drawn):
        parts.append("hollow: printed")
    if any(not each.printed and not each.bound for each in drawn):
        parts.append("filled: computed")
    if any(each.bound for each in drawn):
        parts.append("dashed: bound or theory")
    if any(each.band for each in drawn):
        parts.append("shaded: interval")
    if any(each.boxes for each in drawn):
        parts.append("box: quartiles, whiskers to the ends")
    return " · ".join(parts)


# ---------------------------------------------------------------- PNG


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
    text = _writable(text)
    lines = textwrap.wrap(text, width)
    even = textwrap.wrap(text, len(text) // max(1, len(lines)) + 8)
    return even if len(even) == len(lines) and max(map(len, even), default=0) <= width else lines


def _writable(text: str) -> str:
    """Text that a font can be asked for: without control characters and halves of characters."""
    return "".join(mark if mark.isprintable() or mark == " " else "\ufffd" for mark in text)


def _draw(axis: Axes, curve: Curve, chart: Chart) -> None:
    place = (lambda x: _place(x, chart)) if has_boxes(chart) else (lambda x: x)
    if curve.band:
        x, low, high = zip(*curve.band, strict=True)
        axis.fill_between([place(each) for each in x], low, high, color=curve.colour, alpha=0.16, lw=0)
    if curve.boxes:
        _draw_boxes(axis, curve, chart)
    elif curve.points:
        x, y = zip(*curve.points, strict=True)
        axis.plot([place(each) for each in x], y, **_line(curve), zorder=3 if curve.printed else 2.5)


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
    positions = [_place(box[0], chart) + curve.shift for box in curve.boxes]
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
    across, up = _axis_ticks(chart, drawn)
    if chart.x_log and not has_boxes(chart) and drawn:
        axis.set_xscale("log", base=chart.x_log)
    if chart.y_log and drawn:
        axis.set_yscale("log", base=chart.y_log)
    for which, places in ((axis.xaxis, across), (axis.yaxis, up)):
        which.set_major_formatter(lambda value, _: label(value, 6))
        if places is not None:
            at = [_place(x, chart) for x in places] if which is axis.xaxis and has_boxes(chart) else places
            which.set_ticks(at, labels=[label(each) for each in places])
            which.set_ticks([], minor=True)
    if not drawn:
        axis.text(0.5, 0.5, NOTHING, ha="center", transform=axis.transAxes, color="#666666")
    axis.set_xlabel(_writable(chart.x_label), fontsize=10, parse_math=False)
    axis.set_ylabel(_writable(textwrap.fill(chart.y_label, 48)), fontsize=10, parse_math=False)
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
    names = [textwrap.shorten(_writable(each.name), 96, placeholder=" …") for each in drawn]
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


# ---------------------------------------------------------------- interactive


def interactive(chart: Chart, *, with_library: bool) -> str:
    """An element that draws itself with plotly once it is near the screen; its ground is transparent.

    Parameters
    ----------
    chart : what to draw
    with_library : bring plotly along, 5 MB; once is enough for a page. Elements have no ids, so they never clash.
    """
    text = html.escape(json.dumps(figure(chart), allow_nan=False, separators=(",", ":")))
    name = html.escape(f"Chart: {_writable(chart.title)}")
    made = f'<div class="plot" role="img" aria-label="{name}" data-figure="{text}"></div>'
    if with_library:
        made += "".join(f"<script>{script}</script>" for script in scripts())
    return made


def scripts() -> tuple[str, str]:
    """What a page with interactive charts needs: plotly, and what draws every chart of the page with it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtra("plotly", "plot") from None
    drawing = resources("undilute.report").joinpath("templates", "experiment.js").read_text(encoding="utf-8")
    return get_plotlyjs(), drawing


def figure(chart: Chart) -> dict[str, Any]:
    """The chart as plotly's data and layout, ready for JSON."""
    drawn = curves(chart)
    traces = [trace for each in drawn for trace in _band(each, chart)]  # below all lines
    traces += [trace for each in drawn for trace in _traces(each, chart)]
    across, up = _axis_ticks(chart, drawn)
    boxes = has_boxes(chart)
    places = None if across is None else [_place(x, chart) if boxes else x for x in across]
    layout = {
        "xaxis": _axis(chart.x_label, bool(chart.x_log) and not boxes, places, across),
        "yaxis": _axis(chart.y_label, bool(chart.y_log), up, up),
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "#808080", "size": 13},
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "#1b1d22", "bordercolor": "#1b1d22", "font": {"color": "#ffffff"}, "namelength": -1},
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": -0.2,
            "xanchor": "left",
            "yanchor": "top",
            "title": {"text": explained(drawn), "side": "top", "font": {"size": 12}},
        },
        "margin": {"l": 10, "r": 14, "t": 12, "b": 10},
    }
    if not drawn:
        layout["annotations"] = [{"text": NOTHING, "showarrow": False, "xref": "paper", "yref": "paper"}]
    return {"data": traces, "layout": layout}


def _axis(title: str, log: bool, places: list[float] | None, values: list[float] | None) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "type": "log" if log else "linear",
        "title": {"text": _quoted(title), "standoff": 8},
        "gridcolor": "rgba(128,128,128,.22)",
        "linecolor": "rgba(128,128,128,.6)",
        "zeroline": False,
        "automargin": True,
    }
    if places is None or values is None:
        return axis | {"tickformat": ",.7~g"}
    return axis | {"tickmode": "array", "tickvals": places, "ticktext": [label(each) for each in values]}


def _quoted(text: str) -> str:
    """Text whose marks plotly shows instead of obeying them."""
    return html.escape(_writable(text), quote=False)


def _together(curve: Curve) -> dict[str, Any]:
    """What the traces of one curve have in common: the legend shows one of them and switches all."""
    return {"name": _quoted(curve.name), "legendgroup": f"{curve.style} {_quoted(curve.name)}"}


def _band(curve: Curve, chart: Chart) -> list[dict[str, Any]]:
    """The shaded interval of a curve, if it has one."""
    if not curve.band:
        return []
    x = [_place(row[0], chart) if has_boxes(chart) else row[0] for row in curve.band]
    outline = {"x": x + x[::-1], "y": [row[2] for row in curve.band] + [row[1] for row in curve.band][::-1]}
    fill = {"fill": "toself", "fillcolor": _clear(curve.colour, 0.16), "mode": "lines", "line": {"width": 0}}
    return [{"type": "scatter", **outline, **fill, **_together(curve), "hoverinfo": "skip", "showlegend": False}]


def _traces(curve: Curve, chart: Chart) -> list[dict[str, Any]]:
    """The boxes or the line of a curve."""
    if curve.boxes:
        return _box_traces(curve, chart)
    intervals = {row[0]: f"<br>{label(row[1], 5)} to {label(row[2], 5)}" for row in curve.band}
    line = {
        "type": "scatter",
        "x": [_place(x, chart) if has_boxes(chart) else x for x, _ in curve.points],
        "y": [y for _, y in curve.points],
        **_together(curve),
        **_plotly_line(curve),
        "text": [f"{label(x, 6)}: {label(y, 6)}{intervals.get(x, '')}" for x, y in curve.points],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
    }
    return [line]


def _plotly_line(curve: Curve) -> dict[str, Any]:
    width = PRINTED_WIDTH if curve.printed else WIDTH
    dash = ",".join(f"{width * each:.1f}px" for each in curve.dashes) or "solid"
    line = {"color": curve.colour, "width": width, "dash": dash}
    if curve.bound:
        return {"mode": "lines", "line": line}
    return {"mode": "lines+markers", "line": line, "marker": _plotly_marker(curve, 9)}


def _plotly_marker(curve: Curve, size: int) -> dict[str, Any]:
    if curve.printed:
        return {"symbol": curve.marker[1], "size": size, "color": HOLLOW, "line": {"color": curve.colour, "width": 2}}
    return {"symbol": curve.marker[1], "size": size, "color": curve.colour}


def _box_traces(curve: Curve, chart: Chart) -> list[dict[str, Any]]:
    x = [_place(box[0], chart) + curve.shift for box in curve.boxes]
    names = ("lowerfence", "q1", "median", "q3", "upperfence")
    columns = zip(*(box[1:] for box in curve.boxes), strict=True)
    box = {
        "type": "box",
        "x": x,
        **{name: list(column) for name, column in zip(names, columns, strict=True)},
        "width": curve.width,
        "fillcolor": HOLLOW if curve.printed else _clear(curve.colour, 0.25),
        "line": {"color": curve.colour, "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    medians = {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": [row[3] for row in curve.boxes],
        "marker": _plotly_marker(curve, 8),
        "text": [
            f"{label(at, 6)}: median {label(median, 5)}<br>quartiles {label(first, 5)} to {label(third, 5)}"
            f"<br>all {label(low, 5)} to {label(high, 5)}"
            for at, low, first, median, third, high in curve.boxes
        ],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
    }
    return [box | _together(curve), medians | _together(curve)]


def _clear(colour: str, alpha: float) -> str:
    """A colour that lets through what is behind it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
