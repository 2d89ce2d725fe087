"""Ctrl-C at every moment of a real process: one line, exit code 130, and nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STUB = "import sys\nfrom undilute.__main__ import main\nsys.exit(main())\n"  # what pip makes of an entry point
PAUSE = "import time\nprint('now', flush=True)\ntime.sleep(600)\n"
PLOT = ["plot", "rules", "--rules", "softmax", "--longest", "8", "--seeds", "1"]


def interrupted(folder: Path, *words: str, paused_in: str) -> tuple[int, str]:
    """Exit code and errors of a command that is interrupted while it imports ``paused_in``."""
    paused = folder / "paused"
    paused.mkdir()
    (paused / f"{paused_in}.py").write_text(PAUSE)
    (folder / "here").mkdir()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder / "here",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(paused), *filter(None, sys.path)])},
        start_new_session=True,
        # a shell that runs the tests in the background has them ignore Ctrl-C, and their children too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline() not in ("now\n", ""):
            pass
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert list((folder / "here").iterdir()) == []
    return process.returncode, errors


def test_while_torch_is_imported_by_the_module(tmp_path: Path) -> None:
    assert interrupted(tmp_path, "-m", "undilute", "rules", paused_in="torch") == (130, "undilute: interrupted.\n")


def test_while_torch_is_imported_by_the_command(tmp_path: Path) -> None:
    command = tmp_path / "undilute"
    command.write_text(STUB)
    assert interrupted(tmp_path, str(command), "rules", paused_in="torch") == (130, "undilute: interrupted.\n")


def test_while_the_command_line_is_imported(tmp_path: Path) -> None:
    code, errors = interrupted(tmp_path, "-m", "undilute", "rules", paused_in="typer")
    assert (code, errors) == (130, "undilute: interrupted; nothing was written.\n")


def test_while_a_command_runs(tmp_path: Path) -> None:
    code, errors = interrupted(tmp_path, "-m", "undilute", *PLOT, paused_in="matplotlib")
    assert (code, errors) == (130, "undilute: interrupted; nothing was written.\n")


def test_an_import_that_makes_another_error_of_it(tmp_path: Path) -> None:
    """As C++ extensions do: the interrupt must still be one."""
    extension = tmp_path / "more" / "matplotlib.py"
    extension.parent.mkdir()
    extension.write_text(
        "try:\n    import paused_part\nexcept BaseException:\n    raise ImportError('failed') from None\n"
    )
    program = f"import sys; sys.path.insert(0, {str(extension.parent)!r}); sys.argv[1:] = {PLOT!r}; "
    program += "from undilute.__main__ import main; main()"
    code, errors = interrupted(tmp_path, "-c", program, paused_in="paused_part")
    assert (code, errors) == (130, "undilute: interrupted; nothing was written.\n")


def test_a_program_that_uses_the_library_keeps_its_own_ctrl_c() -> None:
    code = "import signal, undilute; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert said.stdout == "True\n"


def test_what_was_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt after the files are there does not claim that nothing was written."""
    from undilute import interrupts
    from undilute.cli import output

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "wrote", stopped)
    with pytest.raises(interrupts.Interrupted, match=r"a\.txt had been written$"), interrupts.interruptible():
        output.put({tmp_path / "a.txt": "x"})
    assert (tmp_path / "a.txt").read_text() == "x"
