"""Work shared among threads of our own, each with torch on one core.

For many small blocks this beats torch's own threads, which meet again after every operation. torch's settings are as
they were when the work is done, whether it failed or not, and no thread outlives the call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_settings = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: a lock that another thread of the parent held would stay held."""
    global _settings
    _settings = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

Item = TypeVar("Item")
Scratch = TypeVar("Scratch")


def share(
    work: Iterable[Item], do: Callable[[Item, Scratch], None], scratch: Callable[[], Scratch], at_once: bool = True
) -> None:
    """Call ``do(item, scratch)`` for every item, the last first, on as many threads as torch uses.

    Parameters
    ----------
    work : the items
    do : what to do with one; it must not record gradients
    scratch : makes the memory that one thread reuses from item to item
    at_once : False for one item after the other in this thread: where starting threads would take longer than the work
    """
    pending = list(work)
    threads = min(torch.get_num_threads(), len(pending)) if at_once else 1

    def drain() -> None:
        own = scratch()
        with torch.inference_mode():
            while pending:
                try:
                    item = pending.pop()  # atomic: the threads need no other lock
                except IndexError:
                    return
                do(item, own)

    if threads <= 1:
        drain()
        return
    ready = threading.Barrier(threads + 1)

    def start() -> None:
        torch.set_num_threads(1)  # for this thread, but torch also remembers it for threads to come
        ready.wait()
        drain()

    with ThreadPoolExecutor(threads) as pool:
        with _settings:
            before = torch.get_num_threads()
            running = [pool.submit(start) for _ in range(threads)]
            ready.wait()
            torch.set_num_threads(before)
        for done in running:
            done.result()
