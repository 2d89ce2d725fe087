"""What did a run find?  Sentences, figures, and charts described by their data.

A result holds everything that its page shows and nothing else, so ``results.json`` alone can make the page again.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import torch

from undilute.errors import InvalidValue

Row = Mapping[str, float | int | str | bool | None]
Verdict = Literal["agrees", "differs", "other set-up"]
Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Comparison:
    """One printed value or claim, and what came out.

    Attributes
    ----------
    what : which value, with its unit; or which claim
    printed : the value, or the claim in a few words; None where nothing was printed
    computed : the value, or what came out in a few words
    verdict : "agrees", "differs", or "other set-up" where the two cannot be compared
    low, high : an interval of the computed value, where there is one
    note : why, in one sentence
    """

    what: str
    printed: float | str | None
    computed: float | str
    verdict: Verdict
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One curve, or one row of boxes.

    Attributes
    ----------
    name : shown in the legend
    x, y : points; ``y`` are the medians of a row of boxes
    low, high : an interval around ``y``, drawn shaded
    printed : taken from the publication: hollow markers
    bound : a theoretical curve: dashed, without markers
    boxes : quartiles and whiskers at each x: (lowest, first quartile, median, third quartile, highest)
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    printed: bool = False
    bound: bool = False
    boxes: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True)
class Chart:
    """One picture, described by its data: drawn as PNG and as an interactive chart alike.

    Attributes
    ----------
    name : file name without its ending, unique in the experiment
    title : one line: what to see
    x_label, y_label : with units
    series : drawn in this order; give it the same order and names across charts, since colours follow the order
    x_log, y_log : 0 for linear axes, 2 or 10 for the base
    note : a sentence below the picture
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: int = 0
    y_log: int = 0
    note: str = ""


@dataclass(frozen=True)
class HeatMap:
    """A picture of a table: a value in each cell, and a colour that says which are better.

    Attributes
    ----------
    name, title, x_label, y_label, note : as those of a chart
    x, y : names of the columns from the left, and of the rows from the top
    values : (rows, columns), None or NaN where there is none
    value_label : what the values are, with their unit
    better : which values are better; None where neither are
    centre : the row that colours start from: a cell is coloured by its difference to this row in its own column;
        None to colour by the values themselves

    Examples
    --------
    >>> made = HeatMap("recall", "t", "tokens", "rule", ["512", "1,024"], ["softmax", "ssmax"], [[80, 40], [80, None]],
    ...     "recall, %", better="higher", centre="softmax")
    >>> len(made.values)
    2
    """

    name: str
    title: str
    x_label: str
    y_label: str
    x: Sequence[str]
    y: Sequence[str]
    values: Sequence[Sequence[float | None]]
    value_label: str
    better: Better | None = None
    centre: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.values) != len(self.y) or any(len(row) != len(self.x) for row in self.values):
            shape = f"{len(self.y)} rows of {len(self.x)}"
            raise InvalidValue(f"the values of the heat map {self.name!r} do not fit its labels: must be {shape}.")
        if self.centre is not None and self.centre not in self.y:
            raise InvalidValue(f"centre = {self.centre!r} of the heat map {self.name!r}: must be one of its rows.")


@dataclass(frozen=True)
class Result:
    """What a run found: everything that its page shows, and nothing else, so that ``results.json`` can make it again.

    Attributes
    ----------
    id : the experiment
    settings : every option it ran with
    findings : what came out, in sentences made from the figures; the first is the answer
    comparisons : printed and computed; only reproductions have any
    tables : every figure by name of its table, as rows of equal keys; one CSV file each
    charts : the pictures
    seconds : how long it took, with what earlier runs had done of it; NaN if that is not known
    made : versions, machine, date
    command : what to type to run it again
    """

    id: str
    settings: Mapping[str, Any]
    findings: Sequence[str]
    comparisons: Sequence[Comparison]
    tables: Mapping[str, Sequence[Row]]
    charts: Sequence[Chart | HeatMap]
    seconds: float = 0.0
    made: Mapping[str, str] = field(default_factory=lambda: made_now())
    command: str = ""


def versions() -> dict[str, str]:
    """Of the code that makes the figures: with others, nothing that was found before is taken over."""
    from undilute import __version__

    return {"undilute": __version__, "torch": str(torch.__version__)}


def made_now() -> dict[str, str]:
    """Versions, machine and date: what a figure depends on besides its settings."""
    return {
        **versions(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        "date": datetime.now(UTC).date().isoformat(),
    }
