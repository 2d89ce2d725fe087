"""How are rows and columns of a GGUF tensor multiplied where they lie, quantised or not?

A quantised tensor is made of blocks of values along its rows, 32 or 256 of them. A block stores small whole numbers and
one or two float16 numbers d and m, and every value of it is linear in these: d · q, or d · q + m. So a factor that all
values of a block share multiplies d and m, and nothing is quantised again: only d and m are rounded, by at most 2⁻¹¹ of
their size. A block whose values have different factors must be quantised again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undilute.errors import InvalidValue

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

# Where in a block its float16 numbers lie, in bytes. All values of the block are linear in them.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ1_S": (0,),
}
PLAIN = ("F32", "F16", "BF16")
SMALLEST_NORMAL = 2.0**-14  # of float16: below it, spacing no longer shrinks
COARSEST = 2.0**-8  # the largest error of a tensor's d or m, root mean square, relative to them


@dataclass(frozen=True)
class Values:
    """A tensor as it is written.

    Attributes
    ----------
    data : its bytes, as the gguf package lays them out
    error : the largest rounding error of a value, or of a d or m, relative to it (below float16's smallest normal
        number: relative to that; quantised again: to the largest value of its block)
    """

    data: NDArray[Any]
    error: float = 0.0


def shares_blocks(kind: str, factors: NDArray[np.float64]) -> bool:
    """Whether every block of a row has one factor.

    Parameters
    ----------
    kind : the name of the tensor's type, such as "Q4_1"
    factors : (columns,)

    >>> shares_blocks("Q4_1", np.repeat([1.0, 2.0], 32)), shares_blocks("Q4_K", np.repeat([1.0, 2.0], 128))
    (True, False)
    """
    if kind in PLAIN:
        return True
    blocks = factors.reshape(-1, _sizes(kind)[0])
    return kind in SCALES and bool((blocks == blocks[:, :1]).all())


def multiplied(name: str, data: NDArray[Any], kind: str, factors: NDArray[np.float64]) -> Values:
    """A tensor times factors, in its own type; each block must share one factor.

    Parameters
    ----------
    name : for errors
    data : (rows, columns) or (values,) as the gguf package reads it: bytes if it is quantised
    kind : the name of its type
    factors : for each value, as far as they differ: (rows, 1), (columns,) or (values,)
    """
    if kind in PLAIN:
        return rounded(name, dequantised(name, data, kind).astype(np.float64) * factors, kind)
    size, bytes_per_block = _sizes(kind)
    blocks = data.reshape(*data.shape[:-1], -1, bytes_per_block).copy()
    per_block = factors if factors.shape[-1] == 1 else factors[..., ::size]
    error = 0.0
    for place in SCALES[kind]:
        here = blocks[..., place : place + 2].copy().view(np.float16)[..., 0]
        exact = here.astype(np.float64) * per_block
        new, wrong = _half(name, exact)
        blocks[..., place : place + 2] = new[..., None].view(np.uint8)
        error = max(error, wrong)
    return Values(blocks.reshape(data.shape), error)


def dequantised(name: str, data: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """A tensor's values in float32."""
    from gguf import dequantize

    try:
        return np.asarray(dequantize(data, type_of(kind)), np.float32)
    except NotImplementedError:
        raise InvalidValue(
            f"the tensor {name!r} is stored as {kind}, which the gguf package cannot dequantise; use a file with "
            "another quantisation."
        ) from None


def rounded(name: str, values: NDArray[Any], kind: str) -> Values:
    """Values as a tensor of a type: F32, F16, BF16 or Q8_0."""
    from gguf import quants

    if kind == "F16":
        return Values(*_half(name, values.astype(np.float64)))
    if kind == "Q8_0" and values.shape[-1] % 32:
        raise InvalidValue(
            f"the tensor {name!r} has rows of {values.shape[-1]:,} values: Q8_0 needs a multiple of 32; write F16."
        )
    single = values.astype(np.float32)
    if not np.isfinite(single).all():
        raise InvalidValue(f"the tensor {name!r} overflows with these factors: use smaller ones.")
    data = np.asarray(quants.quantize(single, type_of(kind)))
    if kind == "F32":
        return Values(data)
    wrong = np.abs(dequantised(name, data, kind) - single)
    base = np.abs(single)
    if kind == "Q8_0":
        blocks = base.reshape(*base.shape[:-1], -1, 32)
        base = np.broadcast_to(blocks.max(-1, keepdims=True), blocks.shape).reshape(base.shape)
    return Values(data, float(np.divide(wrong, base, out=np.zeros_like(base), where=base > 0).max(initial=0.0)))


def type_of(kind: str) -> GGMLQuantizationType:
    """The gguf package's own constant."""
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType[kind]


def bytes_of(kind: str, columns: int) -> int:
    """Bytes of a row.

    >>> bytes_of("Q4_1", 64), bytes_of("F16", 10)
    (40, 20)
    """
    size, bytes_per_block = _sizes(kind)
    return columns // size * bytes_per_block


def _sizes(kind: str) -> tuple[int, int]:
    """Values, and bytes, of a block."""
    from gguf import GGML_QUANT_SIZES

    return GGML_QUANT_SIZES[type_of(kind)]


def _half(name: str, exact: NDArray[np.float64]) -> tuple[NDArray[np.float16], float]:
    """Numbers in float16 and the largest relative error; refused if they overflow or lose what they say."""
    with np.errstate(over="ignore", under="ignore"):
        new = exact.astype(np.float16)
    wrong = np.abs(new.astype(np.float64) - exact)
    too_much = not np.isfinite(new).all()
    if too_much or np.sqrt((wrong**2).sum()) > COARSEST * np.sqrt((exact**2).sum()):
        raise InvalidValue(
            f"the tensor {name!r} times its factors is too {'large' if too_much else 'small'} for float16: write F32, "
            "or use factors nearer to 1."
        )
    return new, float((wrong / np.maximum(np.abs(exact), SMALLEST_NORMAL)).max(initial=0.0))
