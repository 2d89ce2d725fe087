"""Sentences, tables and charts about arms whose outcome is known because it is made up here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from docs.tables import experiments
from scipy import stats

from undilute.report import result_files
from undilute.report.result import Chart, HeatMap, Result
from undilute_papers.reproduction.evaluated import ARGMAX, evaluated_with
from undilute_papers.sharpness.ceiling import Ceiling, charts
from undilute_papers.sharpness.ceiling import ceiling_findings as findings
from undilute_papers.sharpness.ceiling.set_ups import ARMS, BY_NAME, PUBLISHED, Arm
from undilute_papers.sharpness.ceiling.summary import Group, Outcomes
from undilute_papers.sharpness.ceiling.training import FOCUS, OWN
from undilute_papers.sharpness.max_retrieval.published import PRINTED

SIZES = (16, 1024, 4096, 16384)
Accuracy = Callable[[str, int, int], float]  # of rule, items and seed


def outcome(
    name: str, seed: int, accuracy: Accuracy, resolution: float | None = 1e-4, arm: Arm | None = None
) -> tuple[str, dict[str, Any]]:
    """What a run would leave behind if it had these accuracies."""
    _, *others_tested = evaluated_with((arm or BY_NAME[name]).set_up.rule)
    tested = [OWN, *others_tested, *FOCUS]
    others = {"entropy": 1.0, "top_weight": 0.5, "weight_of_largest": 0.5, "spread": 9.0, "sets": 8}
    tests = [
        {
            "seed": seed,
            "items": items,
            "evaluated_with": rule_name,
            "accuracy": accuracy(rule_name, items, seed),
            **others,
        }
        for items in SIZES
        for rule_name in tested
    ]
    return name, {"training": [{"seed": seed, "loss": 0.1, "learned": "", "resolution": resolution}], "tests": tests}


def level(accuracy: float, slope: float = 0.0) -> Accuracy:
    """The same at every size but 16, with every rule; a little more for every seed."""
    return lambda name, items, seed: 99.0 if items == 16 else accuracy + slope * seed


def outcomes(arms: dict[str, Accuracy], seeds: int = 6) -> Outcomes:
    made = [outcome(arm, seed, accuracy) for arm, accuracy in arms.items() for seed in range(seeds)]
    return Outcomes([BY_NAME[arm] for arm in arms], made)


def experiment(**options: Any) -> Ceiling:
    return Ceiling(**{"sizes": SIZES, "seeds": 6, **options})


LADDER = {"published": level(15.0), "decay": level(40.0, 1.0), "skip": level(38.0, 1.5), "ssmax": level(70.0, 0.5)}


def test_the_answer_is_the_way_to_the_best_arm() -> None:
    said = findings.sentences(outcomes(LADDER), experiment())
    assert said[0] == (
        "At 16,384 items one head that learned on sets of 16 goes from 15.0 % (published) to 71.2 % (ssmax), every arm "
        "with its own rule; in points, each beside the one before: decay +27.5, skip -0.8 (no clear difference), "
        "ssmax +29.5."
    )
    alone = findings.sentences(outcomes({"decay": level(50.0), "skip": level(20.0)}), experiment())
    assert alone[0] == "At 16,384 items decay has 50.0 % with its own rule; none of 1 other arms has more."


def test_a_difference_is_called_what_the_paired_test_says() -> None:
    found = outcomes(LADDER)
    said = findings.sentences(found, experiment())
    by_arm = {name: next(each for each in said if f"({name} beside" in each) for name in ("decay", "skip", "ssmax")}
    assert by_arm["decay"].startswith("The learning rate falls by a cosine to 1e-6 (decay beside published): better")
    p = stats.ttest_rel([38.0 + 1.5 * seed for seed in range(6)], [40.0 + seed for seed in range(6)]).pvalue
    part = f"no clear difference at 1,024 items (42.5 → 41.8 %, p = {p:.3f})"
    assert part in by_arm["skip"]
    assert by_arm["ssmax"].count("better at") == 3
    worse = outcomes({"published": level(40.0, 1.0), "decay": level(20.0)})
    assert any("(decay beside published): worse at" in each for each in findings.sentences(worse, experiment()))


def test_a_few_seeds_tell_nothing() -> None:
    """However equal their differences are: two coins that fall alike are no proof."""
    found = outcomes(LADDER, seeds=2)
    assert {change.verdict for change in found.changes([1024])} == {"too few seeds to tell"}
    said = findings.sentences(found, experiment())
    assert "decay +25.5 (too few seeds to tell)" in said[0]
    assert not any("p <" in each for each in said[:-1])


def test_seeds_that_only_one_arm_has_are_left_out_of_the_difference() -> None:
    made = [outcome("published", seed, level(10.0, 1.0)) for seed in range(6)]
    made += [outcome("decay", seed, level(30.0, 1.0)) for seed in range(1, 8)]
    change = Outcomes([BY_NAME["published"], BY_NAME["decay"]], made).change(
        Group("decay", OWN), Group("published", OWN), 1024
    )
    assert (change.seeds, change.before, change.after) == (5, 13.0, 33.0)
    assert (change.low, change.high) == pytest.approx((20.0, 20.0))


def reaching(first: float, second: float, third: float) -> Accuracy:
    means = dict(zip(SIZES, (99.0, first, second, third), strict=True))
    return lambda name, items, seed: means[items] + (1 if seed % 2 else -1) * (items > 16)


@pytest.mark.parametrize(
    ("accuracy", "said"),
    [
        (reaching(99.0, 98.5, 95.0), "is met by ssmax with its own rule, "),
        (reaching(98.5, 98.5, 95.0), "is missed: ssmax with its own rule lacks 0.5 / 0.0 / 0.0 points."),
        (lambda name, items, seed: 100.0, "; every single seed meets it with ssmax with its own rule, "),
        (
            lambda name, items, seed: 50.0 if (items, seed) == (16, 4) else 100.0,
            "lacks 0.0 / 0.0 / 0.0 points, and 1 of its seeds did not train.",
        ),
    ],
)
def test_the_target_is_met_only_if_it_is(accuracy: Accuracy, said: str) -> None:
    found = outcomes({"ssmax": accuracy})
    sentence = next(each for each in findings.sentences(found, experiment()) if each.startswith("The target"))
    assert "at least 99.0 / 97.0 / 90.0 % at 1,024 / 4,096 / 16,384 items on the mean" in sentence
    assert said in sentence


def test_a_target_that_was_not_tested_is_not_judged() -> None:
    tested = Outcomes([BY_NAME["ssmax"]], [outcome("ssmax", 0, level(100.0))])
    for by_size in tested.values.values():
        del by_size[4096], by_size[16384]
    said = findings.sentences(tested, experiment(sizes=(16, 1024)))
    assert any("is not known: sets of 4,096, 16,384 were not tested." in each for each in said)
    assert not any("is met by" in each or "is missed" in each for each in said)


def test_the_best_pair_is_told_with_its_worst_seed_and_the_published_figures() -> None:
    def sharper(name: str, items: int, seed: int) -> float:
        return level(60.0, 1.0)(name, items, seed) + (10.0 if name == "focus (K = 4)" else 0.0)

    said = findings.sentences(outcomes({"published": level(15.0), "decay": sharper}), experiment())
    assert said[1] == (
        "The best of 10 pairs of arm and rule, chosen by its mean at 16,384 items, is decay with focus (K = 4): "
        "72.5 / 72.5 / 72.5 % at 1,024 / 4,096 / 16,384 items on the mean, 70.0 / 70.0 / 70.0 % with the worst seed, "
        "where 57.7 / 24.9 / 14.0 % was published with adaptive temperature; the argmax of the same logits has "
        "62.5 / 62.5 / 62.5 %."
    )
    assert said[3] == (
        "The arms were settled after trials with the seeds 0 and 1; over the 4 other seeds decay with focus (K = 4) "
        "has 73.5 / 73.5 / 73.5 %."
    )
    inference = next(each for each in said if each.startswith("Focus at inference"))
    assert "focus (K = 2) in 1, focus (K = 4) in 1, focus (K = 16) in 0" in inference
    assert "no clear difference in 1, better in 1; the highest is 72.5 % (decay with focus (K = 4))" in inference


def test_arms_that_came_later_are_named() -> None:
    said = findings.sentences(
        outcomes({"focus-16": level(60.0), "k-4": level(50.0), "focus-long": level(70.0)}), experiment()
    )
    assert "; k-4 and focus-long came later, when all seeds of the others were known; over the 4 other seeds" in said[3]


def test_focus_is_compared_seed_by_seed_with_other_rules_in_the_same_training() -> None:
    arms = {name: level(50.0) for name in ("decay", "skip", "as-entmax", "exponential", "long", "focus-16", "k-4")}
    found = outcomes({**arms, "focus-4": level(49.0, 1.0), "focus-long": level(61.0)})
    said = [each for each in findings.sentences(found, experiment()) if each.startswith("How far focus is ahead")]
    assert said == [
        "How far focus is ahead of other rules in the same training at 16,384 items, in points, with the paired t-test "
        "over seeds: focus-16 beside exponential +0.0; k-4 beside exponential +0.0; "
        "focus-4 beside skip +1.5 (p = 0.107), as-entmax +1.5 (p = 0.107); focus-long beside long +11.0 (p < 0.001)."
    ]
    told = [change for change in found.changes([1024]) if change.group.own != change.against.own]
    compared = [(change.group, change.against) for change in told]
    assert len(compared) == len(set(compared))  # a pair that is a rival, too, stands there once
    assert (Group("focus-long", OWN), Group("long", OWN)) in compared
    few = findings.sentences(outcomes({**arms, "focus-4": level(49.0)}, seeds=4), experiment())
    assert not any("focus is ahead" in each for each in few)


def test_gaps_resolutions_and_plateaus_are_told_by_arm() -> None:
    def losing(name: str, items: int, seed: int) -> float:
        return 10.0 if seed == 5 and items == 16 else 50.0 if name == ARGMAX else level(40.0)(name, items, seed)

    arms = [BY_NAME["published"], BY_NAME["decay"]]
    made = [outcome("published", seed, losing, None) for seed in range(6)]
    made += [outcome("decay", seed, level(45.0), 1e-4 * seed) for seed in range(6)]
    said = findings.sentences(Outcomes(arms, made), experiment())
    assert any(each.endswith("and what it reaches: decay +0.0 (45.0 %), published +10.0 (50.0 %).") for each in said)
    assert any("rise there: decay 250; the two largest of 16,384 items are 61 apart" in each for each in said)
    assert any(each.endswith("; not published with seed 5 (5 of 6 trained).") for each in said)


def test_the_published_arm_stands_beside_the_print_and_asentmax_beside_what_is_said_of_it() -> None:
    def as_printed(name: str, items: int, seed: int) -> float:
        return PRINTED[items].adaptive if name == "adaptive" else PRINTED[items].softmax

    found = outcomes({"published": as_printed, "as-entmax": level(60.0)})
    made = findings.comparisons(found, experiment())
    assert [each.verdict for each in made] == ["agrees"] * 8 + ["other set-up"]
    assert made[0].what == "accuracy at 16 items, %: softmax, arm published"
    assert made[-1].computed == "in 6 of 6 runs"
    assert {each.verdict for each in findings.comparisons(found, experiment(steps=500))} == {"other set-up"}


def test_a_line_of_the_table_by_arm() -> None:
    row = next(row for row in outcomes(LADDER).by_arm((1024, 16384)) if row["arm"] == "skip")
    assert (row["evaluated_with"], row["seeds"], row["seeds_that_train"], row["seeds_that_do_not"]) == (OWN, 6, 6, "")
    assert (row["mean_at_1024"], row["worst_seed_at_1024"], row["best_seed_at_16384"]) == (41.75, 38.0, 45.5)
    wanted = stats.t.interval(0.95, 5, loc=41.75, scale=stats.sem([38.0 + 1.5 * seed for seed in range(6)]))
    assert (row["low_at_16384"], row["high_at_16384"]) == pytest.approx(wanted)


def test_the_table_for_the_readme() -> None:
    """Read from a result's own table, as it comes back from its file."""

    def unequal(name: str, items: int, seed: int) -> float:
        return 60.0 if name == ARGMAX else level(40.0, 1.0)(name, items, seed)

    rows = outcomes({"published": level(15.0), "decay": unequal}).by_arm((1024, 16384))
    made = result_files.to_json(Result("ceiling", {}, [], [], {"arms": rows}, []))
    lines = experiments.ceiling(result_files.from_json(made)).splitlines()
    assert lines[0] == "| arm | what it is | 1,024 | 16,384 | seeds that train |"
    assert lines[2] == "| *adaptive, printed* |  | 57.7 | 14.0 | – |"
    assert lines[4] == (
        "| `decay` | published, but the learning rate falls by a cosine to 1e-6 | 42.5 (60.0), worst 40.0 | "
        "42.5 (60.0), worst 40.0 | 6 of 6 |"
    )
    assert len(lines) == 5


