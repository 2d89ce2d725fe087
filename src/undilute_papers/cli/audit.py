"""``undilute audit``: which statements of the papers are true?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from undilute.cli.output import put

console = Console()


def audit_statements(
    id: Annotated[
        str | None, typer.Argument(help="A statement and its parts, such as B13; all statements by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random cases; verdicts must reproduce from any seed.")] = 0,
    details: Annotated[
        bool, typer.Option("--details", help="Show printed and corrected form, proof, numbers and plot.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with formulas and plots.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the plots of --details.")] = Path("undilute-out/audit"),
) -> None:
    """Check every statement of the papers: verdict and fresh evidence; exit code 1 if a verdict does not reproduce."""
    from undilute import files
    from undilute_papers import audit
    from undilute_papers.report import audit_page, audit_plots, audit_table

    chosen = audit.statements(id)
    drawn = {output / f"{each.id}.png": each.curve for each in chosen if details and each.curve is not None}
    files.check_writable(*filter(None, (html, as_json)), *drawn)
    with Progress(console=console, transient=True) as progress:
        results = [each.run(seed) for each in progress.track(chosen, description="checking …")]
    contents: dict[Path, str | bytes] = {}
    if details:
        for result in results:
            console.print(audit_table.details(result))
        contents |= {path: audit_plots.png(curve()) for path, curve in drawn.items()}
    else:
        console.print(audit_table.terminal(results))
    console.print(audit_table.summary(results, seed), highlight=False)
    if html is not None:
        contents[html] = audit_page.page(results, seed)
    if as_json is not None:
        contents[as_json] = audit_page.to_json(results, seed)
    put(contents)
    if not all(result.reproduces for result in results):
        raise typer.Exit(1)
