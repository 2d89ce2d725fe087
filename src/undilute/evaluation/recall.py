"""Which answers does a model give about a haystack?  It is read once, and every question asked from its cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import Haystack, Question
from undilute.evaluation.outcome import Answer
from undilute.models.forward_pass import evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def answers(
    model: PreTrainedModel, haystacks: Sequence[Haystack], *, on_haystack: Callable[[Haystack], None] | None = None
) -> tuple[Answer, ...]:
    """Every question of every haystack, answered by ranking its candidates.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    haystacks : from :func:`undilute.evaluation.haystacks.haystacks`
    on_haystack : called with each haystack when its questions are answered, for progress

    Returns
    -------
    tuple of Answer
        In the order of the haystacks and their questions.
    """
    found: list[Answer] = []
    with torch.inference_mode(), evaluating(model):
        for haystack in haystacks:
            found += _about(model, haystack)
            if on_haystack is not None:
                on_haystack(haystack)
    return tuple(found)


def _about(model: PreTrainedModel, haystack: Haystack) -> list[Answer]:
    ids = haystack.ids[None].to(model.device)
    cache = getattr(model.base_model(input_ids=ids, use_cache=True), "past_key_values", None)
    return [
        _answer(haystack, number, question, _next_token(model, ids, cache, question))
        for number, question in enumerate(haystack.questions)
    ]


def _next_token(model: PreTrainedModel, ids: Tensor, cache: Any, question: Question) -> Tensor:
    """Logits (vocabulary,) after the haystack and the question.

    Each question gets a copy of the cache: what it adds could be cropped again, but not in a layer with a sliding
    window, which has dropped its oldest keys by then. A model that keeps no cache reads the haystack again.
    """
    asked = question.ids[None].to(model.device)
    if cache is None:
        logits: Tensor = model(input_ids=torch.cat([ids, asked], 1)).logits[0, -1]
    else:
        logits = model(input_ids=asked, past_key_values=copy.deepcopy(cache), use_cache=True).logits[0, -1]
    if not bool(logits.isfinite().all()):
        raise InvalidValue(
            f"{type(model).__name__} computes logits that are not finite (NaN or infinity): its weights are broken, "
            "its dtype is too narrow, or what was done to its attention is."
        )
    return logits.double().cpu()


def _answer(haystack: Haystack, number: int, question: Question, logits: Tensor) -> Answer:
    scores = logits[question.candidate_ids]
    right = set(question.right)
    first = scores.argsort(descending=True, stable=True)[: len(right)].tolist()
    among = scores.log_softmax(0)[list(question.right)]
    return Answer(
        task=haystack.task,
        length=haystack.length,
        depth=question.depth,
        haystack=haystack.number,
        question=number,
        right=len(right.intersection(first)) / len(right),
        log_probability=float(among.mean()),
        chance=question.chance,
    )
