"""The audit in a terminal: one line per statement, or one statement at length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from undilute_papers.audit import Result, Statement, Verdict

COLOURS = {Verdict.TRUE: "green", Verdict.CONDITIONAL: "yellow", Verdict.FALSE: "red", Verdict.UNVERIFIED: "blue"}


def terminal(results: Sequence[Result]) -> Table:
    """Every statement: where it stands, the verdict, and the evidence computed now."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("id", "statement", "where", "verdict", "evidence now", ""):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("id", "verdict", ""))
    source = None
    for result in results:
        if result.statement.source is not source:
            source = result.statement.source
            table.add_section()
            table.add_row("", Text(source.title, style="bold"), Text(source.version, style="dim"))
        table.add_row(
            result.statement.id,
            Text(result.statement.title),
            Text(result.statement.place, style="dim"),
            Text(result.statement.verdict, style=COLOURS[result.statement.verdict]),
            evidence(result),
            Text("✓", style="green") if result.reproduces else Text("✗", style="bold red"),
        )
    return table


def evidence(result: Result) -> str:
    """How much evidence there is, in one phrase: "7 findings, 3,005 cases"."""
    wrong = sum(not finding.as_stated for finding in result.findings)
    return f"{len(result.findings)} findings, {result.cases:,} cases" + (f", {wrong} NOT as stated" if wrong else "")


def summary(results: Sequence[Result], seed: int) -> str:
    """One line: how many of each verdict, and whether all came out again."""
    counted = Counter(result.statement.verdict for result in results)
    verdicts = ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict if counted[verdict])
    wrong = [result.statement.id for result in results if not result.reproduces]
    outcome = f"NOT reproduced: {', '.join(wrong)}" if wrong else "every verdict reproduced"
    cases, seconds = sum(result.cases for result in results), sum(result.seconds for result in results)
    one = "statement" if len(results) == 1 else "statements"
    return f"{len(results)} {one}: {verdicts}; {outcome} ({cases:,} cases, {seconds:.1f} s, seed {seed})"


def details(result: Result) -> RenderableType:
    """One statement at length: printed form, verdict, corrected form, proof, and every finding."""
    statement = result.statement
    parts: list[RenderableType] = []
    for heading, text in sections(statement):
        parts += [Text(heading, style="bold"), Text(text), Text()]
    parts += [Text("Evidence, computed now", style="bold"), _findings(result)]
    title = Text.assemble(
        (f"{statement.id}  ", "bold"),
        f"{statement.title}  ",
        (statement.verdict.value, f"bold {COLOURS[statement.verdict]}"),
    )
    return Panel(Group(*parts), title=title, title_align="left", padding=(1, 2))


def sections(statement: Statement) -> Iterable[tuple[str, str]]:
    """Heading and text of what is recorded about a statement, formulas as LaTeX."""
    source = statement.source
    yield "Source", f"{source.title} ({source.authors}; {source.version}), {statement.place}"
    yield "As printed, in our words", statement.claim
    if statement.formula:
        yield "Printed formula", statement.formula
    if statement.correction:
        yield "What holds", statement.correction
    if statement.corrected_formula:
        yield "Corrected formula", statement.corrected_formula
    yield "Why", statement.proof


def _findings(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    for finding in result.findings:
        mark = Text("✓", style="green") if finding.as_stated else Text("✗", style="bold red")
        table.add_row(mark, Text(finding.label), Text(finding.outcome))
    return table
