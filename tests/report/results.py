"""Results for tests of reports: two real ones, and one whose every text tries to break out."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from undilute.report.result import Chart, Comparison, HeatMap, Result, Row, Series, Verdict
from undilute_papers.article.dilution import Dilution
from undilute_papers.article.temperature import Temperature

EVIL = (
    "<script>window.pwned=1</script><b>b</b><a href=https://x.y>a</a><img src=x onerror=window.pwned=1>"
    "\"'&amp;[red]{{ 7*7 }}$x$ 🦉שלום\u2028"
)
ROWS = 3000
NAN = math.nan


@cache
def dilution() -> Result:
    return replace(Dilution().run(), seconds=0.25)


@cache
def temperature() -> Result:
    return replace(Temperature(seeds=12).run(), seconds=75.0)


def evil(number: int) -> str:
    return f"{EVIL}{number}"


@cache
def hostile() -> Result:
    """Markup in every text, values that are not finite, empty tables, thousands of rows."""
    verdicts: tuple[Verdict, ...] = ("agrees", "differs", "other set-up")
    comparisons = [
        Comparison(evil(1), evil(2), evil(3), verdicts[0], note=evil(4)),
        Comparison(evil(5), 1.5, NAN, verdicts[1], low=-math.inf, high=NAN),
        Comparison(evil(6), None, 0.25, verdicts[2]),
    ]
    series = [
        Series(evil(7), [1.0, 2.0, 3.0], [NAN, 1.0, 2.0], low=[NAN, 0.5, 1.0], high=[1.0, math.inf, 3.0]),
        Series(evil(8), [1.0, 2.0], [1.5, 2.5], printed=True),
        Series(evil(9), [1.0, 2.0], [0.5, NAN], bound=True),
        Series(evil(10), [], []),
    ]
    boxes = Series(evil(11), [1.0, 2.0], [1.0, NAN], boxes=[(0, 0.5, 1, 1.5, 2), (0, 0.5, NAN, 1.5, 2)])
    charts = [
        Chart("../../" + evil(12), evil(13), evil(14), evil(15), series, note=evil(16)),
        Chart("../../" + evil(12), evil(17), "x", "y", [boxes], x_log=2, y_log=10),
        HeatMap(
            "../../" + evil(12),
            evil(30),
            evil(31),
            evil(32),
            [evil(33), evil(34)],
            [evil(35), evil(36)],
            [[1.0, NAN], [math.inf, 0.5]],
            evil(37),
            better="lower",
            centre=evil(35),
            note=evil(38),
        ),
        Chart("nothing", evil(18), "x", "y", []),
    ]
    rows: list[Row] = [{evil(19): evil(20), "n": n, "value": NAN if n % 7 == 0 else n / 3} for n in range(ROWS)]
    return Result(
        id=evil(21),
        settings={evil(22): (evil(23), (1.0, NAN)), "none": None},
        findings=[evil(24), evil(25), "\ud83e half a character", "\x00"],
        comparisons=comparisons,
        tables={evil(26): rows, "../empty": [], "..": [{"flag": True, "nothing": None}]},
        charts=charts,
        seconds=NAN,
        made={evil(27): evil(28)},
        command=evil(29),
    )
