"""What is written in a picture?  Numbers as people write them, those that stand on an axis, and text for any font."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label(value: float, digits: int = 4) -> str:
    """A number as people write it.

    Examples
    --------
    >>> label(1024), label(0.25), label(-1.5), label(0.0000032), label(1e-6), label(12_345_678.9)
    ('1,024', '0.25', '−1.5', '3.2·10⁻⁶', '10⁻⁶', '1.235·10⁷')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    sign, size = "−" if value < 0 else "", abs(value)
    mantissa, _, power = f"{size:.{digits - 1}e}".partition("e")
    exponent, whole = int(power), float(size).is_integer()
    if -4 <= exponent < 7 or (whole and exponent < 10):
        decimals = 0 if whole else max(0, digits - 1 - exponent)
        text = f"{size:,.{decimals}f}"
        return sign + (text.rstrip("0").rstrip(".") if "." in text else text)
    ten = "10" + str(exponent).translate(SUPERSCRIPTS)
    mantissa = mantissa.rstrip("0").rstrip(".")
    return sign + (ten if mantissa == "1" else f"{mantissa}·{ten}")


def ticks(values: Sequence[float], base: int, measured: Sequence[float] = ()) -> list[float]:
    """Where to put numbers on a logarithmic axis: at what was measured if that is little, else at powers.

    Examples
    --------
    >>> ticks([16, 16384], 2), ticks([30, 400], 10), ticks([1, 100], 10, measured=[1, 5, 10, 20, 100])
    ([16, 64, 256, 1024, 4096, 16384], [50, 100, 200], [1, 5, 10, 20, 100])
    """
    low, high = min(values), max(values)
    across = math.log(high / low)
    own = sorted(set(measured))
    if 1 < len(own) <= 9 and all(math.log(after / before) > across / 14 for before, after in pairwise(own)):
        return own
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    if last - first >= 2:
        step = -(-(last - first + 1) // 8)
        return [float(base) ** k if k < 0 else base**k for k in range(first, last + 1, step)]
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    nice = [m * 10.0**k if k < 0 else m * 10**k for k in decades for m in (1, 2, 5)]
    inside = [each for each in nice if low * (1 - 1e-9) <= each <= high * (1 + 1e-9)]
    return inside if len(inside) > 1 else sorted({low, high})


def writable(text: str) -> str:
    """Text that a font can be asked for: without control characters and halves of characters."""
    return "".join(mark if mark.isprintable() or mark == " " else "\ufffd" for mark in text)
