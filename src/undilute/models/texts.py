"""Which text does a model read?  The user's files, prose that every CPython ships, or token ids that it knows.

The first half of a text may be learned from; the second only judges.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute import files
from undilute.errors import InvalidValue
from undilute.models.forward_pass import check_reads_tokens
from undilute.models.limits import readable_length
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HINT = "give a text file that exists"
SHORTEST_LENGTH = 64  # below two octaves of n there is no curve to fit
CHARACTERS = 8  # of text for a token, generously, before a whole book is tokenised
PATTERN = frozenset("*?[")
BOM = "\ufeff"  # what some editors put before a text
IN_FOLDERS = (".txt", ".md", ".rst", ".tex", ".html", ".py", ".json", ".csv", ".log")  # what a folder is searched for
SOURCE = ("argparse.py", "inspect.py", "tarfile.py", "typing.py")
DOCSTRINGS = (
    "_pydecimal.py",
    "difflib.py",
    "doctest.py",
    "statistics.py",
    "fractions.py",
    "random.py",
    "logging",
    "email",
)


def shipped() -> str:
    """CPython's own reference topics, about 700 KB of English prose on the language: no download, no licence question.

    Examples
    --------
    >>> len(shipped()) > 400_000
    True
    """
    from pydoc_data import topics

    return "\n\n".join(topics.topics.values())


def shipped_texts() -> dict[str, str]:
    """Three texts that every CPython ships: its reference topics, source code, and the docstrings of other modules.

    Where its library is not there as source (in a zip file, say), only the topics are left.

    Examples
    --------
    >>> all(len(text) > 100_000 for text in shipped_texts().values())
    True
    """
    return dict(_shipped(Path(sysconfig.get_paths()["stdlib"])))


@cache
def _shipped(library: Path) -> Mapping[str, str]:
    """The same, read once."""
    files_of = {name: _modules(library, modules) for name, modules in (("source", SOURCE), ("docstrings", DOCSTRINGS))}
    found = {"manual": shipped()}
    if all(files_of.values()):
        found["source"] = "\n\n".join(files_of["source"])
        found["docstrings"] = "\n\n".join(text for source in files_of["docstrings"] for text in _docstrings(source))
    return MappingProxyType(found)


def _modules(library: Path, names: Sequence[str]) -> list[str]:
    """The source of modules and packages, where all of them can be read."""
    paths = [
        path for name in names for path in ([library / name] if "." in name else sorted((library / name).glob("*.py")))
    ]
    try:
        return [path.read_text(encoding="utf-8") for path in paths]
    except OSError:
        return []


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


def read_each(paths: Sequence[Path]) -> dict[str, str]:
    """Texts by name: of files, of folders with text files, of patterns such as ``notes/*.md``; or those shipped.

    A pattern usually comes expanded from the shell; one that does not (in quotes, or on Windows) is expanded here. A
    file that is meant twice is read once. What is hidden or empty in a folder is passed over.
    """
    if not paths:
        return shipped_texts()
    found: dict[str, str] = {}
    seen: set[str] = set()
    for given in paths:
        is_folder, any_text = os.path.isdir(given), False
        for path in meant(given):
            place = os.path.realpath(path) if os.path.exists(path) else str(path)
            if place not in seen:
                text = files.read_text(path, HINT) if is_folder else read([path])
                if not text.strip():
                    continue
                found[str(path)] = text
            seen.add(place)
            any_text = True
        if not any_text:
            raise InvalidValue(f"{str(given)!r} holds no text file ({', '.join(IN_FOLDERS)}): name the files to read.")
    return found


def meant(path: Path) -> list[Path]:
    """The files that a path means: itself, those in a folder, or those that match a pattern."""
    if os.path.isdir(path):
        return _inside(path)
    if PATTERN & set(str(path)) and not os.path.exists(path):
        matching = sorted(map(Path, glob.glob(str(path), recursive=True)))
        if found := [file for each in matching for file in (_inside(each) if each.is_dir() else [each])]:
            return found
        raise InvalidValue(f"no file matches {str(path)!r}: {HINT}.")
    return [path]


def _inside(folder: Path) -> list[Path]:
    """The text files of a folder and of those in it, in order."""
    found: list[Path] = []
    for here, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        shown = [Path(here, name) for name in names if not name.startswith(".")]
        found += [each for each in shown if each.suffix.lower() in IN_FOLDERS and os.path.isfile(each)]
    return sorted(found)


def read(paths: Sequence[Path]) -> str:
    """The text of these files, one after another; the shipped one if there are none."""
    text = "\n\n".join(files.read_text(path, HINT) for path in paths) if paths else shipped()
    if not text.strip():
        raise InvalidValue(f"{', '.join(map(str, paths))}: no text in it; give a file with text to read.")
    return text


def known_tokens(ids: Tensor, model: PreTrainedModel, name: str = "text") -> Tensor:
    """Token ids as they are; an error unless they are one sequence of tokens that the model has embeddings for.

    Parameters
    ----------
    ids : (tokens,) whole numbers
    model : a Hugging Face model
    name : what an error calls them

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> known_tokens(torch.tensor([0, 8]), GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9)))
    tensor([0, 8])
    """
    if ids.ndim != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InvalidValue(
            f"{name} has shape {tuple(ids.shape)} and dtype {ids.dtype}: token ids must be one sequence of whole "
            "numbers, (tokens,)."
        )
    check_reads_tokens(model)
    embeddings: Any = model.get_input_embeddings()
    known = int(embeddings.num_embeddings)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < known:
        raise InvalidValue(
            f"{name} holds token ids from {int(ids.min())} to {int(ids.max())}: {type(model).__name__} knows 0 to "
            f"{known - 1}."
        )
    return ids


# ---------------------------------------------------------------- tokens of a text


def halves(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids for calibration, and token ids that it never sees.

    Examples
    --------
    >>> halves(torch.arange(5))
    (tensor([0, 1]), tensor([2, 3, 4]))
    """
    half = len(ids) // 2
    return ids[:half], ids[half:]


def tokenised(tokenizer: PreTrainedTokenizerBase | None, text: str | Tensor, name: str = "text") -> Tensor:
    """All token ids of a text, (tokens,), without special tokens; token ids are returned as they are.

    Parameters
    ----------
    tokenizer : of the model; None if there are token ids
    text : what to read; a byte order mark before it is none of its tokens
    name : what an error calls it
    """
    if isinstance(text, Tensor):
        return text
    if not isinstance(text, str):
        raise InvalidValue(f"{name} is a {type(text).__name__}: must be text, or token ids in a tensor.")
    if tokenizer is None:
        raise InvalidValue("tokenizer = None: it is needed to read text; give one, or token ids.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(
            f"{name} holds half a character, {text[error.start]!r} at {error.start:,}: must be text in Unicode."
        ) from None
    return torch.tensor(encoded(tokenizer, text.removeprefix(BOM)), dtype=torch.int64)


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text, without any that the tokenizer puts around it."""
    found: Any = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
    return [int(token) for token in found["input_ids"]]


def beginning(tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """The tokens that the tokenizer puts before every text, such as a beginning-of-sequence mark; usually one or none.

    Models that were trained with it do badly without. There are none if there is no tokenizer.
    """
    return _around(tokenizer)[0]


def ending(tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """The tokens that the tokenizer puts after every text, such as an encoder's separator; usually one or none."""
    return _around(tokenizer)[1]


def _around(tokenizer: PreTrainedTokenizerBase | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if tokenizer is None:
        return (), ()
    plain = encoded(tokenizer, "a")
    marked: list[int] = tokenizer("a")["input_ids"]
    for number in range(len(marked) - len(plain) + 1):
        if marked[number : number + len(plain)] == plain:
            return tuple(marked[:number]), tuple(marked[number + len(plain) :])
    return (), ()


def fingerprint(ids: Tensor) -> str:
    """What a plan keeps of the text that it was fitted to: enough to know it again."""
    return hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()


def windows(ids: Tensor, length: int, number: int, what: str, *, start: tuple[int, ...] = ()) -> Tensor:
    """Up to ``number`` windows of ``length`` tokens each, evenly spread and apart: (windows, length).

    Parameters
    ----------
    ids : (tokens,)
    length, number : of the windows; fewer if there are not enough tokens, at least one
    what : these tokens in words, for the error if there is not even one
    start : tokens that begin every window and are part of its length, from :func:`beginning`

    Examples
    --------
    >>> windows(torch.arange(10), 3, 2, "the text")
    tensor([[0, 1, 2],
            [7, 8, 9]])
    >>> windows(torch.arange(10), 3, 2, "the text", start=(99,))
    tensor([[99,  0,  1],
            [99,  8,  9]])
    """
    own = length - len(start)
    if own < 1:
        raise InvalidValue(f"length = {length}: must be more than the {len(start)} tokens that start every window.")
    if len(ids) < own:
        raise InvalidValue(
            f"{what} has {len(ids):,} tokens: must have at least {own:,}; give a longer text or a smaller length."
        )
    number = min(number, len(ids) // own)
    before = torch.tensor(start, dtype=ids.dtype, device=ids.device)
    places = torch.linspace(0, len(ids) - own, number).round().long().tolist()
    return torch.stack([torch.cat([before, ids[place : place + own]]) for place in places])


def tokens(
    tokenizer: PreTrainedTokenizerBase | None, text: str | Tensor, model: PreTrainedModel, length: int | None
) -> Tensor:
    """The token ids to read: (tokens,)."""
    if length is not None and count("length", length) < SHORTEST_LENGTH:
        raise InvalidValue(
            f"length = {length}: must be at least {SHORTEST_LENGTH} tokens, or there is no curve to fit."
        )
    wanted = readable_length(model, length)
    if not isinstance(text, str | Tensor):
        raise InvalidValue(f"text is a {type(text).__name__}: must be text, or token ids in a tensor.")
    ids = known_tokens(text if isinstance(text, Tensor) else _first_tokens(tokenizer, text, wanted), model)
    if len(ids) < (length or SHORTEST_LENGTH):
        raise InvalidValue(
            f"the text has {len(ids):,} tokens: must be at least {length or SHORTEST_LENGTH:,}; give a longer text"
            + (" or a smaller length." if length else ".")
        )
    return ids[:wanted]


def _first_tokens(tokenizer: PreTrainedTokenizerBase | None, text: str, wanted: int) -> Tensor:
    if tokenizer is None:
        raise InvalidValue("tokenizer = None: it is needed to read text; give one, or token ids.")
    if not text.strip():
        raise InvalidValue("the text is empty: give some text to read.")
    ids = _encode(tokenizer, text[: wanted * CHARACTERS])
    if len(ids) < wanted and len(text) > wanted * CHARACTERS:
        ids = _encode(tokenizer, text)
    return ids


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    encoded: Any = tokenizer(text, return_tensors="pt", truncation=False, verbose=False)
    ids: Tensor = encoded["input_ids"][0]
    return ids
