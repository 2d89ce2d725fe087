"""How does a command learn the user's own rules, measures and tasks?  It runs what ``--import`` names.

    undilute compare --import my_rule.py --rules softmax,squared-relu

The file is run, or the module imported, before the command does anything. What it registers can then be used by name.
A command gets the option from the decorator :func:`with_imports`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_type_hints

import typer

from undilute import files, rules
from undilute.errors import InvalidValue, UndiluteError
from undilute.evaluation import tasks
from undilute.measures import registry as measures
from undilute.models.reasons import one_line
from undilute.rules.parameters import shown
from undilute.selection import scorers

OPTION, PARAMETER = "--import", "imports"
Imports = Annotated[
    list[str] | None,
    typer.Option(
        OPTION,
        metavar="FILE.py|MODULE",
        help="Your own rules, measures, tasks or scorers, to use by name. Their code is run: give what you trust.",
    ),
]
_done: list[str] = []  # files by their full names, and modules


def with_imports(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the option ``--import``, which may be given several times."""
    hints, signature = get_type_hints(command, include_extras=True), inspect.signature(command)

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        for each in given.pop(PARAMETER) or ():
            load(each)
        return command(**given)

    own = [each.replace(annotation=hints.get(each.name, each.annotation)) for each in signature.parameters.values()]
    option = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Imports)
    run.__signature__ = signature.replace(parameters=[*own, option])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*own, option)}
    return run


def load(name: str) -> None:
    """Run a file that ends in .py, or import a module, once. Whatever is wrong with it is said in one sentence."""
    is_file = name.endswith(".py") or os.sep in name
    place = os.path.realpath(os.path.expanduser(name)) if is_file and "\0" not in name else name
    if place in _done:
        return
    before = _registered()
    module = _run(name, Path(place)) if is_file else _imported(name)
    if not any(each not in before or _is_of(module, each[2]) for each in _registered()):
        raise InvalidValue(
            f"{OPTION} = {shown(name)} registers nothing: it must define a rule with @undilute.rules.register, or a "
            "measure, a task or a scorer with its decorator."
        )
    _done.append(place)


def done() -> list[str]:
    """What was imported in this process, for :func:`load` in another."""
    return list(_done)


def _registered() -> list[tuple[str, str, object]]:
    """Kind, name and maker of everything that a file could register."""
    found: list[tuple[str, str, object]] = [("rule", name, rules.preset(name).factory) for name in rules.names()]
    found += [("measure", name, each.compute) for name, each in measures.every().items()]
    found += [("task", each.name, each.make) for each in tasks.known()]
    return found + [("scorer", name, make) for name, make in scorers.known().items()]


def _is_of(module: ModuleType, maker: object) -> bool:
    """Whether the maker was defined in the module, which may have been imported long ago, or in a part of it."""
    return f"{getattr(maker, '__module__', '')}.".startswith(f"{module.__name__}.")


def _run(name: str, path: Path) -> ModuleType:
    """The file as a module, which may import other modules of its folder."""
    source = files.read_text(path, "give a Python file that registers something", f"{OPTION} ")
    module = ModuleType(f"undilute_import_{len(_done)}_{path.stem}")  # no name that anything else could import
    module.__file__ = str(path)
    _search(path.parent)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source.removeprefix("\ufeff"), str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise _refusal(name, error, str(path)) from error
    return module


def _imported(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidValue(f"{OPTION} = {shown(name)}: must be a file that ends in .py, or the name of a module.")
    _search(Path.cwd())  # as `python -m undilute` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidValue(
                f"{OPTION} = {shown(name)}: there is no module {error.name!r}; give a file that ends in .py, or the "
                "name of a module that is installed or in this folder."
            ) from None
        raise _refusal(name, error) from error
    except (Exception, SystemExit) as error:
        raise _refusal(name, error) from error


def _search(folder: Path) -> None:
    """Let modules of a folder be imported, unless their names are taken."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _refusal(name: str, error: BaseException, file: str | None = None) -> InvalidValue:
    """The sentence about code that raises: the last line of the user's code, and what was raised there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    said = one_line(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        place, line, said = error.filename, error.lineno, error.msg
    elif chosen := [frame for frame in frames if frame.filename == file] or frames:
        place, line = chosen[-1].filename, chosen[-1].lineno
    else:
        place, line = file or name, None
    if not isinstance(error, UndiluteError) and said != type(error).__name__:
        said = f"{type(error).__name__}: {said}"
    where = f"{OPTION} = {shown(name)}" + (f", {place!r}" if place not in (name, file) else "")
    return InvalidValue(f"{where}{'' if line is None else f', line {line}'}: {said}.")


def _is_machinery(file: str) -> bool:
    """Whether a file is Undilute's own or Python's, which only run the user's code."""
    own, python = Path(__file__).parents[1], Path(importlib.__file__).parent
    return file.startswith("<") or Path(file).is_relative_to(own) or Path(file).is_relative_to(python)
