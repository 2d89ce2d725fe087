"""What speed and memory cost, as tables for README and docs, read from the committed measurements."""

from __future__ import annotations

from collections.abc import Sequence

from undilute.report.markdown import table
from undilute_papers.bench.diagnosis_cost import Cost
from undilute_papers.bench.speed import Figure


def speed(figures: Sequence[Figure]) -> str:
    """The table of the README: normal logits, "full / causal" in each cell; of what was measured twice the first."""
    shown = [f for f in figures if f.spread == "normal" and f.queries > 1]
    columns = sorted({(f.backward, f.n) for f in shown})
    steps = {f.what: f.ratio for f in reversed(figures) if f.queries == 1}
    body = []
    for name in dict.fromkeys(f.what for f in shown):
        own: dict[tuple[bool, int, bool], Figure] = {}
        for f in shown:
            if f.what == name:
                own.setdefault((f.backward, f.n, f.causal), f)
        cells = []
        for back, n in columns:
            pair = [own.get((back, n, causal)) for causal in (False, True)]
            cells.append(" / ".join(f"{f.ratio:.2f}" for f in pair if f is not None) or "–")
        route = next(iter(own.values())).route
        body.append([name, route, *cells, f"{steps[name]:.2f}" if name in steps else "–"])
    return table(["rule", "route", *map(_passes, columns), "decode"], body)


def _passes(column: tuple[bool, int]) -> str:
    backward, n = column
    return f"{'+ backward' if backward else 'forward'}, {n:,}"


def compared(figures: Sequence[Figure], rule: str, other: str) -> str:
    """The time of one rule over that of another, a line per spread of the logits; "full / causal" in each cell."""
    seconds = {(f.what, f.spread, f.backward, f.n, f.causal): f.seconds for f in figures if f.queries > 1}
    shown = [(f.spread, f.backward, f.n) for f in figures if f.queries > 1 and f.what == rule]
    columns = sorted({(backward, n) for _, backward, n in shown})
    body = []
    for spread in dict.fromkeys(spread for spread, _, _ in shown):
        cells = []
        for column in columns:
            cases = [(spread, *column, causal) for causal in (False, True)]
            measured = [case for case in cases if (rule, *case) in seconds and (other, *case) in seconds]
            ratios = [seconds[rule, *case] / seconds[other, *case] for case in measured]
            cells.append(" / ".join(f"{ratio:.2f}" for ratio in ratios) or "–")
        body.append([spread, *cells])
    return table(["logits", *map(_passes, columns)], body)


def diagnosis(costs: Sequence[Cost]) -> str:
    """The costs for the README: what down, lengths across, time ratio and extra memory inside."""
    lengths = sorted({cost.length for cost in costs})
    lines = [["", *(f"{length:,} tokens" for length in lengths)], ["---"] * (len(lengths) + 1)]
    for what in dict.fromkeys(cost.what for cost in costs):
        own = {cost.length: cost for cost in costs if cost.what == what}
        lines.append([what, *(_cell(own.get(length)) for length in lengths)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cost: Cost | None) -> str:
    if cost is None:
        return "–"
    return f"{cost.ratio:.2f} ×" + ("" if cost.extra_megabytes is None else f", {cost.extra_megabytes:,.0f} MB")
