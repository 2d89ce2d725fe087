"""What do all reproduced tables and figures share?  Options, a run, and a result to compare with what was printed.

    @dataclass(frozen=True)
    class Distance(Experiment):
        id = "distance"
        source = "arXiv:2508.17821v1, Fig. 2a and 2b"
        shows = "how far the top-N average is from what it leaves out"
        length: int = option(1024, "Tokens to read.")

        def run(self, progress: Progress = quiet) -> Result: ...

An experiment is a frozen dataclass: its fields are its options, in Python and on the command line. Put it in a file of
its own in this folder; ``undilute reproduce`` then lists it, runs it and writes its page.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from undilute.errors import UnknownName
from undilute.progress import Progress, quiet
from undilute.report.result import Chart, Comparison, HeatMap, Result, Row
from undilute.rules.parameters import whole


def option(default: Any, help: str, changes_figures: bool = True) -> Any:
    """A field of an experiment with its line of ``--help``; a tuple becomes a list separated by commas.

    What changes no figure, like the number of processes, is not kept with the result.
    """
    return field(default=default, metadata={"help": help, "changes_figures": changes_figures})


@dataclass(frozen=True)
class Experiment(ABC):
    """A published table or figure that can be run again.

    Attributes
    ----------
    id : what to type
    source : paper or article, and the place in it
    shows : one line
    quick_minutes, full_minutes : about how long it takes on two cores
    quick : the options that ``--quick`` changes
    work : where a long run keeps its state, and finds it again; no option, since it changes no figure
    """

    id: ClassVar[str]
    source: ClassVar[str]
    shows: ClassVar[str]
    quick_minutes: ClassVar[float]
    full_minutes: ClassVar[float]
    quick: ClassVar[Mapping[str, Any]] = {}
    work: Path | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        """Refuse negative numbers where whole ones are wanted, and those that torch cannot count with."""
        for each in self.options():
            value = getattr(self, each.name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, int) and not isinstance(part, bool):
                    whole(f"--{each.name.replace('_', '-')}", part, 0)

    @abstractmethod
    def run(self, progress: Progress = quiet) -> Result:
        """Do it, and report how far it is."""

    def forget(self) -> None:  # noqa: B027  most experiments keep nothing
        """Remove what earlier runs with these options left in ``work``, and nothing else."""

    @classmethod
    def quickly(cls, **options: Any) -> Self:
        """The experiment in its short form; ``options`` win over ``quick``."""
        return cls(**{**cls.quick, **options})

    def result(
        self,
        findings: Sequence[str],
        comparisons: Sequence[Comparison],
        tables: Mapping[str, Sequence[Row]],
        charts: Sequence[Chart | HeatMap],
        seconds: float = 0.0,
    ) -> Result:
        """What ``run`` returns, with the options it ran with."""
        return Result(self.id, self.settings(), findings, comparisons, tables, charts, seconds, command=self.command())

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """The fields that are options: its own first, then those that it shares with others."""
        found = [each for each in fields(cls) if "help" in each.metadata]
        return sorted(found, key=lambda each: each.name not in inspect.get_annotations(cls))

    def settings(self) -> dict[str, Any]:
        """Every option that the figures depend on, by name."""
        return {each.name: getattr(self, each.name) for each in self.options() if each.metadata["changes_figures"]}

    def command(self) -> str:
        """What to type for these figures: every option that they depend on and that is not at its default."""
        words = ["undilute", "reproduce", self.id]
        for each in self.options():
            value = getattr(self, each.name)
            if value != each.default and each.metadata["changes_figures"]:
                words += _flag(each.name.replace("_", "-"), value)
        return shlex.join(words)


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [f"--{name}", text] if text else [f"--{name}="]


def every() -> dict[str, type[Experiment]]:
    """Every experiment by id, in the order of the papers.

    Examples
    --------
    >>> every()["distance"].source
    'arXiv:2508.17821v1, Fig. 2a and 2b'
    """
    import undilute_papers

    for folder in pkgutil.iter_modules(undilute_papers.__path__):
        if folder.ispkg and folder.name not in OTHER_ROOMS:
            package = importlib.import_module(f"undilute_papers.{folder.name}")
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{package.__name__}.{module.name}")
    found = {cls.id: cls for cls in _subclasses(Experiment) if not inspect.isabstract(cls)}
    return {id: found[id] for id in sorted(found, key=lambda id: (ORDER.index(id) if id in ORDER else len(ORDER), id))}


def headings() -> dict[str, tuple[str, str]]:
    """Title and source of every experiment's page, by id."""
    return {id: (cls.shows[:1].upper() + cls.shows[1:], cls.source) for id, cls in every().items()}


def _subclasses(base: type[Any]) -> Iterator[type[Experiment]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


OTHER_ROOMS = (
    "audit",
    "bench",
    "cli",
    "report",
    "reproduction",
    "rule_curves",
    "theory",
)  # folders without experiments
ORDER = (
    "dilution",
    "temperature",
    "distance",
    "critical-n",
    "separability",
    "gradient",
    "logit-spread",
    "max-retrieval",
    "ceiling",
    "length-generalisation",
)


def named(id: str) -> type[Experiment]:
    """The experiment of this id."""
    known = every()
    if id not in known:
        raise UnknownName("experiment", id, known)
    return known[id]
