"""Scorers against hand-computed values, direct formulas, and the encoder one sentence at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import undilute as ud
from tests.evaluation.tokenizers import PROSE, tokenizer
from undilute.errors import InvalidValue, MissingExtra, UnknownName
from undilute.progress import quiet
from undilute.selection.keeping import Nothing, Tensors
from undilute.selection.passages import Passage
from undilute.selection.scorers import Scores, Subject, get, known
from undilute.selection.scorers.bm25 import BM25, words
from undilute.selection.scorers.chance import Chance
from undilute.selection.scorers.embedding import Embedding, parts
from undilute.selection.scorers.fusion import Fusion
from undilute.selection.scorers.oracle import Oracle
from undilute.selection.select import within

SUBJECT: Any = Subject(None, None)  # type: ignore[arg-type]
SAID = [
    "The heron stands in the water. A heron is a bird.",
    "Zoe keeps a kestrel, and nobody keeps two.",
    "Nothing stands here but sand; the sand is dry, the sand is old.",
    "...",
    "Der Reiher steht im Wasser. 在 水里 站着 一只鹭。",
]


def passages(texts: Sequence[str], document: str = "a") -> list[Passage]:
    """As if they stood one after another in a document."""
    starts = np.cumsum([0, *map(len, texts)]).tolist()
    return [
        Passage(number, document, starts[number], starts[number + 1], text, len(text))
        for number, text in enumerate(texts)
    ]


def values(scorer: Any, question: str, texts: Sequence[str] = SAID) -> np.ndarray:
    return scorer.scores([question], passages(texts), Nothing(), quiet)[0].values


class Remembers:
    """Keeps tensors in memory, and counts how often they were made."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensors] = {}
        self.made = 0

    def tensors(self, key: str, make: Any) -> Tensors:
        if key not in self.kept:
            self.kept[key] = make()
            self.made += 1
        return self.kept[key]


# ---------------------------------------------------------------- names


def test_scorers_have_names() -> None:
    assert {"bm25", "embedding", "heads", "minilm", "random"} <= set(known())
    assert get("bm25", SUBJECT).label == "bm25"
    assert get("bm25 + random", SUBJECT).label == "bm25+random"


def test_what_stands_after_a_colon_goes_to_the_maker() -> None:
    assert get("embedding", SUBJECT).label == get("embedding:minilm", SUBJECT).label == "embedding"
    with pytest.raises(ud.InvalidValue, match=r"there is no file or folder './no:such/model'"):
        get("embedding:./no:such/model", SUBJECT)


@pytest.mark.parametrize("given", ["bm25:x", "random:", "bm25+random:3", "embedding:"])
def test_a_colon_that_means_nothing_is_refused(given: str) -> None:
    with pytest.raises(InvalidValue, match="colon"):
        get(given, SUBJECT)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'bm25'"):
        get("bm52", SUBJECT)
    with pytest.raises(UnknownName, match="oracle"):
        get("oracle", SUBJECT)


# ---------------------------------------------------------------- bm25


def formula(question: str, texts: Sequence[str]) -> list[float]:
    """BM25 word by word."""
    said = [words(text) for text in texts]
    mean = sum(map(len, said)) / len(said)

    def share(word: str, own: list[str]) -> float:
        df = sum(word in each for each in said)
        tf = own.count(word)
        idf = math.log(1 + (len(said) - df + 0.5) / (df + 0.5))
        return idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * len(own) / mean))

    return [sum(share(word, own) for word in words(question)) for own in said]


@pytest.mark.parametrize(
    "question",
    [
        "Who keeps a kestrel?",
        "Where does the heron stand, the HERON in the water?",
        "Is the sand unheard-of and dry?",
        "Wo steht der Reiher?",
        "谁站在水里?",
    ],
)
def test_bm25_is_the_formula(question: str) -> None:
    found = values(BM25(), question)
    np.testing.assert_allclose(found, formula(question, SAID), rtol=1e-12, atol=1e-15)
    assert found.max() > 0


@pytest.mark.parametrize("question", ["Quetzal?", "The of and?", "?!"])
def test_without_a_known_word_bm25_keeps_the_order_of_the_documents(question: str) -> None:
    [found] = BM25().scores([question], passages(SAID), Nothing(), quiet)
    assert found.values.tolist() == [0.0] * len(SAID)
    assert found.order.tolist() == list(range(len(SAID)))


