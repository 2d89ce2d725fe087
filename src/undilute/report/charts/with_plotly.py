"""How does a chart become interactive?  As plotly's data and layout in an element that a script of the page draws."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files as resources
from typing import Any

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

HOLLOW = "#fdfdfd"  # no other part has it, so that a page can put the colour of its ground in its place


def interactive(chart: Chart | HeatMap, *, with_library: bool) -> str:
    """An element that draws itself with plotly once it is near the screen; its ground is transparent.

    Parameters
    ----------
    chart : what to draw
    with_library : bring plotly along, 5 MB; once is enough for a page. Elements have no ids, so they never clash.
    """
    text = html.escape(json.dumps(figure(chart), allow_nan=False, separators=(",", ":")))
    name = html.escape(f"Chart: {writable(chart.title)}")
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
    drawing = resources("undilute.report").joinpath("templates", "result.js").read_text(encoding="utf-8")
    return get_plotlyjs(), drawing


def figure(chart: Chart | HeatMap) -> dict[str, Any]:
    """The chart as plotly's data and layout, ready for JSON."""
    return _heat_map(chart) if isinstance(chart, HeatMap) else _curves(chart)


LAYOUT: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#808080", "size": 13},
    "hovermode": "closest",
    "hoverlabel": {"bgcolor": "#1b1d22", "bordercolor": "#1b1d22", "font": {"color": "#ffffff"}, "namelength": -1},
    "margin": {"l": 10, "r": 14, "t": 12, "b": 10},
}
EMPTY = [{"text": NOTHING, "showarrow": False, "xref": "paper", "yref": "paper"}]


def _curves(chart: Chart) -> dict[str, Any]:
    drawn = curves(chart)
    traces = [trace for each in drawn for trace in _band(each, chart)]  # below all lines
    traces += [trace for each in drawn for trace in _traces(each, chart)]
    across, up = axis_ticks(chart, drawn)
    places = None if across is None else [place(x, chart) for x in across]
    layout = LAYOUT | {
        "xaxis": _axis(chart.x_label, bool(chart.x_log) and not has_boxes(chart), places, across),
        "yaxis": _axis(chart.y_label, bool(chart.y_log), up, up),
        "showlegend": True,
        "legend": _legend(explained(drawn)),
    }
    return {"data": traces, "layout": layout if drawn else layout | {"annotations": EMPTY}}


def _legend(title: str) -> dict[str, Any]:
    below = {"orientation": "h", "x": 0, "y": -0.2, "xanchor": "left", "yanchor": "top"}
    return below | {"title": {"text": title, "side": "top", "font": {"size": 12}}}


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


def _heat_map(heat_map: HeatMap) -> dict[str, Any]:
    """Cells whose places are numbers, so that two rows may have the same name."""
    written = cells.texts(heat_map)
    columns, rows = heat_map.x, heat_map.y
    trace = {
        "type": "heatmap",
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "z": cells.shades(heat_map),
        "zmin": -1,
        "zmax": 1,
        "colorscale": [[0, cells.WORSE], [0.5, cells.SAME], [1, cells.BETTER]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "text": written,
        "texttemplate": "%{text}",
        "textfont": {"color": cells.INK},
        "customdata": [[_quoted(f"{row}, {column}") for column in columns] for row in rows],
        "hovertemplate": "%{customdata}: %{text}<extra></extra>",
        "hoverongaps": False,
        "name": _quoted(heat_map.value_label),
        "showlegend": False,
    }
    layout = LAYOUT | {
        "xaxis": _named_axis(heat_map.x_label, columns),
        "yaxis": _named_axis(heat_map.y_label, rows) | {"autorange": "reversed"},
        "title": _top_line(cells.explained(heat_map)),
    }
    empty = not (rows and columns)
    return {"data": [] if empty else [trace], "layout": layout | ({"annotations": EMPTY} if empty else {})}


def _named_axis(title: str, names: Sequence[str]) -> dict[str, Any]:
    places: dict[str, Any] = {"tickmode": "array", "tickvals": list(range(len(names)))}
    places["ticktext"] = [_quoted(cells.short(name)) for name in names]
    return _axis(title, False, None, None) | places | {"showgrid": False, "ticks": "", "fixedrange": True}


def _top_line(text: str) -> dict[str, Any]:
    corner = {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom"}
    return corner | {"text": _quoted(text), "font": {"size": 12}, "pad": {"b": 8, "l": 4}}


def _quoted(text: str) -> str:
    """Text whose marks plotly shows instead of obeying them."""
    return html.escape(writable(text), quote=False)


def _together(curve: Curve) -> dict[str, Any]:
    """What the traces of one curve have in common: the legend shows one of them and switches all."""
    return {"name": _quoted(curve.name), "legendgroup": f"{curve.style} {_quoted(curve.name)}"}


def _band(curve: Curve, chart: Chart) -> list[dict[str, Any]]:
    """The shaded interval of a curve, if it has one."""
    if not curve.band:
        return []
    x = [place(row[0], chart) for row in curve.band]
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
        "x": [place(x, chart) for x, _ in curve.points],
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
    x = [place(box[0], chart) + curve.shift for box in curve.boxes]
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
