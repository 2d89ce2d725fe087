"""A plan for question rows acts on those rows, whatever the pass: a dense float64 oracle is told them by number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue
from undilute.models import question_rows
from undilute.models.head_rules import QUESTION_ROWS, reading_text
from undilute.models.read_once import ReadOnce, takes_together
from undilute.rules import Rule, Temperature
from undilute.selection.answering import likelihoods
from undilute.treatment.layers import first_calls, layers_of
from undilute.treatment.plan import Assignment, Plan

BETA = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64)
GAIN = torch.tensor([0.25, 1.5, 1.0, -0.5], dtype=torch.float64)
N, LAST = 50, QUESTION_ROWS
KINDS = [("llama", "sdpa"), ("llama", "eager"), ("gpt2", "sdpa"), ("mistral", "sdpa"), ("gemma2", "eager")]
KINDS += [("gpt-oss", "eager")]
ROUNDING = {"sdpa": {}, "eager": {"atol": 1e-5, "rtol": 1e-5}}  # eager attention has its softmax in single precision


def plan(model: Any, rows: str = "question") -> Plan:
    layers = layers_of(first_calls(model))
    rule = Rule(Temperature(1 / BETA))
    own = [Assignment(index, (0, 1, 2, 3), rule, tuple(GAIN.tolist())) for index in range(len(layers))]
    return Plan(type(model).__name__, layers, own, rows=rows)


def by_hand(call: Any, batch: int, rows: list[int]) -> Tensor:
    """(rows, heads, features): softmax of β times the logits, times the gain."""
    at = torch.tensor(rows)
    z = call.logits(batch, at) * BETA[:, None, None]
    seen = call.visible(batch, at)
    if seen is not None:
        z = z.masked_fill(~seen, -torch.inf)
    if call.outside is not None:
        z = torch.cat([z, call.outside[:, None].expand(-1, len(rows), 1)], -1)
    values = call.value[batch, :, : call.keys].repeat_interleave(len(BETA) // call.value.shape[1], 0)
    made: Tensor = (z.softmax(-1)[..., : call.keys] @ values * GAIN[:, None, None]).transpose(0, 1)
    return made


def expected(model: Any, rows: Callable[[int], list[int]], run: Callable[[], Any]) -> Any:
    """What ``run`` gives if the rows of each sequence are computed by hand, and the others are the model's own."""

    def instead(call: Any) -> Tensor:
        output = call.output.clone()
        for batch in range(len(output)):
            if own := rows(batch):
                output[batch, own] = by_hand(call, batch, own)
        made: Tensor = output
        return made

    with ud.watch(model, instead, replace=True), torch.no_grad():
        return run()


def logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        made: Tensor = model(ids, use_cache=False).logits
    return made


def with_plan(model: Any, run: Callable[[], Any]) -> Any:
    with ud.apply(model, plan(model)), torch.no_grad():
        return run()


@pytest.mark.parametrize(("kind", "implementation"), KINDS)
def test_a_pass_that_begins_is_treated_in_its_last_rows(kind: str, implementation: str) -> None:
    model, ids = random_model(kind, implementation), tokens(2, N)
    for n, first in ((N, N - LAST), (LAST + 1, 1), (LAST, 0), (3, 0)):
        rows = list(range(first, n))
        run = partial(logits, model, ids[:, :n])
        found, plain = with_plan(model, run), run()
        torch.testing.assert_close(found, expected(model, lambda _, rows=rows: rows, run), **ROUNDING[implementation])  # type: ignore[misc]
        torch.testing.assert_close(found[:, :first], plain[:, :first], **ROUNDING[implementation])
        assert not torch.isclose(found[:, first:], plain[:, first:], atol=1e-3).all(-1).any()


@pytest.mark.parametrize(("kind", "implementation"), KINDS)
def test_a_pass_that_continues_a_cache_is_treated_in_all_rows(kind: str, implementation: str) -> None:
    model, ids = random_model(kind, implementation), tokens(1, 60)

    def run() -> Any:
        with torch.no_grad():
            return model(ids[:, 20:], past_key_values=read, use_cache=True).logits

    for _ in range(2):
        with torch.no_grad():
            read = model(ids[:, :20], use_cache=True).past_key_values
            want = expected(model, lambda _: list(range(40)), run)
            read = model(ids[:, :20], use_cache=True).past_key_values
            torch.testing.assert_close(with_plan(model, run), want)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_is_as_if_it_were_not_there(side: str, implementation: str) -> None:
    model, ids = random_model("llama", implementation), tokens(3, 60)
    spans = {
        "left": [(0, 60), (13, 60), (40, 60)],
        "right": [(0, 60), (0, 47), (0, 20)],
        "both": [(5, 60), (3, 41), (0, 10)],
    }[side]
    mask = torch.zeros(3, 60, dtype=torch.long)
    for row, (start, stop) in zip(mask, spans, strict=True):
        row[start:stop] = 1
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with ud.apply(model, plan(model)), torch.no_grad():
        together = model(ids, attention_mask=mask, position_ids=places, use_cache=False).logits
        for number, (start, stop) in enumerate(spans):
            alone = model(ids[number : number + 1, start:stop], use_cache=False).logits[0]
            torch.testing.assert_close(together[number, start:stop], alone)


