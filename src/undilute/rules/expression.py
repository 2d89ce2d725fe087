"""How is a rule typed?  By its name, with parameters in brackets if they are not the preset's own.

    llama4(beta=0.331, floor_length=1025)
    top-k(8)
    ssmax(s=[0.3, 0.4]) | entmax15

Arguments are written as in Python: by name or in order; numbers, texts, True, False, None, and lists of these. A list
of numbers is one value per head. ``|`` joins the scale of one rule and the map of another. Nothing is evaluated: the
text is read as a syntax tree, and anything but such values is refused.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from undilute.errors import InvalidValue
from undilute.rules.parameters import shown

LONGEST = 20_000  # characters: a value per head for a thousand heads
EXAMPLE = "llama4(beta=0.331, floor_length=1025)"
WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "inf": math.inf, "nan": math.nan}
UNREADABLE = (SyntaxError, ValueError, MemoryError, RecursionError)  # what ast.parse raises for hostile text


@dataclass(frozen=True)
class Call:
    """A rule as it was typed, its name, and what stands in its brackets; lists are tuples."""

    text: str
    name: str
    values: tuple[Any, ...]
    named: Mapping[str, Any]


def split_names(text: str) -> list[str]:
    """The rules, or files of plans, in a list separated by commas; commas inside brackets separate nothing.

    Examples
    --------
    >>> split_names("softmax, llama4(beta=0.3, floor_length=9), plan.json")
    ['softmax', 'llama4(beta=0.3, floor_length=9)', 'plan.json']
    """
    return [name for _, piece in _pieces(text, ",") if (name := piece.strip())]


def parse(text: str) -> tuple[Call, ...]:
    """The calls in an expression, those left of ``|`` first.

    Examples
    --------
    >>> for call in parse("ssmax(s=[0.3, -4]) | top-k(8)"):
    ...     print(call.name, call.values, call.named)
    ssmax () {'s': (0.3, -4)}
    top-k (8,) {}
    """
    if len(text) > LONGEST:
        raise InvalidValue(f"rule = {shown(text)}: must be at most {LONGEST:,} characters, such as {EXAMPLE!r}.")
    plain = re.sub(r"\s", " ", text)
    return tuple(_call(text, start, piece) for start, piece in _pieces(plain, "|"))


def literal(value: Any) -> str:
    """A value as it is typed.

    Examples
    --------
    >>> literal([0.25, 1025.0, None])
    '[0.25, 1025, None]'
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _pieces(text: str, separator: str) -> Iterator[tuple[int, str]]:
    """What stands between separators that are in no bracket, each with its place."""
    depth, start, quote = 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif depth > 0 and letter in "'\"":
            quote = letter
        elif depth <= 0 and letter == separator:
            yield start, text[start:place]
            start = place + 1
    yield start, text[start:]


def _call(text: str, start: int, piece: str) -> Call:
    name, bracket, rest = piece.partition("(")
    if not bracket:
        return Call(piece.strip(), name.strip(), (), {})
    source = f"_({rest.rstrip()}"
    offset = start + len(name) - 1  # of a place in the source to one in the text
    try:
        tree = ast.parse(source, mode="eval").body
    except UNREADABLE as error:
        place = error.offset if isinstance(error, SyntaxError) else None
        raise _unreadable(text, offset + (place or 2) - 1) from None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise _unreadable(text, offset + 1)
    if (end := _letters(source, tree.end_col_offset)) < len(source):
        raise _unreadable(text, offset + end)

    def value(node: ast.expr) -> Any:
        return _value(node, lambda bad: _unreadable(text, offset + _letters(source, bad.col_offset)))

    named: dict[str, Any] = {}
    for each in tree.keywords:
        if each.arg is None:
            raise _unreadable(text, offset + _letters(source, each.value.col_offset))
        if each.arg in named:
            raise InvalidValue(f"rule {shown(text)} gives {each.arg!r} twice: give it once, as in {EXAMPLE!r}.")
        named[each.arg] = value(each.value)
    return Call(piece.strip(), name.strip(), tuple(map(value, tree.args)), named)


def _value(node: ast.expr, refusal: Any) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=word) if word.lower() in WORDS:
            return WORDS[word.lower()]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant() | ast.Name() as operand):
            value = _value(operand, refusal)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return tuple(_value(part, refusal) for part in parts)
    raise refusal(node)


def _letters(source: str, place: int | None) -> int:
    """A place in the tree, which counts bytes, in letters."""
    return len(source.encode()[:place].decode())


def _unreadable(text: str, place: int) -> InvalidValue:
    place = max(0, min(place, len(text) - 1))
    return InvalidValue(
        f"rule {shown(text)} cannot be read at character {place + 1}, {shown(text[place : place + 12])}: must be a "
        f"name and numbers, texts or lists of these, as in {EXAMPLE!r}."
    )
