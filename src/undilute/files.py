"""How are files written and read so that none is half-written, replaced by mistake, or waited for forever?

A file is written next to its place and renamed into it, so it is either complete or unchanged. Several files are
written together: all or none. Links are followed. A device or a pipe is written to, never replaced by a file.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from undilute.errors import InvalidValue

LARGEST = 2**30  # bytes of text that are read
STREAMS = (stat.S_ISFIFO, stat.S_ISCHR, stat.S_ISBLK)  # what is opened and written to


# ---------------------------------------------------------------- writing


def write(path: Path, content: str | bytes) -> Path:
    """Write ``content`` to ``path`` atomically, making its folder if needed."""
    return write_all({path: content})[0]


def write_all(contents: Mapping[Path, str | bytes]) -> list[Path]:
    """Write every file, or none if one of them cannot be written: neither a file nor a folder is left of it then.

    A file that is there keeps its permissions. In text, what UTF-8 cannot hold (a half of a character, as in file names
    of other encodings) becomes a question mark.
    """
    check_writable(*contents)
    made: list[Path] = []  # folders and temporary files, in the order of their making
    try:
        staged, streams = [], []
        for path, content in contents.items():
            data = content.encode(errors="replace") if isinstance(content, str) else content
            with _explained(path):
                target = _target(path)
                if target.exists() and not target.is_file():
                    streams.append((path, data))
                else:
                    staged.append((path, _staged(target, data, made), target))
        for path, data in streams:  # before anything is renamed, which does not fail any more
            with _explained(path):
                path.write_bytes(data)
        for path, temporary, target in staged:
            with _explained(path):
                os.replace(temporary, target)
    except BaseException:
        _remove(made)
        raise
    return list(contents)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` once all is written; if that fails, nothing is left of it.

    For what is too large to be held in memory; :func:`write` does the rest.
    """
    check_writable(path)
    made: list[Path] = []
    try:
        with _explained(path):
            target = _target(path)
            if target.exists() and not target.is_file():
                raise InvalidValue(f"cannot write {str(path)!r}: it is a pipe or a device; choose a file.")
            with _staged(target, b"", made).open("r+b") as file:
                yield file
            os.replace(made[-1], target)
    except BaseException:
        _remove(made)
        raise


def check_writable(*paths: Path, read: Iterable[Path] = ()) -> None:
    """Say before the work, not after it, what cannot be written.

    Parameters
    ----------
    paths : files that are to be written; no two of them may be one
    read : files that the work reads, and that must stay as they are
    """
    given: dict[Path, Path] = {}
    for path in paths:
        with _explained(path):
            target = _target(path)
            reason = _obstacle(target)
        if reason is not None:
            raise InvalidValue(f"cannot write {str(path)!r}: {reason}; choose a file in a folder you may write to.")
        if target in given:
            raise InvalidValue(
                f"two outputs are the same file, {str(given[target])!r} and {str(path)!r}: give each its own."
            )
        given[target] = path
    for path in read:
        both = None
        with suppress(OSError, ValueError):  # reading it will say what is wrong with it
            both = given.get(_target(path))
        if both is not None and both.is_file():
            raise InvalidValue(f"cannot write {str(both)!r}: this command reads it; choose another file.")
    for target, path in given.items():
        if inside := [given[parent] for parent in target.parents if parent in given]:
            raise InvalidValue(
                f"cannot write {str(path)!r}: {str(inside[0])!r} must be a file, not a folder; choose other names."
            )


def _target(path: Path) -> Path:
    """The file that ``path`` means: links are followed, but for those to pipes and devices, which may have no name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(path.stat().st_mode):
            return path.absolute()
    return Path(os.path.realpath(path))


def _obstacle(target: Path) -> str | None:
    """Why ``target`` cannot be written, as far as that can be said without opening it; raises what the system says."""
    there = next(each for each in (target, *target.parents) if each.exists())
    mode = there.stat().st_mode
    if there != target:
        if not stat.S_ISDIR(mode):
            return f"{str(there)!r} is a file"
        for part in target.relative_to(there).parts:
            with suppress(FileNotFoundError):
                os.lstat(there / part)  # fails if the name is too long
        _try_out(there)
        return None
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not stat.S_ISREG(mode) and not any(is_kind(mode) for is_kind in STREAMS):
        return "it is neither a file nor a pipe nor a device"
    if stat.S_ISREG(mode):
        _try_out(target.parent)
    return None if os.access(target, os.W_OK) else "no permission"


def _try_out(folder: Path) -> None:
    """Make a file in ``folder`` and remove it: permissions do not say everything, as on a disk that is read-only."""
    made = _unused(folder / "it")
    made.touch(exist_ok=False)
    made.unlink()


def _unused(target: Path) -> Path:
    """A name in the folder of ``target`` that nobody has."""
    return target.parent / f".undilute-{secrets.token_hex(8)}"


def _staged(target: Path, data: bytes, made: list[Path]) -> Path:
    """A temporary file next to ``target`` with its content; it and the folders that it needs are added to ``made``."""
    for folder in reversed([each for each in target.parents if not each.exists()]):
        with suppress(FileExistsError):  # somebody else was faster
            folder.mkdir()
            made.append(folder)
    temporary = _unused(target)
    made.append(temporary)
    with temporary.open("xb") as file:
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        file.write(data)
    return temporary


def _remove(made: Sequence[Path]) -> None:
    for left in reversed(made):
        with suppress(OSError):  # in its place by now, or no longer empty
            if left.is_dir():
                left.rmdir()
            else:
                left.unlink()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say in a sentence why ``path`` cannot be written."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(
            f"cannot write {str(path)!r}: {why(error)}; choose a file in a folder you may write to, with room for it."
        ) from None


def why(error: OSError | ValueError) -> str:
    """What went wrong with a file, in the system's words.

    >>> why(OSError(28, "No space left on device")), why(ValueError("embedded null byte"))
    ('No space left on device', 'embedded null byte')
    """
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of equal keys as CSV with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# ---------------------------------------------------------------- reading


def read_text(path: Path, hint: str, kind: str = "") -> str:
    """The text of a file or a pipe, which must end: devices are refused, and whatever is larger than 1 GB.

    A byte order mark, which some editors put before a text, is no part of it.

    Parameters
    ----------
    path : what to read
    hint : what to give instead, for an error
    kind : what it should be, such as "the plan "
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise InvalidValue(f"cannot read {kind}{str(path)!r}: it is neither a file nor a pipe; {hint}.")
        data = bytearray()
        with path.open("rb") as file:
            while len(data) <= LARGEST and (part := file.read(2**20)):
                data += part
        if len(data) > LARGEST:
            raise InvalidValue(f"cannot read {kind}{str(path)!r}: it is larger than {LARGEST:,} bytes; {hint}.")
        return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InvalidValue(
            f"cannot read {kind}{str(path)!r}: it is not text in UTF-8 (byte {error.start:,}); {hint}."
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(f"cannot read {kind}{str(path)!r}: {why(error)}; {hint}.") from None