@pytest.mark.parametrize("with_mask", [True, False])
def test_a_cache_of_fixed_size_gives_the_same(with_mask: bool) -> None:
    model, ids = random_model("llama"), tokens(1, N)
    mask = {"attention_mask": torch.ones(1, N, dtype=torch.long)} if with_mask else {}
    with ud.apply(model, plan(model)), torch.no_grad():
        cache = transformers.StaticCache(model.config, max_cache_len=80)
        first = model(ids, past_key_values=cache, use_cache=True, **mask).logits
        after = model(tokens(1, 3, seed=1), past_key_values=cache, use_cache=True).logits
        grown = model(ids, use_cache=True)
        torch.testing.assert_close(first, grown.logits)
        cache = grown.past_key_values
        torch.testing.assert_close(after, model(tokens(1, 3, seed=1), past_key_values=cache, use_cache=True).logits)


def test_generation_is_a_pass_that_begins_and_many_that_continue() -> None:
    model, ids = random_model("llama"), tokens(1, N)
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with ud.apply(model, plan(model)), torch.no_grad():
        found = model.generate(ids, **options)
        assert torch.equal(model.generate(ids, cache_implementation="static", **options), found)
        padded = torch.cat([torch.zeros(1, 9, dtype=torch.long), ids], 1)
        assert torch.equal(model.generate(padded, attention_mask=(padded > 0).long(), **options)[:, 9:], found)
        said, output = [], model(ids, use_cache=True)
        for _ in range(5):
            said.append(int(output.logits[0, -1].argmax()))
            output = model(torch.tensor([said[-1:]]), past_key_values=output.past_key_values, use_cache=True)
    assert found[0, N:].tolist() == said


def test_a_fixed_cache_whose_end_is_padding_is_refused() -> None:
    model, mask = random_model("llama"), torch.ones(1, N, dtype=torch.long)
    mask[:, -4:] = 0
    cache = transformers.StaticCache(model.config, max_cache_len=80)
    with ud.apply(model, plan(model)), torch.no_grad(), pytest.raises(InvalidValue, match="pad on the left"):
        model(tokens(1, N), attention_mask=mask, past_key_values=cache, use_cache=True)


def test_a_text_is_read_untreated() -> None:
    model, ids = random_model("llama"), tokens(1, N)
    plain = model(ids).logits
    with ud.apply(model, plan(model)), torch.no_grad():
        treated = model(ids).logits
        with reading_text():
            read = model(ids[:, :20], use_cache=True)
            torch.testing.assert_close(read.logits, plain[:, :20])
            more = model(ids[:, 20:], past_key_values=read.past_key_values, use_cache=True)
            torch.testing.assert_close(more.logits, plain[:, 20:])
            with pytest.raises(RuntimeError), reading_text(3):
                raise RuntimeError
            torch.testing.assert_close(model(ids).logits, plain)
        assert torch.equal(model(ids).logits, treated)
        assert not torch.allclose(treated[:, -1], plain[:, -1])
    assert question_rows.told() is None
    with pytest.raises(InvalidValue, match=r"questions = -1: must be a whole number of at least 0"), reading_text(-1):
        pass


def test_rules_for_all_rows_do_not_rest() -> None:
    model, ids = random_model("llama"), tokens(1, N)
    with ud.apply(model, plan(model, "all")), torch.no_grad():
        before = model(ids).logits
        with reading_text():
            assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("asked", [1, 5, 40])
