"""Experiments on a terminal: which there are, and what a run found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undilute.report.charts import label
from undilute.report.result import Comparison, Result, Verdict
from undilute_papers.reproduction.experiment import every

SIGNS: dict[Verdict, str] = {"agrees": "✓", "differs": "✗", "other set-up": "○"}
COLOURS: dict[Verdict, str] = {"agrees": "green", "differs": "red", "other set-up": "yellow"}


def listing() -> Table:
    """Every experiment: what to type, its source, what it shows, and how long it takes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption="minutes on two cores", caption_justify="left")
    table.add_column("id", no_wrap=True, style="bold")
    table.add_column("what it shows", overflow="fold")
    table.add_column("source", overflow="fold", style="dim")
    for heading in ("--quick", "full"):
        table.add_column(heading, justify="right", no_wrap=True)
    for id, experiment in every().items():
        times = (_minutes(experiment.quick_minutes), _minutes(experiment.full_minutes))
        table.add_row(Text(id), Text(experiment.shows), Text(experiment.source), *times)
    return table


def _minutes(minutes: float) -> str:
    return "< 1" if minutes < 1 else f"{minutes:,.0f}"


def terminal(result: Result) -> list[RenderableType]:
    """What to print, in order: the answer, printed beside computed, and the other findings."""
    parts: list[RenderableType] = []
    if result.findings:
        parts.append(Text(result.findings[0], style="bold"))
    if result.comparisons:
        parts += [_comparisons(result), Text(outcome(result.comparisons))]
    parts += [Padding(Text.assemble(("• ", "dim"), finding), (0, 0, 0, 1)) for finding in result.findings[1:]]
    return parts


def _comparisons(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("what", "printed", "computed", "verdict", "note"):
        words = any(isinstance(getattr(each, heading, ""), str) for each in result.comparisons)
        table.add_column(heading, overflow="fold", justify="left" if words else "right", no_wrap=heading == "verdict")
    for each in result.comparisons:
        verdict = Text(f"{SIGNS[each.verdict]} {each.verdict}", style=COLOURS[each.verdict])
        cells = (each.what, printed(each), computed(each))
        table.add_row(*map(Text, cells), verdict, Text(each.note, style="dim"))
    return table


def outcome(comparisons: Iterable[Comparison]) -> str:
    """How many printed values and claims agree, in one line.

    Examples
    --------
    >>> outcome([Comparison("weight", 0.5, 0.5, "agrees"), Comparison("entropy", 1.0, 2.0, "differs")])
    'Of 2 printed values and claims 1 agrees, 1 differs, 0 are of another set-up.'
    """
    found = counts(comparisons)
    agrees, differs, other = found.values()
    many = sum(found.values())
    return (
        f"Of {many:,} printed {'value or claim' if many == 1 else 'values and claims'} {agrees:,} "
        f"agree{'s' * (agrees == 1)}, {differs:,} differ{'s' * (differs == 1)}, {other:,} "
        f"{'is' if other == 1 else 'are'} of another set-up."
    )


def counts(comparisons: Iterable[Comparison]) -> dict[Verdict, int]:
    """How many printed values and claims have each verdict; what was not printed does not count."""
    found = Counter(each.verdict for each in comparisons if each.printed is not None)
    return {verdict: found[verdict] for verdict in SIGNS}


def printed(comparison: Comparison) -> str:
    """The printed value as printed; a dash where there is none."""
    value = comparison.printed
    if value is None:
        return "–"
    return value if isinstance(value, str) else label(value, 12)


def computed(comparison: Comparison) -> str:
    """The computed value with about as many digits as the printed one, and its interval.

    Examples
    --------
    >>> computed(Comparison("bits lost", 12.56, 0.72133824, "differs"))
    '0.721'
    >>> computed(Comparison("entropy, bits", 1.59, 3.30094, "differs"))
    '3.30'
    >>> computed(Comparison("accuracy, %", 53.8, 51.23456, "agrees", low=49.06, high=53.4))
    '51.2 [49.1, 53.4]'
    """
    if isinstance(comparison.computed, str):
        return comparison.computed
    value = _like(comparison.computed, comparison.printed)
    if comparison.low is None or comparison.high is None:
        return value
    return f"{value} [{_like(comparison.low, comparison.printed)}, {_like(comparison.high, comparison.printed)}]"


def _like(value: float, beside: float | str | None) -> str:
    """A number with as many decimals as the printed one, but never fewer than three digits."""
    if beside is None or isinstance(beside, str) or not 1e-4 <= abs(value) < 1e7 or not math.isfinite(beside):
        return label(value)
    decimals = len(f"{beside:.12f}".rstrip("0").partition(".")[2])
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, digits, 0)}f}".replace("-", "−")
