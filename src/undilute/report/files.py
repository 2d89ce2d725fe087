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


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of equal keys as CSV with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
