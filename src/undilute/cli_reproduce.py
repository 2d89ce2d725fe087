"""``undilute reproduce``: a command for each experiment, made from its options; ``all`` of them; and the ``report``."""

from __future__ import annotations

import importlib.util
import inspect
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import Field, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from undilute.errors import InvalidValue, MissingExtra, UndiluteError
from undilute.experiments.experiment import Experiment, every
from undilute.experiments.result import Result

console = Console()
FOLDER = Path("undilute-out/reproduce")
app = typer.Typer(help="Run the published experiments, and see each printed value beside the computed one.")

Output = Annotated[Path, typer.Option(help="Folder for the results, one below it for each experiment.")]
Quick = Annotated[bool, typer.Option("--quick", help="A short form of it: smaller, and less exact.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from where an earlier run stopped; skip what is done.")]


@app.callback(invoke_without_command=True)
def list_experiments(context: typer.Context) -> None:
    """Every experiment: id, source, what it shows, time needed."""
    if context.invoked_subcommand is None:
        from undilute.report import experiment_text

        console.print(experiment_text.listing())


@app.command("all")
def reproduce_all(output: Output = FOLDER, quick: Quick = False, resume: Resume = False) -> None:
    """Every experiment, one after the other, and the report on all of them."""
    failed: list[str] = []
    for id, cls in every().items():
        console.rule(id, align="left")
        try:
            _reproduce(cls.quickly() if quick else cls(), output, resume)
        except UndiluteError as error:  # the others can still be run
            failed.append(id)
            console.print(f"{id} could not be run: {error}", markup=False, highlight=False)
    _report(output)
    if failed:
        raise InvalidValue(f"{len(failed)} of {len(every())} experiments could not be run: {', '.join(failed)}.")


@app.command("report")
def report(output: Output = FOLDER) -> None:
    """Gather the results of all experiments in a folder into one page."""
    _report(output)


def _report(output: Path) -> None:
    from undilute.report import experiment_files, experiment_page, experiment_text, files

    results = experiment_files.gathered(output)
    if not results:
        raise InvalidValue(f"no results in {str(output)!r}: run `undilute reproduce all --quick` first.")
    comparisons = [each for result in results for each in result.comparisons]
    console.print(experiment_text.outcome(comparisons), markup=False, highlight=False)
    _wrote(files.write(output / "index.html", experiment_page.page(results)))


def _wrote(path: Path) -> None:
    console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)


def _reproduce(experiment: Experiment, output: Path, resume: bool) -> None:
    """Run one experiment and write its folder; with ``resume`` go on with what is there."""
    from undilute.report import experiment_files, experiment_text, files

    folder = output / experiment.id
    files.check_writable(folder / experiment_files.RESULTS)
    for package in ("matplotlib", "plotly", "jinja2"):  # before the work, not after it
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "plot")
    work = folder / "work"
    if resume and _is_done(experiment, folder):
        console.print(f"{experiment.id}: done before, with the same options", highlight=False)
        return
    if not resume and work.exists():
        shutil.rmtree(work)
    result = _with_progress(replace(experiment, work=work))
    written = experiment_files.save(result, folder)
    for part in experiment_text.terminal(result):
        console.print(part)
    _wrote(written[-1].parent / experiment_files.PAGE)


def _is_done(experiment: Experiment, folder: Path) -> bool:
    from undilute.report import experiment_files

    if not (folder / experiment_files.RESULTS).exists():
        return False
    return dict(experiment_files.load(folder).settings) == experiment.settings()


def _with_progress(experiment: Experiment) -> Result:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    start = time.perf_counter()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(experiment.id, total=1.0)
        result = experiment.run(lambda share, doing: progress.update(task, completed=share, description=doing))
    return replace(result, seconds=time.perf_counter() - start)


def command(cls: type[Experiment]) -> Callable[..., None]:
    """The function behind ``undilute reproduce <id>``: its parameters are the experiment's options."""

    def run(output: Path, quick: bool, resume: bool, **given: Any) -> None:
        options = {name: value for name, value in given.items() if value is not None}
        for field in cls.options():
            if field.name in options and isinstance(field.default, tuple):
                options[field.name] = _split(field, options[field.name], get_type_hints(cls)[field.name])
        _reproduce(cls.quickly(**options) if quick else cls(**options), output, resume)

    parameters = [_parameter(field, get_type_hints(cls)[field.name]) for field in cls.options()]
    for name, annotation, default in (("output", Output, FOLDER), ("quick", Quick, False), ("resume", Resume, False)):
        parameters.append(_keyword(name, annotation, default))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = f"{cls.shows[0].upper()}{cls.shows[1:]}. Source: {cls.source}."
    return run


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
        return tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        name = field.name.replace("_", "-")
        wanted: Mapping[type, str] = {int: "whole numbers", float: "numbers"}
        raise InvalidValue(f"--{name} = {text!r}: must be {wanted[kind]} separated by commas.") from None


for _id, _cls in every().items():
    app.command(_id)(command(_cls))
