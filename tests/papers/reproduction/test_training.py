"""Every training survives a kill, finds its own files and no other's, and is forgotten only when asked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from undilute_papers.length_generalisation import LengthGeneralisation
from undilute_papers.length_generalisation.training import Run as Sequences
from undilute_papers.reproduction.checkpoint import Checkpoint
from undilute_papers.reproduction.training import Job, Run, carry_out, forget, part_of, seconds
from undilute_papers.reproduction.workers import ignore
from undilute_papers.sharpness.ceiling import Ceiling
from undilute_papers.sharpness.ceiling.set_ups import BY_NAME
from undilute_papers.sharpness.ceiling.training import Run as Arms
from undilute_papers.sharpness.max_retrieval import MaxRetrieval
from undilute_papers.sharpness.max_retrieval.training import Run as Sets

SETS = Sets("softmax", "5-16", "constant", (0,), 100, True, (16, 64), 64, 2**20)
SEQUENCES = Sequences("softmax", ("recall", "copying"), 0, 60, 32, 256, 32, 2, 2, "alternating", 64)
ARMS = Arms(BY_NAME["focus-4"].set_up, 40, (0,), (16, 64), 16, 2**20)
RUNS = [
    pytest.param(SETS, id="sets"),
    pytest.param(replace(SETS, rule="as-entmax", schedule="cosine"), id="sets, as-entmax"),
    pytest.param(ARMS, id="arms, focus"),
    pytest.param(SEQUENCES, id="sequences"),
    pytest.param(replace(SEQUENCES, rule="as-entmax", positions="random"), id="sequences, as-entmax"),
]


class Stop(Exception):
    """Raised in the middle of a run."""


def stopping(at: float) -> Callable[[float], None]:
    def report(share: float) -> None:
        if share >= at:
            raise Stop

    return report


def figures(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "seconds"}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_that_stops_anywhere_goes_on_to_the_same_numbers(run: Run, tmp_path: Path) -> None:
    whole = carry_out(Job(run), ignore)
    for at in (0.2, 0.4, 0.95):  # twice in the training, once in the tests
        with pytest.raises(Stop):
            carry_out(Job(run, tmp_path, every_seconds=0.01), stopping(at))
    assert [path.name for path in tmp_path.iterdir()] == [f"{run.stem}.pt"]
    resumed = carry_out(Job(run, tmp_path), ignore)
    assert figures(resumed) == figures(whole)
    assert [path.name for path in tmp_path.iterdir()] == [f"{run.stem}.json"]


def test_tests_that_were_done_are_not_done_again(tmp_path: Path) -> None:
    """A kill while a run is tested costs no more than one in its training."""
    many = replace(SETS, sizes=(16, 32, 64, 128, 256, 512))
    with pytest.raises(Stop):
        carry_out(Job(many, tmp_path, every_seconds=0.0), stopping(0.97))  # after the fifth size, which is kept
    told: list[float] = []
    carry_out(Job(many, tmp_path), told.append)
    assert len(told) == 1


def test_what_other_code_found_is_found_again(tmp_path: Path) -> None:
    job = Job(SETS, tmp_path)
    first = carry_out(job, ignore)
    kept = tmp_path / f"{SETS.stem}.json"
    for other in ({**first, "versions": {"undilute": "0.0.1"}, "tests": []}, {"tests": []}):
        kept.write_text(json.dumps(other))
        assert figures(carry_out(job, ignore)) == figures(first)


def test_what_was_found_is_read_and_not_found_again(tmp_path: Path) -> None:
    def never(share: float) -> None:
        raise AssertionError("it trains again")

    first = carry_out(Job(SETS, tmp_path), ignore)
    assert carry_out(Job(SETS, tmp_path), never) == first


@pytest.mark.parametrize(
    "other",
    [
        replace(SETS, sets=32),
        replace(SETS, sizes=(16,)),
        replace(SETS, scaled=False),
        replace(ARMS, set_up=replace(ARMS.set_up, batch=64)),
        replace(SEQUENCES, width=16),
        replace(SEQUENCES, longest=512),
        replace(SEQUENCES, asked=32),
    ],
)
def test_runs_with_other_options_share_no_file(other: Run) -> None:
    """Even where they have the same name for a person."""
    of_its_kind = next(run for run in (SETS, ARMS, SEQUENCES) if isinstance(other, type(run)))
    assert other.name == of_its_kind.name
    assert other.stem != of_its_kind.stem


def test_a_state_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    other = replace(SETS, scaled=False)
    with pytest.raises(Stop):
        carry_out(Job(other, tmp_path, every_seconds=0.01), stopping(0.3))
    (tmp_path / f"{other.stem}.pt").rename(tmp_path / f"{SETS.stem}.pt")
    assert figures(carry_out(Job(SETS, tmp_path), ignore)) == figures(carry_out(Job(SETS), ignore))


def test_forgetting_touches_no_other_run(tmp_path: Path) -> None:
    jobs = [Job(run, tmp_path) for run in (SETS, replace(SETS, seeds=(1,)))]
    for job in jobs:
        for ending in (".json", ".pt"):
            (tmp_path / f"{job.run.stem}{ending}").touch()
    (tmp_path / "notes.txt").touch()
    forget(jobs[:1])
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes.txt",
        f"{jobs[1].run.stem}.json",
        f"{jobs[1].run.stem}.pt",
    }


@pytest.mark.parametrize("experiment", [MaxRetrieval, Ceiling, LengthGeneralisation])
def test_an_experiment_forgets_its_own_runs(experiment: Any, tmp_path: Path) -> None:
    mine, others = experiment(work=tmp_path), experiment(work=tmp_path, steps=7)
    for job in [*mine.jobs(), *others.jobs()]:
        job.file(".json").touch()
    mine.forget()
    assert {path.name for path in tmp_path.iterdir()} == {job.file(".json").name for job in others.jobs()}


def test_time_is_counted_over_every_part_of_a_run(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path / "run.pt")
    first._began -= 100  # as if it had worked for 100 seconds
    first.save({"step": 1})
    second = Checkpoint(tmp_path / "run.pt")
    assert second.load() == {"step": 1}
    assert 100 <= second.spent() < 110
    assert seconds([{"seconds": 30.0}, {"seconds": 50.0}], workers=2) == 40.0


def test_an_outcome_without_its_seconds_is_taken_over(tmp_path: Path) -> None:
    """Those of an older program have none; the figures are as good, and only the time is not known."""
    options: dict[str, Any] = {"rules": ("softmax",), "schedules": ("constant",), "set_sizes": ("16",)}
    tiny = MaxRetrieval(seeds=1, steps=2, sizes=(16,), sets=2, workers=1, work=tmp_path, **options)
    whole = tiny.run()
    assert whole.seconds > 0
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(json.dumps(figures(json.loads(kept.read_text()))))
    again = tiny.run()
    assert again.tables == whole.tables
    assert math.isnan(again.seconds)


def test_a_part_reports_its_share_of_the_whole() -> None:
    told: list[float] = []
    part = part_of(told.append, 0.5, 0.9)
    for share in (0.0, 0.5, 1.0):
        part(share)
    assert told == pytest.approx([0.5, 0.7, 0.9])