def test_a_text_that_is_read_once_is_treated_in_its_question_only(asked: int) -> None:
    model, ids = random_model("llama"), tokens(N + asked)
    text, question = ids[:N], ids[N:]
    want = expected(model, lambda _: list(range(N, N + asked)), partial(logits, model, ids[None]))[0, -1]
    with ud.apply(model, plan(model)):
        read = ReadOnce(model, text)
        torch.testing.assert_close(read.ask(question), want)
        other = tokens(7, seed=3)
        together = read.ask_together([other, question])
        torch.testing.assert_close(together[1], want)
        torch.testing.assert_close(together[0], read.ask(other))
        again = ReadOnce(model, text)
        again.cache = None  # as of a model that keeps none: it reads text and question in one pass
        torch.testing.assert_close(again.ask(question), want)
        torch.testing.assert_close(read.attended(question).rows[1].weights, again.attended(question).rows[1].weights)
        assert takes_together(read, [question, other])


def test_choices_are_as_likely_with_a_cache_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = random_model("llama"), tokens(N)
    choices = {"one": [5, 6, 7], "two": [8]}
    with ud.apply(model, plan(model)):
        found = likelihoods(model, ids, choices)
        with reading_text(LAST + 2), torch.no_grad():
            rows = model(torch.cat([ids, torch.tensor([5, 6])])[None]).logits[0, -3:].log_softmax(-1)
        monkeypatch.setattr("undilute.models.read_once._cache", lambda model, ids: None)
        for one, other in zip(found, likelihoods(model, ids, choices), strict=True):
            assert one.text == other.text
            assert one.total == pytest.approx(other.total, abs=1e-9)
    (own,) = [each for each in found if each.text == "one"]
    assert own.total == pytest.approx(float(rows[torch.arange(3), torch.tensor([5, 6, 7])].sum()), abs=1e-9)


@pytest.mark.parametrize("rows", ["all", "question"])
@pytest.mark.parametrize(("kind", "implementation"), KINDS[:-1])
def test_what_is_watched_makes_the_output(kind: str, implementation: str, rows: str) -> None:
    """output = gains · (weights @ values), in rows with and without treatment."""
    model, ids = random_model(kind, implementation), tokens(1, N)
    gains: list[Tensor] = []

    def check(call: Any) -> None:
        at = torch.tensor([0, 3, N - LAST - 1, N - LAST, N - 1])
        values = call.value[0].repeat_interleave(4 // call.value.shape[1], 0)
        gains.append(call.gains_of(0, at))
        made = gains[-1][..., None] * (call.weights(0, at) @ values)
        torch.testing.assert_close(call.output[0, at].transpose(0, 1), made, atol=1e-10, rtol=1e-7)
        assert call.gains.tolist() == GAIN.tolist()

    with ud.apply(model, plan(model, rows)), ud.watch(model, check), torch.no_grad():
        model(ids, use_cache=False)
    first = GAIN if rows == "all" else torch.ones_like(GAIN)
    for each in gains:
        assert torch.equal(each, torch.stack([first, first, first, GAIN, GAIN], 1))


def test_a_capture_has_the_gains_of_its_rows_and_weights_without_them() -> None:
    model, ids = random_model("llama"), tokens(1, N)
    layers = layers_of(first_calls(model))
    own = [Assignment(0, (1,), Rule(), (0.5,))]
    with ud.capture(model, rows=N) as plain, torch.no_grad():
        model(ids)
    with ud.apply(model, Plan("LlamaForCausalLM", layers, own, rows="question")):
        with ud.capture(model, rows=N) as c, torch.no_grad():
            model(ids)
        assert (c.layers[0].gains[[0, 2, 3]] == 1).all()
        assert c.layers[0].gains[1].tolist() == [1.0] * (N - LAST) + [0.5] * LAST
        assert (c.layers[1].gains == 1).all()
        for name, values in plain.layers[0].measures.items():  # a gain changes nothing that is measured
            if name == "spread_bound":  # known of the model's own logits only
                continue
            torch.testing.assert_close(
                torch.tensor(c.layers[0].measures[name]),
                torch.tensor(values),
                equal_nan=True,
                atol=1e-6,
                rtol=1e-6,
                msg=lambda said, name=name: f"{name}: {said}",
            )


def test_who_keeps_a_call_finds_the_rows_that_it_had() -> None:
    model, kept = random_model("llama"), []
    with ud.apply(model, plan(model)), torch.no_grad():
        with reading_text(2), ud.watch(model, kept.append):
            model(tokens(1, 10))
        assert kept[0].gains_of(0, torch.arange(6, 10))[0].tolist() == [1.0, 1.0, 0.25, 0.25]


def test_layers_that_look_ahead_have_no_question_rows() -> None:
    model = random_model("bert")
    with pytest.raises(InvalidValue, match=r"rows = 'question': the queries of encoder\.layer\.0.* see what comes"):
        ud.apply(model, plan(model))
