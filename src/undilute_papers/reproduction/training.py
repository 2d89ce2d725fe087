"""How is a network trained so that a kill costs at most a minute?  Step by step, saving its whole state on the way.

    @dataclass(frozen=True)
    class Run(training.Run):
        seed: int
        steps: int

        def found(self, checkpoint, report): ...  # calls training.train, then tests

A run's fields are everything that its outcome depends on. Its files are named after all of them, so that runs with
other options never share a file, and a run that was done before is read instead of done again.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from undilute import files
from undilute.progress import Progress
from undilute.report.result import versions
from undilute_papers.reproduction.checkpoint import Checkpoint
from undilute_papers.reproduction.workers import Report, run_all

EVERY = 20  # steps between reports
FORGETS = 0.01  # of the running mean of the loss, in a step
Part = nn.Module | torch.optim.Optimizer | torch.Generator
Parts = Mapping[str, Part]
Unit = TypeVar("Unit")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Run(ABC):
    """One training, or a few side by side, with its tests."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What a person calls it, for its files."""

    @abstractmethod
    def found(self, checkpoint: Checkpoint, report: Report) -> dict[str, Any]:
        """Train and test: figures that JSON can hold."""

    @property
    def plain(self) -> dict[str, Any]:
        """The run as a file has it."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return fields

    @property
    def stem(self) -> str:
        """What its files are called: its name, and a digest of all its fields."""
        digest = hashlib.sha256(json.dumps(self.plain, sort_keys=True).encode()).hexdigest()
        return f"{self.name}_{digest[:8]}"


@dataclass(frozen=True)
class Job:
    """A run to carry out.

    Attributes
    ----------
    run : what to train
    folder : for its checkpoint and its outcome; None keeps nothing
    every_seconds : how much work a kill may cost
    """

    run: Run
    folder: Path | None = None
    every_seconds: float = 60.0

    def file(self, ending: str) -> Path | None:
        """Its outcome (".json") or its checkpoint (".pt")."""
        return None if self.folder is None else self.folder / f"{self.run.stem}{ending}"


def carry_out(job: Job, report: Report) -> dict[str, Any]:
    """What the run finds, or found before with the same versions; with "run", its fields, and "seconds" in all."""
    outcome = job.file(".json")
    if outcome is not None and outcome.exists():
        known: dict[str, Any] = json.loads(outcome.read_text())
        if (known.get("run"), known.get("versions")) == (job.run.plain, versions()):
            return known
    checkpoint = Checkpoint(job.file(".pt"), job.every_seconds)
    found = {"run": job.run.plain, "versions": versions(), **job.run.found(checkpoint, report)}
    found["seconds"] = checkpoint.spent()
    if outcome is not None:
        files.write(outcome, json.dumps(found, indent=1))
        checkpoint.remove()
    return found


def carry_out_all(jobs: Sequence[Job], workers: int, progress: Progress) -> list[dict[str, Any]]:
    """What every run finds, ``workers`` of them side by side."""
    return run_all(carry_out, jobs, workers=workers, progress=progress, doing="training")


def seconds(found: Iterable[Mapping[str, Any]], workers: int) -> float:
    """About how long these runs took, ``workers`` side by side, whenever that was; NaN where one does not say.

    >>> seconds([{"seconds": 30.0}, {"seconds": 50.0}], workers=2), seconds([{"seconds": 30.0}, {}], workers=2)
    (40.0, nan)
    """
    return sum(float(each.get("seconds", math.nan)) for each in found) / workers


def forget(jobs: Iterable[Job]) -> None:
    """Remove what these runs left in their folder, and nothing else."""
    for job in jobs:
        for ending in (".json", ".pt"):
            path = job.file(ending)
            if path is not None:
                path.unlink(missing_ok=True)


def train(
    run: Run,
    steps: int,
    step: Callable[[int], Tensor],
    parts: Parts,
    checkpoint: Checkpoint,
    report: Report,
) -> Tensor:
    """Take every step that ``checkpoint`` has not seen.

    Parameters
    ----------
    run : which training this is; the state of another is not used
    steps : how many steps it has
    step : takes the one of this number, and returns its loss, or one for each of several networks
    parts : everything that a step changes, by name
    checkpoint : where the state is kept
    report : is told the share that is done

    Returns
    -------
    a running mean of the loss at the end, of the shape that ``step`` returns
    """
    done, recent = 0, torch.zeros(())
    state = _state_of(run, checkpoint)
    if state:
        for name, part in parts.items():
            _restore(part, state[name])
        done, recent = state["step"], state["recent"]
    while done < steps:
        loss = step(done)
        recent = (1 - FORGETS) * recent + FORGETS * loss if done else loss
        done += 1
        if checkpoint.due() or done == steps:
            kept = {name: _state(part) for name, part in parts.items()}
            checkpoint.save({"run": run.plain, "versions": versions(), "step": done, "recent": recent, **kept})
        if done % EVERY == 0:
            report(done / steps)
    return recent


def one_by_one(
    run: Run, units: Sequence[Unit], test: Callable[[Unit], Found], checkpoint: Checkpoint, report: Report
) -> list[Found]:
    """``[test(unit) for unit in units]`` after the training, but for what ``checkpoint`` has seen.

    Parameters
    ----------
    run, checkpoint, report : as for :func:`train`
    units : what to test, one after the other
    test : one of them, whatever was tested before it: plain figures
    """
    state = _state_of(run, checkpoint)
    found: list[Found] = state.get("tests", [])
    for number in range(len(found), len(units)):
        found.append(test(units[number]))
        if checkpoint.due():
            checkpoint.save({**state, "tests": found})
        report((number + 1) / len(units))
    return found


def _state_of(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """What was kept of this very run; nothing of another, or of other code."""
    state = checkpoint.load() or {}
    return state if (state.get("run"), state.get("versions")) == (run.plain, versions()) else {}


def _state(part: Part) -> Any:
    return part.get_state() if isinstance(part, torch.Generator) else part.state_dict()


def _restore(part: Part, state: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(state)
    else:
        part.load_state_dict(state)


def part_of(report: Report, first: float, last: float) -> Report:
    """A report on a part of the work, which goes from the share ``first`` to ``last`` of the whole."""
    return lambda share: report(first + (last - first) * share)