def test_the_table_of_focus_at_inference() -> None:
    k2, *wider = FOCUS
    accuracies = {OWN: 42.5, k2: 55.0, ARGMAX: 60.0}
    found = outcomes({"published": level(15.0), "decay": lambda name, items, seed: accuracies.get(name, 50.0)})
    rows = found.by_arm((1024, 16384))
    lines = experiments.inference(Result("ceiling", {}, [], [], {"arms": rows}, [])).splitlines()
    assert lines[0] == f"| arm, 16,384 items | own rule | {k2} | {' | '.join(wider)} | {ARGMAX} | seeds that train |"
    assert lines[3] == f"| `decay` | 42.5 | 55.0 |{' 50.0 |' * len(wider)} 60.0 | 0 of 6 |"
    assert len(lines) == 4


def names(chart: Chart) -> list[str]:
    return [series.name for series in chart.series]


def drawn(arms: list[Arm]) -> tuple[dict[str, Chart], HeatMap]:
    """The charts about arms of which every one is better than the one before."""
    made = [outcome(arm.name, 0, level(30.0 + place), arm=arm) for place, arm in enumerate(arms)]
    pictures = charts.charts(Outcomes(arms, made))
    (table,) = (each for each in pictures if isinstance(each, HeatMap))
    return {each.name: each for each in pictures if isinstance(each, Chart)}, table


