"""What if more than one question is asked about the same documents?  They are split once, and read once.

    library = undilute.Library(documents, tokenizer, folder="library")
    undilute.select(model, tokenizer, "Who keeps a heron?", library)
    undilute.select(model, tokenizer, "Where does it sleep?", library)     # only the question is read

What a model made of every group of passages is kept: in memory, and on disk if there is a folder. Another model, or the
same one treated otherwise, has its own. A question that was killed goes on with the groups that are on disk already.

    undilute-library.json    format, size and fingerprint, and the documents
    ….safetensors            keys and values of a group, with a hash of them
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undilute import files
from undilute.errors import InvalidValue
from undilute.models.texts import BOM
from undilute.rules.parameters import count, shown, whole
from undilute.selection.keeping import Folder, Memory
from undilute.selection.passages import SIZE, Documents, named, split
from undilute.selection.select import Shelf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEMORY = 2**30  # bytes
FORMAT = 1
MANIFEST = "undilute-library.json"
UNFINISHED = ".undilute-"  # how files begin that were never renamed into their place
FORGOTTEN = 3600.0  # seconds after which nobody goes on with one


class Library(Shelf):
    """Documents that are asked about more than once: their passages, and what was read of them.

    Parameters
    ----------
    documents : a text, several, or {name: text}
    tokenizer : which counts the tokens of a passage
    folder : where to keep what was read, beyond this process; made if it is not there. Several processes may use it
    size : tokens of a passage, at most
    memory : bytes of what was read that are held in memory

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> words = Tokenizer(models.WordLevel({"?": 0, "the": 1, "cat": 2, ".": 3}, unk_token="?"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> Library({"notes": "The cat. The cat."}, PreTrainedTokenizerFast(tokenizer_object=words), size=4)
    Library(1 document, 2 passages, 6 tokens, in memory)
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: PreTrainedTokenizerBase,
        folder: str | os.PathLike[str] | None = None,
        size: int | None = None,
        *,
        memory: int = MEMORY,
    ) -> None:
        texts = {name: text.lstrip(BOM) for name, text in named(documents).items()}
        self.size = SIZE if size is None else count("size", size)
        whole("memory", memory, 0)
        passages = split(texts, tokenizer, self.size)
        self.folder = None if folder is None else _path(folder)
        if self.folder is not None:
            _claim(self.folder, _Manifest(self.size, texts))
        super().__init__(texts, passages, Memory(memory, None if self.folder is None else Folder(self.folder)))

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase, *, memory: int = MEMORY
    ) -> Library:
        """The library that a folder holds, with its documents."""
        manifest = _manifest(_path(folder))
        if manifest is None:
            raise InvalidValue(
                f"{str(folder)!r} holds no library: give a folder that undilute.Library was given before."
            )
        return cls(manifest.documents, tokenizer, folder, manifest.size, memory=memory)

    @property
    def tokens(self) -> int:
        """Of all documents."""
        return sum(each.tokens for each in self.passages)

    @property
    def size_on_disk(self) -> int:
        """Bytes of all files; 0 without a folder."""
        if self.folder is None:
            return 0
        found = 0
        for file in [self.folder / MANIFEST, *Folder(self.folder).files]:
            with suppress(FileNotFoundError):
                found += file.stat().st_size
        return found

    def __len__(self) -> int:
        """Passages."""
        return len(self.passages)

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"in {str(self.folder)!r}"
        documents = _several(len(self.documents), "document")
        return f"Library({documents}, {_several(len(self), 'passage')}, {_several(self.tokens, 'token')}, {where})"


@dataclass(frozen=True)
class _Manifest:
    """What a folder says of its library."""

    size: int
    documents: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([self.size, *self._pairs]).encode()).hexdigest()

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return [(str(name), text) for name, text in self.documents.items()]

    def __str__(self) -> str:
        first = next(iter(self.documents))
        return (
            f"{_several(len(self.documents), 'document')} from {shown(first)} on, in passages of {self.size:,} tokens "
            f"(fingerprint {self.fingerprint[:8]})"
        )

    def to_json(self) -> str:
        data = {"format": FORMAT, "size": self.size, "fingerprint": self.fingerprint, "documents": self._pairs}
        return json.dumps(data, indent=1)


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _path(folder: Any) -> Path:
    try:
        return Path(folder)
    except TypeError:
        raise InvalidValue(f"folder = {shown(folder)}: must be the name of a folder.") from None


def _claim(folder: Path, ours: _Manifest) -> None:
    """Make the folder that of these documents; an error if it is anything else."""
    there = _manifest(folder)
    if there is None:
        files.write(folder / MANIFEST, ours.to_json())
    elif there.fingerprint != ours.fingerprint:
        raise InvalidValue(
            f"the library in {str(folder)!r} has {there}, and given are {ours}: give another folder, or open it as it "
            "is with Library.open(folder, tokenizer)."
        )
    _clear(folder)


def _manifest(folder: Path) -> _Manifest | None:
    """What the folder holds; None if it is empty or not there, an error if it holds something else."""
    hint = "give a new folder, or one that holds a library"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidValue(f"cannot keep a library in {str(folder)!r}: {files.why(error)}; {hint}.") from None
    if MANIFEST not in names:
        other = sorted(name for name in names if not name.startswith("."))
        if not other:
            return None
        raise InvalidValue(f"{str(folder)!r} holds something else, such as {other[0]!r}: {hint}.")
    data = _data(files.read_text(folder / MANIFEST, hint, "the library "))
    if data.get("format") != FORMAT and isinstance(data.get("format"), int):
        raise InvalidValue(
            f"the library in {str(folder)!r} has format {data['format']}: this version reads format {FORMAT}; {hint}."
        )
    with suppress(ValueError, LookupError, TypeError):
        found = _Manifest(count("size", data["size"]), {str(name): str(text) for name, text in data["documents"]})
        if found.documents and found.fingerprint == data["fingerprint"]:
            return found
    raise InvalidValue(f"the library in {str(folder)!r} is damaged ({MANIFEST}): {hint}.")


def _data(text: str) -> dict[str, Any]:
    """The object that a text in JSON is; empty if it is no such thing."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _clear(folder: Path) -> None:
    """Remove what processes that were killed have left half-written; those of an hour may still be under way."""
    for left in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > FORGOTTEN:
                left.unlink()
