"""``undilute plot``: pictures, with the numbers behind them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undilute import rules
from undilute.cli.imports import with_imports
from undilute.cli.options import rules_named
from undilute.cli.output import put
from undilute.errors import InvalidValue
from undilute.rules.parameters import shown

app = typer.Typer(help="Pictures, with the numbers behind them.", no_args_is_help=True)
console = Console()
LONGEST = 2**22


@app.callback()
def _pictures() -> None:
    """Pictures, with the numbers behind them."""


@app.command("rules")
@with_imports
def plot_rules(
    which: Annotated[str, typer.Option("--rules", help="Rules separated by commas; all by default.")] = "",
    gap: Annotated[float, typer.Option(help="Logit of the token that matters; the others average 0.")] = 6.0,
    noise: Annotated[float, typer.Option(help="Standard deviation of the other logits.")] = 1.0,
    longest: Annotated[int, typer.Option(help="Largest n; lengths are powers of two up to it.")] = 65_536,
    seeds: Annotated[int, typer.Option(help="Rows to average over.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the random logits.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("undilute-out/rules"),
) -> None:
    """Show how each rule's top weight and entropy change as n grows: PNG, HTML and CSV."""
    from undilute import files
    from undilute_papers.rule_curves import plots as rule_plots
    from undilute_papers.rule_curves.curves import needle_curves

    names = ("rules.png", "rules.html", "rules.csv")
    files.check_writable(*(output / name for name in names))
    if not 2 <= longest <= LONGEST:
        raise InvalidValue(f"--longest = {shown(longest)}: must be between 2 and {LONGEST:,}.")
    chosen = rules_named(which or ",".join(rules.names()))
    if chosen.pop("temperature", None) is not None:  # its default, T = 1, would be softmax once more
        chosen["temperature (T = 0.5)"] = rules.get("temperature", T=0.5)
    lengths = [2**k for k in range(1, longest.bit_length())]
    with console.status("measuring …"):
        points = needle_curves(chosen, lengths=lengths, gap=gap, noise=noise, seeds=seeds, seed=seed)
        subtitle = f"one logit of {gap:g} among n − 1 from N(0, {noise:g}²)"
        table = files.csv_text([asdict(point) for point in points])
        contents: list[str | bytes] = [rule_plots.png(points, subtitle), rule_plots.page(points, subtitle), table]
    console.print(rule_plots.terminal(points))
    put({output / name: content for name, content in zip(names, contents, strict=True)})
