"""The ``undilute`` command: the library's own commands, and those that installed packages add.

A command's file is imported only when the command is run. A package adds a command with an entry point in the group
``undilute.commands``: a function, or a ``typer.Typer``. ``undilute_papers``, in the same distribution, adds ``audit``,
``reproduce``, ``plot`` and ``bench`` this way. A command that cannot be loaded says so when it is run; the others
still work.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from undilute import __version__, plugins
from undilute.cli.imports import with_imports
from undilute.errors import InvalidValue

GROUP = "undilute.commands"
OWN = {
    "diagnose": "undilute.cli.diagnose:diagnose_model",
    "treat": "undilute.cli.treat:treat",
    "compare": "undilute.cli.compare:compare",
    "select": "undilute.cli.select:select_passages",
    "ask": "undilute.cli.ask:ask_model",
    "tune": "undilute.cli.tune:tune_model",
    "export": "undilute.cli.export:export_plan",
    "rules": "undilute.cli.rules:list_rules",
}


class Commands(TyperGroup):
    """The commands by name, each made only when it is asked for. The first to claim a name keeps it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.places: dict[str, EntryPoint] = {}
        for point in [*(EntryPoint(name, value, GROUP) for name, value in OWN.items()), *plugins.points(GROUP)]:
            self.places.setdefault(point.name, point)
        self.commands = dict.fromkeys(self.places)  # type: ignore[assignment]  # typer suggests these names

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.places:
            return None
        if self.commands[cmd_name] is None:
            self.commands[cmd_name] = _made(self.places[cmd_name])
        return self.commands[cmd_name]


app = typer.Typer(
    cls=Commands,
    help="Measure, explain and undo attention dilution.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def _made(point: EntryPoint) -> Any:
    """The command at this place, as typer makes it."""
    if point.name in OWN:
        return _command(point.name, with_imports(point.load()))
    try:
        return _command(point.name, point.load())
    except (Exception, SystemExit) as error:  # of the package, or of typer, if it is given no command
        return _refusal(point.name, plugins.broken(point, error))


def _command(name: str, function: Callable[..., Any] | typer.Typer, **settings: Any) -> Any:
    if isinstance(function, typer.Typer):
        group = typer.main.get_group(function)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name, **settings)(function)
    return typer.main.get_command(alone)


def _refusal(name: str, error: InvalidValue) -> Any:
    """A command that says why it cannot run, whatever its arguments."""

    def refuse() -> None:
        raise error

    refuse.__doc__ = f"Not available: {error}"
    return _command(name, refuse, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
