"""How do many small trainings share a machine?  One process each at a time, one thread each, watched from here.

Small networks gain nothing from a second thread, so seeds and rules run side by side instead. A worker stops by itself
when the program that started it is gone, so a killed run leaves nothing behind that still computes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from queue import Empty
from typing import Any, TypeVar

import torch

from undilute import interrupts
from undilute.errors import WorkerKilled
from undilute.progress import Progress

Job = TypeVar("Job")
Done = TypeVar("Done")
Report = Callable[[float], None]
_reports: Any = None  # the queue to the parent process, in a worker


def ignore(share: float) -> None:
    """A report for nobody: ``share`` in [0, 1] is done."""


def run_all(
    work: Callable[[Job, Report], Done], jobs: Sequence[Job], *, workers: int, progress: Progress, doing: str
) -> list[Done]:
    """``[work(job, report) for job in jobs]`` in ``workers`` processes.

    Parameters
    ----------
    work : a function of a module; calls ``report(share)`` now and then
    jobs : what it is given, one after the other
    workers : processes; with 1 everything happens in this one
    progress : is told the share of all jobs that is done
    doing : what to say meanwhile
    """
    shares = [0.0] * len(jobs)

    def show(job: int, share: float) -> None:
        shares[job] = share
        progress(sum(shares) / len(jobs), f"{doing}: {sum(s >= 1 for s in shares)} of {len(jobs)} done")

    if workers == 1 or len(jobs) == 1:
        return [_alone(work, job, lambda share, i=i: show(i, share)) for i, job in enumerate(jobs)]  # type: ignore[misc]
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _start, (reports, _imports())) as pool:
        with interrupts.blocked():  # what Ctrl-C means is for this process to decide
            futures = [pool.submit(_run, work, i, job) for i, job in enumerate(jobs)]
        try:
            _watch(futures, reports, show)
        except BrokenProcessPool:
            raise WorkerKilled(
                "a worker process was killed, perhaps because memory ran out: try fewer --workers, with --resume."
            ) from None
        except BaseException:
            for process in list(pool._processes.values()):
                process.terminate()
            raise
        return [future.result() for future in futures]


def _watch(futures: Sequence[Future[Any]], reports: Any, show: Callable[[int, float], None]) -> None:
    """Pass reports on until every future is done or one has failed."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()  # raises what the worker raised
            show(futures.index(future), 1.0)
        while True:
            try:
                job, share = reports.get_nowait()
            except Empty:
                break
            if not futures[job].done():
                show(job, share)


def _alone(work: Callable[[Job, Report], Done], job: Job, report: Report) -> Done:
    threads, flushed = torch.get_num_threads(), bool(torch.tensor(1e-40) * 1.0 == 0)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        done = work(job, report)
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)
    report(1.0)
    return done


def _imports() -> list[str]:
    """What the command was told to import, if this is a command."""
    imports = sys.modules.get("undilute.cli.imports")
    return [] if imports is None else imports.done()


def _start(reports: Any, imports: Sequence[str]) -> None:
    """What every worker does first."""
    global _reports
    _reports = reports
    for each in imports:
        from undilute.cli.imports import load

        load(each)
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # gradients of softmax underflow, and denormal numbers are slow
    keep_memory()


def _stop_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(work: Callable[[Job, Report], Done], index: int, job: Job) -> Done:
    return work(job, lambda share: _reports.put((index, share)))


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def keep_memory() -> None:
    """Ask glibc to keep freed memory: new pages would cost a third of the time of every step of a small training."""
    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL("libc.so.6")
        except OSError:  # not glibc
            return
        libc.mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD, at its largest
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
