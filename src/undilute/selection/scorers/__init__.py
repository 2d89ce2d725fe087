"""Which passages matter for a question?  Scorers by name, one file each, and how to add one.

    @undilute.selection.scorer("longest")
    def longest(subject):
        return Longest()

A scorer is an object with a ``label`` and a method ``scores(questions, passages, kept, on_progress)``. The function
makes one for a model and its tokenizer, which it may ignore. Put it in its own file in this folder, or in a file that
your program imports. If the function takes a second argument, it gets what was typed after a colon
(``embedding:BAAI/bge-small-en``). Names joined by ``+`` are fused (``heads+bm25``).
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from undilute.errors import InvalidValue, UnknownName
from undilute.progress import Progress
from undilute.selection.keeping import Kept
from undilute.selection.passages import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Subject:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Scores:
    """How much each passage matters for one question.

    Attributes
    ----------
    values : (passages,), more is better
    rounds : (passages,), how often a passage was read; those of a later round stand before all others
    read : tokens that a model read to find this out
    floor : a passage that scores no more does not matter; it is kept only if all are such
    """

    values: NDArray[np.float64]
    rounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    read: int = 0
    floor: float = -math.inf

    @property
    def order(self) -> NDArray[np.int64]:
        """The passages' places, best first; of equal ones the first."""
        rounds = self.rounds if len(self.rounds) else np.zeros(len(self.values), dtype=np.int64)
        return np.lexsort((np.arange(len(self.values)), -self.values, -rounds))


@runtime_checkable
class Scorer(Protocol):
    """Anything that says how much passages matter for questions."""

    @property
    def label(self) -> str:
        """What it is called, in tables and charts."""

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        """One for each question.

        Parameters
        ----------
        questions : as the user typed them
        passages : all of them, at least one
        kept : where work on the passages can be kept for further questions
        on_progress : called with (share done, what is being done)
        """


Make = Callable[..., Scorer]
_makers: dict[str, Make] = {}


def scorer(name: str) -> Callable[[Make], Make]:
    """Decorator: make ``name`` a scorer."""
    if "+" in name or "," in name or ":" in name:
        raise InvalidValue(f"scorer name {name!r}: must not contain '+', ',' or ':'.")

    def add(make: Make) -> Make:
        if name in _makers and _makers[name].__module__ != make.__module__:
            raise InvalidValue(f"scorer name {name!r} is taken by {_makers[name].__module__}: choose another.")
        _makers[name] = make
        return make

    return add


def known() -> dict[str, Make]:
    """All scorers by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_makers.items()))


def get(given: Any, subject: Subject) -> Scorer:
    """The scorer that is meant: an object that is one, a name (``name:argument``), or names joined by ``+``."""
    if isinstance(given, Scorer) and not isinstance(given, type):
        return given
    if not isinstance(given, str):
        raise InvalidValue(f"scorer = {given!r}: must be a name such as 'heads' or 'heads+bm25', or a scorer.")
    made: list[Scorer] = [maker(subject, *arguments) for maker, *arguments in check_names(given)]
    if len(made) == 1:
        return made[0]
    from undilute.selection.scorers.fusion import Fusion

    return Fusion(made)


def check_names(text: str) -> list[tuple[Any, ...]]:
    """What makes each scorer of ``a+b:argument``, and with which argument; an error if there is no such scorer."""
    return [_maker(name.strip()) for name in text.split("+")]


def _maker(text: str) -> tuple[Any, ...]:
    name, colon, argument = text.partition(":")
    makers = known()
    if name not in makers:
        raise UnknownName("scorer", name, makers)
    if not colon:
        return (makers[name],)
    if len(inspect.signature(makers[name]).parameters) < 2:
        raise InvalidValue(f"scorer {text!r}: {name} takes nothing after a colon; write {name!r}.")
    if not argument:
        raise InvalidValue(f"scorer {text!r}: must have something after the colon, or no colon.")
    return makers[name], argument
