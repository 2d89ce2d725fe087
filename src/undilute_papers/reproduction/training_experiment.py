"""What do experiments that train have in common?  Runs that are planned, carried out side by side and concluded from.

    @dataclass(frozen=True)
    class MaxRetrieval(TrainingExperiment):
        seeds: int = option(10, "Trainings of each rule.")

        def planned(self) -> list[Run]: ...
        def concluded(self, found, seconds) -> Result: ...

Every run keeps its state and its outcome in files of its own, so that an experiment that is killed, or given more
seeds, goes on with what is there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from undilute import rules as registered
from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.report.result import Result
from undilute.rules.parameters import count
from undilute_papers.reproduction.experiment import Experiment, option
from undilute_papers.reproduction.training import Job, Run, carry_out_all, forget, seconds
from undilute_papers.reproduction.workers import cores

MAY_BE_ZERO = ("seed", "workers")  # every other whole number is at least 1
Kind = TypeVar("Kind")
Found = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class TrainingExperiment(Experiment):
    """An experiment made of trainings. Subclasses say which, and what is to be said about their outcomes."""

    seed: int = option(0, "The first seed.")
    workers: int = option(0, "Processes to run in parallel; 0 for one per core.", changes_figures=False)
    checkpoint_seconds: float = option(
        60.0, "Seconds of work that a kill may cost each process.", changes_figures=False
    )

    @abstractmethod
    def planned(self) -> Sequence[Run]:
        """Every training, in the order they are begun."""

    @abstractmethod
    def concluded(self, found: Found, seconds: float) -> Result:
        """What the outcomes of ``planned``, in its order, say; they took about so many seconds."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense, and lists of nothing."""
        super().__post_init__()
        lists = [each.name for each in self.options() if isinstance(each.default, tuple)]
        if not all(getattr(self, name) for name in lists):
            raise InvalidValue(f"{self.id} needs at least one of each: {', '.join(map(flag, lists))}.")
        for each in self.options():
            kind = each.default[0] if isinstance(each.default, tuple) else each.default
            if type(kind) is int and each.name not in MAY_BE_ZERO:
                value = getattr(self, each.name)
                for part in value if isinstance(value, tuple) else (value,):
                    count(flag(each.name), part)
        if not self.checkpoint_seconds >= 0:
            raise InvalidValue(f"--checkpoint-seconds = {self.checkpoint_seconds}: must be a number of at least 0.")

    def jobs(self) -> list[Job]:
        """Every training with its files."""
        return [Job(run, self.work, self.checkpoint_seconds) for run in self.planned()]

    def forget(self) -> None:
        forget(self.jobs())

    def run(self, progress: Progress = quiet) -> Result:
        """Train and test what was not before, and conclude."""
        jobs = self.jobs()
        workers = min(self.workers or cores(), len(jobs))
        found = carry_out_all(jobs, workers, progress)
        return self.concluded(found, seconds(found, workers))


def flag(name: str) -> str:
    """An option as it is typed.

    >>> flag("set_sizes")
    '--set-sizes'
    """
    return f"--{name.replace('_', '-')}"


def check_known(name: str, values: Iterable[str], known: Collection[str]) -> None:
    """Refuse a value of the option ``name`` that is not known."""
    for value in values:
        if value not in known:
            raise InvalidValue(f"{flag(name)} = {value!r}: must be of {', '.join(known)}.")


def rules_named(names: Iterable[str]) -> tuple[str, ...]:
    """Rules by name, each of them once and known; every rule for "all"."""
    names = tuple(dict.fromkeys(names))
    return tuple(registered.names()) if names == ("all",) else tuple(registered.preset(name).name for name in names)


def in_turn(kinds: Iterable[Sequence[Kind]]) -> list[Kind]:
    """Runs of several kinds, the first of every kind before the second of any.

    >>> in_turn([["a0", "a1"], ["b0"], ["c0", "c1"]])
    ['a0', 'b0', 'c0', 'a1', 'c1']
    """
    return [run for of_kinds in zip_longest(*kinds) for run in of_kinds if run is not None]
