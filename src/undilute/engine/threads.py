"""Work shared among threads of our own, each with torch on one core.

For many small blocks this beats torch's own threads, which meet again after every operation. torch's settings are as
they were when the work is done, whether it failed or not, and no thread outlives the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Scratch = TypeVar("Scratch")


def share(work: Iterable[Item], do: Callable[[Item, Scratch], None], scratch: Callable[[], Scratch]) -> None:
    """Call ``do(item, scratch)`` for every item, the last first, on as many threads as torch uses.

    Parameters
    ----------
    work : the items
    do : what to do with one; it must not record gradients
    scratch : makes the memory that one thread reuses from item to item
    """
    pending, before = list(work), torch.get_num_threads()
    threads = min(before, len(pending))

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
        return drain()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for done in [pool.submit(drain) for _ in range(threads)]:
                done.result()
    finally:
        torch.set_num_threads(before)
