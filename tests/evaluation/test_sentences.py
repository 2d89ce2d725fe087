"""Sentences say what the figures say: better, worse or neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.evaluation.constructed import evaluation
from undilute.evaluation.changes import changes
from undilute.evaluation.cost import Cost
from undilute.evaluation.measure import Measurement
from undilute.evaluation.sentences import beats_guessing, findings


def said(before: Measurement, after: Measurement) -> list[str]:
    return findings(before, after, changes(before, after))


@pytest.mark.parametrize(
    ("loss", "right", "answer"),
    [
        (0.1, 0.9, ("next-token loss is worse", "needle recall is better")),
        (-0.1, 0.3, ("next-token loss is better", "needle recall is worse")),
        (0.0, 0.6, ("next-token loss shows no clear difference", "needle recall shows no clear difference")),
    ],
)
def test_the_answer_comes_first(loss: float, right: float, answer: tuple[str, str]) -> None:
    first = said(evaluation(), evaluation("ssmax", loss=loss, right=right))[0]
    assert first.startswith(f"With ssmax instead of softmax, {answer[0]} (")
    assert f", and {answer[1]} (" in first


def test_figures_are_those_of_the_change() -> None:
    before, after = evaluation(), evaluation("ssmax", loss=0.1)
    line = changes(before, after)[0]
    shown = f"{line.before:.3f} → {line.after:.3f} nats, difference +0.100, 95 % interval +0.100 to +0.100, p < 0.001"
    assert shown in said(before, after)[0]


def test_positions_and_lengths_are_told_apart() -> None:
    before, after = evaluation(), evaluation("ssmax")
    after.losses[:, 255:] += 0.2
    answers = tuple(replace(each, right=1.0 if each.length == 512 else each.right) for each in after.answers)
    sentences = said(before, replace(after, answers=answers))
    assert any(
        sentence.startswith(
            "By position, the loss is worse after 256–511 tokens, and shows no clear difference after 1–63 tokens, "
            "after 64–127 tokens and after 128–255 tokens. At the end of the window, after 256–511 tokens: "
        )
        for sentence in sentences
    )
    assert (
        "By length, needle recall is better at 512 tokens, and shows no clear difference at 1,024 tokens." in sentences
    )


def test_tasks_are_told_apart() -> None:
    before, after = evaluation(), evaluation("ssmax")
    answers = tuple(replace(each, right=1.0 if each.task == "multi-key" else each.right) for each in after.answers)
    assert (
        "By task, needle recall is better in multi-key, and shows no clear difference in single, in multi-value and in "
        "tracking."
    ) in said(before, replace(after, answers=answers))


def test_answers_like_guesses_are_called_so() -> None:
    """Right as often as chance, in both: the task tells nothing."""
    before, after = evaluation(right=0.25), evaluation("ssmax", right=0.3)
    guesses = [sentence for sentence in said(before, after) if "cannot be told from guesses" in sentence]
    assert len(guesses) == 4
    assert "Answers in tracking cannot be told from guesses" in guesses[-1]
    assert "25 % by guessing" in guesses[0]
    assert not [each for each in said(evaluation(), after) if "guess" in each]
    assert beats_guessing(evaluation().answers)
    assert not beats_guessing(before.answers)


@pytest.mark.parametrize(
    ("entropy", "seed", "words"),
    [
        (-0.5, 0, "attention is narrower"),
        (0.5, 0, "attention is wider"),
        (0.0, 0, "neither clearly narrower nor clearly wider"),
    ],
)
def test_attention(entropy: float, seed: int, words: str) -> None:
    assert any(words in sentence for sentence in said(evaluation(), evaluation("x", entropy=entropy, seed=seed)))


def test_cost() -> None:
    before, after = evaluation(cost=Cost(2040, 4.0, 0.05, 200.0)), evaluation("x", cost=Cost(2040, 6.0, 0.051, 100.0))
    assert (
        "Time to read 2,040 tokens: 1.50 times as much (6 s instead of 4 s); for one more token: about the same "
        "(0.051 s instead of 0.05 s); memory for reading: 0.50 times as much (100 MB instead of 200 MB)."
    ) in said(before, after)
    without = evaluation("x", cost=Cost(2040, 6.0, 0.051, None))
    assert "memory" not in " ".join(said(before, without))
    assert "Time" not in " ".join(said(before, evaluation("x")))


def test_how_much_was_measured() -> None:
    last = said(evaluation(), evaluation("x"))[-1]
    assert last.startswith("Measured on 3 windows of 512 tokens and 192 questions about 48 haystacks. The 20 lines")
    assert last.endswith("would be called better or worse without any real difference.")  # every line has blocks enough


def test_lines_that_cannot_be_clear_are_counted() -> None:
    """With 2 windows, the buckets of 1–63 and 64–127 tokens hold 4 runs each; with 5, they could be clear."""
    after = evaluation("x", loss=5.0, windows=2)
    last = said(evaluation(windows=2), after)[-1]
    assert last.endswith(
        " 2 of them rest on fewer than 6 blocks of text or haystacks, too few to show a clear difference."
    )
    unclear = [
        line for line in changes(evaluation(windows=2), after) if "loss" in line.what and line.verdict != "worse"
    ]
    assert [line.count for line in unclear] == [4, 4]
    assert all(
        line.verdict == "worse" for line in changes(evaluation(windows=5), evaluation("x", loss=5.0, windows=5))[:5]
    )


def test_without_questions_nothing_is_said_about_them() -> None:
    before = replace(evaluation(), answers=())
    sentences = said(before, replace(before, label="x"))
    assert "needle recall was not measured" in sentences[0]
    assert not [each for each in sentences[1:] if "recall" in each or "haystack" in each]
