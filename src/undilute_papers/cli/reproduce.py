"""``undilute reproduce``: a command for each experiment, made from its options; ``all`` of them; and the ``report``."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import Field, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperGroup

from undilute import interrupts
from undilute.cli.imports import with_imports
from undilute.cli.options import require
from undilute.cli.output import put, wrote
from undilute.errors import InvalidValue, UndiluteError
from undilute.report.result import Result, versions
from undilute.rules import split_names
from undilute_papers.report.comparisons import outcome
from undilute_papers.reproduction.experiment import Experiment, every

console = Console()
FOLDER, QUICK = Path("undilute-out/reproduce"), "quick"
RULES = "rules"  # the option of experiments that take any rule
GO_ON = "the same command with --resume continues from there"


class Experiments(TyperGroup):
    """The commands of this file, and one for each experiment, made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *every()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = super().get_command(ctx, cmd_name)
        if known is not None or cmd_name not in every():
            return known
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(command(every()[cmd_name]))
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=Experiments, help="Run the published experiments, and compare each printed value with the computed one."
)

Output = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the results, with one subfolder for each experiment.",
        show_default=f"{FOLDER}; for quick runs {FOLDER / QUICK}",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Run a short form: smaller and less exact.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue where an earlier run stopped; skip what is done.")]


@app.callback(invoke_without_command=True)
def list_experiments(context: typer.Context) -> None:
    """List every experiment: id, source, what it shows, time needed."""
    if context.invoked_subcommand is None:
        from undilute_papers.report import experiment_text

        console.print(experiment_text.listing())


@app.command("all")
def reproduce_all(output: Output = None, quick: Quick = False, resume: Resume = False) -> None:
    """Run every experiment, one after the other, and write the report on all of them."""
    output = output or _folder(quick)
    failed: list[str] = []
    for id, cls in every().items():
        console.rule(id, align="left")
        try:
            _reproduce(cls.quickly() if quick else cls(), output, resume)
        except KeyboardInterrupt:
            before = list(every()).index(id)
            interrupts.keep(f"{before} experiments before {id} are in {str(output)!r}: {GO_ON}")
            raise
        except UndiluteError as error:  # the others can still be run
            failed.append(id)
            console.print(f"{id} could not be run: {error}", markup=False, highlight=False)
    if len(failed) < len(every()):
        _report(output)
    if failed:
        raise InvalidValue(f"{len(failed)} of {len(every())} experiments could not be run: {', '.join(failed)}.")


@app.command("report")
def report(output: Output = None, quick: Quick = False) -> None:
    """Gather the results of all experiments in a folder into one page."""
    _report(output or _folder(quick))


def _folder(quick: bool) -> Path:
    """Where results go: those of quick runs never in the place of others."""
    return FOLDER / QUICK if quick else FOLDER


def _report(output: Path) -> None:
    from undilute.report import result_files
    from undilute_papers.report import reproduction_page

    results = result_files.gathered(output, list(every()))
    if not results:
        quick = any(output.glob(f"{QUICK}/*/{result_files.RESULTS}"))
        first = "run `undilute reproduce all --quick` and give --quick, or choose another --output"
        hint = "give --quick to use the quick runs" if quick else first
        raise InvalidValue(f"no results in {str(output)!r}: {hint}.")
    found = [each for result in results for each in result.comparisons]
    console.print(outcome(found), markup=False, highlight=False)
    put({output / "index.html": reproduction_page.page(results)})


def _reproduce(experiment: Experiment, output: Path, resume: bool) -> None:
    """Run one experiment and write its folder; with ``resume`` continue an earlier run."""
    from undilute import files
    from undilute.report import result_files
    from undilute_papers.report import experiment_text, reproduction_page

    folder = output / experiment.id
    files.check_writable(folder / result_files.RESULTS, folder / result_files.PAGE)
    for package in ("matplotlib", "jinja2", "pydantic"):
        require(package, "plot")
    work = folder / "work"
    if resume and _is_done(experiment, folder):
        console.print(f"{experiment.id}: already done with the same options", highlight=False)
        return
    experiment = replace(experiment, work=work)
    if not resume:
        experiment.forget()
    result = _with_progress(experiment)
    result_files.save(result, folder, page=reproduction_page.page)
    interrupts.keep(f"the results of {experiment.id} had been written to {str(folder)!r}")
    for part in experiment_text.terminal(result):
        console.print(part)
    wrote(folder / result_files.PAGE)


def _is_done(experiment: Experiment, folder: Path) -> bool:
    from undilute.report import result_files

    try:
        before = result_files.load(folder)
    except InvalidValue:  # nothing there, or nothing that can be read
        return False
    written = (folder / result_files.RESULTS).stat().st_mtime
    texts = [Path(path).expanduser() for path in before.settings.get("text", ())]
    changed = any(path.exists() and path.stat().st_mtime > written for path in texts)
    same_code = all(before.made.get(name) == version for name, version in versions().items())
    return dict(before.settings) == experiment.settings() and same_code and not changed


def _with_progress(experiment: Experiment) -> Result:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    start = time.perf_counter()
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(experiment.id, total=1.0)
            result = experiment.run(lambda share, doing: progress.update(task, completed=share, description=doing))
    except KeyboardInterrupt:
        interrupts.keep(_left(experiment))
        raise
    return result if result.seconds else replace(result, seconds=time.perf_counter() - start)


def _left(experiment: Experiment) -> str:
    """What an interrupt leaves of a run."""
    if experiment.work is None or not experiment.work.is_dir() or not any(experiment.work.iterdir()):
        return f"nothing of {experiment.id} was written"
    return f"{experiment.id} keeps its state in {str(experiment.work)!r}: {GO_ON}"


def command(cls: type[Experiment]) -> Callable[..., None]:
    """The function behind ``undilute reproduce <id>``: its parameters are the experiment's options."""

    def run(output: Path | None, quick: bool, resume: bool, **given: Any) -> None:
        options = {name: value for name, value in given.items() if value is not None}
        for field in cls.options():
            if field.name in options and isinstance(field.default, tuple):
                options[field.name] = _split(field, options[field.name], get_type_hints(cls)[field.name])
        _reproduce(cls.quickly(**options) if quick else cls(**options), output or _folder(quick), resume)

    parameters = [_parameter(field, get_type_hints(cls)[field.name]) for field in cls.options()]
    for name, annotation, default in (("output", Output, None), ("quick", Quick, False), ("resume", Resume, False)):
        parameters.append(_keyword(name, annotation, default))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = f"{cls.shows[0].upper()}{cls.shows[1:]}. Source: {cls.source}."
    return with_imports(run) if RULES in {field.name for field in cls.options()} else run


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameter(field: Field[Any], hint: Any) -> inspect.Parameter:
    """An option that is None unless it is given, so that ``--quick`` knows what to leave alone."""
    kind = str if isinstance(field.default, tuple) else hint
    shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
    help = field.metadata["help"] + (" Separated by commas." if isinstance(field.default, tuple) else "")
    described = typer.Option(help=help, show_default=shown or False)
    return _keyword(field.name, Annotated[kind | None, described], None)


def _split(field: Field[Any], text: str, hint: Any) -> tuple[Any, ...]:
    kind: type = get_args(hint)[0]
    try:
        parts = split_names(text) if field.name == RULES else text.split(",")
        return tuple(dict.fromkeys(kind(part.strip()) for part in parts if part.strip()))
    except ValueError:
        name = field.name.replace("_", "-")
        wanted: Mapping[type, str] = {int: "whole numbers", float: "numbers"}
        raise InvalidValue(f"--{name} = {text!r}: must be {wanted[kind]} separated by commas.") from None
