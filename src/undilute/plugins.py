"""What do installed packages add?  Entry points, found when they are needed, and named when they are broken."""

from __future__ import annotations

import textwrap
import warnings
from importlib.metadata import EntryPoint, entry_points

from undilute.errors import InvalidValue


def points(group: str) -> list[EntryPoint]:
    """The entry points of a group, by name; none of them is loaded."""
    try:
        return sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
    except Exception as error:  # one broken file among all installed packages is enough
        warnings.warn(f"the entry points of installed packages cannot be read: {_short(error)}.", stacklevel=2)
        return []


def broken(point: EntryPoint, error: BaseException) -> InvalidValue:
    """The sentence about a part that cannot be used."""
    package = "?" if point.dist is None else point.dist.name
    return InvalidValue(
        f"{point.name!r} of the package {package!r} cannot be used ({_short(error)}): update or uninstall it."
    )


def _short(error: BaseException) -> str:
    said = str(error) if isinstance(error, InvalidValue) else f"{type(error).__name__}: {error}"
    return textwrap.shorten(said, 240, placeholder=" …").rstrip(".: ")
