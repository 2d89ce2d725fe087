"""What is a GGUF file whose heads are scaled?  The file a model came from, with a few numbers multiplied.

Metadata, tokenizer, chat template and all other tensors stay byte for byte. A factor on a head multiplies the scales of
its quantised blocks (``undilute.exporting.gguf_blocks``), so weights are not quantised again; where a block holds
several heads with different factors, the tensor is written as Q8_0, or F16 where Q8_0 does not fit, and the result
says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undilute import files
from undilute.errors import InvalidValue
from undilute.exporting import gguf_blocks as blocks
from undilute.exporting.factors import Factors
from undilute.exporting.gguf_container import Container, Stored, number_entry, text_entry
from undilute.exporting.gguf_heads import INSTEAD, scaled_tensors

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7}  # what can be asked for, and GGUF's numbers of them
# Matrices that are quantised as a rule; others in float32, such as the routers of experts, are meant to stay so.
MATRICES = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_")
NUMBERS = ("F32", "F64", "I8", "I16", "I32", "I64")  # types that are no quantisation
KEPT = ("ffn_gate_inp", "_norm")


@dataclass(frozen=True)
class GgufWritten:
    """A GGUF file that was written, and how exactly it holds the factors.

    Attributes
    ----------
    path : the file
    scaled : the tensors that hold factors
    exact : those of them whose numbers were not rounded, but to float32
    rounded : the largest relative rounding error of the others' numbers, those of quantised blocks included
    requantised : tensors that were quantised again or stored as another type: name → (old type, new type)
    """

    path: Path
    scaled: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    rounded: float = 0.0
    requantised: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """What a reader must know, in sentences."""
        said = [f"{len(self.scaled):,} tensors hold factors; all others are as they were."]
        if self.requantised:
            said[0] = f"{len(self.scaled):,} tensors hold factors."
            by_types: dict[tuple[str, str], int] = {}
            for types in self.requantised.values():
                by_types[types] = by_types.get(types, 0) + 1
            said += [f"{count:,} tensors of type {types[0]} are {types[1]} now." for types, count in by_types.items()]
        if self.rounded:
            said.append(f"The largest relative rounding error of a stored number is {self.rounded:.1e}.")
        return said


def source_of(name: str | Path) -> Path:
    """The GGUF file of a model's name: "smollm2", a ``.gguf`` file, or a folder that holds one.

    >>> source_of("./no-such-model.gguf")
    Traceback (most recent call last):
    undilute.errors.InvalidValue: there is no file or folder './no-such-model.gguf'; check the path.
    """
    from undilute.models.loading import gguf_of

    if (found := gguf_of(name)) is None:
        raise InvalidValue(f"the model {str(name)!r} is no GGUF file, so there is none to copy: {INSTEAD}.")
    return found


def write(
    source: Path,
    to: Path,
    factors: Sequence[Factors],
    *,
    card: Mapping[str, str] | None = None,
    file_type: str | None = None,
    overwrite: bool = False,
) -> GgufWritten:
    """Copy a GGUF file with the factors of its heads folded in.

    Parameters
    ----------
    source : the GGUF file that the model came from
    to : the file to write
    factors : β and gain of each head, of the layers that have some
    card : entries of text to add or replace, such as {"general.description": "…"}
    file_type : "F32", "F16" or "Q8_0" to write all matrices as that; by default every tensor keeps its type
    overwrite : may ``to`` be there already?
    """
    _check_place(Path(source), Path(to), overwrite)
    if file_type is not None and file_type not in FILE_TYPES:
        raise InvalidValue(f"file type {file_type!r}: must be one of {', '.join(FILE_TYPES)}, or None to keep types.")
    container = Container(Path(source))
    scaled = scaled_tensors(container, factors)
    kinds = {
        name: kind
        for name, stored in container.tensors.items()
        if (kind := _kind(stored, scaled.get(name), file_type)) != stored.kind
    }
    errors: dict[str, float] = {}
    again: dict[str, tuple[str, str]] = {}

    def data(stored: Stored) -> NDArray[Any]:
        kind = kinds.get(stored.name, stored.kind)
        return _data(stored, kind, scaled.get(stored.name), errors, again)

    entries = _entries(container, card or {}, file_type)
    with files.replacing(Path(to)) as file:
        container.copy(file, entries, kinds, data)
    exact = tuple(name for name in scaled if not errors.get(name))
    return GgufWritten(Path(to), tuple(scaled), exact, max(errors.values(), default=0.0), again)


def _check_place(source: Path, to: Path, overwrite: bool) -> None:
    if to.suffix != ".gguf":
        raise InvalidValue(f"{str(to)!r} is no name of a GGUF file: it must end in .gguf.")
    if to.exists() and os.path.samefile(source, to):
        raise InvalidValue(f"{str(to)!r} is the file that is read: choose another name.")
    if to.exists() and not overwrite:
        raise InvalidValue(f"{str(to)!r} is there already: choose another name, or allow to overwrite it.")
    files.check_writable(to, read=[source])


def _kind(stored: Stored, factors: NDArray[np.float64] | None, file_type: str | None) -> str:
    """The type in which a tensor is written."""
    if file_type is not None and _is_converted(stored, file_type):
        return file_type
    if factors is None or len(stored.shape) == 1 or _in_place(stored, factors):
        return stored.kind
    return "F16" if stored.shape[-1] % 32 else "Q8_0"


def _is_converted(stored: Stored, file_type: str) -> bool:
    if file_type == "F32":
        return stored.kind not in NUMBERS
    part = stored.name.split(".")[2 if stored.name.startswith("blk.") else 0]
    is_matrix = len(stored.shape) > 1 and part.startswith(MATRICES) and not any(each in part for each in KEPT)
    return is_matrix if stored.kind in (*NUMBERS, *blocks.PLAIN) else len(stored.shape) > 1


def _in_place(stored: Stored, factors: NDArray[np.float64]) -> bool:
    """Can the factors multiply the tensor's numbers where they lie?"""
    if factors.shape[-1] == 1:
        return stored.kind in (*blocks.PLAIN, *blocks.SCALES)
    return blocks.shares_blocks(stored.kind, factors)


def _data(
    stored: Stored,
    kind: str,
    factors: NDArray[np.float64] | None,
    errors: dict[str, float],
    again: dict[str, tuple[str, str]],
) -> NDArray[Any]:
    """A tensor's data in its new type; its rounding error, and the types if it was made anew, are noted."""
    if kind == stored.kind and factors is None:
        return stored.data
    if factors is not None and kind == stored.kind and _in_place(stored, factors):
        made = blocks.multiplied(stored.name, stored.data, kind, factors)
    else:
        values = blocks.dequantised(stored.name, stored.data, stored.kind).astype(np.float64)
        made = blocks.rounded(stored.name, values if factors is None else values * factors, kind)
        again[stored.name] = (stored.kind, kind)
    if made.error:
        errors[stored.name] = made.error
    return made.data


def _entries(container: Container, card: Mapping[str, str], file_type: str | None) -> dict[str, bytes]:
    """All entries: those of the source, but for the card's and the type of the file."""
    entries = container.entries
    for key, value in card.items():
        if not isinstance(container.stated(key, ""), str) or key == "general.architecture":
            raise InvalidValue(f"the entry {key!r} of the card is no text in a GGUF file: choose another key.")
        entries[key] = text_entry(key, value)
    if file_type is not None:
        entries["general.file_type"] = number_entry("general.file_type", FILE_TYPES[file_type])
        if file_type == "Q8_0":
            entries.setdefault("general.quantization_version", number_entry("general.quantization_version", 2))
    return entries
