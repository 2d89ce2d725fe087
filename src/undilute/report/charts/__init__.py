"""How does a chart described by its data become a picture?  As PNG and as an interactive one, from the same points."""

from undilute.report.charts.picture import png
from undilute.report.charts.with_plotly import figure, interactive, scripts
from undilute.report.charts.writing import label

__all__ = ["figure", "interactive", "label", "png", "scripts"]