@pytest.mark.parametrize("text", ["One heron.", "...", " "])
def test_bm25_of_one_passage(text: str) -> None:
    found = values(BM25(), "A heron?", [text])
    np.testing.assert_allclose(found, [math.log(4 / 3) / 2.5 if "heron" in text else 0.0])


def test_words_of_many_scripts() -> None:
    assert words("Ein Größenwahn à la Zoë's IDs: snake_case") == [
        *("ein", "größenwahn", "à", "la", "zoë", "s", "ids", "snake", "case"),
    ]
    assert words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert words("我们 abc愛しい") == ["我", "们", "abc", "愛", "し", "い"]
    assert words("e\u0301te\u0301") == words("été") == ["été"]


def test_bm25_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    values(BM25(), "Who keeps a kestrel?", SAID * 50)
    assert capsys.readouterr() == ("", "")


def test_bm25_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtra, match=r"undilute\[models\]"):
        values(BM25(), "Who?")


# ---------------------------------------------------------------- embedding


@pytest.fixture(scope="module")
def minilm() -> Embedding:
    return Embedding()


def one_at_a_time(scorer: Embedding, text: str) -> torch.Tensor:
    """The encoder on one sentence, as its model card does it."""
    given = scorer.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        return torch.nn.functional.normalize(scorer.model(**given)[0][0].mean(0), dim=0)


def test_embeddings_are_those_of_one_sentence_at_a_time(minilm: Embedding) -> None:
    found = minilm.embeddings([*SAID, PROSE[:1500]])
    wanted = torch.stack([one_at_a_time(minilm, text) for text in [*SAID, PROSE[:1500]]])
    torch.testing.assert_close(found["embeddings"], wanted, atol=2e-6, rtol=0)
    every = [minilm.tokenizer(text)["input_ids"] for text in [*SAID, PROSE[:1500]]]
    assert int(found["tokens"]) == sum(map(len, every))


def test_the_score_is_the_cosine(minilm: Embedding) -> None:
    question = "Which bird of prey does Zoe own?"
    found = values(minilm, question)
    asked = one_at_a_time(minilm, question)
    wanted = [max(float(one_at_a_time(minilm, part) @ asked) for part in parts(text)) for text in SAID]
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert found.argmax() == 1


def test_the_best_sentence_of_a_passage_counts(minilm: Embedding) -> None:
    question, drowned = "The name of the doctor is", "It rained all day. The mail came late. Zoe works as a physician."
    found = values(minilm, question, [drowned, "The mail came late."])
    sentences = ["It rained all day.", "The mail came late.", "Zoe works as a physician."]
    asked = one_at_a_time(minilm, question)
    wanted = max(float(one_at_a_time(minilm, each) @ asked) for each in [drowned, *sentences])
    assert found[0] == pytest.approx(wanted, abs=2e-6)
    assert wanted > float(one_at_a_time(minilm, drowned) @ asked) + 0.05


def test_a_text_without_tokens_scores_zero(minilm: Embedding) -> None:
    assert values(minilm, "Who?", ["", " \n"]).tolist() == [0.0, 0.0]


def test_a_long_passage_is_read_to_its_end(minilm: Embedding) -> None:
    limit = 512 - 2
    long = PROSE[:4000] + " Zoe keeps a kestrel."
    ids = minilm.tokenizer(long, add_special_tokens=False, verbose=False)["input_ids"]
    number = math.ceil(len(ids) / limit)
    assert number > 1
    cuts = [len(ids) * place // number for place in range(number + 1)]
    total = 0
    for start, end in pairwise(cuts):
        window = torch.tensor([[101, *ids[start:end], 102]])
        with torch.no_grad():
            total = total + minilm.model(window)[0][0].sum(0)
    wanted = torch.nn.functional.normalize(total, dim=0)
    torch.testing.assert_close(minilm.embeddings([long, "A heron."])["embeddings"][0], wanted, atol=2e-6, rtol=0)


def test_embeddings_are_kept(minilm: Embedding) -> None:
    kept = Remembers()
    here = passages(SAID)
    first = minilm.scores(["Who keeps a kestrel?"], here, kept, quiet)
    again = minilm.scores(["Who keeps a kestrel?", "What is dry?"], here, kept, quiet)
    assert kept.made == 1
    assert first[0].values.tolist() == pytest.approx(again[0].values.tolist(), abs=2e-6)
    assert first[0].read == again[1].read > 0
    minilm.scores(["What is dry?"], here[:-1], kept, quiet)
    minilm.scores(["What is dry?"], here[::-1], kept, quiet)
    assert kept.made == 3


def test_any_encoder_can_be_given_and_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=600, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).train()
    given = Embedding((model, tokenizer("byte-level")))
    found, again = (values(given, "Who?", [*SAID, PROSE[:2000]]) for _ in range(2))
    assert found.tolist() == again.tolist()  # without dropout
    assert np.isfinite(found).all()
    assert all(part.training for part in model.modules())
    assert given.label == "embedding"


