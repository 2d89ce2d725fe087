"""A table in Markdown: what ``undilute rules --markdown`` prints, and what README and docs hold."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks in its texts cannot break it.

    Examples
    --------
    >>> print(table(["rule", "weights"], [["softpick", "|e^z − 1|"]]))
    | rule | weights |
    | --- | --- |
    | softpick | \\|e^z − 1\\| |
    """
    rows = [list(head), ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
