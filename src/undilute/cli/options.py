"""Which options do several commands share, and how are their values read?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from undilute import rules
from undilute.errors import InvalidValue, MissingExtra
from undilute.rules.parameters import count

More = Annotated[list[Path] | None, typer.Argument(help="More text files, as in --text docs/*.txt.")]
Cache = Annotated[bool, typer.Option(help="Keep an unpacked GGUF file for next time.")]
Trust = Annotated[bool, typer.Option(help="Let the model run its own Python code.")]


def whole_numbers(name: str, text: str) -> list[int]:
    """The numbers in an option.

    >>> whole_numbers("--lengths", "512, 1024")
    [512, 1024]
    """
    try:
        return [count(name, int(n)) for n in text.split(",")]
    except ValueError:
        raise InvalidValue(f"{name} = {text!r}: must be whole numbers separated by commas.") from None


def rules_named(text: str) -> dict[str, rules.Rule]:
    """The rules of ``--rules``, by what was typed.

    >>> list(rules_named("ssmax, top-k(k=8)"))
    ['ssmax', 'top-k(k=8)']
    """
    chosen = {name: rules.get(name) for name in rules.split_names(text)}
    if not chosen:
        raise InvalidValue(f"--rules = {text!r}: must name at least one rule, such as ssmax.")
    return chosen


def require(package: str, extra: str) -> None:
    """Say before the work, not after it, that a package is missing."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, extra)
