"""Readers on the same questions: a kill loses nothing, gold is where it is said to be, and parts are asked once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.diagnosis.finder import finder, tokenizer
from tests.evaluation.tokenizers import PROSE
from tests.evaluation.tokenizers import tokenizer as small
from tests.selection.readers import TEXTS, WINDOW, Containing, Shared, random_reader, without_seconds
from undilute.errors import InvalidValue, UnknownName
from undilute.evaluation.haystacks import Hay, Haystack, Hiding
from undilute.evaluation.measure import answers
from undilute.evaluation.words import Words, continuation
from undilute.models.texts import beginning
from undilute.selection.forms import put
from undilute.selection.judging import Read, examples, read_each

TASKS = ["other-facts", "other-facts-paraphrased"]
OPTIONS: dict[str, Any] = {"tasks": TASKS, "lengths": [256, 512], "haystacks": 2, "budget": 128}
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.selection.test_judging import OPTIONS, asked

cells = 0

def kill(share, doing):
    global cells
    cells += 1
    if cells > 5:
        os.kill(os.getpid(), signal.SIGKILL)

asked(checkpoint=Path(sys.argv[1]), on_progress=kill)
"""


def asked(readers: Any = ("none", "shared", "oracle"), given: Any = None, **options: Any) -> list[Read]:
    scorers = {"shared": Shared()} if given is None else given
    return read_each(finder(), tokenizer(), TEXTS, readers, given=scorers, **OPTIONS | options)


def haystacks_of(kind: str, task: str, length: int, number: int = 0) -> Haystack:
    """The haystack that a comparison with seed 0 asks about."""
    hay = Hay(small(kind), PROSE)
    return Hiding(small(kind)).growing(hay, [length], task, seed=(0, 7, number), number=number)[0]


# ---------------------------------------------------------------- what is kept of a run


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "new" / "answers.jsonl"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], cwd=root, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    before = file.read_text().splitlines()
    assert len(before) == 1 + 5  # the settings, and five of eight cells
    begun: list[str] = []
    rows = asked(checkpoint=file, on_progress=lambda share, doing: begun.append(doing))
    assert len(begun) == 3 + 1  # the rest, and that it is done
    assert without_seconds(rows) == without_seconds(asked())
    assert file.read_text().splitlines()[:6] == before
    assert asked(checkpoint=file) == rows  # seconds too: nothing was asked again


