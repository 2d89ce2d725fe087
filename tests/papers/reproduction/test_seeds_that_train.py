"""Which trainings count as such, and what is said of those that do not."""

from __future__ import annotations

import math

from undilute_papers.reproduction.seeds_that_train import columns, failed, reported_elsewhere, sentence


def test_ninety_percent_is_enough_and_nan_is_not() -> None:
    assert failed({0: 90.0, 1: 89.9, 2: math.nan, 3: 100.0}) == [1, 2]
    assert columns({}) == {"seeds_that_train": None, "seeds_that_do_not": None}


def test_every_training_that_failed_is_named() -> None:
    good, bad = {0: 99.0, 1: 98.0}, {0: 10.0, 1: 12.0}
    assert sentence({}, "at 16 items") == ""
    assert sentence({"a": good, "b": good}, "at 16 items") == (
        "All 4 trainings left their plateau (90 % or more at 16 items)."
    )
    said = sentence({"a": good, "b": bad, "c": {0: 50.0, 7: 99.0}}, "at 16 items")
    assert said.endswith("; not b with seeds 0, 1 (0 of 2 trained); c with seed 0 (1 of 2 trained).")
    assert said.startswith("Of 6 trainings 3 left")


def test_what_is_reported_elsewhere_needs_runs_of_ours() -> None:
    assert reported_elsewhere("copying", []) == reported_elsewhere("copying", [{}]) == []
    (made,) = reported_elsewhere("copying", [{0: 99.0}, {0: 12.0, 1: 95.0}])
    assert (made.what, made.computed) == ("ASEntmax leaves its plateau: copying", "in 2 of 3 runs")
