"""How does a long run survive a kill?  Its whole state is saved every minute, all or nothing."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import torch

from undilute import files
from undilute.errors import InvalidValue


class Checkpoint:
    """The saved state of one run.

    Parameters
    ----------
    path : its file; None keeps nothing
    every_seconds : how much work a kill may cost

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Checkpoint(Path(folder) / "run.pt").save({"step": 5, "weights": torch.ones(2)})
    ...     Checkpoint(Path(folder) / "run.pt").load()["step"]
    5
    """

    def __init__(self, path: Path | None, every_seconds: float = 60.0) -> None:
        self.path = path
        self.every_seconds = every_seconds
        self._began = self._saved = time.monotonic()
        self._before = 0.0

    def load(self) -> dict[str, Any] | None:
        """The state last saved, or None if there is none. Only tensors and plain values are read, never code."""
        if self.path is None or not self.path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
        except Exception as error:
            raise InvalidValue(
                f"cannot read the checkpoint {str(self.path)!r} ({error}): delete it, or run without --resume."
            ) from None
        self._before, self._began = float(state.pop("seconds", 0.0)), time.monotonic()
        return state

    def spent(self) -> float:
        """Seconds of work in all, with those before the state that was loaded."""
        return self._before + time.monotonic() - self._began

    def due(self) -> bool:
        """Is it time to save?"""
        return self.path is not None and time.monotonic() - self._saved >= self.every_seconds

    def save(self, state: dict[str, Any]) -> None:
        """Write ``state`` in place of the one before."""
        if self.path is not None:
            buffer = io.BytesIO()
            torch.save({**state, "seconds": self.spent()}, buffer)
            files.write(self.path, buffer.getvalue())
            self._saved = time.monotonic()

    def remove(self) -> None:
        """Forget the state: the run is over."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
