"""A task is one file: it appears wherever tasks appear, and changes nothing about the others."""

from __future__ import annotations

import copy
import importlib.util
import re
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import undilute as ud
from tests.evaluation.constructed import TASKS
from tests.evaluation.test_measure import reader
from tests.evaluation.tokenizers import PROSE, tokenizer
from undilute.errors import InvalidValue, UnknownName
from undilute.evaluation import tasks
from undilute.evaluation.haystacks import haystacks, shortest
from undilute.evaluation.tasks import Asked, Hidden, articles, counting
from undilute.evaluation.words import THINGS, Generator, Words, standing_in

OWN = """
import undilute as ud

@ud.evaluation.task("pets", hides={"It is {name} who keeps a {thing}.": 4}, asks="It is {name} who keeps a")
def pets(words, taken, generator):
    from undilute.evaluation.words import names

    kept = words.things(4, taken, generator)
    begun = [f"It is {name} who keeps a" for name in names(4, taken, generator)]
    needles = [f"{start} {pet}." for start, pet in zip(begun, kept)]
    asked = [ud.evaluation.Asked(begun[i], sorted(kept), [kept[i]], [i]) for i in range(4)]
    return ud.evaluation.in_random_order(needles, asked, generator)
"""


def imported(path: Path) -> ModuleType:
    """A file of a user's own, as a program imports it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pets(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "my_pets.py").write_text(OWN)
    imported(tmp_path / "my_pets.py")
    yield
    tasks.remove("pets")


def test_the_folder_is_the_list() -> None:
    assert tuple(each.name for each in tasks.known()) == TASKS
    assert [each.stream for each in tasks.known()] == [0, 1, 2, 3]
    assert [each.name for each in tasks.known(["tracking", "single"])] == ["single", "tracking"]
    with pytest.raises(UnknownName, match="unknown task 'singel': did you mean 'single'"):
        tasks.known(["singel"])


@pytest.mark.usefixtures("pets")
def test_one_more_task_leaves_the_others_as_they_are() -> None:
    used = tokenizer("words")
    five = [stack for stack in haystacks(used, PROSE, [600], 2) if stack.task != "pets"]
    four = haystacks(used, PROSE, [600], 2, only=TASKS)
    for one, other in zip(four, five, strict=True):
        assert torch.equal(one.ids, other.ids)
        assert [q.text for q in one.questions] == [q.text for q in other.questions]
    assert shortest(used, ["pets"]) < shortest(used)


@pytest.mark.usefixtures("pets")
def test_a_task_of_ones_own_is_evaluated_and_reported(tmp_path: Path) -> None:
    model, used = reader(), tokenizer("words")
    found = ud.compare(model, used, PROSE, {"top-k": "top-k"}, length=640, haystacks=1, windows=1)
    assert found.measurements[0].tasks == [*TASKS, "pets"]
    assert "needle recall, pets" in set(found.frame()["what"])
    assert "pets" in set(found.frame("recall")["task"])
    (by_task,) = [each for each in found.report().charts if each.name == "recall-by-task"]
    assert list(by_task.x) == [*TASKS, "pets"]  # type: ignore[union-attr]
    alone = ud.evaluate(model, used, PROSE, "top-k", length=640, haystacks=1, windows=1, tasks=["pets"])
    assert alone.measurements[0].tasks == ["pets"]
    assert "recall-pets" in [each.name for each in alone.report().charts]
    assert "recall-pets" in alone.save_html(tmp_path / "page.html").read_text()


def test_words_of_ones_own_can_be_asked_for() -> None:
    words = Words(tokenizer("byte-level"))
    drawn = words.chosen(["heron", "weasel", "quail"], 2, {"quail"}, np.random.default_rng(0))
    assert set(drawn) == {"heron", "weasel"}
    assert len({words.first[word] for word in drawn}) == 2


Made = tuple[list[str], list[Asked]]
GOOD = Asked("It is", THINGS[:2], THINGS[:1], [0])


@pytest.mark.parametrize(
    ("needles", "asked", "message"),
    [
        ([], [], "task 'odd' made 0 needles and 0 questions"),
        (["It is."], [Asked("It is", ["anchor", "nonsense"], ["anchor"], [0])], "cannot be told apart by one token"),
        (["It is."], [Asked("It is", ["anchor", "anchor"], ["anchor"], [0])], "cannot be told apart by one token"),
        (
            ["It is."],
            [Asked("It is", ["anchor"], ["apron"], [0])],
            r"right = \['apron'\]: must be some of its candidates",
        ),
        (
            ["It is."],
            [Asked("It is", ["anchor"], ["anchor"], [1])],
            r"answered_by = \[1\]: must be the place of",
        ),
        (
            ["It is."],
            [Asked("It is", ["anchor"], ["anchor"], [])],
            r"answered_by = \[\]: must be the place of",
        ),
        (["It is anchor."] * 300, [GOOD], "task 'odd' hides more than 600 tokens"),
    ],
)
def test_what_a_task_gets_wrong_is_said(needles: list[str], asked: list[Asked], message: str) -> None:
    @ud.evaluation.task("odd", hides={"It is {thing}.": 1}, asks="It is")
    def odd(words: Words, taken: Set[str], generator: Generator) -> Hidden:
        return needles, asked

    try:
        with pytest.raises(InvalidValue, match=message):
            haystacks(tokenizer("words"), PROSE, [600], 1, only=["odd"])
    finally:
        tasks.remove("odd")


def test_a_name_that_is_taken_and_a_field_that_is_unknown_are_refused() -> None:
    def make(words: Words, taken: Set[str], generator: Generator) -> Made:
        return [], []

    with pytest.raises(InvalidValue, match=r"task name 'single' is taken by undilute\.evaluation\.tasks\.single"):
        ud.evaluation.task("single", hides={}, asks="")(make)
    with pytest.raises(InvalidValue, match=r"task 'x': '{colour} is' has a field 'colour': must be name, other, kind"):
        ud.evaluation.task("x", hides={}, asks="{colour} is")
    assert [each.name for each in tasks.known()] == list(TASKS)


# ---------------------------------------------------------------- counting and articles


def drawn(name: str, kind: str = "byte-level", seed: int = 0, taken: Set[str] = frozenset()) -> Hidden:
    (chosen,) = tasks.known([name])
    return chosen.make(Words(tokenizer(kind)), taken, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(8))
def test_counting_needs_every_sighting_and_no_other(seed: int) -> None:
    needles, asked = drawn("counting", seed=seed)
    assert len(set(needles)) == len(needles) <= counting.MOST
    assert len(asked) == counting.PEOPLE
    for each in asked:
        name = each.text.removeprefix("The number of times that ").removesuffix(" was seen at the harbour is")
        seen = [place for place, needle in enumerate(needles) if needle.startswith(f"{name} was seen at the harbour")]
        assert sorted({*each.answered_by, *each.needs}) == seen
        assert list(each.right) == [counting.NUMBERS[len(seen)]]
        assert set(each.candidates) <= set(counting.NUMBERS.values())
        assert len(each.candidates) >= counting.PEOPLE
    assert len({tuple(each.right) for each in asked}) == counting.PEOPLE


def test_all_numbers_are_candidates_where_they_can_be_told_apart() -> None:
    """A tokenizer of words that has seen them."""
    used = copy.deepcopy(tokenizer("words"))
    used.add_tokens(["two", "three", "four", "five"])
    (chosen,) = tasks.known(["counting"])
    _, asked = chosen.make(Words(used), frozenset(), np.random.default_rng(0))
    assert all(list(each.candidates) == ["two", "three", "four", "five"] for each in asked)


def test_numbers_that_a_tokenizer_cannot_tell_apart_are_said() -> None:
    with pytest.raises(InvalidValue, match="tells only 2 of 4 numbers"):
        drawn("counting", "bytes")


@pytest.mark.parametrize("answer", articles.PARAGRAPHS)
def test_an_answer_stands_in_its_own_paragraph_alone(answer: str) -> None:
    says, asks = articles.PARAGRAPHS[answer]
    assert len(re.findall(rf"\b{answer}\b", says)) == 1
    assert asks.endswith("?")
    assert 2 <= len(re.findall(r"[.](?: |$)", says)) <= 4
    others = [text for name, own in articles.PARAGRAPHS.items() for text in own if name != answer]
    assert not any(answer.lower() in standing_in(text) for text in [*others, asks])


@pytest.mark.parametrize("kind", ["byte-level", "bytes", "words"])
def test_articles_ask_about_eight_paragraphs(kind: str) -> None:
    if kind == "words":  # which knows none of them
        with pytest.raises(InvalidValue, match="tells only 0 of 24 countries"):
            drawn("articles", kind)
        return
    needles, asked = drawn("articles", kind)
    assert len(articles.PARAGRAPHS) == 24
    assert len(needles) == len(asked) == 8
    for each in asked:
        (right,) = each.right
        assert (needles[each.answered_by[0]], each.text) == articles.PARAGRAPHS[right]
        assert sorted(each.candidates) == sorted(right for one in asked for right in one.right)


def test_answers_in_the_text_are_not_asked_for() -> None:
    taken = {name.lower() for name in list(articles.PARAGRAPHS)[:6]}
    _, asked = drawn("articles", taken=taken)
    assert not {word.lower() for each in asked for word in each.right} & taken
    with pytest.raises(InvalidValue, match="countries that are not in the text"):
        drawn("articles", taken={name.lower() for name in list(articles.PARAGRAPHS)[:20]})


@pytest.mark.parametrize("name", ["counting", "articles"])
def test_the_shortest_haystack_holds_them_and_is_half_text(name: str) -> None:
    used = tokenizer("byte-level")
    least = shortest(used, [name])
    for stack in haystacks(used, PROSE, [least], 6, only=[name]):
        hidden = {span for question in stack.questions for span in question.needs}
        assert sum(end - start for start, end in hidden) <= least / 2
    with pytest.raises(InvalidValue, match=f"must be at least {least:,} tokens"):
        haystacks(used, PROSE, [least - 1], 1, only=[name])
