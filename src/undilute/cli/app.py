"""The ``undilute`` command: the library's own commands, and those that installed packages bring.

A package adds a command by an entry point of the group ``undilute.commands``: a function, or a ``typer.Typer``.
``undilute_papers``, in the same distribution, adds ``audit``, ``reproduce``, ``plot`` and ``bench`` in this way.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.console import Console

from undilute import __version__
from undilute.cli.compare import compare
from undilute.cli.diagnose import diagnose_model
from undilute.cli.rules import list_rules
from undilute.cli.treat import treat

GROUP = "undilute.commands"
console = Console()
app = typer.Typer(
    help="Measure, explain and undo attention dilution.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        console.print(__version__, highlight=False)
        raise typer.Exit


app.command("diagnose")(diagnose_model)
app.command("treat")(treat)
app.command("compare")(compare)
app.command("rules")(list_rules)
for _point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
    _command = _point.load()
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_point.name)
    else:
        app.command(_point.name)(_command)
