"""Which text does a model read?  The user's files, or prose that every CPython ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from undilute.errors import InvalidValue


def shipped() -> str:
    """CPython's own reference topics, about 700 KB of English prose on the language: no download, no licence question.

    Examples
    --------
    >>> len(shipped()) > 400_000
    True
    """
    from pydoc_data import topics

    return "\n\n".join(topics.topics.values())


def read(paths: Sequence[Path]) -> str:
    """The text of these files, one after another; the shipped one if there are none."""
    text = "\n\n".join(_read(path) for path in paths) if paths else shipped()
    if not text.strip():
        raise InvalidValue(f"{', '.join(map(str, paths))}: there is no text in it; give a file with text to read.")
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValue(
            f"{str(path)!r} is not text in UTF-8 (byte {error.start:,}); convert it, or give another file."
        ) from None
    except OSError as error:
        raise InvalidValue(f"cannot read {str(path)!r}: {error.strerror}; give a text file that exists.") from None
