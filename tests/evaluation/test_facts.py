"""Facts are hidden alike at every length, and those that judge share nothing with those that were looked for."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import undilute as ud
from tests.evaluation.constructed import TASKS
from tests.evaluation.tokenizers import PROSE, tokenizer
from tests.models.attending import SIZES
from undilute.errors import InvalidValue, UnknownName
from undilute.evaluation import tasks
from undilute.evaluation.haystacks import Hay, Haystack, Hiding, haystacks, shortest
from undilute.evaluation.tasks import facts, other_facts
from undilute.evaluation.words import (
    KINDS,
    NAMES,
    OTHER_NAMES,
    OTHER_THINGS,
    THINGS,
    Words,
    continuation,
    standing_in,
)
from undilute.models.texts import beginning, encoded

FACTS = ("facts", "facts-paraphrased", "other-facts", "other-facts-paraphrased")
TOKENIZERS = ("byte-level", "bytes", "marked", "every word")
LENGTHS = {"every word": (400, 777, 1500)}
OTHER_LENGTHS = (1100, 1701, 3000)
WORDINGS = {
    "facts": facts.REPEATED,
    "facts-paraphrased": facts.PARAPHRASED,
    "other-facts": other_facts.REPEATED,
    "other-facts-paraphrased": other_facts.PARAPHRASED,
}
LITTLE = standing_in("a among as has in is of that the there to was what while most")  # words without content


def grown(kind: str, task: str, seed: Sequence[int] = (3, 1), number: int = 5) -> tuple[Haystack, ...]:
    used = tokenizer(kind)
    lengths = LENGTHS.get(kind, OTHER_LENGTHS)
    return Hiding(used).growing(Hay(used, PROSE), lengths, task, seed=seed, number=number)


def without_needles(stack: Haystack) -> list[int]:
    ids = stack.ids.tolist()
    for start, stop in sorted((span.needle for question in stack.questions for span in question.spans), reverse=True):
        del ids[start:stop]
    return ids


def plain(stack: Haystack) -> list[Any]:
    """What is asked, without where it stands."""
    return [
        (q.text, q.ids.tolist(), q.candidates, q.candidate_ids.tolist(), q.right, q.chance) for q in stack.questions
    ]


def written(used: Any, ids: Sequence[int]) -> str:
    return re.sub(r"\s+", " ", used.decode(list(ids))).replace(" .", ".").replace(" ,", ",").strip()


# ---------------------------------------------------------------- haystacks that grow


@pytest.fixture(scope="module", params=[(kind, task) for kind in TOKENIZERS for task in FACTS], ids="-".join)
def family(request: pytest.FixtureRequest) -> tuple[Any, str, tuple[Haystack, ...]]:
    kind, task = request.param
    return tokenizer(kind), task, grown(kind, task)


Family = tuple[Any, str, tuple[Haystack, ...]]


def test_the_same_is_asked_at_every_length(family: Family) -> None:
    _, task, stacks = family
    assert all(plain(stack) == plain(stacks[0]) for stack in stacks)
    assert {(stack.number, stack.task) for stack in stacks} == {(5, task)}
    assert all(len(stack.questions) == 8 and stack.questions[0].chance == 1 / 8 for stack in stacks)


def test_lengths_are_exact(family: Family) -> None:
    used, _, stacks = family
    lengths = LENGTHS["every word"] if used is tokenizer("every word") else OTHER_LENGTHS
    assert tuple(stack.length for stack in stacks) == lengths
    for stack in stacks:
        assert len(stack.ids) + max(len(question.ids) for question in stack.questions) == stack.length


def test_spans_are_the_facts(family: Family) -> None:
    used, task, stacks = family
    for stack in stacks:
        ids = stack.ids.tolist()
        for question in stack.questions:
            (span,), (right,) = question.spans, question.right
            thing = question.candidates[right]
            needle = written(used, ids[slice(*span.needle)])
            (says,) = [
                says for says, asks in WORDINGS[task].items() if asks.format(name=name_in(needle)) == question.text
            ]
            assert needle == says.format(name=name_in(needle), thing=thing)
            assert thing in written(used, ids[slice(*span.answer)])
            assert span.needle[0] <= span.answer[0] < span.answer[1] <= span.needle[1]
            assert question.depth == span.needle[0] / len(ids)


def name_in(needle: str) -> str:
    (name,) = {*NAMES, *OTHER_NAMES} & set(re.findall(r"\w+", needle))
    return name


def test_facts_have_the_same_tokens_and_order_at_every_length(family: Family) -> None:
    _, _, stacks = family
    needles = [
        [stack.ids[slice(*question.spans[0].needle)].tolist() for question in stack.questions] for stack in stacks
    ]
    assert needles[0] == needles[1] == needles[2]
    for stack in stacks:
        ends = [question.spans[0].needle for question in stack.questions]
        assert all(one[1] <= other[0] for one, other in pairwise(ends))


def test_depths_are_alike(family: Family) -> None:
    """As near as the ends of sentences allow."""
    used, _, stacks = family
    longest = max(len(continuation(used, piece)) for piece in Hay(used, PROSE).pieces)
    for stack in stacks:
        hay = len(without_needles(stack))
        for place, (here, there) in enumerate(zip(stack.questions, stacks[-1].questions, strict=True)):
            before = here.spans[0].needle[0] - place * hidden_each(stack)
            wanted = (there.spans[0].needle[0] - place * hidden_each(stacks[-1])) / len(without_needles(stacks[-1]))
            assert abs(before - wanted * hay) <= 1.5 * longest


def hidden_each(stack: Haystack) -> float:
    return sum(q.spans[0].needle[1] - q.spans[0].needle[0] for q in stack.questions) / len(stack.questions)


def test_a_shorter_text_is_the_end_of_a_longer_one(family: Family) -> None:
    used, _, stacks = family
    start = len(beginning(used))
    texts = [without_needles(stack)[start:] for stack in stacks]
    for shorter, longer in pairwise(texts):
        assert len(shorter) < len(longer)
        assert longer[-len(shorter) :] == shorter
    assert all(tuple(stack.ids[:start].tolist()) == beginning(used) for stack in stacks)


def test_the_answers_stand_nowhere_else(family: Family) -> None:
    used, _, stacks = family
    around = standing_in(written(used, without_needles(stacks[-1])))
    assert not around & {word.lower() for word in stacks[0].questions[0].candidates}


def test_the_lengths_do_not_decide_but_the_longest() -> None:
    used = tokenizer("every word")
    hay, hiding = Hay(used, PROSE), Hiding(used)
    both = hiding.growing(hay, [1500, 400], "facts", seed=(0,))
    three = hiding.growing(hay, [400, 900, 1500], "facts", seed=(0,))
    assert both[0].ids.tolist() == three[2].ids.tolist()
    assert both[1].ids.tolist() == three[0].ids.tolist()


@pytest.mark.parametrize("task", FACTS)
def test_the_seed_decides(task: str) -> None:
    def drawn(*seed: int) -> list[Any]:
        return [(stack.ids.tolist(), plain(stack)) for stack in grown("every word", task, seed)]

    once = drawn(3, 1)
    assert once == drawn(3, 1)
    for other in ((4, 1), (3, 2), (3, 1, 1)):
        assert all(here != there for here, there in zip(once, drawn(*other), strict=True))


def test_tasks_have_random_streams_of_their_own() -> None:
    ends = {task: without_needles(grown("every word", task)[0]) for task in FACTS}
    assert len({tuple(ids[-50:]) for ids in ends.values()}) == len(FACTS)
    assert len({each.stream for each in tasks.known([*TASKS, *FACTS])}) == len(TASKS) + len(FACTS)


def test_every_wording_comes_up() -> None:
    used = Words(tokenizer("every word"))
    for each in tasks.known(FACTS):
        begun = {
            re.sub("|".join([*NAMES, *OTHER_NAMES]), "{name}", asked[0].text)
            for seed in range(40)
            for _, asked in [each.make(used, frozenset(), np.random.default_rng(seed))]
        }
        assert begun == set(WORDINGS[each.name].values())


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("task", FACTS)
def test_half_of_the_shortest_is_text(task: str, kind: str) -> None:
    used = tokenizer(kind)
    least = shortest(used, [task])
    hay, hiding = Hay(used, PROSE), Hiding(used)
    for seed in range(12):
        (stack,) = hiding.growing(hay, [least], task, seed=(seed,))
        assert 2 * len(without_needles(stack)) >= least
    with pytest.raises(InvalidValue, match=f"needle length = {least - 1:,}: must be at least {least:,} tokens"):
        hiding.growing(hay, [least - 1], task, seed=(0,))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("task", FACTS)
def test_the_shortest_has_room_for_the_longest_words(task: str, kind: str) -> None:
    used = tokenizer(kind)

    def tokens(text: str) -> int:
        return len(continuation(used, f" {text}"))

    people, things = (OTHER_NAMES, OTHER_THINGS) if task.startswith("other") else (NAMES, THINGS)
    name, thing = max(people, key=tokens), max(things, key=tokens)
    hidden, asked = (
        max(tokens(each.format(name=name, thing=thing)) for each in wordings)
        for wordings in (WORDINGS[task], WORDINGS[task].values())
    )
    assert shortest(used, [task]) >= 2 * (8 * hidden + asked + len(beginning(used)))


def test_what_cannot_grow_is_refused() -> None:
    used = tokenizer("every word")
    hay, hiding = Hay(used, PROSE[:1500]), Hiding(used)
    with pytest.raises(InvalidValue, match=r"the text has \d+ tokens: a haystack of this length needs 600"):
        hiding.growing(hay, [300, 600], "facts", seed=(0,))
    with pytest.raises(UnknownName, match="unknown task 'fact': did you mean 'facts'"):
        hiding.growing(hay, [300], "fact", seed=(0,))


# ---------------------------------------------------------------- two sets that share nothing


def content(wording: str) -> Set[str]:
    return standing_in(wording.replace("{name}", "").replace("{thing}", "")) - LITTLE


def test_no_name_or_thing_stands_in_two_lists() -> None:
    every = [*NAMES, *OTHER_NAMES, *THINGS, *OTHER_THINGS, *(word for kind in KINDS.values() for word in kind), *KINDS]
    assert len(every) == len({word.lower() for word in every})
    assert len({word[0] for word in OTHER_THINGS}) >= 12
    assert len(OTHER_NAMES) >= 12


def test_the_two_sets_share_no_wording() -> None:
    found, judged = (
        {word for wordings in pair for says, asks in wordings.items() for word in content(says) | content(asks)}
        for pair in ((facts.REPEATED, facts.PARAPHRASED), (other_facts.REPEATED, other_facts.PARAPHRASED))
    )
    assert not found & judged
    assert not (found | judged) & {word.lower() for word in (*NAMES, *OTHER_NAMES, *THINGS, *OTHER_THINGS)}


@pytest.mark.parametrize("task", FACTS)
def test_a_question_repeats_its_statement_or_none_of_it(task: str) -> None:
    for says, asks in WORDINGS[task].items():
        if task.endswith("paraphrased"):
            assert content(says)
            assert content(asks)
            assert not content(says) & content(asks)
            assert asks.count("{name}") == 1
        else:
            assert says == f"{asks} {{thing}}."


@pytest.mark.parametrize("task", FACTS)
def test_a_set_draws_from_its_own_lists(task: str) -> None:
    people, things = (OTHER_NAMES, OTHER_THINGS) if task.startswith("other") else (NAMES, THINGS)
    words = Words(tokenizer("byte-level"))
    (chosen,) = tasks.known([task])
    for seed in range(20):
        needles, asked = chosen.make(words, {things[0], people[0].lower()}, np.random.default_rng(seed))
        assert len(needles) == len(asked) == 8
        named = [name_in(needle) for needle in needles]
        assert len(set(named)) == 8
        assert set(named) <= set(people) - {people[0]}
        assert set(asked[0].candidates) <= set(things) - {things[0]}
        assert {tuple(each.candidates) for each in asked} == {tuple(sorted(asked[0].candidates))}
        assert sorted(word for each in asked for word in each.right) == list(asked[0].candidates)


def test_a_text_that_leaves_too_few_things_is_named() -> None:
    words = Words(tokenizer("every word"))
    for task, things in (("facts", THINGS), ("other-facts", OTHER_THINGS)):
        with pytest.raises(InvalidValue, match=rf"tells only \d of {len(things)} things .* 8 are needed"):
            tasks.known([task])[0].make(words, set(things[:-5]), np.random.default_rng(0))


# ---------------------------------------------------------------- asked only by name


def test_facts_are_asked_only_by_name() -> None:
    assert tuple(each.name for each in tasks.known()) == TASKS
    assert {each.name for each in tasks.known(FACTS)} == set(FACTS)
    used = tokenizer("every word")
    assert {stack.task for stack in haystacks(used, PROSE, [600], 1)} == set(TASKS)
    assert {stack.task for stack in haystacks(used, PROSE, [600], 1, only=FACTS)} == set(FACTS)


def reader(used: Any) -> Any:
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(used), "max_position_embeddings": 1024}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()


def test_facts_can_be_evaluated_by_name() -> None:
    used = tokenizer("every word")
    model = reader(used)
    options: dict[str, Any] = {"length": 640, "haystacks": 1, "windows": 1}
    asked = ["single", "facts", "other-facts-paraphrased"]
    found = ud.evaluate(model, used, PROSE, "top-k", **options, tasks=asked)
    assert sorted(found.measurements[0].tasks) == sorted(asked)
    usual = ud.evaluate(model, used, PROSE, "top-k", **options)
    assert tuple(usual.measurements[0].tasks) == TASKS
    alone, among = (
        [answer.right for answer in each.measurements[0].answers if (answer.task, answer.length) == ("single", 640)]
        for each in (found, usual)
    )
    assert len(alone) == 4
    assert alone == among


def test_a_task_of_ones_own_may_be_unusual() -> None:
    @ud.evaluation.task("odd", hides={"It is {thing}.": 1}, asks="It is", usual=False)
    def odd(words: Words, taken: Any, generator: Any) -> Any:
        return facts.repeated(words, taken, generator)

    try:
        assert tuple(each.name for each in tasks.known()) == TASKS
        assert [each.usual for each in tasks.known(["odd", "single"])] == [True, False]
    finally:
        tasks.remove("odd")


def test_every_fact_is_told_apart_by_one_token(family: Family) -> None:
    used, _, stacks = family
    shared = len(Words(used).shared)
    for question in stacks[0].questions:
        assert len(set(question.candidate_ids.tolist())) == len(question.candidates)
        at = len(encoded(used, question.text)) + shared
        for word, token in zip(question.candidates, question.candidate_ids.tolist(), strict=True):
            assert encoded(used, f"{question.text} {word}")[at] == token
