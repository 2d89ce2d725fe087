"""What does Ctrl-C do to the command?  At any time: one line that says what was kept, and exit code 130.

While Python imports torch or exits, nothing needs tidying up, and an exception inside an import would print pages of
traceback: there Ctrl-C ends the process at once. While a command runs it is a KeyboardInterrupt, so that temporary
files and worker processes are cleaned up; a second one ends the process at once. This file imports nothing heavy: it is
the first that ``import undilute`` runs, and it changes nothing unless the process is the ``undilute`` command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

EXIT_CODE = 130  # 128 + SIGINT, as shells have it
_kept = ""


class Interrupted(Exception):
    """A command was stopped by Ctrl-C; the text says what was kept."""


def keep(what: str) -> None:
    """Say what an interrupt from now on leaves behind.

    Parameters
    ----------
    what : a sentence without its full stop
    """
    global _kept
    _kept = what


def leave(*_: object) -> NoReturn:
    """End the process with one line."""
    os.write(2, b"undilute: interrupted.\n")
    os._exit(EXIT_CODE)


def leave_while_importing() -> None:
    """From now on Ctrl-C is :func:`leave`, if this process is the command and Ctrl-C is not ignored."""
    if is_command(sys.argv, sys.orig_argv) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def is_command(argv: list[str], words: list[str]) -> bool:
    """Whether a process is ``undilute …`` or ``python -m undilute …``, when it imports the package.

    >>> is_command(["/usr/bin/undilute", "rules"], ["/usr/bin/python3", "/usr/bin/undilute", "rules"])
    True
    >>> is_command(["-m", "rules"], ["python3", "-m", "undilute", "rules"])
    True
    >>> is_command(["train.py"], ["python3", "train.py"])
    False
    """
    if argv[:1] == ["-m"]:
        return ("-m", "undilute") in pairwise(words)
    return bool(argv) and Path(argv[0]).stem == "undilute" and Path(argv[0]).suffix != ".py"


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt; it leaves as :class:`Interrupted`, with what was kept."""
    keep("nothing was written")
    before, hook, came = signal.getsignal(signal.SIGINT), sys.unraisablehook, False

    def first(*_: object) -> NoReturn:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, leave)
        raise KeyboardInterrupt

    def unraisable(lost: Any) -> None:  # a KeyboardInterrupt inside a destructor would be printed and forgotten
        if came and issubclass(lost.exc_type, KeyboardInterrupt):
            leave()
        hook(lost)

    heard = before in (leave, signal.default_int_handler) and threading.current_thread() is threading.main_thread()
    if heard:
        signal.signal(signal.SIGINT, first)
    sys.unraisablehook = unraisable
    try:
        yield
    except BaseException as error:  # an interrupted import can raise anything, and typer makes an exit of an interrupt
        is_exit = isinstance(error, SystemExit) and error.code == EXIT_CODE
        if came or is_exit or isinstance(error, KeyboardInterrupt):
            raise Interrupted(_kept) from None
        raise
    finally:
        sys.unraisablehook = hook
        if heard:
            signal.signal(signal.SIGINT, before)


@contextmanager
def blocked() -> Iterator[None]:
    """Inside, Ctrl-C waits; a process that is started here never hears of it, and ends with the one that started it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


leave_while_importing()
