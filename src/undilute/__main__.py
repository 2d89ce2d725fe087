"""The entry point of the command: ``undilute`` and ``python -m undilute``."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import TextIO

from undilute import __version__
from undilute.errors import MissingExtra, UndiluteError
from undilute.interrupts import EXIT_CODE, Interrupted, interruptible
from undilute.models.reasons import one_line

WRONG = 2
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


def main() -> None:
    """Run the command line; an error that a user can cause is one line on stderr and exit code 2, Ctrl-C 130."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal that lacks a letter shows its number instead, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    code, said = _outcome()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # `undilute rules | head -1` has what it wants
            code, said = code or WRONG, said or f"cannot print: {error.strerror}."
        _print_nowhere()
    if said:
        print(f"undilute: {said}", file=sys.stderr)
    sys.exit(code)


def _outcome() -> tuple[int, str]:
    """The exit code, and the line for stderr."""
    try:
        with interruptible(), warnings.catch_warnings():
            warnings.showwarning = _warn
            _run()
    except SystemExit as left:
        return (left.code if isinstance(left.code, int) else int(left.code is not None)), ""
    except Interrupted as error:
        return EXIT_CODE, f"interrupted; {error}."
    except UndiluteError as error:
        return WRONG, str(error)
    except OSError as error:  # of a file that no better sentence was found for, or of the output itself
        return WRONG, f"{one_line(error)}."
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        return WRONG, "this needs more memory than there is: ask for less, such as shorter lengths."
    return 0, ""


def _run() -> None:
    try:
        from undilute.cli.app import app
    except ModuleNotFoundError as error:
        if sys.argv[1:] == ["--version"]:  # needs no extra
            print(__version__)
            return
        raise MissingExtra(str(error.name), "cli") from None
    app()


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of Undilute's as one line, without the place in its code; others as Python shows them."""
    is_ours = Path(filename).is_relative_to(Path(__file__).parent)
    said = f"undilute: {message}\n" if is_ours else warnings.formatwarning(message, category, filename, lineno, line)
    print(said, end="", file=file or sys.stderr)


def _print_nowhere() -> None:
    """Drop what could not be printed, or Python would try again as it leaves, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
