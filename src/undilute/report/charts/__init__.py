"""How does a chart described by its data become a picture or part of a page?  From the same points, in one style."""

from undilute.report.charts import cells
from undilute.report.charts.on_page import drawing
from undilute.report.charts.picture import multiples, png, svg
from undilute.report.charts.writing import label

__all__ = ["cells", "drawing", "label", "multiples", "png", "svg"]
