"""Haystacks have the length that was asked for, hold what is asked about, and are the same for the same seed."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
import torch

from tests.evaluation.tokenizers import KINDS_OF_TOKENIZERS, PROSE, tokenizer
from undilute.errors import InvalidValue
from undilute.evaluation import tasks, words
from undilute.evaluation.haystacks import Hay, Haystack, Question, _within, haystacks, sentences, shortest
from undilute.evaluation.words import KINDS, NAMES, THINGS, Words, continuation
from undilute.models.texts import beginning, encoded

LENGTHS = {kind: (700, 901) if kind == "words" else (1400, 1600) for kind in KINDS_OF_TOKENIZERS}
TASKS = tuple(each.name for each in tasks.known())
HIDDEN = re.compile(r"(?:The|One of the) (?:special|favourite)[^.]*\.")
FINGERPRINTS = {  # of what version 0.1.0 made of the same seed
    "byte-level": "aae37fafde2e053f",
    "sentence-piece": "b0b0bb46ae307b65",
    "words": "f185890978f9e1ec",
    "bytes": "6391d663fe9f1712",
    "marked": "8eaa7230028bb861",
}


@pytest.fixture(scope="module", params=KINDS_OF_TOKENIZERS)
def made(request: pytest.FixtureRequest) -> tuple[Any, tuple[Haystack, ...]]:
    used = tokenizer(request.param)
    return used, haystacks(used, PROSE, LENGTHS[request.param], 2, seed=3)


def written(used: Any, haystack: Haystack) -> str:
    return re.sub(r"\s+", " ", used.decode(haystack.ids)).replace(" .", ".")


def right(question: Question) -> list[str]:
    return [question.candidates[place] for place in question.right]


def test_every_task_and_length_is_there(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    _, stacks = made
    assert [stack.number for stack in stacks] == list(range(2 * 2 * len(TASKS)))
    lengths = sorted({stack.length for stack in stacks})
    assert [(stack.length, stack.task) for stack in stacks] == [
        (length, task) for length in lengths for task in TASKS for _ in range(2)
    ]
    assert all(len(stack.questions) == 4 for stack in stacks)


def test_the_length_is_exact(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    for stack in made[1]:
        assert len(stack.ids) + max(len(question.ids) for question in stack.questions) == stack.length


def test_the_answers_stand_in_the_haystack_at_their_depth(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    used, stacks = made
    for stack in stacks:
        text = written(used, stack)
        for question in stack.questions:
            if stack.task == "tracking":
                continue
            for word in right(question):
                assert f"{question.text} {word}." in text
            if len(question.right) == 1:
                needle = continuation(used, f" {question.text} {right(question)[0]}.")
                place = round(question.depth * len(stack.ids))
                assert stack.ids[place : place + len(needle)].tolist() == needle


def test_spans_are_where_the_answers_stand(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    """Decoding a span gives the needle, and the answer in it with no token to spare."""
    used, stacks = made

    def text(stack: Haystack, start: int, stop: int) -> str:
        return re.sub(r"\s+", " ", used.decode(stack.ids[start:stop])).replace(" .", ".").strip()

    for stack in stacks:
        for question in stack.questions:
            assert len(question.spans) == len(question.right)
            for word, span in zip(right(question), question.spans, strict=True):
                needle, (first, last) = text(stack, *span.needle), span.answer
                assert span.needle[0] <= first < last <= span.needle[1]
                assert re.fullmatch(r"(The|One of the) (special|favourite)[^.]*\.", needle)
                assert needle.endswith(f" is {word}.")
                if stack.task != "tracking":
                    assert needle == f"{question.text} {word}."
                assert word in text(stack, first, last)
                assert word not in text(stack, first + 1, last)
                assert word not in text(stack, first, last - 1)


def test_the_word_that_stands_last_is_the_answer() -> None:
    used = tokenizer("byte-level")
    needle = continuation(used, " The favourite fruit of Rose is not rose but fig, a fig.")
    start, stop = _within(used, needle, "fig")
    assert used.decode(needle[start:stop]).strip(" .") == "fig"
    assert "fig" in used.decode(needle[:start])
    assert _within(used, needle, "absent") == (0, len(needle))


@pytest.mark.parametrize("kind", ["byte-level", "sentence-piece", "bytes"])
def test_the_answer_is_the_word_and_not_a_part_of_another(kind: str) -> None:
    used = tokenizer(kind)
    needle = continuation(used, " A rose is what Roseanne has, with primroses.")
    start, stop = _within(used, needle, "rose")
    assert used.decode(needle[start:stop]).strip() == "rose"
    assert used.decode(needle[stop:]).strip().startswith("is what")
    assert used.decode(needle[slice(*_within(used, needle, "prim"))]).strip().startswith("prim")


def test_candidates_differ_in_one_token(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    used, stacks = made
    shared = len(Words(used).shared)
    for question in (question for stack in stacks for question in stack.questions):
        assert len(set(question.candidate_ids.tolist())) == len(question.candidates) == len(question.candidate_ids)
        at = len(encoded(used, question.text)) + shared
        for word, token in zip(question.candidates, question.candidate_ids.tolist(), strict=True):
            assert encoded(used, f"{question.text} {word}")[at] == token


def test_a_single_needle_is_alone_of_its_kind(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    used, stacks = made
    for stack in (each for each in stacks if each.task == "single"):
        there = words.standing_in(written(used, stack))
        assert len({tuple(sorted(question.candidates)) for question in stack.questions}) == 4
        for question in stack.questions:
            assert {word for word in question.candidates if word.lower() in there} == set(right(question))
            assert question.chance == 1 / len(question.candidates) <= 1 / 2


def test_other_keys_have_the_other_values(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    used, stacks = made
    for stack in (each for each in stacks if each.task in ("multi-key", "multi-value")):
        found = dict(re.findall(r"special words? of \w+ is (\w+)\.()", written(used, stack)))
        for question in stack.questions:
            assert set(question.candidates) == set(found)
        answers = [word for question in stack.questions for word in right(question)]
        assert len(answers) == len(set(answers)) == (4 if stack.task == "multi-key" else 12)


def test_chains_lead_to_their_value(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    used, stacks = made
    for stack in (each for each in stacks if each.task == "tracking"):
        text = written(used, stack)
        links = dict(re.findall(r"The special word of (\w+) is the special word of (\w+)\.", text))
        values = dict(re.findall(r"The special word of (\w+) is (\w+)\.", text))
        assert (len(links), len(values)) == (8, 4)
        for question in stack.questions:
            asked = re.findall(r"of (\w+) is", question.text)[0]
            chain = [asked]
            while chain[-1] in links:
                chain.append(links[chain[-1]])
            places = [text.index(f"The special word of {name} is") for name in chain]
            assert len(chain) == 3
            assert places == sorted(places, reverse=True)  # each is stated before it is used
            assert [values[chain[-1]]] == right(question)
            assert set(question.candidates) == set(values.values())


def test_depths_cover_the_haystack(made: tuple[Any, tuple[Haystack, ...]]) -> None:
    for stack in (each for each in made[1] if each.task in ("single", "multi-key")):
        depths = sorted(question.depth for question in stack.questions)
        for quarter, depth in enumerate(depths):
            assert quarter / 4 - 0.15 <= depth <= (quarter + 1) / 4 + 0.15


def test_half_of_a_haystack_is_text() -> None:
    used = tokenizer("words")
    least = shortest(used)
    for stack in haystacks(used, PROSE, [least], 2):
        hidden = sum(len(encoded(used, needle)) for needle in HIDDEN.findall(written(used, stack)))
        assert 2 * hidden <= stack.length
    with pytest.raises(InvalidValue, match=rf"needle length = {least - 1}: must be at least {least} tokens"):
        haystacks(used, PROSE, [least - 1], 1)


def test_the_seed_decides() -> None:
    used = tokenizer("words")

    def drawn(seed: int) -> list[Any]:
        stacks = haystacks(used, PROSE, [600], 2, seed=seed)
        return [(stack.ids.tolist(), [(q.text, q.candidates, q.right) for q in stack.questions]) for stack in stacks]

    assert drawn(5) == drawn(5)
    assert all(here != there for here, there in zip(drawn(5), drawn(6), strict=True))


@pytest.mark.parametrize("kind", KINDS_OF_TOKENIZERS)
def test_the_same_seed_gives_what_it_gave_in_version_0_1_0(kind: str) -> None:
    """Token for token: figures that were published stay comparable."""
    made = [
        [stack.number, stack.task, stack.length, stack.ids.tolist(), list(map(plain, stack.questions))]
        for stack in haystacks(tokenizer(kind), PROSE, LENGTHS[kind], 2, seed=3)
    ]
    assert hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16] == FINGERPRINTS[kind]


def plain(question: Question) -> list[Any]:
    candidates = [list(question.candidates), question.candidate_ids.tolist(), list(question.right)]
    return [question.text, question.ids.tolist(), *candidates, round(question.depth, 12)]


def test_a_longer_list_of_lengths_changes_no_haystack() -> None:
    used = tokenizer("words")
    alone, both = haystacks(used, PROSE, [600], 1), haystacks(used, PROSE, [500, 600], 1)
    for one, other in zip(alone, both[4:], strict=True):
        assert torch.equal(one.ids, other.ids)


def test_no_haystacks_are_no_haystacks() -> None:
    assert haystacks(tokenizer("words"), PROSE, [600], 0) == ()
    assert haystacks(tokenizer("words"), PROSE, [], 2) == ()
    with pytest.raises(InvalidValue, match="haystacks = -1"):
        haystacks(tokenizer("words"), PROSE, [600], -1)


def test_a_text_that_is_too_short_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"the text has \d+ tokens: a haystack of this length needs 600"):
        haystacks(tokenizer("words"), PROSE[:1000], [600], 1)


def test_a_tokenizer_that_knows_none_of_the_words_is_refused() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    known.pre_tokenizer = pre_tokenizers.Whitespace()
    ignorant = PreTrainedTokenizerFast(tokenizer_object=known, unk_token="<unk>")
    with pytest.raises(InvalidValue, match=r"tells only 0 .* apart by their first token.* haystacks = 0"):
        haystacks(ignorant, PROSE, [600], 1)


def test_words_that_stand_in_the_text_are_not_asked_for() -> None:
    used = tokenizer("words")
    text = PROSE.replace("sum of", f"{THINGS[0]}, {THINGS[1].upper()} and {KINDS['colour'][0]}")
    for stack in haystacks(used, text, [600], 3):
        for question in stack.questions:
            assert not {THINGS[0], THINGS[1], KINDS["colour"][0]} & set(question.candidates)


@pytest.mark.parametrize("kind", KINDS_OF_TOKENIZERS)
def test_pieces_have_the_tokens_of_the_whole(kind: str) -> None:
    """Sentences tokenised one by one are the text's own tokens."""
    used, text = tokenizer(kind), PROSE[:3000].replace("\n\n", " ")
    parts = sentences(text)
    assert "".join(parts) == text
    joined = [token for part in parts[1:] for token in continuation(used, part)]
    assert joined == encoded(used, text)[-len(joined) :]


