"""The head that finds facts finds the passage with the fact, in documents much longer than what it can be given."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import undilute as ud
from tests.diagnosis.finder import filler, finder, tokenizer
from tests.selection.test_library import FACTS, FOUND, QUESTIONS, llama_like
from undilute.errors import InvalidValue
from undilute.models.read_once import LastRow, ReadOnce
from undilute.selection.finding import RetrievalHeads
from undilute.selection.keeping import Nothing
from undilute.selection.passages import Passage, split
from undilute.selection.scorers import Scores, Subject
from undilute.selection.scorers.heads import Heads, Standing, _Group, grouped

LAYER = "model.layers.1.self_attn"
SOME = RetrievalHeads(((LAYER, 1), (LAYER, 3)), LAYER, 200, {128: 1.0})


def long_text(sentences: int, depth: float, fact: str = FACTS[0]) -> str:
    said = filler(3, sentences).split(". ")
    said.insert(int(len(said) * depth), fact.removesuffix("."))
    return ". ".join(said)


def scored(
    model: Any, questions: Any, passages: Any, found: RetrievalHeads = FOUND, group: int | None = None
) -> list[Scores]:
    told: list[float] = []
    scorer = Heads(Subject(model, tokenizer()), found, group)
    scores = scorer.scores(list(questions), passages, Nothing(), lambda share, doing: told.append(share))
    assert told == sorted(told)
    assert all(0 <= share < 1 for share in told)
    return scores


def reads(model: Any, run: Any) -> list[int]:
    """Tokens of every pass over passages."""
    seen: list[tuple[str, int, int]] = []
    with ud.watch(model, lambda call: seen.append((call.layer, call.queries, call.keys))):
        run()
    return [queries for layer, queries, keys in seen if layer == seen[0][0] and queries == keys]


# ---------------------------------------------------------------- it finds


@pytest.mark.parametrize("depth", [0.0, 0.3, 0.77, 0.999])
@pytest.mark.parametrize("question", [QUESTIONS[0], "What is the password of Daniel?"])
def test_the_passage_with_the_fact_is_first(depth: float, question: str) -> None:
    model, text = finder(), long_text(600, depth)
    passages = split(text, tokenizer(), 48)
    assert sum(each.tokens for each in passages) > 20 * FOUND.group
    (scores,) = scored(model, [question], passages)
    assert FACTS[0] in passages[scores.order[0]].text
    assert scores.rounds.max() > 1


def test_no_group_is_longer_than_there_is_room() -> None:
    """Passages and marks fit into a group in every round, and later rounds cost a seventh of the first at most."""
    model, passages = finder(), split(long_text(900, 0.4), tokenizer(), 48)
    for group in (200, 1024):
        found: list[Scores] = []
        passes = reads(model, partial(_extended, found, model, passages, group))[1:]
        tokens = sum(each.tokens for each in passages)
        assert max(passes) <= group
        first = -(-tokens // group)
        assert first <= len(passes)
        assert sum(passes) <= tokens * (1 + 1 / 7) + 2 * group
        (scores,) = found
        assert scores.read == sum(passes)
        rounds = sorted(set(scores.rounds.tolist()))
        assert rounds == list(range(1, len(rounds) + 1))
        again = sum(each.tokens for each, number in zip(passages, scores.rounds, strict=True) if number == rounds[-1])
        assert again <= group


def _extended(found: list[Scores], model: Any, passages: Any, group: int) -> None:
    found += scored(model, QUESTIONS[:1], passages, group=group)


def test_several_questions_at_once_are_one_by_one() -> None:
    model, passages = finder(), split(long_text(80, 0.5) + " " + FACTS[1], tokenizer(), 48)
    questions = [*QUESTIONS, "Is it?", "What is the nickname of Clara?"] * 5  # more than one pass takes
    together = scored(model, questions, passages)
    for question, scores in zip(questions[:4], together, strict=False):
        (alone,) = scored(model, [question], passages)
        np.testing.assert_allclose(scores.values, alone.values, atol=1e-6)
        assert scores.rounds.tolist() == alone.rounds.tolist()
        assert scores.read == alone.read
    assert [FACTS[place] in passages[scores.order[0]].text for place, scores in enumerate(together[:2])] == [True, True]


def test_a_model_that_takes_no_questions_together_answers_the_same() -> None:
    passages = split(long_text(100, 0.5), tokenizer(), 48)
    one, other = (scored(finder(packs=packs), QUESTIONS, passages) for packs in (True, False))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine.values, theirs.values, atol=1e-6)


def test_a_treated_model_is_asked_as_it_is_treated() -> None:
    model, passages = finder(), split(long_text(60, 0.5), tokenizer(), 48)
    (plain,) = scored(model, QUESTIONS[:1], passages)
    with ud.apply(model, "ssmax(s=1)"):
        (treated,) = scored(model, QUESTIONS[:1], passages)
    assert treated.values.max() > plain.values.max() + 0.05


def test_scores_are_attention_less_that_of_nothing_asked() -> None:
    """Against a plain pass over the whole."""
    model, passages = llama_like("Llama"), split(long_text(12, 0.5), tokenizer(), 30)
    (scores,) = scored(model, QUESTIONS[:1], passages, SOME, group=1000)  # of which all take less than half
    assert scores.rounds.tolist() == [1] * len(passages)
    ids = [tokenizer()(each.text)["input_ids"] for each in passages]
    text = torch.tensor([token for each in ids for token in each])
    ends = np.cumsum([0, *map(len, ids)]).tolist()

    def attention(asked: str) -> Any:
        row = next(
            row
            for row in ReadOnce(model, text).attended(torch.tensor(tokenizer()(asked)["input_ids"])).rows
            if row.layer == LAYER
        )
        on = [row.on(max(start, 1), stop)[[1, 3]].mean() for start, stop in pairwise(ends)]
        return torch.stack(on).double().numpy()

    wanted = attention(f"According to the text, {QUESTIONS[0]}") - attention("According to the text, N/A")
    np.testing.assert_allclose(scores.values, wanted, atol=1e-6)


# ---------------------------------------------------------------- unusual inputs


def passages_of(*texts: str) -> list[Passage]:
    made, start = [], 0
    for number, text in enumerate(texts):
        made.append(Passage(number, "d", start, start + len(text), text, len(tokenizer()(text)["input_ids"])))
        start += len(text)
    return made


def test_one_passage() -> None:
    (scores,) = scored(finder(), QUESTIONS[:1], passages_of(FACTS[0]))
    assert scores.order.tolist() == [0]
    assert scores.rounds.tolist() == [1]
    (short,) = scored(finder(), QUESTIONS[:1], passages_of("."))
    assert np.isfinite(short.values).all()


def test_a_passage_longer_than_a_group_stands_alone() -> None:
    long = filler(5, 40)
    passages = passages_of("one.", long, FACTS[0], long, "two.")
    assert passages[1].tokens > 300
    (scores,) = scored(finder(), QUESTIONS[:1], passages, group=100)
    assert scores.order[0] == 2
    assert np.isfinite(scores.values).all()


def test_a_passage_longer_than_the_model_reads_is_one_sentence() -> None:
    model, passages = llama_like("Llama"), passages_of("one.", filler(5, 80))
    with pytest.raises(
        InvalidValue, match=r"a passage of d has .* tokens, from character 4 on: .* at most 512"
    ) as caught:
        scored(model, QUESTIONS[:1], passages, SOME)
    assert "\n" not in str(caught.value)


def test_passages_of_white_space_hold_nothing() -> None:
    long = filler(5, 30)
    passages = passages_of("  \n", long, "\n\n", long, FACTS[0], "   ")
    (scores,) = scored(finder(), QUESTIONS[:1], passages, group=100)
    assert scores.order[0] == 4
    assert scores.values[[0, 2, 5]].tolist() == [0, 0, 0]
    with pytest.raises(InvalidValue, match="the tokenizer makes no tokens"):
        scored(finder(), QUESTIONS[:1], passages_of(" ", "\n"))


def test_a_question_longer_than_the_model_reads_is_one_sentence() -> None:
    with pytest.raises(InvalidValue, match=r"the question has .* tokens: LlamaForCausalLM reads at most 512"):
        scored(llama_like("Llama"), [filler(1, 80)], passages_of("one."), SOME)


def test_a_question_that_leaves_little_room() -> None:
    """Groups are as long as what the question leaves free."""
    model = llama_like("Llama")
    question = " ".join(["dosto"] * 490)
    passages = passages_of(*(f"{word} doran." for word in filler(1, 4).replace(".", "").split()))
    (scores,) = scored(model, [question], passages, SOME)
    assert np.isfinite(scores.values).all()


def test_equal_scores_keep_the_order_of_the_documents() -> None:
    passages = passages_of(*["domel doran."] * 100)
    (scores,) = scored(finder(), ["Is it?"], passages, group=40)
    selected = ud.select(
        finder(), tokenizer(), "Is it?", "domel doran. " * 100, scorer=Heads(Subject(finder(), tokenizer()), FOUND, 40)
    )
    assert len(selected.passages) > 0
    order = scores.order.tolist()
    assert sorted(order) == list(range(100))
    places = [(-scores.rounds[place], -scores.values[place], place) for place in order]
    assert places == sorted(places)


@pytest.mark.parametrize("group", [0, -3, 1.5, True])
def test_a_wrong_group_is_named(group: Any) -> None:
    with pytest.raises(InvalidValue, match="group = "):
        Heads(Subject(finder(), tokenizer()), FOUND, group)


def test_a_group_of_one_token_still_works() -> None:
    (scores,) = scored(finder(), QUESTIONS[:1], passages_of("one.", FACTS[0], "two."), group=1)
    assert np.isfinite(scores.values).all()


def test_heads_of_another_model_are_one_sentence() -> None:
    with pytest.raises(InvalidValue, match=r"has no layer 'h\.3'"):
        scored(finder(), QUESTIONS[:1], passages_of("one."), RetrievalHeads((("h.3", 0),), "h.3", 99, {1: 1.0}))


def test_the_first_run_of_a_shared_layer_is_known_by_its_name() -> None:
    found = RetrievalHeads((("shared.passes.0", 0), ("shared.passes.1", 1)), "shared.passes.1", 9, {1: 1.0})
    weights = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    group = _Group(None, [(0, 1), (1, 2)], 2)  # type: ignore[arg-type]
    rows = [LastRow("shared.passes.0", weights, 0), LastRow("shared.passes.1", weights, 0)]
    np.testing.assert_allclose(group.masses(rows, found), [0.2, 0.3], atol=1e-6)
    first = RetrievalHeads((("shared.passes.0", 0),), "shared.passes.0", 9, {1: 1.0})
    np.testing.assert_allclose(group.masses([LastRow("shared", weights, 0)], first), [0.1, 0.2], atol=1e-6)


# ---------------------------------------------------------------- groups and rounds


@pytest.mark.parametrize("seed", range(30))
def test_groups_hold_every_passage_once_and_have_room(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 60, int(rng.integers(1, 80)))
    passages = [Passage(number, "d", 0, 0, "", int(size)) for number, size in enumerate(sizes)]
    room = int(rng.integers(1, 200))
    groups = list(grouped(np.arange(len(sizes)), passages, room))
    assert [place for group in groups for place in group.tolist()] == list(range(len(sizes)))
    for group in groups:
        assert sizes[group].sum() <= room or (sizes[group] > 0).sum() == 1


def test_what_goes_on_is_the_best_of_every_group_then_the_best_of_all() -> None:
    passages = [Passage(number, "d", 0, 0, "", 10) for number in range(9)]
    standing = Standing.begun(passages)
    for start, values in ((0, [0.9, 0.8, 0.7]), (3, [0.1, 0.2, 0.0]), (6, [0.3, 0.6, 0.5])):
        standing.saw(np.arange(start, start + 3), np.array(values), 30)
    assert standing.best(passages, 30).tolist() == [0, 4, 7]
    assert standing.best(passages, 49).tolist() == [0, 1, 4, 7]
    assert standing.best(passages, 10).tolist() == [0]
    assert standing.best(passages, 3).tolist() == [0]  # one at least
