"""Files that are either complete or not there: written beside their place, then renamed into it."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from undilute.errors import InvalidValue


def write(path: Path, content: str | bytes) -> Path:
    """Write ``content`` to ``path`` atomically, making its folder if needed."""
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidValue(f"cannot write {str(path)!r}: {error.strerror}; choose a folder you may write to.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def check_writable(path: Path) -> None:
    """Say before the work, not after it, that ``path`` cannot be written."""
    folder = next(each for each in path.absolute().parents if each.exists())
    reason = None
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"{str(folder)!r} is a file"
    elif not os.access(folder, os.W_OK):
        reason = "no permission"
    if reason is not None:
        raise InvalidValue(f"cannot write {str(path)!r}: {reason}; choose a file in a folder you may write to.")


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of equal keys as CSV with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