def test_text_without_sentences_is_cut_at_words() -> None:
    parts = sentences("word " * 1000)
    assert "".join(parts) == "word " * 1000
    assert max(map(len, parts)) <= 400
    assert {len(part) for part in sentences("x" * 1000)} == {400, 200}
    assert sentences("他来了。她走了！\n") == ["他来了。", "她走了！", "\n"]


def test_marks_come_before_every_haystack() -> None:
    used = tokenizer("marked")
    mark = used.convert_tokens_to_ids("<s>")
    assert beginning(used) == (mark,)
    assert beginning(tokenizer("byte-level")) == ()
    for stack in haystacks(used, PROSE, [1400], 1):
        assert (stack.ids == mark).nonzero().tolist() == [[0]]
        assert used.convert_tokens_to_ids("</s>") not in stack.ids


def test_a_stretch_is_exact_and_goes_round() -> None:
    used = tokenizer("words")
    hay = Hay(used, "One two three. Four five six. Seven eight nine.")
    everything = [encoded(used, part) for part in ("One two three.", "Four five six.", "Seven eight nine.")]
    assert hay.stretch(2, 6)[1] == [everything[0][-2:], everything[1]]
    assert hay.stretch(1, 7)[1] == [everything[2][-3:], everything[0]]
    assert hay.stretch(1, 7)[0] == " Seven eight nine.One two three."


def test_the_lists_are_disjoint_and_long_enough() -> None:
    every = [*THINGS, *(word for kind in KINDS.values() for word in kind)]
    assert len(every) == len(set(every))
    assert len(NAMES) == len(set(NAMES)) >= 12
    assert all(len({word[0] for word in kind}) >= 8 for kind in KINDS.values())
    assert len({word[0] for word in THINGS}) >= 20
