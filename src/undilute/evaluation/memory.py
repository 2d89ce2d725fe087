"""How much memory does something take?  The peak of this process above where it was."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable


def extra_memory(run: Callable[[], object]) -> float | None:
    """Megabytes by which ``run()`` raises this process's resident memory at its peak; None where Linux is not there."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the peak
        before = _status("VmRSS")
        run()
        return max(0.0, (_status("VmHWM") - before) / 1024)
    except OSError:
        return None


def _status(field: str) -> int:
    """A field of /proc/self/status in kB."""
    with open(f"/proc/{os.getpid()}/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith(field)))
