"""A comparison of readers as one HTML file: who answers best, at what cost, what was asked, and every figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from undilute.report import pages, readers_charts, result_page
from undilute.report.charts.curve import COLOURS
from undilute.report.charts.writing import label
from undilute.selection.comparison import Comparison

PARTS = {"to choose": "chosen", "to answer": "answered"}


def page(found: Comparison) -> str:
    """A self-contained page; the same comparison gives the same text."""
    model = str(found.settings.get("model", ""))
    what = f"{', '.join(found.readers)}, on the same questions"
    return pages.rendered(
        "readers.html",
        styles=(*result_page.STYLES, "readers.css"),
        kind="selection",
        heading="Readers",
        **result_page.parts([found.report()], {readers_charts.ID: (f"Readers compared on {model}", what)}),
        length=found.lengths[-1],
        ranges=_ranges(found),
        bars=[_tokens(found), _seconds(found)],
        examples=found.examples,
    )


def _ranges(found: Comparison) -> list[dict[str, Any]]:
    """Recall with its interval at the longest length: all tasks, then each."""
    length = found.lengths[-1]
    tasks: Sequence[str | None] = [None, *found.tasks] if len(found.tasks) > 1 else [None]
    made = []
    for task in tasks:
        chance = 100 * statistics.fmean(each.chance for each in found.of(found.readers[0], task, length))
        rows = []
        for reader, colour in _coloured(found).items():
            share = found.recall(reader, task, length)
            known = math.isfinite(share.low)
            low, high = (share.low, share.high) if known else (share.value, share.value)
            interval = f", 95 % interval {low:.0f} to {high:.0f}" if known else ""
            rows.append(
                {
                    "reader": reader,
                    "colour": colour,
                    "at": f"{share.value:.1f}",
                    "low": f"{low:.1f}",
                    "wide": f"{high - low:.1f}",
                    "text": f"{share.value:.0f} %",
                    "said": f"{share.value:.1f} % right{interval}",
                }
            )
        words = task or (found.tasks[0] if len(found.tasks) == 1 else "all tasks")
        made.append({"task": words, "chance": f"{chance:.1f}", "rows": rows})
    return made


def _coloured(found: Comparison) -> dict[str, str]:
    """Reader → its colour, as in the charts."""
    return {reader: COLOURS[place % len(COLOURS)] for place, reader in enumerate(found.readers)}


def _tokens(found: Comparison) -> dict[str, Any]:
    length = found.lengths[-1]
    values = {
        reader: {
            words: statistics.fmean(getattr(each, name) for each in found.of(reader, length=length))
            for words, name in PARTS.items()
        }
        for reader in found.readers
    }
    title = f"Tokens that a model reads for a question, at {length:,}"
    return _bars(found, title, values, lambda value: f"{value:,.0f}")


def _seconds(found: Comparison) -> dict[str, Any]:
    length = found.lengths[-1]
    values = {reader: {"": readers_charts.seconds(found, reader, length)} for reader in found.readers}
    title = f"Seconds for a question, at {length:,}: the median"
    return _bars(found, title, values, lambda value: f"{label(value, 2)} s")


def _bars(found: Comparison, title: str, values: Mapping[str, Mapping[str, float]], text: Any) -> dict[str, Any]:
    """Bars on a logarithmic axis that begins at a power of ten."""
    every = [value for own in values.values() for value in own.values() if value > 0] or [1.0]
    start, end = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)) + 1e-9)
    wide = max(end - start, 1)
    colours = _coloured(found)
    return {
        "title": title,
        "ticks": [
            {"at": f"{100 * place / wide:.1f}", "text": label(10.0 ** (start + place), 3)} for place in range(wide + 1)
        ],
        "rows": [
            {
                "reader": reader,
                "colour": colours[reader],
                "parts": [
                    {
                        "what": what,
                        "text": text(value),
                        "wide": f"{100 * (math.log10(value) - start) / wide:.1f}",
                    }
                    for what, value in own.items()
                    if value > 0
                ],
            }
            for reader, own in values.items()
        ],
    }
