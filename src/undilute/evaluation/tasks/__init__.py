"""Which questions are asked about a haystack?  Tasks by name, one file each, and how to add one.

    @undilute.evaluation.task("pets", hides={"{name} keeps a {thing}.": 4}, asks="{name} keeps a")
    def pets(words, taken, generator): ...

A task is a function that invents short statements, the needles, and questions about them. Put it in its own file in
this folder, or in a file that your program imports. It then appears in ``evaluate``, ``compare``, tables and charts.
Every task has its own random stream, so adding one does not change the others.
"""

from __future__ import annotations

import importlib
import pkgutil
import string
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from undilute.errors import InvalidValue, UnknownName
from undilute.evaluation.words import Generator, Words

QUESTIONS = 4  # about each haystack
FIELDS = (
    "name",
    "other",
    "kind",
    "favourite",
    "thing",
    "other_name",
    "other_thing",
)  # of a statement: names and words of any length may stand there


@dataclass(frozen=True)
class Asked:
    """A question before it has tokens.

    Attributes
    ----------
    text : a statement that is begun once more: what comes next is the answer
    candidates : the words that could complete it, told apart by ``words``
    right : those of them that are right
    answered_by : places, among the needles, of the statements that say so: one for each word of ``right``
    needs : places of further statements without which the answer cannot be known
    """

    text: str
    candidates: Sequence[str]
    right: Sequence[str]
    answered_by: Sequence[int]
    needs: Sequence[int] = ()


Hidden = tuple[list[str], list[Asked]]  # needles in the order in which they stand, and questions about them
Make = Callable[[Words, Set[str], Generator], Hidden]


@dataclass(frozen=True)
class Task:
    """One kind of question.

    Attributes
    ----------
    name : as it is shown
    make : (words to hide, words that stand in the text already, random numbers) → needles and questions
    hides : statement → how many such needles a haystack holds; says how long a haystack must be
    asks : how its longest question begins
    stream : which random numbers it draws
    usual : whether it is asked where nobody says which
    """

    name: str
    make: Make
    hides: Mapping[str, int]
    asks: str
    stream: int
    usual: bool = True


_tasks: dict[str, Task] = {}


def task(
    name: str, *, hides: Mapping[str, int], asks: str, stream: int | None = None, usual: bool = True
) -> Callable[[Make], Make]:
    """Decorator: make ``name`` a task.

    Parameters
    ----------
    name : as it is shown; must not be taken by another file
    hides : statement → how many such needles a haystack holds. In a statement ``{name}`` and ``{other}`` stand for any
        name, ``{kind}``, ``{favourite}`` and ``{thing}`` for any word of ``undilute.evaluation.words``, and
        ``{other_name}`` and ``{other_thing}`` for those of its other lists; of several statements of one kind, give the
        longest
    asks : how the longest question begins, with the same fields
    stream : which random numbers it draws; by default those that belong to its name
    usual : whether it is asked where nobody says which; otherwise only by name
    """
    for text in (*hides, asks):
        if unknown := {field for _, field, _, _ in string.Formatter().parse(text) if field} - set(FIELDS):
            raise InvalidValue(f"task {name!r}: {text!r} has a field {unknown.pop()!r}: must be {', '.join(FIELDS)}.")

    def add(make: Make) -> Make:
        if name in _tasks and _tasks[name].make.__module__ != make.__module__:
            raise InvalidValue(f"task name {name!r} is taken by {_tasks[name].make.__module__}: choose another.")
        own = QUESTIONS + zlib.crc32(name.encode()) if stream is None else stream
        _tasks[name] = Task(name, make, dict(hides), asks, own, usual)
        return make

    return add


def remove(name: str) -> None:
    """Forget a task."""
    del _tasks[known([name])[0].name]


def known(names: Sequence[str] | None = None) -> list[Task]:
    """The tasks of these names, the usual ones if None; those of this folder first.

    Examples
    --------
    >>> [each.name for each in known()][:4]
    ['single', 'multi-key', 'multi-value', 'tracking']
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    every = sorted(_tasks.values(), key=lambda each: min(each.stream, QUESTIONS))
    if names is None:
        return [each for each in every if each.usual]
    for name in names:
        if name not in _tasks:
            raise UnknownName("task", name, _tasks)
    return [each for each in every if each.name in names]


def in_random_order(needles: Sequence[str], asked: Sequence[Asked], generator: Generator) -> Hidden:
    """The needles shuffled, and the questions about them."""
    places = generator.permutation(len(needles)).tolist()  # where each needle comes to stand
    moved = [needles[places.index(place)] for place in range(len(needles))]
    return moved, [
        replace(each, answered_by=[places[old] for old in each.answered_by], needs=[places[old] for old in each.needs])
        for each in asked
    ]
