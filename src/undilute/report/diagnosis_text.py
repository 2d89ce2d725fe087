"""A diagnosis on a terminal: the heads that find what is asked for, heads by kind, the forecast, and what was tried."""

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
from undilute.report.diagnosis_data import kind_rows, read

COLOURS: dict[Kind, str] = {
    "retrieval": "blue",
    "diluting": "red",
    "sharp": "green",
    "local": "cyan",
    "sink": "yellow",
    "diffuse": "magenta",
}
SHOWN = 10


def terminal(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """What to print, in order."""
    yield headline(diagnosis)
    if diagnosis.caution is not None:
        yield Text(diagnosis.caution, style="yellow")
    yield Text("")
    if diagnosis.probe is not None:
        yield from _asked(diagnosis)
    else:
        yield Text(f"No questions were asked: {diagnosis.why_no_probe}", style="dim")
    yield Padding(_kinds(diagnosis), (1, 0))
    if diagnosis.probe is None:
        yield from _diluting(diagnosis)
    if diagnosis.numbering is not None:
        yield Text(diagnosis.numbering)
    yield Text.assemble(
        ("Forecast", "bold"), f" at {diagnosis.question.target:,} tokens. {diagnosis.forecast().summary}"
    )
    yield from _tried(diagnosis)


def headline(diagnosis: Diagnosis) -> str:
    """The outcome, in rich's markup."""
    name = escape(diagnosis.subject.model)
    return f"[bold]{name}[/], {read(diagnosis)}: [bold]{diagnosis.summary}[/]"


def _asked(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    table = Table(box=None, pad_edge=False)
    table.add_column("recall")
    lengths = list(dict.fromkeys(each.length for each in diagnosis.recalls))
    for length in lengths:
        table.add_column(f"{length:,}", justify="right")
    for task in dict.fromkeys(each.task for each in diagnosis.recalls):
        own = [each for each in diagnosis.recalls if each.task == task]
        cells = [f"{each.right.value:.0%} [{each.right.low:.0%}, {each.right.high:.0%}]" for each in own]
        table.add_row(f"{own[0].label}, {own[0].questions} questions", *cells)
    yield table
    found = diagnosis.heads.retrieval[:SHOWN]
    if not found:
        return
    yield Text("")
    yield Text.assemble(
        (f"The {len(found)} heads that find best" if len(found) > 1 else "The head that finds it", "bold"),
        f": weight on the fact asked for, at {', '.join(f'{length:,}' for length in lengths)} tokens",
    )
    for head in found:
        yield Padding(_finding(head, diagnosis), (0, 0, 0, 2))


def _finding(head: Head, diagnosis: Diagnosis) -> Text:
    assert head.asked is not None
    weights = " → ".join(f"{each.value:.2f}" for each in head.asked.alpha.values())
    slope = head.asked.law.slope
    told = "" if head.asked.auc is None else f"; tells right from wrong: AUC {head.asked.auc:.2f}"
    return Text.assemble(
        (f"layer {head.layer} head {head.head}", "bold blue"),
        "" if diagnosis.numbering is None else f" ({head.name})",
        f": {weights}, slope {slope.value:+.2f} [{slope.low:+.2f}, {slope.high:+.2f}]{told}".replace("-", "−"),
        f"  (plain text: {ON_PLAIN_TEXT[head.plain_kind]})",
    )


ON_PLAIN_TEXT: dict[Kind, str] = {
    "retrieval": "the same",
    "diluting": "its top weight falls",
    "sharp": "sharp",
    "local": "looks at the last few tokens",
    "sink": "rests on the sink",
    "diffuse": "averages",
}


def _kinds(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("heads", justify="right")
    table.add_column("steady", justify="right")
    table.add_column("kind")
    table.add_column("what it does")
    table.add_column("top weight", justify="right")
    table.add_column(f"at {diagnosis.question.target:,}", justify="right")
    for kind, (number, steady, name, *rest) in zip(KINDS, kind_rows(diagnosis), strict=True):
        table.add_row(number, steady, Text(name, style=COLOURS[kind]), *rest)
    return table


def _diluting(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    worst = diagnosis.heads.diluting[:SHOWN]
    if not worst:
        return
    shortest, length = diagnosis.layers[0].n.min(), diagnosis.question.length
    yield (
        f"[bold]The {len(worst)} heads that lose most[/]: top weight without the sink at {shortest}, {length:,} and, "
        f"forecast, {diagnosis.question.target:,} tokens"
    )
    for head in worst:
        line = Text.assemble(
            (f"layer {head.layer} head {head.head}", "bold red"),
            "" if diagnosis.numbering is None else f" ({head.name})",
            f": {head.top_short:.2g} → {head.top_now:.2g} → {head.top_target:.2g} (γ {head.gamma:.2f}), "
            f"in {head.share:.0%} of the windows",
        )
        yield Padding(line, (0, 0, 0, 2))


def _tried(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    trials = diagnosis.trials
    if trials.tried:
        length = trials.tried[0].length
        yield Text.assemble(("What was tried", "bold"), f" on held-out windows of {length:,} tokens:")
        for each in trials.tried:
            yield Padding(Text(each.sentence, style="green" if each.helps else ""), (0, 0, 0, 2))
    yield Text(diagnosis.advice, style="bold" if trials.best else "")
