"""What experiments that train share: their options last, their checks, and the order of their runs."""

from __future__ import annotations

from typing import Any

import pytest

import undilute as ud
from undilute_papers.length_generalisation import LengthGeneralisation
from undilute_papers.reproduction.experiment import every
from undilute_papers.reproduction.training_experiment import TrainingExperiment, in_turn, rules_named
from undilute_papers.sharpness.ceiling import Ceiling
from undilute_papers.sharpness.max_retrieval import MaxRetrieval

TRAINING: list[Any] = [MaxRetrieval, Ceiling, LengthGeneralisation]


def test_they_are_listed_and_their_base_is_not() -> None:
    assert set(TRAINING) <= set(every().values())
    assert TrainingExperiment not in every().values()


@pytest.mark.parametrize("experiment", TRAINING)
def test_shared_options_come_last(experiment: Any) -> None:
    names = [option.name for option in experiment.options()]
    assert names[-3:] == ["seed", "workers", "checkpoint_seconds"]
    assert list(experiment().settings()) == names[:-2]


@pytest.mark.parametrize("experiment", TRAINING)
def test_how_much_a_kill_may_cost_reaches_every_job(experiment: Any) -> None:
    assert {job.every_seconds for job in experiment(seeds=1, checkpoint_seconds=7.0).jobs()} == {7.0}


def test_whole_numbers_and_lists_are_checked() -> None:
    for options, message in (
        ({"variant_seeds": 0}, "--variant-seeds = 0: must be a whole number of at least 1"),
        ({"sizes": (16, 2.5)}, "--sizes = 2.5: must be a whole number of at least 1"),
        ({"schedules": ()}, "at least one of each: --rules, --schedules, --set-sizes, --sizes"),
        ({"schedules": ("exponential",)}, "--schedules = 'exponential': must be of constant, cosine"),
    ):
        with pytest.raises(ud.InvalidValue, match=message):
            MaxRetrieval(**options)
    assert MaxRetrieval(seed=0, workers=0, scaled=False).seeds == 10


def test_rules_by_name() -> None:
    assert rules_named(("all",)) == tuple(ud.rules.names())
    assert rules_named(("ssmax", "softmax", "ssmax")) == ("ssmax", "softmax")
    with pytest.raises(ud.UnknownName, match="did you mean 'softmax'"):
        rules_named(("sofmax",))


def test_the_first_seeds_of_every_kind_come_first() -> None:
    assert in_turn([[1, 4, 6], [2], [3, 5]]) == [1, 2, 3, 4, 5, 6]
    planned = MaxRetrieval(rules=("softmax", "ssmax"), variant_seeds=5).planned()
    assert [run.seeds[0] for run in planned] == [0, 0, 0, 0, 0, 5, 5]
