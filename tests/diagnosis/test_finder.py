"""A diagnosis of a model of which it is known which head finds facts, with what weight, and what helps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import undilute as ud
from tests.diagnosis.finder import FILLER, FINDER, HEADS, PLAIN, filler, finder, tokenizer
from undilute.diagnosis import Heads
from undilute.diagnosis import probe as probing
from undilute.diagnosis.probe import Asked, chunk_borders
from undilute.diagnosis.windows import Text, given_texts
from undilute.evaluation.haystacks import shortest
from undilute.evaluation.words import OTHER_THINGS, THINGS
from undilute.report import diagnosis_data

LENGTH = 1024
LENGTHS = (256, 512, 1024)
GAP = 4.4
TEXTS = {f"text {seed}": filler(seed) for seed in range(3)}


def diagnosed(length: int = LENGTH, **options: Any) -> ud.Diagnosis:
    return ud.diagnose(finder(**options), tokenizer(), TEXTS, length, quick=True)


@pytest.fixture(scope="module")
def plain() -> ud.Diagnosis:
    return diagnosed()


@pytest.fixture(scope="module")
def resting() -> ud.Diagnosis:
    """The head that finds facts rests on the first token."""
    return diagnosed(rest=8.0)


@pytest.fixture(scope="module")
def varied() -> ud.Diagnosis:
    """Some names are easier to find than others."""
    return diagnosed(varied=2.5)


def law(asked: Asked, gap: float = GAP, sink: float = 0.0) -> NDArray[np.float64]:
    """(lengths, questions): s·e^g / (s·e^g + e^sink + n − s − 1)."""
    found = asked.span * math.exp(gap)
    return np.asarray(found / (found + math.exp(sink) + asked.n - asked.span - 1))


def of_asked(found: ud.Diagnosis) -> Asked:
    assert found.probe is not None
    return found.probe.judged.of(found.probe.judged.tasks == "other-facts")


@pytest.mark.parametrize("which", ["plain", "resting", "varied"])
def test_the_head_is_found_and_no_other(which: str, request: pytest.FixtureRequest) -> None:
    found: ud.Diagnosis = request.getfixturevalue(which)
    assert [(head.layer, head.head) for head in found.heads.retrieval] == [FINDER]
    ranked = sorted(found.heads, key=lambda head: -head.score.value)
    assert (ranked[0].layer, ranked[0].head) == FINDER
    assert found.heads.retrieval[0].share == 1.0
    assert found.heads.retrieval[0].is_steady
    assert ranked[0].score.value > 0.5  # far above chance, 0.08, even while it rests
    assert all(head.score.value < 3 * head.score.chance for head in ranked[1:])
    assert found.counts["retrieval"] == found.steady_counts["retrieval"] == 1
    assert found.summary.startswith("1 of 8 heads finds what is asked for. From 256 to 1,024 tokens its weight on it")


def test_on_plain_text_every_head_is_what_it_was_made_to_be(plain: ud.Diagnosis, resting: ud.Diagnosis) -> None:
    for head in plain.heads:
        made = HEADS[head.layer][head.head]
        assert head.plain_kind == PLAIN.get(made, "diffuse"), made
        assert head.kind == ("retrieval" if made == "finder" else head.plain_kind)
    assert resting.heads.at(*FINDER).plain_kind == "sink"
    assert resting.heads.at(*FINDER).kind == "retrieval"


def test_the_weight_on_the_fact_is_the_closed_form(plain: ud.Diagnosis) -> None:
    head, asked = plain.heads.at(*FINDER), of_asked(plain)
    assert tuple(head.alpha) == asked.lengths == LENGTHS
    for length, expected in zip(LENGTHS, law(asked).mean(1), strict=True):
        assert head.alpha[length].value == pytest.approx(expected, abs=1e-5)
        # and without what the probe says of spans and keys: statements have 8 or 9 tokens, and n is the length
        ends = [s * math.exp(GAP) / (s * math.exp(GAP) + length - s) for s in (8, 9)]
        assert ends[0] - 0.005 <= head.alpha[length].value <= ends[1] + 0.005
        assert head.alpha[length].low <= head.alpha[length].value <= head.alpha[length].high
        assert head.asked is not None
        # not exactly e^g, because R is that of the mean attention
        assert head.asked.ratio[length] == pytest.approx(math.exp(GAP), rel=0.01)
    assert head.law.slope.value == pytest.approx(-1.0, abs=0.05)
    assert head.law.slope.low <= head.law.slope.value <= head.law.slope.high
    at = {length: 1 / (1 + math.exp(-head.law.gap - head.law.slope.value * math.log(length))) for length in LENGTHS}
    assert all(at[length] == pytest.approx(head.alpha[length].value, abs=0.01) for length in LENGTHS)


def test_without_its_sink_a_resting_head_follows_the_law(resting: ud.Diagnosis) -> None:
    head, asked = resting.heads.at(*FINDER), of_asked(resting)
    assert head.asked is not None
    found = asked.span * math.exp(GAP)
    without = found / (found + asked.n - asked.span - 1)
    for length, expected, bare in zip(LENGTHS, law(asked, sink=8.0).mean(1), without.mean(1), strict=True):
        assert head.alpha[length].value == pytest.approx(expected, abs=1e-5)
        assert head.asked.without_sink[length].value == pytest.approx(bare, abs=1e-5)
    assert head.law.slope.value > -0.5  # the sink is most of what competes, and does not grow


def test_a_head_that_looks_at_all_facts_gets_its_share(plain: ud.Diagnosis) -> None:
    decoy, asked = plain.heads.at(1, HEADS[1].index("decoy")), of_asked(plain)
    every = 8 * asked.span * math.exp(GAP)  # the facts of a haystack are all in one wording
    expected = (every / 8 / (every + asked.n - 8 * asked.span)).mean(1)
    for length, weight in zip(LENGTHS, expected, strict=True):
        assert decoy.alpha[length].value == pytest.approx(weight, abs=1e-4)


def test_right_answers_have_more_of_its_attention(varied: ud.Diagnosis) -> None:
    """Where names differ in how well they are found, α* says which answers are right; nothing else does."""
    head = varied.heads.at(*FINDER)
    assert head.auc is not None
    assert head.auc > 0.75
    assert all(other.auc is not None and other.auc < head.auc - 0.1 for other in varied.heads if other is not head)
    assert head.asked is not None
    for length in LENGTHS[1:]:
        assert head.asked.when_right[length] > head.asked.when_wrong[length]


def test_recall_falls_as_the_weight_does(plain: ud.Diagnosis) -> None:
    recall = plain.recall().query("task == 'other-facts'").set_index("length")
    assert recall.loc[256, "recall"] > recall.loc[1024, "high"]
    assert recall.loc[1024, "recall"] > 1 / 8 + 0.1
    assert ((recall["low"] <= recall["recall"]) & (recall["recall"] <= recall["high"])).all()
    assert plain.summary.endswith(
        f"recall falls from {recall.loc[256, 'recall']:.0%} to {recall.loc[1024, 'recall']:.0%}."
    )


def test_questions_one_by_one_give_the_same(plain: ud.Diagnosis) -> None:
    alone = diagnosed(packs=False)
    assert alone.probe is not None
    assert plain.probe is not None
    for one, other in ((alone.probe.found, plain.probe.found), (alone.probe.judged, plain.probe.judged)):
        assert np.array_equal(one.right, other.right)
        assert np.array_equal(one.n, other.n)
        for name in ("alpha", "sharper", "sink", "score", "log_probability"):
            assert np.allclose(getattr(one, name), getattr(other, name), atol=1e-5), name


def test_what_the_heads_looked_at_is_kept(plain: ud.Diagnosis) -> None:
    assert plain.probe is not None
    assert len(plain.probe.haystack) + max(len(each.question) for each in plain.probe.looked) == LENGTH
    place = plain.probe.places[plain.heads.at(*FINDER).name, FINDER[1]]
    for looked in plain.probe.looked:
        start, stop = looked.span
        assert plain.probe.haystack[stop - 1] == "."
        assert plain.probe.haystack[start] == "The"
        heaviest = looked.keys[place, : stop - start]
        assert set(heaviest.tolist()) <= set(range(start, stop))
        assert set(looked.question) & set(plain.probe.haystack[start:stop]) >= {"of"}
    fixed = plain.probe.places[plain.heads.at(1, 0).name, 0]
    assert all(looked.keys[fixed, 0] == 5 for looked in plain.probe.looked)


def test_sharper_is_what_twice_the_logits_would_give(plain: ud.Diagnosis) -> None:
    asked = of_asked(plain)
    assert np.allclose(asked.sharper[..., 5], law(asked, 2 * GAP), atol=1e-5)


def test_the_weight_on_the_fact_is_forecast_by_the_law_that_it_follows() -> None:
    """2,048 tokens are the first length with two others up to a quarter of it."""
    found = diagnosed(2048)
    ahead = found.forecast()
    assert ahead.alpha is not None
    assert ahead.alpha.check.way in ("pooled law", "shrunk law")
    assert ahead.alpha.check.errors[ahead.alpha.check.way] < 0.15 * ahead.alpha.check.errors["no change"]
    asked = of_asked(found)
    expected = (asked.span * math.exp(GAP) / (asked.span * math.exp(GAP) + 8192 - asked.span)).mean()
    assert float(ahead.alpha.weight[0]) == pytest.approx(expected, abs=0.01)
    assert ahead.alpha.low[0] <= expected <= ahead.alpha.high[0]


# ---------------------------------------------------------------- what is planned and asked


def test_a_step_that_only_plain_text_was_checked_for_is_marked() -> None:
    """At two lengths, the weight on the fact is checked from a half to the whole; the usual target is further."""
    length = 2 * shortest(tokenizer(), sorted({*probing.FINDING, *probing.JUDGING}))
    found = ud.diagnose(finder(), tokenizer(), filler(0), length, quick=True, haystacks=2)
    ahead = found.forecast()
    assert ahead.alpha is not None
    assert (ahead.top.is_checked, ahead.alpha.is_checked, ahead.is_checked) == (True, False, False)
    assert f"For attention on what is asked for, {4 * length:,} tokens are beyond what was checked." in ahead.summary
    assert diagnosis_data.data(found)["forecast"]["is_checked"] is False
    assert "beyond" not in found.forecast(length).summary
    assert "on haystacks of the same text, left out in turn" in ahead.summary
    assert "on windows of the same text, left out in turn" in ahead.summary


def test_a_head_that_finds_facts_in_a_few_haystacks_is_not_said_to_find_none(plain: ud.Diagnosis) -> None:
    seldom = [replace(head, share=0.5) for head in plain.heads]
    found = ud.Diagnosis(plain.subject, plain.question, plain.readings, Heads(seldom, plain.probe), plain.probe)
    assert found.summary.startswith(
        "None of 8 heads finds what is asked for steadily: 1 finds it, but in less than two thirds of the haystacks. "
    )


def test_without_a_head_that_finds_anything_the_summary_says_so() -> None:
    found = diagnosed(gap=0.0)
    assert found.heads.retrieval.asked is None
    assert found.summary.startswith("None of 8 heads finds what is asked for. From 256 to 1,024 tokens recall")
    with pytest.raises(ud.InvalidValue, match="these heads were not asked"):
        _ = found.heads.retrieval.alpha


def test_facts_are_hidden_in_every_text_in_turn(plain: ud.Diagnosis) -> None:
    assert plain.probe is not None
    for asked in (plain.probe.found, plain.probe.judged):
        assert sorted(set(asked.texts.tolist())) == [0, 1, 2]
        assert len(asked.tasks) == 8 * 8
        assert len(set(asked.haystack.tolist())) == 8
    assert set(plain.probe.found.tasks) == {"facts", "facts-paraphrased"}
    assert set(plain.probe.judged.tasks) == {"other-facts", "other-facts-paraphrased"}


def test_a_length_without_room_for_two_is_refused_or_said() -> None:
    with pytest.raises(ud.InvalidValue, match="length = 300: must be at least"):
        ud.diagnose(finder(), tokenizer(), TEXTS, 300, probe=True)
    found = ud.diagnose(finder(), tokenizer(), TEXTS, 300)
    assert found.probe is None
    assert found.why_no_probe is not None
    assert "must be at least" in found.why_no_probe
    with pytest.raises(ud.InvalidValue, match="nothing was asked"):
        found.recall()
    with pytest.raises(ud.InvalidValue, match="was not asked"):
        _ = found.heads[0].alpha


def test_a_text_that_facts_cannot_be_hidden_in_is_read_all_the_same() -> None:
    """It holds every word that could be asked for."""
    text = f"{' '.join((*THINGS, *OTHER_THINGS))}. " * 40
    found = ud.diagnose(finder(), tokenizer(), text, 512, haystacks=2)
    assert found.probe is None
    assert "0 of" in str(found.why_no_probe)
    assert found.advice.startswith("No advice: nothing was tried, because recall cannot be measured")
    with pytest.raises(ud.InvalidValue, match="0 of"):
        ud.diagnose(finder(), tokenizer(), text, 512, haystacks=2, probe=True)


def test_half_a_character_is_one_clear_error() -> None:
    with pytest.raises(ud.InvalidValue, match=r"holds half a character, '\\udc80' at 6: must be text"):
        ud.diagnose(finder(), tokenizer(), "hello \udc80 there. " * 200)


def test_probe_false_asks_nothing() -> None:
    found = ud.diagnose(finder(), tokenizer(), TEXTS, 512, probe=False)
    assert (found.probe, found.why_no_probe) == (None, "it was not asked for.")


@pytest.mark.parametrize("tokens", [60, 100, 400, 1013])
def test_chunks_cover_the_text_and_cut_no_fact(tokens: int) -> None:
    facts = [(start, start + 9) for start in range(5, tokens - 9, 37)]
    borders = chunk_borders(tokens, facts)
    assert borders[0] == 1
    assert borders[-1] == tokens
    assert borders == sorted(set(borders))
    assert not any(start < border < stop for border in borders[1:-1] for start, stop in facts)


def test_a_fact_within_the_first_tokens_is_scored_though_they_count_as_the_sink() -> None:
    found = ud.diagnose(finder(), tokenizer(), filler(0), 512, quick=True, haystacks=4, sinks=60)
    assert found.probe is not None
    assert found.probe.found.score.min() > 0
    assert found.heads.retrieval[0].head == FINDER[1]


def test_there_is_room_only_in_what_can_be_written_again_as_tokens() -> None:
    words = Tokenizer(models.WordLevel({"?": 0, "word": 1, "lost": 2}, unk_token="?"))
    words.normalizer, words.pre_tokenizer = normalizers.Replace("lost", ""), pre_tokenizers.Whitespace()
    reads = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    kept, lost = (Text("text", torch.full((1000,), token), reads, True) for token in (1, 2))
    assert probing.has_room(reads, kept, 900)
    assert not probing.has_room(reads, kept, 1100)
    assert not probing.has_room(reads, lost, 100)


def test_a_second_probe_is_the_same_and_another_seed_is_not() -> None:
    model, texts = finder(), given_texts(TEXTS, tokenizer(), finder())
    plan = probing.planned(tokenizer(), 512, 2)
    one, same, other = (probing.probe(model, tokenizer(), texts, plan, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.judged.alpha, same.judged.alpha)
    assert not np.array_equal(one.judged.right, other.judged.right) or one.looked != other.looked


def test_the_model_is_what_it_says() -> None:
    """Plain text is predicted, questions are answered, and a cache changes nothing."""
    model = finder()
    ids = torch.tensor(tokenizer()(TEXTS["text 0"])["input_ids"][:200])
    with torch.no_grad():
        logits = model(ids[None]).logits
        read = model(ids[None, :150], use_cache=True)
        rest = model(ids[None, 150:], past_key_values=read.past_key_values)
    torch.testing.assert_close(logits[:, -1], rest.logits[:, -1], atol=1e-4, rtol=1e-4)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[1:])
    assert float(loss) < 3.5 < math.log(model.config.vocab_size)
    assert len(FILLER) == 24


def test_what_is_looked_at_stands_in_the_haystack_or_in_the_question_itself(plain: ud.Diagnosis) -> None:
    probe = plain.probe
    assert probe is not None
    assert len(probe.looked) == 8
    for looked in probe.looked:  # asked together: none of the keys is another question's
        assert looked.keys.max() < len(probe.haystack) + len(looked.question)


def test_a_forecast_that_is_checked_only_on_plain_text_says_so() -> None:
    """Facts were asked for at 256 and 512 tokens: that checks a step of 2, plain text one of 4."""
    found = diagnosed(512)
    ahead = found.forecast(2048)
    assert ahead.alpha is not None
    assert (ahead.top.is_checked, ahead.alpha.is_checked, ahead.is_checked) == (True, False, False)
    assert ahead.summary.endswith("For attention on what is asked for, 2,048 tokens are beyond what was checked.")
    assert found.forecast(1024).is_checked