def test_the_charts_of_every_arm_can_be_told_apart() -> None:
    by_name, table = drawn(list(ARMS))
    assert all(len([each for each in chart.series if not each.printed]) <= charts.CURVES for chart in by_name.values())
    assert names(by_name["rules"]) == [OWN, ARGMAX, *FOCUS]
    assert names(by_name["ladder"])[0] == "published"
    assert "published, printed" in names(by_name["ladder"])
    assert list(table.y) == [arm.name for arm in ARMS]
    best = 29.0 + len(ARMS)
    assert table.values[-1] == [best, None, best, best, best, best]  # adaptive temperature is for softmax only


def test_a_long_way_goes_on_in_another_chart() -> None:
    way = [PUBLISHED]
    for step in range(8):
        way.append(way[-1].but(f"step {step}", "one more", longer=2.0 + step))
    by_name, _ = drawn(way)
    assert names(by_name["ladder"]) == ["published", *(f"step {step}" for step in range(6)), "published, printed"]
    assert names(by_name["ladder-2"]) == ["step 5", "step 6", "step 7"]
    assert by_name["ladder-2"].title == "From step 5 to step 7, one change at a time"
    assert "ladder-3" not in by_name
    assert names(drawn(way[:1])[0]["ladder"]) == ["published", "published, printed"]


def test_arms_that_stand_beside_the_same_one_share_a_chart() -> None:
    beside = [PUBLISHED.but(f"wish {number}", "one more", longer=2.0 + number) for number in range(8)]
    by_name, _ = drawn([PUBLISHED, *beside, beside[0].but("alone", "one more", batch=64)])
    for kind in ("beside-published", "argmax-beside-published"):
        assert names(by_name[kind]) == ["published", *(f"wish {number}" for number in range(6))]
        assert names(by_name[f"{kind}-2"]) == ["published", "wish 6", "wish 7"]
    assert not any("beside-wish" in name for name in by_name)


def test_a_real_result_survives_its_file() -> None:
    tiny = Ceiling(arms=("skip", "focus-4"), steps=3, sets=4, sizes=(16, 32), seeds=2, workers=1)
    result = tiny.run()
    again = result_files.from_json(result_files.to_json(result))
    assert again.settings == tiny.settings()
    assert list(again.tables) == ["arms", "paired", "accuracy", "runs", "training"]
    assert len(result.tables["training"]) == 4
    assert {row["evaluated_with"] for row in result.tables["arms"]} == {OWN, "adaptive", ARGMAX, *FOCUS}
