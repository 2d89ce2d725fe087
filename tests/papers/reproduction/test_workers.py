"""Work in several processes: in order, watched, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from undilute.errors import InvalidValue, WorkerKilled
from undilute_papers.reproduction.workers import Report, run_all


def double(job: int, report: Report) -> int:
    report(0.5)
    return 2 * job


def refuse(job: int, report: Report) -> int:
    raise InvalidValue(f"job = {job}: must not be done.")


def die(job: int, report: Report) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return job


def sleep(job: int, report: Report) -> int:
    Path(os.environ["PIDS"], str(os.getpid())).touch()
    time.sleep(60)
    return job


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_progress_ends_at_one(workers: int) -> None:
    shares: list[float] = []
    done = run_all(double, [3, 1, 2], workers=workers, progress=lambda share, _: shares.append(share), doing="x")
    assert done == [6, 2, 4]
    assert shares[-1] == 1.0


def test_what_a_worker_raises_is_raised() -> None:
    with pytest.raises(InvalidValue, match="must not be done"):
        run_all(refuse, [1, 2], workers=2, progress=lambda *_: None, doing="x")


def test_a_killed_worker_is_one_clear_error() -> None:
    with pytest.raises(WorkerKilled, match="fewer --workers, with --resume"):
        run_all(die, [1, 2], workers=2, progress=lambda *_: None, doing="x")


def test_workers_stop_with_their_parent_whatever_they_do(tmp_path: Path) -> None:
    code = "from tests.papers.reproduction.test_workers import *\n"
    code += "if __name__ == '__main__': run_all(sleep, [1, 2], workers=2, progress=lambda *_: None, doing='x')"
    (tmp_path / "program.py").write_text(code)
    pids = tmp_path / "pids"
    pids.mkdir()
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PIDS": str(pids), "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, str(tmp_path / "program.py")], env=environment) as process:
        _wait_until(lambda: len(list(pids.iterdir())) == 2)
        process.kill()
    _wait_until(lambda: not any(Path(f"/proc/{path.name}/exe").exists() for path in pids.iterdir()))


def _wait_until(holds: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