# ---------------------------------------------------------------- for evaluation


def test_random_depends_on_the_question_alone() -> None:
    first, other = (values(Chance(), question, SAID * 20) for question in ("Who?", "Where?"))
    assert first.tolist() == values(Chance(), "Who?", SAID * 20).tolist() != other.tolist()
    assert len(set(first.tolist())) == 100


def test_the_oracle_knows_what_overlaps() -> None:
    here = [*passages(["One. ", "Two. ", "Three."]), *passages(["One. "], "b")]
    oracle = Oracle({"Which?": [("a", 4, 6), ("b", 0, 1)], "Two?": [("a", 5, 10)], "None?": []})
    found = oracle.scores(["Which?", "Two?", "None?"], here, Nothing(), quiet)
    assert [each.values.tolist() for each in found] == [[1, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_the_oracle_refuses_what_it_cannot_know() -> None:
    oracle = Oracle({"Where?": [("b", 0, 3)]})
    with pytest.raises(InvalidValue, match="'Who\\?' is a question that the oracle was not told about"):
        values(oracle, "Who?")
    with pytest.raises(InvalidValue, match="stand in no passage"):
        values(oracle, "Where?")


# ---------------------------------------------------------------- fusion


class Given:
    """Scores that are known."""

    label = "given"

    def __init__(self, values: Sequence[float], rounds: Sequence[int] = (), read: int = 0) -> None:
        self.given = Scores(np.array(values, dtype=float), np.array(rounds, dtype=np.int64), read)

    def scores(self, questions: Sequence[str], *_: Any) -> list[Scores]:
        return [self.given for _ in questions]


def test_fusion_adds_reciprocal_ranks() -> None:
    [found] = Fusion([Given([3.0, 2.0, 1.0], read=5), Given([0.0, 10.0, 0.1], read=7)]).scores(
        ["Who?"], passages(["a", "b", "c"]), Nothing(), quiet
    )
    np.testing.assert_allclose(found.values, [1 / 2 + 1 / 4, 1 / 3 + 1 / 2, 1 / 4 + 1 / 3], rtol=1e-14)
    assert found.order.tolist() == [1, 0, 2]
    assert found.read == 12


def test_equal_passages_share_their_ranks() -> None:
    found = values(Fusion([Given([0.0, 5.0, 0.0, 0.0]), Given([1.0, 2.0, 3.0, 4.0])]), "Who?", ["a", "b", "c", "d"])
    rest = (1 / 3 + 1 / 4 + 1 / 5) / 3
    np.testing.assert_allclose(found, [rest + 1 / 5, 1 / 2 + 1 / 4, rest + 1 / 3, rest + 1 / 2], rtol=1e-14)


def test_a_scorer_that_knows_nothing_leaves_the_order_of_the_other() -> None:
    other = np.random.default_rng(0).random(50)
    found = values(Fusion([Given([0.0] * 50), Given(other)]), "Who?", ["a"] * 50)
    assert Scores(found).order.tolist() == Scores(other).order.tolist()


def test_a_later_round_is_no_tie() -> None:
    found = values(Fusion([Given([1.0, 1.0, 1.0], rounds=[1, 2, 1]), Given([0.0] * 3)]), "Who?", ["a", "b", "c"])
    even = (1 / 2 + 1 / 3 + 1 / 4) / 3
    np.testing.assert_allclose(found, [(1 / 3 + 1 / 4) / 2 + even, 1 / 2 + even, (1 / 3 + 1 / 4) / 2 + even])


def test_one_scorer_cannot_be_fused() -> None:
    with pytest.raises(InvalidValue, match="at least two"):
        Fusion([Given([1.0])])


def test_a_passage_that_shares_no_word_fills_no_budget() -> None:
    texts = ["Zoe keeps a kestrel.", "It rained.", "The mail came late."]
    for question, wanted in {"Who keeps a kestrel?": [0], "Quetzal?": [0, 1, 2]}.items():
        [found] = BM25().scores([question], passages(texts), Nothing(), quiet)
        kept = within(found, passages(texts), 100)
        assert [each.passage.number for each in kept] == wanted
