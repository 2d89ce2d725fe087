"""How is a GGUF file taken apart and put together again, without touching what stays?

The layout (version 2 and 3): the letters GGUF, version, number of tensors, number of entries; the entries (key, type,
value); for each tensor its name, shape, type and place; then the tensors, each at a multiple of the alignment. Entries
are carried over as the bytes that they are, so whatever they hold comes through.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from undilute.errors import InvalidValue
from undilute.exporting.gguf_blocks import bytes_of, type_of
from undilute.models.gguf import open_file

if TYPE_CHECKING:
    from gguf import GGUFReader

STRING, UINT32 = 8, 4  # GGUF's numbers of these types


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: name, shape (outermost first), type, and data as the gguf package reads it."""

    name: str
    shape: tuple[int, ...]
    kind: str
    data: NDArray[Any]


class Container:
    """A GGUF file, open for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: GGUFReader = open_file(path)
        if self._reader.byte_order != "I" or int(self.stated("GGUF.version")) not in (2, 3):
            raise InvalidValue(f"{str(path)!r} is in the byte order of another machine; convert it first.")
        if int(self.stated("split.count", 1)) > 1:
            raise InvalidValue(
                f"{str(path)!r} is one part of {self.stated('split.count')}: join them with llama-gguf-split --merge."
            )
        self.tensors = {
            each.name: Stored(
                each.name, tuple(int(size) for size in reversed(each.shape)), each.tensor_type.name, each.data
            )
            for each in self._reader.tensors
        }

    def stated(self, key: str, default: Any = None) -> Any:
        """The value of an entry."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    @property
    def entries(self) -> dict[str, bytes]:
        """Every entry as it lies in the file: key, type and value."""
        own = [field for field in self._reader.fields.values() if not field.name.startswith("GGUF.")]
        ends = [field.offset for field in own[1:]] + [self._entries_end()]
        return {
            field.name: self._reader.data[field.offset : end].tobytes() for field, end in zip(own, ends, strict=True)
        }

    def _entries_end(self) -> int:
        first = self._reader.tensors[0].field if self._reader.tensors else None
        return self._reader.data_offset if first is None else first.offset

    def copy(
        self,
        to: BinaryIO,
        entries: Mapping[str, bytes],
        kinds: Mapping[str, str],
        data: Callable[[Stored], NDArray[Any]],
    ) -> None:
        """Write the file anew.

        Parameters
        ----------
        to : where to
        entries : all entries, as bytes
        kinds : the types of tensors that get another one, by name
        data : the data of a tensor, in its new type
        """
        tensors = list(self.tensors.values())
        alignment = int(self._reader.alignment)
        head = [b"GGUF", struct.pack("<IQQ", int(self.stated("GGUF.version")), len(tensors), len(entries))]
        head += entries.values()
        place, sizes = 0, []
        for each in tensors:
            kind = kinds.get(each.name, each.kind)
            rows = int(np.prod(each.shape[:-1]))
            sizes.append(rows * bytes_of(kind, each.shape[-1]))
            head.append(_text(each.name) + struct.pack("<I", len(each.shape)))
            head.append(struct.pack(f"<{len(each.shape)}Q", *reversed(each.shape)))
            head.append(struct.pack("<IQ", int(type_of(kind)), place))
            place += _padded(sizes[-1], alignment)
        _write_padded(to, head, alignment)
        for each, size in zip(tensors, sizes, strict=True):
            content = np.ascontiguousarray(data(each)).tobytes()
            assert len(content) == size, each.name
            _write_padded(to, [content], alignment)


def text_entry(key: str, value: str) -> bytes:
    """An entry that holds text.

    >>> text_entry("a", "b")
    b'\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00a\\x08\\x00\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00b'
    """
    return _text(key) + struct.pack("<I", STRING) + _text(value)


def number_entry(key: str, value: int) -> bytes:
    """An entry that holds a whole number."""
    return _text(key) + struct.pack("<II", UINT32, value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _write_padded(to: BinaryIO, parts: Iterable[bytes], alignment: int) -> None:
    size = sum(to.write(part) for part in parts)
    to.write(bytes(_padded(size, alignment) - size))
