"""Documents that are asked about more than once."""

from __future__ import annotations

from undilute.selection.select import Shelf


class Library(Shelf):
    """Documents, their passages, and what was read of them."""
