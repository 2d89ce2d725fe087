"""Means, tests and sentences about runs whose outcome is known because it is made up here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from undilute.report import result_files
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.sharpness.max_retrieval import MaxRetrieval
from undilute_papers.sharpness.max_retrieval import max_retrieval_findings as findings
from undilute_papers.sharpness.max_retrieval.published import PRINTED, SECONDARY
from undilute_papers.sharpness.max_retrieval.summary import Group, Outcomes

SIZES = tuple(PRINTED)


def outcome(rule: str, schedule: str, seed: int, accuracy: Callable[[str, int], float]) -> dict[str, Any]:
    """What a run would leave behind if it had these accuracies."""
    names = [rule, *(["adaptive"] if rule == "softmax" else []), ARGMAX]
    others = {"entropy": 1.0, "top_weight": 0.5, "weight_of_largest": 0.5, "spread": 9.0, "sets": 8}
    return {
        "run": {"rule": rule, "set_size": "16", "schedule": schedule, "seeds": [seed], "steps": 5},
        "training": [{"seed": seed, "loss": 0.1, "learned": ""}],
        "tests": [
            {"seed": seed, "items": items, "evaluated_with": name, "accuracy": accuracy(name, items), **others}
            for items in SIZES
            for name in names
        ],
    }


def as_printed(name: str, items: int) -> float:
    return float(getattr(PRINTED[items], "softmax" if name == ARGMAX else name))


def experiment(**options: Any) -> MaxRetrieval:
    published: dict[str, Any] = {"rules": ("softmax",), "set_sizes": ("16",), "schedules": ("constant",)}
    return MaxRetrieval(**{**published, "seeds": 5, "sizes": SIZES, **options})


def test_runs_like_the_printed_table_agree_with_it() -> None:
    outcomes = Outcomes([outcome("softmax", "constant", seed, as_printed) for seed in range(5)])
    made = findings.comparisons(outcomes, experiment())
    accuracies = [each for each in made if each.what.startswith("accuracy")]
    assert len(accuracies) == 2 * len(PRINTED)
    assert {each.verdict for each in accuracies} == {"agrees"}
    assert sum("secondary copy" in each.note for each in accuracies) == 2 * len(SECONDARY)
    assert all(each.note.startswith("+0.0 points.") for each in accuracies)
    assert "within 4 points of the printed table in 18 of 18 cases;" in findings.sentences(outcomes, experiment())[0]


def test_seeds_that_were_known_when_the_set_up_was_chosen_are_left_out_of_its_check() -> None:
    def off(name: str, items: int) -> float:
        return as_printed(name, items) - (5.0 if (name, items) == ("softmax", 64) else 0.0)

    def said(*outcomes: dict[str, Any]) -> str:
        sentences = findings.sentences(Outcomes(outcomes), experiment())
        return next(each for each in sentences if "chosen among several" in each)

    seen = [outcome("softmax", "constant", seed, as_printed) for seed in range(5)]
    assert "all but 0 to 4" not in said(*seen)
    after = said(*seen, outcome("softmax", "constant", 5, off))
    assert "(all but 0 to 4), 17 of 18 cases are within 4 points, the largest difference being -5.0." in after


def test_a_size_that_is_off_is_named() -> None:
    def off(name: str, items: int) -> float:
        return as_printed(name, items) - (5.0 if (name, items) == ("adaptive", 1024) else 0.0)

    outcomes = Outcomes([outcome("softmax", "constant", seed, off) for seed in range(5)])
    differing = [each for each in findings.comparisons(outcomes, experiment()) if each.verdict == "differs"]
    assert next(each.what for each in differing) == "accuracy at 1,024 items, %: adaptive, trained on 16"
    said = findings.sentences(outcomes, experiment())[0]
    assert "in 17 of 18 cases, all but adaptive at 1,024; the largest difference is -5.0" in said


def test_a_short_training_does_not_contradict_the_print() -> None:
    outcomes = Outcomes([outcome("softmax", "constant", seed, lambda name, items: 10.0) for seed in range(5)])
    short, long = (
        {each.verdict for each in findings.comparisons(outcomes, experiment(steps=steps)) if "accuracy" in each.what}
        for steps in (1500, 20_000)
    )
    assert short == {"other set-up"}
    assert long == {"agrees", "differs"}  # 10 % is within 4 points of what was printed at 16,384 items


def test_claims_about_the_gain_follow_the_paired_test() -> None:
    def growing(name: str, items: int) -> float:
        return 50.0 + (math.log2(items) if name == "adaptive" else 0.0)

    def noisy(seed: int) -> Callable[[str, int], float]:
        return lambda name, items: growing(name, items) + (0.01 * seed if name == "adaptive" else 0.0)

    outcomes = Outcomes([outcome("softmax", "constant", seed, noisy(seed)) for seed in range(5)])
    claims = findings.comparisons(outcomes, experiment())[-2:]
    assert [claim.verdict for claim in claims] == ["agrees", "agrees"]
    level = Outcomes([outcome("softmax", "constant", seed, as_printed) for seed in range(5)])
    claims = findings.comparisons(level, experiment())[-2:]
    assert [claim.verdict for claim in claims] == ["agrees", "differs"]  # always the same gain; and largest at 1,024
    none = Outcomes([outcome("softmax", "constant", seed, lambda name, items: 50.0) for seed in range(5)])
    assert findings.comparisons(none, experiment())[-2].verdict == "differs"


def test_decay_is_said_to_matter_only_where_it_does() -> None:
    def better(name: str, items: int) -> float:
        return as_printed(name, items) + 30.0  # more than argmax brings, which is nothing here

    for accuracy, said in ((better, True), (as_printed, False)):
        runs = [outcome("softmax", "constant", 0, as_printed), outcome("softmax", "cosine", 0, accuracy)]
        text = " ".join(findings.sentences(Outcomes(runs), experiment(schedules=("constant", "cosine"))))
        assert ("more than dispersion" in text) is said
        assert "decayed by a cosine" in text


def test_means_and_argmax_are_over_the_seeds_of_one_set_up() -> None:
    def by_seed(seed: int) -> Callable[[str, int], float]:
        return lambda name, items: 90.0 if name == ARGMAX else 10.0 * seed

    outcomes = Outcomes([outcome("ssmax", "constant", seed, by_seed(seed)) for seed in (1, 2, 6)])
    line = next(row for row in outcomes.lines() if row["evaluated_with"] == "ssmax")
    assert (line["accuracy"], line["worst_seed"], line["best_seed"], line["seeds"]) == (30.0, 10.0, 60.0, 3)
    assert (line["argmax_of_the_same_logits"], line["gap_to_argmax"]) == (90.0, 60.0)
    assert (line["seeds_that_train"], line["seeds_that_do_not"]) == (0, "1, 2, 6")
    assert outcomes.of(Group("ssmax", "16", "constant", "ssmax"), 16) == [10.0, 20.0, 60.0]


def test_seeds_that_do_not_train_are_named() -> None:
    """By what they get right on 16 items with their own rule, whatever the argmax does there."""

    def stuck(name: str, items: int) -> float:
        return 99.0 if name == ARGMAX else 12.0

    runs = [outcome("as-entmax", "constant", seed, stuck if seed == 3 else lambda *_: 98.0) for seed in range(5)]
    outcomes = Outcomes([*runs, *(outcome("softmax", "constant", seed, as_printed) for seed in range(5))])
    made = experiment(rules=("softmax", "as-entmax"))
    said = next(each for each in findings.sentences(outcomes, made) if "plateau" in each)
    assert said == (
        "Of 10 trainings 9 left their plateau (90 % or more at 16 items with their own rule); "
        "not as-entmax (constant rate, sets of 16) with seed 3 (4 of 5 trained)."
    )
    reported = next(each for each in findings.comparisons(outcomes, made) if "plateau" in each.what)
    assert (reported.computed, reported.verdict) == ("in 4 of 5 runs", "other set-up")
    assert "Reported elsewhere" in reported.note
    assert all("plateau" not in each.what for each in findings.comparisons(Outcomes(runs[:0]), made))


def test_the_gap_to_the_argmax_is_told_of_every_rule() -> None:
    def losing(points: float) -> Callable[[str, int], float]:
        return lambda name, items: 40.0 if name == ARGMAX else 40.0 - points

    runs = [outcome("softmax", "constant", 0, losing(7.5)), outcome("focus", "constant", 0, losing(-0.5))]
    said = findings.sentences(Outcomes(runs), experiment(rules=("softmax", "focus")))
    expected = "in points, and what it reaches, constant rate: focus -0.5 (40.0 %), softmax +7.5 (40.0 %)."
    assert sum(each.endswith(expected) for each in said) == 1
    assert sum("entmax with a learned scale" in each for each in said) == 1


def test_focus_is_compared_seed_by_seed() -> None:
    def runs(seeds: int) -> list[dict[str, Any]]:
        of_focus = [
            outcome("focus", "constant", seed, lambda name, items, seed=seed: 40.0 + seed) for seed in range(seeds)
        ]
        return of_focus + [outcome("softmax", "constant", seed, lambda name, items: 41.0) for seed in range(seeds)]

    options = experiment(rules=("softmax", "focus"))
    said = [each for each in findings.sentences(Outcomes(runs(5)), options) if "focus is ahead" in each]
    assert said == [
        "How far focus is ahead at 16,384 items, constant rate, in points, with the paired t-test over seeds: "
        "softmax +1.0 (p = 0.230), adaptive on softmax's weights +1.0 (p = 0.230)."
    ]
    few = findings.sentences(Outcomes(runs(4)), options)
    assert not any("focus is ahead" in each for each in few)


def test_sets_of_sixteen_that_were_not_tested_tell_nothing_about_training() -> None:
    found = outcome("softmax", "constant", 0, as_printed)
    found["tests"] = [test for test in found["tests"] if test["items"] > 16]
    outcomes = Outcomes([found])
    assert {row["seeds_that_train"] for row in outcomes.lines()} == {None}
    assert not any("plateau" in each for each in findings.sentences(outcomes, experiment()))


def test_a_real_result_survives_its_file() -> None:
    options: dict[str, Any] = {"steps": 3, "sets": 4, "sizes": (16, 32), "seeds": 2, "workers": 1}
    tiny = MaxRetrieval(rules=("softmax", "top-k"), variant_seeds=1, **options)
    result = tiny.run()
    again = result_files.from_json(result_files.to_json(result))
    assert again.settings == tiny.settings()
    assert list(again.tables) == ["accuracy", "paired", "runs", "training"]
    assert len(result.tables["training"]) == 2 * 2 + 2 + 1
    assert [chart.name for chart in result.charts][:2] == ["published-16", "published-5-16"]
