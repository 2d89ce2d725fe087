"""The small pictures of the audit, as PNG or SVG."""

from __future__ import annotations

import io
from typing import Literal

from undilute.errors import MissingExtra
from undilute_papers.audit import Curve

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe–Ito, told apart by everyone
STYLES = ("-", "--", "-.", ":")


def draw(curve: Curve, kind: Literal["png", "svg"]) -> bytes:
    """Named lines over a common axis; the same bytes for the same curve."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    figure = Figure(figsize=(5.2, 2.9), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for i, (name, y) in enumerate(curve.lines.items()):
        axis.plot(curve.x, y, label=name, color=COLOURS[i % len(COLOURS)], ls=STYLES[i % len(STYLES)], lw=1.8)
    axis.set_xscale("log" if curve.log_x else "linear")
    axis.set_yscale("log" if curve.log_y else "linear")
    axis.set_xlabel(curve.x_label, fontsize=9)
    axis.set_ylabel(curve.y_label, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
    image = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "undilute", "svg.fonttype": "none"}):
        figure.savefig(image, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return image.getvalue()
