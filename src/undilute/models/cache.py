"""Which folder holds what was made of this file, and is it still sound?

Unpacking a model takes half a minute, so the result is kept in the user's cache: one folder per source file, named
after its stem and the SHA-256 of its content, with a manifest that lists the size and SHA-256 of every file inside.
A folder whose manifest does not match, or has another format, is made again. Folders are built next to their place and
renamed into it, so that a reader never sees half of one, even if another process is building it at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from undilute.errors import InvalidValue, MissingExtra

FORMAT = 1  # raise it when the content of a folder changes meaning: older folders are then made anew
MANIFEST = "manifest.json"


def directory() -> Path:
    """Where cached folders live: ``$UNDILUTE_CACHE``, or else the user's cache directory."""
    if chosen := os.environ.get("UNDILUTE_CACHE"):
        return Path(chosen).expanduser()
    try:
        import platformdirs
    except ImportError:
        raise MissingExtra("platformdirs", "models") from None
    return Path(platformdirs.user_cache_dir("undilute", appauthor=False))


def folder_for(source: Path, build: Callable[[Path], None]) -> Path:
    """The sound cached folder made of ``source``; ``build(folder)`` fills an empty one if there is none."""
    origin = _fingerprint(source)
    target = directory() / f"{source.stem}-{origin['sha256'][:12]}"
    if not is_sound(target, origin):
        try:
            _make(target, origin, build)
        except OSError as error:
            raise InvalidValue(
                f"cannot keep the unpacked model in {str(target.parent)!r}: {error.strerror or error}; "
                "set UNDILUTE_CACHE to a folder with room that you may write to, or load without the cache."
            ) from None
    return target


def is_sound(folder: Path, origin: dict[str, Any]) -> bool:
    """Whether ``folder`` was made of ``origin`` in today's format and every file in it is as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return (
            manifest["format"] == FORMAT
            and manifest["source"] == origin
            and all((folder / name).stat().st_size == stated["size"] for name, stated in manifest["files"].items())
            and all(_fingerprint(folder / name) == stated for name, stated in manifest["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def _make(target: Path, origin: dict[str, Any], build: Callable[[Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        fresh = temporary / "fresh"
        fresh.mkdir()
        build(fresh)
        files = {path.name: _fingerprint(path) for path in sorted(fresh.iterdir())}
        manifest = {"format": FORMAT, "source": origin, "files": files}
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1))
        _put(fresh, target, origin, aside=temporary / "replaced")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(fresh: Path, target: Path, origin: dict[str, Any], *, aside: Path) -> None:
    """Rename ``fresh`` to ``target``, unless another process has put a sound folder there meanwhile."""
    if target.exists() and not is_sound(target, origin):
        with contextlib.suppress(FileNotFoundError):  # another process was faster to move it away
            target.rename(aside)
    try:
        fresh.rename(target)
    except OSError:
        if not is_sound(target, origin):
            raise
