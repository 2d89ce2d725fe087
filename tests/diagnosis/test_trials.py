"""Remedies hold what they promise, are measured before they are advised, and leave the model alone."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import undilute as ud
from tests.diagnosis import constructed
from tests.diagnosis.finder import FINDER, HEADS, FinderForCausalLM, filler, finder, tokenizer, vocabulary
from undilute.diagnosis import Heads
from undilute.diagnosis.trials import LOSS_LIMIT, Remedy, Trials, remedies, tried
from undilute.diagnosis.windows import given_texts
from undilute.evaluation.changes import Change

GAP = 4.4
LENGTH = 512
TEXTS = {f"text {seed}": filler(seed, 200) for seed in range(2)}
SHARPER = "logits × 1.5 in the retrieval heads"


@pytest.fixture(scope="module")
def quick() -> ud.Diagnosis:
    return ud.diagnose(finder(), tokenizer(), filler(0), 1024, quick=True)


@pytest.fixture(scope="module")
def model() -> FinderForCausalLM:
    return finder()


@pytest.fixture(scope="module")
def made(model: FinderForCausalLM) -> ud.Diagnosis:
    return ud.diagnose(model, tokenizer(), TEXTS, LENGTH)


def pattern(kind: str) -> str:
    layer = next(layer for layer, kinds in enumerate(HEADS) if kind in kinds)
    return f"model.layers.{layer}.heads.{HEADS[layer].index(kind)}"


def trials(model: FinderForCausalLM, *suggested: Remedy) -> Trials:
    texts = given_texts({"text": filler(9, 100)}, tokenizer(), model)
    return tried(model, tokenizer(), texts, LENGTH, suggested)


def logits_of(model: FinderForCausalLM) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor(tokenizer()(TEXTS["text 0"])["input_ids"][:300])[None]).logits


# ---------------------------------------------------------------- what is suggested


def test_the_scale_for_retrieval_heads_holds_their_weight_from_a_quarter(quick: ud.Diagnosis) -> None:
    assert quick.probe is not None
    suggested = {each.label: each for each in remedies(quick.heads, quick.probe, 1024)}
    assert list(suggested) == ["llama4 for the retrieval heads", SHARPER]
    ((where, expression),) = suggested["llama4 for the retrieval heads"].rules.items()
    assert where == f"model.layers.{FINDER[0]}.heads.{FINDER[1]}"
    rule = ud.rules.get(expression)

    def weight(n: int, rule: ud.rules.Rule) -> float:
        logits = torch.zeros(n)
        logits[100:108] = GAP
        return float(rule(logits)[100:108].sum())

    softmax = ud.rules.get("softmax")
    assert weight(1024, softmax) < 0.6 * weight(256, softmax)
    assert weight(1024, rule) == pytest.approx(weight(256, softmax), abs=0.01)
    for n in (110, 200, 256):  # shorter contexts stay as they are
        assert weight(n, rule) == weight(n, softmax)


def test_where_no_quarter_was_asked_the_fall_is_drawn_on(quick: ud.Diagnosis) -> None:
    """Without the shortest haystacks, half the length says what a quarter would: the law is the same."""
    assert quick.probe is not None
    judged = quick.probe.judged
    names = ("right", "log_probability", "n", "alpha", "sharper", "sink", "score")
    longer = replace(judged, lengths=judged.lengths[1:], **{name: getattr(judged, name)[1:] for name in names})
    whole, part = (
        remedies(quick.heads, replace(quick.probe, judged=each), 1024)[0].rules[pattern("finder")]
        for each in (judged, longer)
    )
    betas = [float(re.findall(r"beta=([\d.]+)", each)[0]) for each in (whole, part)]
    assert betas[1] == pytest.approx(betas[0], rel=0.03)


def test_the_scale_for_diluting_heads_holds_their_top_weight_from_a_quarter(quick: ud.Diagnosis) -> None:
    ids = torch.randint(0, 100, (1024,), generator=torch.Generator().manual_seed(0))
    plain = ud.diagnose(constructed.constructed(1024), None, ids)
    assert quick.probe is not None
    (only,) = remedies(Heads(plain.heads), quick.probe, 1024)
    assert only.label == "llama4 for the diluting heads"
    assert list(only.rules) == [f"transformer.h.0.attn.heads.{constructed.HEADS.index('diluting')}"]
    rule = ud.rules.get(next(iter(only.rules.values())))
    logits = torch.zeros(1024)
    logits[5] = constructed.GAPS["diluting"]
    assert float(rule(logits)[5]) == pytest.approx(float(logits[:256].softmax(-1)[5]), rel=0.02)
    assert torch.equal(rule(logits[:256]), logits[:256].softmax(-1))


def test_sharper_is_one_and_a_half_times_the_logits(quick: ud.Diagnosis) -> None:
    assert quick.probe is not None
    rule = ud.rules.get(remedies(quick.heads, quick.probe, 1024)[-1].rules[pattern("finder")])
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rule(logits), (1.5 * logits).softmax(-1), atol=1e-4, rtol=1e-3)


# ---------------------------------------------------------------- what is measured


def test_what_helps_is_found_and_advised_with_its_figures(made: ud.Diagnosis) -> None:
    best = made.trials.best
    assert best is not None
    assert best.recall is not None
    helped = {each.remedy.label: each.recall.difference for each in made.trials.tried if each.helps and each.recall}
    assert SHARPER in helped
    assert helped[best.remedy.label] == max(helped.values())
    assert best.recall.after > best.recall.before + 0.1
    assert best.recall.low is not None
    assert best.recall.low > 0
    assert best.loss.difference == pytest.approx(0.0, abs=1e-6)
    assert made.advice.startswith(f"What helped most: {best.remedy.label}: recall ")
    assert made.advice.endswith(
        "To use it: undilute diagnose --save-plan plan.json, then undilute treat --plan plan.json."
    )
    assert f"{best.recall.before:.0%} → {best.recall.after:.0%} [+{100 * best.recall.low:.0f}, " in made.advice
    assert "loss +0.000" in made.advice
    assert all(trial.length == LENGTH for trial in made.trials.tried)


def test_its_plan_can_be_saved_loaded_and_applied(made: ud.Diagnosis, model: FinderForCausalLM, tmp_path: Path) -> None:
    best = made.trials.best
    assert best is not None
    assert best.recall is not None
    path = best.plan.save(tmp_path / "plan.json")
    loaded = ud.Plan.load(path)
    assert loaded.heads == [FINDER]
    assert loaded.made == best.plan.made
    assert (loaded.made["by"], loaded.made["tried_at"]) == ("undilute diagnose", LENGTH)
    assert loaded.made["recall_before"] == best.recall.before
    assert loaded.made["recall_after"] == best.recall.after
    assert loaded.made["loss_change"] == best.loss.difference
    json.loads(Path(path).read_text(), parse_constant=pytest.fail)
    text = f"The password of Alice is anchor. {filler(5, 40)} The password of Alice is"
    asked = torch.tensor(tokenizer()(text)["input_ids"])[None]
    with torch.no_grad():
        before = model(asked).logits
        with ud.apply(model, loaded):
            from_plan = model(asked).logits
        with ud.apply(model, best.remedy.rules):
            from_rules = model(asked).logits
        assert torch.equal(model(asked).logits, before)
    assert torch.equal(from_plan, from_rules)
    assert not torch.allclose(from_plan, before)


def test_the_model_comes_back_bit_for_bit(model: FinderForCausalLM, made: ud.Diagnosis) -> None:
    assert made.trials.tried
    assert torch.equal(logits_of(model), logits_of(finder()))
    assert model.config._attn_implementation == finder().config._attn_implementation


def test_the_model_comes_back_after_an_error_within_a_trial(model: FinderForCausalLM) -> None:
    before, implementation = logits_of(model), model.config._attn_implementation
    seen = []

    def stop(share: float, doing: str) -> None:
        seen.append(not torch.equal(logits_of(model), before))
        if doing.startswith("trying sharper: recall"):
            raise KeyboardInterrupt

    texts = given_texts({"text": filler(9, 100)}, tokenizer(), model)
    remedy = Remedy("sharper", {"model.layers.*": "temperature(T=0.5)"})
    with pytest.raises(KeyboardInterrupt):
        tried(model, tokenizer(), texts, LENGTH, [remedy], on_progress=stop)
    assert seen[-1]  # it was treated when it was stopped
    assert torch.equal(logits_of(model), before)
    assert model.config._attn_implementation == implementation


def test_a_remedy_that_cannot_be_applied_takes_no_other_with_it(model: FinderForCausalLM) -> None:
    impossible = Remedy("impossible", {"model.layers.7.heads.0": "temperature(T=0.5)"})
    sharper = Remedy("sharper", {pattern("finder"): "temperature(T=0.5)"})
    found = trials(model, impossible, sharper)
    assert [each.remedy.label for each in found.tried] == ["sharper"]
    assert "Could not be tried: impossible (" in found.advice
    assert "model.layers.7.heads.0" in found.failed["impossible"]
    alone = trials(model, impossible)
    assert alone.tried == ()
    assert alone.advice.startswith("No advice: nothing that theory suggests could be tried. Could not be tried: imp")


def test_what_raises_the_loss_is_not_asked(model: FinderForCausalLM) -> None:
    found = trials(model, Remedy("blunt", {pattern("local"): "temperature(T=100)"}))
    (blunt,) = found.tried
    assert blunt.loss.low is not None
    assert blunt.loss.low > LOSS_LIMIT
    assert (blunt.recall, blunt.helps, found.best) == (None, False, None)
    assert re.fullmatch(
        r"blunt: loss \+\d\.\d{3} \[\+\d\.\d{3}, \+\d\.\d{3}\]; not asked, because that is more than 0.02 nats\.",
        blunt.sentence,
    )
    assert "recall_after" not in blunt.plan.made


def test_a_rise_of_recall_that_may_cost_too_much_is_no_help(model: FinderForCausalLM) -> None:
    """The loss rises by more than the limit, but not surely so: it is asked, and not advised."""
    both = {pattern("finder"): "temperature(T=0.6667)", pattern("local"): "temperature(T=1.47)"}
    dear, cheap = trials(
        model, Remedy("dear", both), Remedy("cheap", {pattern("finder"): both[pattern("finder")]})
    ).tried
    assert dear.loss.low is not None
    assert dear.loss.low < LOSS_LIMIT < dear.loss.difference
    assert dear.recall is not None
    assert cheap.recall is not None
    assert dear.recall.difference == cheap.recall.difference > 0.1
    assert (dear.helps, cheap.helps) == (False, True)


def test_where_nothing_helps_that_is_said(model: FinderForCausalLM) -> None:
    idle = Remedy("idle", {pattern("decoy"): "temperature(T=2)"})
    worse = Remedy("worse", {pattern("finder"): "temperature(T=4)"})
    found = trials(model, idle, worse)
    assert [trial.helps for trial in found.tried] == [False, False]
    assert found.tried[0].recall is not None
    assert found.tried[0].recall.difference == 0.0
    assert found.tried[1].recall is not None
    assert found.tried[1].recall.difference < 0
    assert found.advice == "None of what was tried helped (idle, worse): leave the heads alone."


def test_help_takes_certainty_that_grows_with_what_is_tried() -> None:
    from undilute.diagnosis.trials import _rose

    rise = Change("recall", "share", 0.5, 0.6, 0.1, 0.02, 0.2, 0.02, "higher", 8)
    assert _rose(rise, 1)
    assert _rose(rise, 2)
    assert not _rose(rise, 3)
    assert not _rose(replace(rise, low=-0.01), 1)
    assert not _rose(replace(rise, low=None, p_value=None), 1)
    assert not _rose(replace(rise, difference=-0.1, low=-0.2), 1)


# ---------------------------------------------------------------- what a diagnosis says of it


def test_a_fall_without_a_remedy_is_advice_to_keep_it_short(quick: ud.Diagnosis, model: FinderForCausalLM) -> None:
    nothing = trials(model, Remedy("idle", {pattern("decoy"): "temperature(T=2)"}))
    found = ud.Diagnosis(quick.subject, quick.question, quick.readings, quick.heads, quick.probe, None, nothing)
    recall = {each.length: each.right.value for each in found.recalls if each.task == "other-facts"}
    assert found.advice == (
        "None of what was tried helped (idle): leave the heads alone. Keep the context short: recall is "
        f"{recall[256]:.0%} at 256 tokens and {recall[1024]:.0%} at 1,024. undilute select finds the "
        "passages that matter, and undilute ask answers from those alone."
    )


def test_where_recall_is_perfect_length_is_not_blamed() -> None:
    found = ud.diagnose(finder(strength=1000.0), tokenizer(), TEXTS, LENGTH, haystacks=6)
    assert {each.right.value for each in found.recalls} == {1.0}
    assert all((each.right.low, each.right.high) == (1 - 3 / each.questions, 1.0) for each in found.recalls)
    assert "recall stays at 100%" in found.summary
    assert found.advice.startswith("None of what was tried helped (")
    assert "Up to 512 tokens recall does not clearly fall" in found.advice


def test_quick_gives_no_advice(quick: ud.Diagnosis) -> None:
    assert quick.trials.tried == ()
    assert quick.trials.best is None
    assert quick.advice == "No advice: nothing was tried, as asked for."


def test_texts_too_short_to_keep_a_part_of_them_say_so() -> None:
    found = ud.diagnose(finder(), tokenizer(), filler(0, 70), LENGTH, haystacks=2)
    assert found.probe is not None
    assert found.advice == (
        "No advice: nothing was tried, because the texts are too short to keep a part of them for it."
    )


def test_without_a_head_that_dilutes_nothing_is_suggested() -> None:
    found = ud.diagnose(finder(gap=0.0), tokenizer(), TEXTS, LENGTH, haystacks=2)
    assert found.advice == ("No advice: no head was found whose weight falls, so theory suggests nothing to try.")


@pytest.mark.parametrize(("times", "asked"), [(1, False), (3, True)])
def test_a_mark_before_every_text_takes_room(times: int, asked: bool) -> None:
    """A window has a token less of the text than it is long; a haystack needs them all."""
    marked = Tokenizer.from_str(tokenizer().backend_tokenizer.to_str())
    marked.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", vocabulary()["a"])])
    marking = PreTrainedTokenizerFast(tokenizer_object=marked, unk_token="<unk>")
    words = tokenizer()(filler(0))["input_ids"][: times * (LENGTH - 1)]
    found = ud.diagnose(finder(), marking, tokenizer().decode(words), LENGTH, haystacks=2)
    assert (found.probe is not None) == asked
    assert found.trials.tried == ()
    if not asked:
        assert found.why_no_probe is not None
        assert found.why_no_probe.startswith("no text has sentences of 512 tokens to hide facts in")
        with pytest.raises(ud.InvalidValue, match="probe = True: no text has sentences"):
            ud.diagnose(finder(), marking, tokenizer().decode(words), LENGTH, probe=True)


def test_one_haystack_cannot_find_heads() -> None:
    with pytest.raises(ud.InvalidValue, match="haystacks = 1: must be at least 2"):
        ud.diagnose(finder(), tokenizer(), TEXTS, LENGTH, haystacks=1)


def test_figures_are_finite(made: ud.Diagnosis) -> None:
    for trial in made.trials.tried:
        assert all(math.isfinite(value) for value in trial.plan.made.values() if isinstance(value, float))


def test_a_larger_length_is_named_only_where_the_model_reads_one(quick: ud.Diagnosis) -> None:
    probe = quick.probe
    assert probe is not None
    steady = replace(probe, judged=replace(probe.judged, right=probe.judged.right * 0 + 1))
    tried_in_vain = trials(finder(), Remedy("blunt", {pattern("local"): "temperature(T=100)"}))

    def advice(limit: int | None) -> str:
        subject = replace(quick.subject, maximum_length=limit)
        return ud.Diagnosis(subject, quick.question, quick.readings, quick.heads, steady, None, tried_in_vain).advice

    assert "does not clearly fall. A larger length" in advice(8192)
    assert "A larger length" in advice(None)
    assert advice(1024).endswith("does not clearly fall.")
