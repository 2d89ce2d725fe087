"""A comparison of readers: its figures against a direct computation, its sentences, and what comes back from a file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import undilute as ud
from tests.diagnosis.finder import finder, tokenizer
from tests.selection.readers import TEXTS, Shared, constructed, without_seconds
from undilute.errors import InvalidValue, UnknownName
from undilute.evaluation.changes import interval
from undilute.selection import Comparison, compare_readers
from undilute.selection.judging import read_each

TASKS = ["other-facts", "other-facts-paraphrased"]
OPTIONS = {"tasks": TASKS, "lengths": [512, 256], "haystacks": 4, "budget": 96}
READERS = ["none", "shared", "oracle"]


@pytest.fixture(scope="module")
def real() -> Comparison:
    model = finder(gap=3.4)  # which finds some facts and not others
    model.config.max_position_embeddings = 400
    return compare_readers(model, tokenizer(), TEXTS, READERS, given={"shared": Shared()}, name="finder", **OPTIONS)


# ---------------------------------------------------------------- figures


def test_it_asks_what_read_each_asks(real: Comparison) -> None:
    model = finder(gap=3.4)
    model.config.max_position_embeddings = 400
    rows = read_each(model, tokenizer(), TEXTS, READERS, given={"shared": Shared()}, **OPTIONS)
    assert without_seconds(rows) == without_seconds(real.rows)
    assert (real.readers, real.tasks, real.lengths) == (READERS, TASKS, [256, 512])
    assert real.settings["window"] == 400
    assert [each.task for each in real.examples] == TASKS
    assert ud.selection.compare_readers is compare_readers


def test_the_frame_is_what_can_be_computed_from_the_rows(real: Comparison) -> None:
    frame = real.frame()
    assert len(frame) == len(READERS) * len(TASKS) * 2
    varied = 0
    for row in frame.to_dict("records"):
        some = [
            each
            for each in real.rows
            if (each.reader, each.task, each.length) == (row["reader"], row["task"], row["length"])
        ]
        assert row["questions"] == len(some) == 16
        assert row["haystacks"] == 4
        for name, low, high, part in (
            ("recall, %", "low", "high", "right"),
            ("gold kept, %", "kept low", "kept high", "kept"),
        ):
            values = np.array([[getattr(e, part) for e in some if e.haystack == number] for number in range(4)], float)
            assert row[name] == pytest.approx(100 * values.mean())
            if 0 < values.mean() < 1:
                varied += 1
                ends = interval(100 * values.sum(1), np.full(4, 4.0))
                assert (row[low], row[high]) == pytest.approx(ends)
        assert row["tokens to choose"] == np.mean([each.chosen for each in some])
        assert row["tokens to answer"] == pytest.approx(np.mean([each.answered for each in some]))
        assert row["seconds a question"] == np.median([each.seconds for each in some])
        assert row["guessing, %"] == pytest.approx(12.5)
    assert varied > 3


def test_all_or_none_is_never_certain() -> None:
    found = constructed({("none", "emblem"): 0.0, ("heads", "emblem"): 1.0}, lengths=[1024], haystacks=8, questions=4)
    none, heads = found.frame().to_dict("records")
    assert (none["recall, %"], none["low"], none["high"]) == (0.0, 0.0, pytest.approx(300 / 32))
    assert (heads["recall, %"], heads["low"], heads["high"]) == (100.0, pytest.approx(100 - 300 / 32), 100.0)
    assert heads["kept low"] == pytest.approx(100 - 300 / 32)
    few = constructed({("none", "emblem"): 1.0}, lengths=[1024], haystacks=1, questions=1).frame().iloc[0]
    assert (few["low"], few["high"]) == (0.0, 100.0)


def test_changes_are_paired_over_haystacks(real: Comparison) -> None:
    (line,) = [each for each in real.changes["shared"] if each.what == "recall, other-facts"]
    sums = []
    for number in range(4):
        own = {
            reader: [e.right for e in real.rows if (e.reader, e.task, e.haystack) == (reader, "other-facts", number)]
            for reader in ("none", "shared")
        }
        sums.append(100 * (sum(own["shared"]) - sum(own["none"])))
    assert line.count == 4  # the same facts at both lengths are one block
    assert line.difference == pytest.approx(sum(sums) / 32)
    flipped = [abs(np.dot(signs, sums)) for signs in itertools.product((1, -1), repeat=4)]
    assert line.p_value == pytest.approx(np.mean(np.array(flipped) >= abs(sum(sums)) - 1e-6))
    whole = real.changes["shared"][0]
    assert (whole.what, whole.count) == ("recall", 8)  # a haystack of each task
    assert [each.what for each in real.changes["oracle"]] == [
        "recall",
        *(f"recall, {task}" for task in TASKS),
        "recall at 256 tokens",
        "recall at 512 tokens",
    ]
    assert list(real.changes) == ["shared", "oracle"]


def test_all_tasks_are_pooled(real: Comparison) -> None:
    frame = real.frame("all tasks")
    row = frame[(frame["reader"] == "none") & (frame["length"] == 512)].iloc[0]
    some = [each for each in real.rows if (each.reader, each.length) == ("none", 512)]
    assert row["recall, %"] == pytest.approx(100 * np.mean([each.right for each in some]))
    assert (row["questions"], row["haystacks"]) == (32, 8)
    assert len(real.frame("changes")) == 2 * 5
    with pytest.raises(UnknownName, match="unknown table 'recal'"):
        real.frame("recal")
    with pytest.raises(UnknownName, match="unknown reader 'heds'"):
        real.recall("heds")


def test_without_none_the_first_reader_is_the_baseline() -> None:
    found = constructed({("heads", "emblem"): 0.5, ("bm25", "emblem"): 1.0})
    assert found.baseline == "heads"
    assert list(found.changes) == ["bm25"]
    assert found.findings[0] == "At 8,192 tokens, bm25 answers most questions right: 100.0 % (91 to 100)."


# ---------------------------------------------------------------- sentences

BOTH = ("emblem", "two-hops")


def shares(none: float, bm25: float, heads: float, second: float | None = None) -> dict[tuple[str, str], float]:
    values = {"none": none, "bm25": bm25, "heads": heads}
    every = {(reader, task): share for task in BOTH for reader, share in values.items()}
    return every if second is None else every | {("bm25", "two-hops"): second}


def test_the_best_reader_is_named_first_and_for_each_task() -> None:
    found = constructed(shares(0.5, 0.75, 1.0))
    assert found.findings[0].startswith(
        "At 8,192 tokens, heads beats reading everything (none): 100 % of the questions right instead of 50 % (+50.0"
    )
    assert "emblem: best is heads with 100 %; bm25 75 %, none 50 %." in found.findings
    assert found.summary().splitlines()[0] == found.findings[0]


def test_where_words_or_embeddings_beat_heads_it_is_said() -> None:
    said = constructed(shares(0.25, 1.0, 0.5, second=0.5)).findings
    assert any(each.startswith("Over everything, bm25 is better than the model's own heads: 75.0 % ") for each in said)
    assert "bm25 is better than heads in emblem (100 % instead of 50 %, p = 0.008)." in said
    worse = constructed(shares(0.25, 0.5, 1.0)).findings
    assert any(each.startswith("Over everything, bm25 is worse than the model's own heads") for each in worse)
    assert not any("is better than heads in" in each for each in worse)


def test_readers_that_are_as_good_share_the_headline() -> None:
    found = constructed(shares(0.5, 1.0, 1.0))
    assert found.findings[0].startswith("At 8,192 tokens, bm25, as well as heads, beats reading everything (none)")
    assert "emblem: best are bm25 and heads with 100 %; none 50 %." in found.findings


def test_where_selecting_loses_it_is_said() -> None:
    assert (
        constructed(shares(1.0, 0.5, 0.75))
        .findings[0]
        .startswith(
            "At 8,192 tokens, no selection beats reading everything (none): heads answers 75 % of the questions right "
            "instead of 100 % (−25.0 points"
        )
    )
    assert "no selection differs clearly" in constructed(shares(0.5, 0.5, 0.5)).findings[0]


def test_what_the_budget_hides_is_said() -> None:
    kept = {("heads", "two-hops"): 0.25, ("bm25", "two-hops"): 0.5, ("none", "two-hops"): 0.0}
    (said,) = [each for each in constructed(shares(0.5, 0.5, 0.5), kept=kept).findings if "hides something" in each]
    assert said == (
        "In two-hops, the budget of 256 tokens hides something: all that an answer needs was kept by bm25 for 50 % and "
        "heads for 25 % of the questions."
    )


def test_a_text_that_was_cut_to_the_window_is_said() -> None:
    (said,) = [each for each in constructed(shares(0.5, 1, 1), window=2048).findings if "window" in each]
    assert said.startswith(
        "A text of 8,192 tokens does not fit into the model's window of 2,048: none was cut to the last 2,048"
    )
    assert not any("window" in each for each in constructed(shares(0.5, 1, 1), window=8192).findings)


def test_a_task_that_is_guessed_is_said() -> None:
    said = constructed(shares(0.0, 0.0, 0.0)).findings
    assert any(
        each.startswith("Answers in two-hops cannot be told from guesses after any reader (12 %") for each in said
    )
    assert not any("guesses" in each for each in constructed(shares(0.0, 0.0, 1.0)).findings)


def test_few_haystacks_cannot_show_a_difference() -> None:
    found = constructed({("none", "emblem"): 0.0, ("heads", "emblem"): 1.0}, haystacks=3)
    assert "no selection differs clearly" in found.findings[0]
    assert "Fewer than 6 sets cannot show a clear difference." in found.findings[-1]


def test_real_rows_make_sentences(real: Comparison) -> None:
    assert "window of 400" in real.summary()
    assert "The oracle, which is given the right passages alone" in real.summary()
    assert repr(real).startswith("Comparison of none, shared, oracle on 'finder': At 512 tokens")


# ---------------------------------------------------------------- keeping


def test_it_comes_back_from_its_file(real: Comparison, tmp_path: Path) -> None:
    path = real.save_json(tmp_path / "readers.json")
    assert json.loads(path.read_text())["schema"] == "undilute.readers/1"
    for again in (Comparison.from_json(path), Comparison.from_json(path.read_text())):
        assert again.rows == real.rows
        assert again.findings == real.findings
        assert again.to_json() == real.to_json()
        assert again.examples == real.examples
        assert again.frame().equals(real.frame())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is no comparison of readers"),
        ("[]", "it is no comparison of readers"),
        ('{"schema": "undilute.experiment/1"}', "its schema is 'undilute.experiment/1': must be 'undilute.readers/1'"),
        ('{"schema": "undilute.readers/1"}', "it is no comparison of readers"),
    ],
)
def test_another_file_is_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Comparison.from_json(text)


def test_a_row_of_another_kind_is_refused() -> None:
    content = json.loads(constructed(shares(0.5, 1, 1)).to_json())
    content["rows"][0][content["columns"].index("length")] = "long"
    with pytest.raises(InvalidValue, match="length = 'long' is not of type int"):
        Comparison.from_json(json.dumps(content))


def test_a_notebook_shows_it_escaped() -> None:
    html = constructed({("none", "<b>"): 0.5, ("<script>", "<b>"): 1.0})._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
