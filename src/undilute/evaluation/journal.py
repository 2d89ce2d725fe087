"""How does a long evaluation survive a kill?  Every piece of it is a line of a file, written as soon as it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from undilute import files
from undilute.errors import InvalidValue


class Journal:
    """Pieces of work that are done, by name; kept in a file if one is given.

    Parameters
    ----------
    path : of the file, made if there is none; None keeps everything in memory
    settings : what the pieces depend on, as JSON has it; a file of other settings is refused

    Examples
    --------
    >>> journal = Journal(None, {"seed": 0})
    >>> journal.add("first", [1.0, 0.0])
    >>> "first" in journal, journal["first"]
    (True, [1.0, 0.0])
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.done: dict[str, Any] = {}
        if path is None:
            return
        if path.exists():
            first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
            if first != json.dumps(settings):
                raise InvalidValue(f"{str(path)!r} holds a run with other settings: give another file, or remove it.")
            for line in lines:
                try:
                    name, piece = json.loads(line)
                except ValueError:  # the line that was being written when the run was killed
                    break
                self.done[name] = piece
        written = [json.dumps(settings), *(json.dumps(each) for each in self.done.items())]
        files.write(path, "".join(f"{line}\n" for line in written))

    def __contains__(self, name: str) -> bool:
        return name in self.done

    def __getitem__(self, name: str) -> Any:
        return self.done[name]

    def add(self, name: str, piece: Any) -> None:
        """Keep a piece of work, and write it."""
        self.done[name] = piece
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps((name, piece)) + "\n")
