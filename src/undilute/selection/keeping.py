"""What was computed about a group of passages need not be computed again: where it is kept.

A scorer asks for tensors by a key that says all that they depend on. :class:`Nothing` computes them each time,
:class:`Memory` holds them up to a limit, and :class:`Folder` has a file for each key.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from undilute import files

Tensors = dict[str, Tensor]
ENDING = ".safetensors"


class Kept(Protocol):
    """Where tensors are kept."""

    def tensors(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        """What is kept under ``key``; made, and kept, if there is nothing."""


class Nothing:
    """Keeps nothing."""

    def tensors(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        return make()


class Memory:
    """Keeps tensors in memory, up to a limit.

    Every question asks for the same keys in the same order, a round. If they do not all fit, dropping the least
    recently used one for the next would drop each just before it is asked for again. So only what was not asked for in
    this round or the one before makes room, the least recently used first. If that is not enough, the new one is not
    kept.

    Parameters
    ----------
    limit : bytes
    behind : who is asked for what is not here
    """

    def __init__(self, limit: int, behind: Kept | None = None) -> None:
        self.limit, self.behind = limit, behind or Nothing()
        self.used = 0
        self._held: dict[str, Tensors] = {}  # the least recently used first
        self._round: set[str] = set()
        self._before: set[str] = set()
        self._lock = threading.Lock()

    def tensors(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        with self._lock:
            if key in self._round:
                self._round, self._before = set(), self._round
            self._round.add(key)
            if key in self._held:
                self._held[key] = found = self._held.pop(key)
                return found
        found = {name: own(tensor) for name, tensor in self.behind.tensors(key, make).items()}
        with self._lock:
            self._hold(key, found)
        return found

    def _hold(self, key: str, found: Tensors) -> None:
        size = _bytes(found)
        for old in [each for each in self._held if each not in self._round | self._before]:
            if self.used + size > self.limit:
                self.used -= _bytes(self._held.pop(old))
        if key not in self._held and self.used + size <= self.limit:
            self._held[key] = found
            self.used += size


class Folder:
    """Keeps tensors in files, one for each key, which are written next to their place and renamed into it.

    A file has the key and a hash of its tensors, in their dtype. One that is damaged is made again.

    Parameters
    ----------
    path : a folder
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def tensors(self, key: str, make: Callable[[], Tensors]) -> Tensors:
        file = self.path / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}{ENDING}"
        found = _read(file, key)
        if found is None:
            found = {name: own(tensor) for name, tensor in make().items()}
            files.write(file, _written(key, found))
        return found

    @property
    def files(self) -> list[Path]:
        """Those that hold tensors."""
        return sorted(self.path.glob(f"*{ENDING}"))


def own(tensor: Tensor) -> Tensor:
    """A tensor in main memory that is no part of a larger one."""
    found = tensor.detach().cpu().contiguous()
    return found if found.untyped_storage().nbytes() == found.nbytes else found.clone()


def _bytes(tensors: Tensors) -> int:
    return sum(each.nbytes for each in tensors.values())


def _written(key: str, tensors: Tensors) -> bytes:
    from safetensors.torch import save

    return save(tensors, {"key": key, "sha256": _hash(tensors)})


def _read(file: Path, key: str) -> Tensors | None:
    """The tensors of a file; None if there is none, or not as it was written."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        data = file.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        said: dict[str, Any] = header["__metadata__"]
        found = load(data)
        return found if said["key"] == key and said["sha256"] == _hash(found) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError):
        return None


def _hash(tensors: Tensors) -> str:
    made = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        made.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()
