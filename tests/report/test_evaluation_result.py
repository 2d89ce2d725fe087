"""What a treatment's result says: true whatever came out, and complete enough to make its page anew."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.report.evaluations import BARE, BEFORE, BETTER, HAYSTACKS, LENGTHS, QUESTIONS, SAME, TASKS, WORSE, evaluation
from tests.report.results import EVIL
from tests.report.test_result_page import Elements
from undilute.evaluation.changes import changes
from undilute.evaluation.cost import Cost
from undilute.evaluation.measure import Measurement
from undilute.evaluation.result import DEPTHS, Evaluation, at_depth
from undilute.report import result_files as experiment_files
from undilute.report import result_page as experiment_page
from undilute.report.result import Chart, HeatMap, Result


def treat(after: Measurement, before: Measurement = BEFORE, model: str = "smollm2") -> Result:
    settings = {"model": model, "rules": after.label}
    found = {after.label: changes(before, after)}
    return Evaluation("treat", [before, after], found, {}, [], settings, command="undilute treat").report()


def compare(*others: Measurement, before: Measurement = BEFORE, model: str = "smollm2") -> Result:
    found = {each.label: changes(before, each) for each in others}
    settings = {"model": model, "rules": (before.label, *found)}
    return Evaluation("compare", [before, *others], found, {}, [], settings, command="undilute compare").report()


def heat_map(result: Result, name: str) -> HeatMap:
    (found,) = [each for each in result.charts if each.name == name]
    assert isinstance(found, HeatMap)
    return found


def curve(result: Result, name: str) -> Chart:
    (found,) = [each for each in result.charts if each.name == name]
    assert isinstance(found, Chart)
    return found


# ---------------------------------------------------------------- one rule


def test_charts_show_before_and_after_by_everything_that_matters() -> None:
    result = treat(BETTER)
    assert [each.name for each in result.charts] == [
        "loss-by-position",
        "loss-difference",
        *(f"recall-{task}" for task in TASKS),
        "recall-by-depth",
        "entropy",
        "recall-by-length",
        "recall-by-task",
        "cost",
    ]
    for each in result.charts:
        if isinstance(each, Chart) and each.name != "loss-difference":
            assert [series.name for series in each.series][:2] == ["softmax", "ssmax"]


def test_loss_by_position_is_the_mean_of_its_tokens_within_its_interval() -> None:
    before, after = curve(treat(BETTER), "loss-by-position").series
    ends = [(1, 63), (64, 127), (128, 255), (256, 511)]
    for series, each in ((before, BEFORE), (after, BETTER)):
        assert series.low is not None
        assert series.high is not None
        expected = [each.losses[:, first - 1 : last].mean() for first, last in ends]
        assert list(series.y) == pytest.approx(expected, abs=1e-12)
        assert all(low < y < high for low, y, high in zip(series.low, series.y, series.high, strict=True))
        assert list(series.x) == [last for _, last in ends]


def test_the_paired_difference_of_loss_has_a_narrower_interval_than_the_losses() -> None:
    result = treat(BETTER)
    difference, zero = curve(result, "loss-difference").series
    loss = curve(result, "loss-by-position").series[0]
    assert list(difference.y) == pytest.approx([-0.2] * 4, abs=0.01)
    assert list(zero.y) == [0.0] * 4
    for series in (difference, loss):
        assert series.low is not None
        assert series.high is not None
    assert np.max(np.subtract(difference.high, difference.low)) < np.min(np.subtract(loss.high, loss.low))  # type: ignore[arg-type]


def test_recall_is_the_share_of_right_answers() -> None:
    result = treat(BETTER)
    _, after, guessing = curve(result, "recall-multi-key").series
    for length, value in zip(LENGTHS, after.y, strict=True):
        own = [each.right for each in BETTER.answers if (each.task, each.length) == ("multi-key", length)]
        assert value == pytest.approx(100 * np.mean(own))
    assert list(guessing.y) == pytest.approx([12.5] * 3)
    by_task = heat_map(result, "recall-by-task")
    right = [
        [100 * np.mean([a.right for a in e.answers if a.task == task]) for task in TASKS] for e in (BEFORE, BETTER)
    ]
    assert np.array(by_task.values, float) == pytest.approx(np.array(right))
    assert by_task.centre == "softmax"


def test_depths_hold_every_answer_once() -> None:
    assert sum(len(at_depth(BEFORE, *depth)) for depth in DEPTHS) == len(BEFORE.answers)
    assert len(at_depth(BEFORE, 0.8, 1.0)) == len(BEFORE.answers) // QUESTIONS


def test_every_change_is_in_the_table_with_its_verdict() -> None:
    found = changes(BEFORE, WORSE)
    rows = treat(WORSE).tables["changes"]
    assert [(row["what"], row["verdict"], row["p"]) for row in rows] == [(e.what, e.verdict, e.p_value) for e in found]
    assert "worse" in {row["verdict"] for row in rows}
    assert {row["rule"] for row in rows} == {"top-k"}


def test_time_and_memory_are_ratios_to_the_model_as_it_was() -> None:
    result = treat(replace(BETTER, cost=Cost(512, 3.0, 0.25, None)))
    values = heat_map(result, "cost").values
    assert values[0] == [1.0, 1.0, 1.0]
    assert values[1][:2] == [1.5, 1.0]
    assert math.isnan(values[1][2] or 0)
    assert result.tables["cost"][1]["reading, s, ratio"] == 1.5
    assert result.tables["cost"][1]["memory for reading, MB"] is None


def test_without_questions_and_times_there_are_no_charts_of_them() -> None:
    result = treat(replace(BARE, label="ssmax"), BARE)
    assert [each.name for each in result.charts] == ["loss-by-position", "loss-difference", "entropy"]
    assert set(result.tables) == {"changes", "loss by position", "entropy"}


def test_a_short_window_is_one_bucket() -> None:
    short = [replace(each, losses=each.losses[:, :40]) for each in (BEFORE, BETTER)]
    result = treat(short[1], short[0])
    assert len(curve(result, "loss-difference").series[0].y) == 1


def test_one_window_of_one_run_has_no_interval() -> None:
    short = [replace(each, losses=each.losses[:1, :20]) for each in (BEFORE, BETTER)]
    series = curve(treat(short[1], short[0]), "loss-by-position").series[0]
    assert math.isnan((series.low or [0.0])[0])


# ---------------------------------------------------------------- many rules


def test_the_answer_names_every_rule_by_its_verdict() -> None:
    verdicts = "is better under ssmax, and is worse under top-k, and shows no clear difference under adaptive"
    answer = compare(BETTER, WORSE, SAME).findings[0]
    assert answer == f"Compared with softmax, next-token loss {verdicts}; needle recall {verdicts}."


def test_a_comparison_of_worse_rules_calls_none_of_them_better() -> None:
    result = compare(WORSE, replace(WORSE, label="hard"))
    assert "is worse under top-k and hard" in result.findings[0]
    assert not any("better under" in finding for finding in result.findings)


def test_each_rule_has_a_sentence_with_its_figures() -> None:
    result = compare(BETTER, WORSE)
    (sentence,) = [finding for finding in result.findings if finding.startswith("ssmax:")]
    assert re.search(r"next-token loss \d\.\d{3} → \d\.\d{3} nats, difference −0\.\d+, 95 % interval", sentence)
    assert "1.00 times the time to read 512 tokens" in sentence
    assert (
        f"{len(BEFORE.answers)} questions about {len(TASKS) * len(LENGTHS) * HAYSTACKS} haystacks"
        in (result.findings[-1])
    )


def test_a_task_that_no_rule_can_do_is_said_to_tell_nothing() -> None:
    guessing = [evaluation(label, right=0.125, seed=seed) for seed, label in enumerate(("softmax", "ssmax"))]
    result = compare(guessing[1], before=guessing[0])
    assert sum("be told from guesses" in finding for finding in result.findings) == len(TASKS)
    assert not any("be told from guesses" in finding for finding in compare(BETTER).findings)


def test_heat_maps_have_a_row_for_every_rule_and_softmax_first() -> None:
    result = compare(BETTER, WORSE, SAME)
    for name, columns in (("recall-by-length", 3), ("recall-by-task", 4), ("loss-difference", 4), ("cost", 3)):
        made = heat_map(result, name)
        assert list(made.y) == ["softmax", "ssmax", "top-k", "adaptive"]
        assert made.centre == "softmax"
        assert len(made.x) == columns
    losses = np.array(heat_map(result, "loss-difference").values, float)
    assert losses[0] == pytest.approx([0.0] * 4)
    assert losses[1] == pytest.approx([-0.2] * 4, abs=0.01)
    assert losses[2] == pytest.approx([0.3] * 4, abs=0.01)
    assert {row["rule"] for row in result.tables["loss by position"]} == {"softmax", "ssmax", "top-k", "adaptive"}
    assert len(result.tables["recall"]) == 4 * len(TASKS) * len(LENGTHS)


def test_what_is_missing_is_a_gap_and_not_a_number() -> None:
    wide = np.full_like(SAME.spread.entropy, math.nan)
    odd = replace(SAME, spread=replace(SAME.spread, entropy=wide))
    result = compare(odd)
    assert list(curve(result, "entropy").series[1].y) == []
    experiment_page.page([result])


# ---------------------------------------------------------------- files and page


@pytest.mark.parametrize("result", [treat(BETTER), compare(BETTER, WORSE, SAME)], ids=["treat", "compare"])
def test_a_result_comes_back_from_its_file_and_is_all_on_its_page(result: Result, tmp_path: Path) -> None:
    result = replace(result, seconds=1.0)
    written = experiment_files.save(result, tmp_path)
    assert {path.suffix for path in written} == {".csv", ".png", ".html", ".json"}
    assert experiment_files.to_json(experiment_files.load(tmp_path)) == experiment_files.to_json(result)
    page = Elements((tmp_path / "index.html").read_text())
    for finding in result.findings:
        assert finding in page.text
    for chart in result.charts:
        assert chart.title in page.text
        assert f"{chart.name}.png" in page.text


def test_names_that_try_to_break_out_are_only_shown() -> None:
    after = replace(BETTER, label=EVIL)
    for result in (replace(treat(after, model=EVIL), command=EVIL), compare(after, model=EVIL)):
        page = Elements(experiment_page.page([result]))
        assert f"{EVIL} under {EVIL}" in page.text or f"Rules compared on {EVIL}" in page.text
        assert not any("pwned" in script for script in page.scripts)
        assert not {"img", "a"} & {tag for tag, each in page.tags if each.get("class") != "skip"}
