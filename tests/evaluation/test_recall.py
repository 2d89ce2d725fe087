"""Asking from a cache is asking without one, and answers are scored as they are defined."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.evaluation.constructed import TASKS
from tests.models.attending import VOCABULARY, random_model, tokens
from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import Haystack, Question
from undilute.evaluation.measure import Answer, answers

KINDS = ("llama", "gpt2", "gemma3", "mistral", "qwen2", "gemma2", "gpt-oss")


def haystack(number: int, length: int = 30) -> Haystack:
    """Random tokens; the questions have 1, 3 and 2 right candidates and 2, 5 and 9 tokens."""
    questions = tuple(
        Question(
            f"question {place}",
            tokens(size, seed=100 * number + place),
            tuple(map(str, range(7))),
            torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(place))[:7],
            tuple(range(right)),
            place / 3,
        )
        for place, (right, size) in enumerate([(1, 2), (3, 5), (2, 9)])
    )
    return Haystack(number, TASKS[number % 4], length + 9, tokens(length, seed=number), questions)


def asked_without_cache(model: Any, stacks: list[Haystack]) -> list[Answer]:
    """The definition, one question at a time."""
    found = []
    for stack in stacks:
        for place, question in enumerate(stack.questions):
            with torch.no_grad():
                logits = model(torch.cat([stack.ids, question.ids])[None], use_cache=False).logits[0, -1].double()
            scores = {c: float(logits[c]) for c in question.candidate_ids.tolist()}
            right = [question.candidate_ids.tolist()[each] for each in question.right]
            ranked = sorted(scores, key=lambda c: -scores[c])[: len(right)]
            total = math.log(sum(math.exp(score) for score in scores.values()))
            log_p = sum(scores[c] - total for c in right) / len(right)
            share = len(set(ranked) & set(right)) / len(right)
            chance = len(right) / len(scores)
            found.append(Answer(stack.task, stack.length, question.depth, stack.number, place, share, log_p, chance))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_asking_from_a_cache_is_asking_without_one(kind: str) -> None:
    model = random_model(kind, "eager" if kind in ("gemma2", "gpt-oss") else "sdpa")
    stacks = [haystack(0), haystack(1, length=4), haystack(2, length=41)]  # shorter and longer than a window of 6
    ours, theirs = answers(model, stacks), asked_without_cache(model, stacks)
    for one, other in zip(ours, theirs, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-6)  # eager softmax is in float32
        assert replace(one, log_probability=0.0) == replace(other, log_probability=0.0)
    assert {answer.right for answer in ours} > {0.0}  # some are right, some are not


def test_the_order_of_questions_does_not_matter() -> None:
    model, stack = random_model("gemma3"), haystack(0)
    turned = Haystack(0, stack.task, stack.length, stack.ids, stack.questions[::-1])
    forth, back = answers(model, [stack]), answers(model, [turned])
    assert [answer.log_probability for answer in forth] == [answer.log_probability for answer in back[::-1]]


def test_a_model_without_a_cache_reads_again() -> None:
    model, stack = random_model("llama"), haystack(0)
    cached = answers(model, [stack])
    forward = model.base_model.forward
    model.base_model.forward = lambda *args, **options: forward(*args, **{**options, "use_cache": False})
    for one, other in zip(answers(model, [stack]), cached, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-9)


def test_haystacks_report_their_progress() -> None:
    seen: list[int] = []
    answers(random_model("llama"), [haystack(4), haystack(7)], on_haystack=lambda stack: seen.append(stack.number))
    assert seen == [4, 7]


def test_broken_weights_are_named() -> None:
    model = random_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(InvalidValue, match="LlamaForCausalLM computes logits that are not finite"):
        answers(model, [haystack(0)])