@pytest.mark.parametrize("damage", [lambda text: text[:-200], lambda text: text[:-1], lambda text: text + "[{"])
def test_a_line_that_was_being_written_is_asked_again(tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "answers.jsonl"
    rows = asked(checkpoint=file)
    whole = file.read_text()
    file.write_text(damage(whole))
    assert without_seconds(asked(checkpoint=file)) == without_seconds(rows)
    assert len(file.read_text().splitlines()) == len(whole.splitlines())


@pytest.mark.parametrize("other", [{"budget": 100}, {"seed": 1}, {"readers": ["none"]}, {"order": "document"}])
def test_a_file_of_other_settings_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    file = tmp_path / "answers.jsonl"
    asked(checkpoint=file, haystacks=1, lengths=[256])
    before = file.read_text()
    with pytest.raises(InvalidValue, match="holds a run with other settings"):
        asked(checkpoint=file, **other)
    assert file.read_text() == before


def test_more_haystacks_can_be_asked_later(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    few = asked(checkpoint=file, haystacks=1)
    many = asked(checkpoint=file)
    assert [each for each in many if each.haystack == 0] == few
    assert without_seconds(many) == without_seconds(asked())


# ---------------------------------------------------------------- what the model reads


def test_everything_within_the_window_is_answered_as_an_evaluation_answers_it() -> None:
    """With the same form of the question, on the same tokens."""
    used, model = small("byte-level"), random_reader("byte-level")
    rows = read_each(model, used, {"prose": PROSE}, ["none"], tasks=["emblem"], lengths=[900], haystacks=2, questions=8)
    made = [haystacks_of("byte-level", "emblem", 900, number) for number in range(2)]
    shared = Words(used).shared
    expected = answers(
        model,
        [
            replace(
                each,
                questions=tuple(
                    replace(own, ids=torch.tensor(continuation(used, put(own.text)) + shared)) for own in each.questions
                ),
            )
            for each in made
        ],
    )
    assert len(rows) == len(expected) == 16
    for own, other in zip(rows, expected, strict=True):
        assert (own.task, own.length, own.haystack, own.question) == (
            other.task, other.length, other.haystack, other.question,
        )  # fmt: skip
        assert own.right == other.right
        assert own.log_probability == pytest.approx(other.log_probability, abs=1e-5)
        assert own.chance == other.chance == 1 / 8
    assert all(each.kept for each in rows)
    assert {each.answered for each in rows} == {len(each.ids) for each in made}


def test_beyond_the_window_the_end_is_read() -> None:
    used, model = small("marked"), random_reader("marked")
    length = WINDOW + 500
    rows = read_each(model, used, {"prose": PROSE}, ["none"], tasks=["emblem"], lengths=[length], haystacks=1)
    haystack = haystacks_of("marked", "emblem", length)
    shared = Words(used).shared
    questions = [continuation(used, put(each.text)) + shared for each in haystack.questions[:4]]
    room = WINDOW - max(map(len, questions))
    assert {each.answered for each in rows} == {room}
    cut = len(haystack.ids) - room + 1  # the mark before a text is kept
    for row, question, tokens in zip(rows, haystack.questions, questions, strict=False):
        assert row.kept == all(start >= cut for start, _ in question.needs)
        ids = torch.tensor([*beginning(used), *haystack.ids[cut:].tolist(), *tokens])
        with torch.no_grad():
            logits = model(ids[None]).logits[0, -1].double()
        ranked = logits[question.candidate_ids].log_softmax(0)
        assert row.log_probability == pytest.approx(float(ranked[question.right[0]]), abs=1e-5)
    assert {each.kept for each in rows} == {True, False}


def test_the_oracle_keeps_all_gold_and_little_else() -> None:
    used = small("byte-level")
    names = ["emblem", "two-hops", "descriptions"]
    options: dict[str, Any] = {"tasks": names, "lengths": [1500], "haystacks": 2, "budget": 300}
    rows = read_each(random_reader("byte-level"), used, {"prose": PROSE}, ["oracle"], **options)
    assert {each.task for each in rows} == set(names)
    assert all(each.kept for each in rows)
    assert max(each.answered for each in rows) < 500
    assert all(each.chosen == 0 for each in rows)


def test_two_hops_need_both_statements() -> None:
    used = small("byte-level")
    haystack = haystacks_of("byte-level", "two-hops", 1500)
    for question in haystack.questions:
        name = question.text.split()[0]
        shares, has = sorted(
            (used.decode(haystack.ids[start:end]).strip() for start, end in question.needs), reverse=True
        )
        if not shares.startswith(name):
            shares, has = has, shares
        other = shares.removeprefix(f"{name} shares a house with ").removesuffix(".")
        assert has == f"The emblem of {other} is the {question.candidates[question.right[0]]}."


def test_one_of_two_statements_is_not_all_of_the_gold() -> None:
    options: dict[str, Any] = {"tasks": ["two-hops"], "lengths": [1500], "haystacks": 1, "budget": 700, "size": 64}
    model, used = random_reader("byte-level"), small("byte-level")
    given = {"house": Containing("shares a house"), "emblem": Containing("The emblem of")}
    for reader in given:
        rows = read_each(model, used, {"prose": PROSE}, [reader], given={reader: given[reader]}, **options)
        assert not all(each.kept for each in rows)
    rows = read_each(model, used, {"prose": PROSE}, ["house+emblem"], given=given, **options | {"budget": 1400})
    assert all(each.kept for each in rows)


def test_fused_readers_ask_each_part_once() -> None:
    one, other = Shared("one"), Shared("other")
    given = {"one": one, "other": other}
    asked(["one", "other", "one+other"], given)
    cells = len(TASKS) * 2 * 2
    assert (one.asked, other.asked) == (cells, cells)


def test_readers_are_asked_the_same() -> None:
    rows = asked(["none", "shared"])
    none, shared = ([each for each in rows if each.reader == name] for name in ("none", "shared"))
    same = ("task", "length", "text", "haystack", "question", "chance")
    assert [[getattr(each, name) for name in same] for each in none] == [
        [getattr(each, name) for name in same] for each in shared
    ]
    assert {each.text for each in none} == set(TEXTS)
    assert max(each.answered for each in shared) <= 128
    assert np.mean([each.right for each in shared]) > 0.8  # the model finds what is there


def test_an_example_is_what_is_asked_first() -> None:
    (shown,) = examples(small("byte-level"), {"prose": PROSE}, ["two-hops"], [1500])
    first = haystacks_of("byte-level", "two-hops", 1500).questions[0]
    assert (shown.question, shown.answer) == (first.text, first.candidates[first.right[0]])
    assert len(shown.statements) == 2
    assert any(shown.answer in each for each in shown.statements)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readers": ["bm52"]}, "reader 'bm52': must be none, oracle, or one of the scorers .*heads"),
        ({"readers": ["none+shared"]}, r"reader 'none\+shared': must be none, oracle"),
        ({"readers": []}, "must name at least one each"),
        ({"order": "up"}, "order = 'up': must be 'document' or 'best last'"),
        ({"lengths": [20]}, "length = 20: must be at least .* tokens for the task 'other-facts'"),
        ({"lengths": [256, 90_000]}, "a: the text has .* tokens: a haystack of this length needs 90,000"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_is_read(options: dict[str, Any], message: str) -> None:
    def never(share: float, doing: str) -> None:
        pytest.fail("something was read")

    with pytest.raises(InvalidValue, match=message):
        asked(on_progress=never, **options)


def test_a_task_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnknownName, match="unknown task 'emblm': did you mean 'emblem'"):
        asked(tasks=["emblm"])
