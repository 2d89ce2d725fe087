"""A diagnosis on a terminal: how many heads of each kind, the worst ones, and what would help."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undilute.diagnosis.heads import Head
from undilute.diagnosis.kinds import KINDS, Kind
from undilute.diagnosis.result import Diagnosis
from undilute.report.diagnosis_data import kind_rows

COLOURS: dict[Kind, str] = {
    "diluting": "red",
    "sharp": "green",
    "local": "cyan",
    "sink": "yellow",
    "diffuse": "magenta",
}
WORST = 10


def terminal(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """What to print, in order."""
    yield headline(diagnosis)
    yield Padding(_kinds(diagnosis), (1, 0))
    worst = diagnosis.heads.diluting[:WORST]
    if worst:
        shortest, length = diagnosis.layers[0].n.min(), diagnosis.question.length
        yield (
            f"[bold]The {len(worst)} heads that lose most[/]: top weight without the sink at {shortest}, {length:,} "
            f"and {diagnosis.question.target:,} tokens"
        )
        for head in worst:
            yield Padding(_sentence(head, diagnosis), (0, 0, 0, 2))
    if diagnosis.numbering is not None:
        yield Text(diagnosis.numbering)
    yield Text(
        "One text, one pass. The forecast extends the fitted law; the ceiling holds while logits spread no wider than "
        "seen.",
        style="dim",
    )


def headline(diagnosis: Diagnosis) -> str:
    """What was read and the outcome, in rich's markup."""
    name, length = escape(diagnosis.subject.model), diagnosis.question.length
    return f"[bold]{name}[/], {length:,} tokens read: [bold]{diagnosis.summary}[/]"


def _kinds(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("heads", justify="right")
    table.add_column("kind")
    table.add_column("what it does")
    table.add_column("top weight", justify="right")
    table.add_column(f"at {diagnosis.question.target:,}", justify="right")
    for kind, (number, name, *rest) in zip(KINDS, kind_rows(diagnosis), strict=True):
        table.add_row(number, Text(name, style=COLOURS[kind]), *rest)
    return table


def _sentence(head: Head, diagnosis: Diagnosis) -> Text:
    since = "below one half from the start"
    if head.half_length > 2 * diagnosis.layers[head.layer].n.min():
        since = f"below one half from {head.half_length:,.0f} keys on"
    return Text.assemble(
        (f"layer {head.layer} head {head.head}", "bold red"),
        "" if diagnosis.numbering is None else f" ({head.name})",
        f": {head.top_short:.2g} → {head.top_now:.2g} → {head.top_target:.2g}, {since} (γ {head.gamma:.2f}); "
        f"{head.advice.summary}.",
    )
