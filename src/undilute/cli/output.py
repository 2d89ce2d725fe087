"""What does a command leave behind?  All of its files, or none of them, and a line for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
