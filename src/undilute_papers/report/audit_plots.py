"""The small pictures of the audit, as PNG or SVG."""

from __future__ import annotations

from undilute.report import charts
from undilute.report.result import Chart, Series
from undilute_papers.audit import Curve


def png(curve: Curve) -> bytes:
    """Named lines over a common axis; the same bytes for the same curve."""
    return charts.png(_chart(curve))


def svg(curve: Curve) -> str:
    """The same as an element of a page."""
    return charts.svg(_chart(curve))


def _chart(curve: Curve) -> Chart:
    """Without a title: the statement says what to see."""
    series = [Series(name, curve.x, y) for name, y in curve.lines.items()]
    x_log, y_log = 10 * curve.log_x, 10 * curve.log_y
    return Chart("curve", "", curve.x_label, curve.y_label, series, x_log=x_log, y_log=y_log)
