"""What does a command leave behind?  All its files or none, a printed line for each, and how to make them again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from undilute import interrupts

console = Console()


def put(contents: Mapping[Path, str | bytes]) -> None:
    """Write every file, or none if one of them cannot be written, and say which."""
    from undilute import files

    written = files.write_all(contents)
    if written:
        interrupts.keep(f"{', '.join(map(str, written))} had been written")
    wrote(*written)


def wrote(*paths: Path) -> None:
    """Say that a file was written."""
    for path in paths:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)


def typed(context: typer.Context, *without: str) -> str:
    """What to type for the same figures: every option that is not at its default, except those in ``without``."""
    path: list[Any] = [context]
    while path[0].parent is not None:
        path.insert(0, path[0].parent)
    words = ["undilute", *(str(each.info_name) for each in path[1:])]
    for each in context.command.params:
        value = context.params.get(str(each.name))
        if each.name in without or value == each.default or value in (None, [], ()):
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            flag = [] if each.param_type_name == "argument" else [each.opts[0]]
            words += flag if one is True else [*flag, str(one)]
    return shlex.join(words)
