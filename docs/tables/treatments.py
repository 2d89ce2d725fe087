"""Treatments for README and docs: a line for each rule, read from the results of a run."""

from __future__ import annotations

from collections.abc import Sequence

from undilute.evaluation.changes import LOSS, RECALL
from undilute.report import markdown
from undilute.report.result import Result, Row

SIGNS = {"better": "better", "worse": "worse", "no clear difference": "unclear"}
READING = "reading, s, ratio"


def table(results: Sequence[Result]) -> str:
    """Every rule of these results compared with softmax: loss, loss at the end of the window, recall and time.

    Parameters
    ----------
    results : of ``undilute treat`` and ``undilute compare``
    """
    head = [
        "treatment",
        "next-token loss, nats",
        "loss at the end of the window",
        "needle recall, %",
        "time for reading",
    ]
    body = []
    for result in results:
        changes, costs = result.tables["changes"], result.tables.get("cost", [])
        for rule in dict.fromkeys(str(row["rule"]) for row in changes):
            own = {str(row["what"]): row for row in changes if row["rule"] == rule}
            last = [name for name in own if name.startswith(f"{LOSS} after")][-1:]
            ratios = [row[READING] for row in costs if row["rule"] == rule]
            body.append(
                [
                    _name(rule, result),
                    _cell(own[LOSS], 3),
                    _cell(own[last[0]], 3) if last else "–",
                    _cell(own[RECALL], 1) if RECALL in own else "–",
                    f"{ratios[0]:.2f} ×" if ratios and ratios[0] is not None else "–",
                ]
            )
    return markdown.table(head, body)


def _name(rule: str, result: Result) -> str:
    return f"{rule}, {result.settings['length']:,} tokens"


def _cell(row: Row, digits: int) -> str:
    before, after, difference = (float(row[name] or 0.0) for name in ("before", "after", "difference"))
    shown = f"{before:.{digits}f} → {after:.{digits}f} ({difference:+.{digits}f}".replace("-", "−")
    return f"{shown}, {SIGNS[str(row['verdict'])]})"
