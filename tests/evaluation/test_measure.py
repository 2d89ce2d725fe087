"""A measurement is its parts, always the same, and refuses what it cannot measure."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from numpy.testing import assert_array_equal

from tests.evaluation.constructed import TASKS
from tests.evaluation.tokenizers import PROSE, tokenizer
from tests.models.attending import SIZES, random_model, tokens
from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import haystacks, shortest
from undilute.evaluation.measure import Measurement, answers, measure, prepare, spread, watching
from undilute.models.text_loss import losses
from undilute.progress import Progress

LENGTH = 640


@cache
def reader() -> Any:
    """A random model with room for needles, for the tokenizer of words."""
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(tokenizer("words")), "max_position_embeddings": 1024}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()


def measured(
    model: Any, used: Any, text: Any, *, label: str = "softmax", on_progress: Progress | None = None, **options: Any
) -> Measurement:
    return measure(model, prepare(model, used, text, **options), label, on_progress=on_progress)


def evaluated(**options: Any) -> Measurement:
    return measured(reader(), tokenizer("words"), PROSE, **{"length": LENGTH, "haystacks": 1} | options)


def same(one: Measurement, other: Measurement) -> bool:
    return one.answers == other.answers and bool((one.losses == other.losses).all())


def test_the_same_every_time() -> None:
    one, other = evaluated(label="a"), evaluated(label="b")
    assert same(one, other)
    assert_array_equal(one.spread.entropy, other.spread.entropy)
    assert (one.label, other.label, one.cost) == ("a", "b", None)


def test_it_is_its_parts() -> None:
    used = tokenizer("words")
    material = prepare(reader(), used, PROSE, length=LENGTH, windows=3, haystacks=1, seed=4)
    whole = measure(reader(), material)
    assert material.windows.shape == (3, LENGTH)
    assert_array_equal(whole.losses, losses(reader(), material.windows))
    assert whole.answers == answers(reader(), haystacks(used, PROSE, [LENGTH // 2, LENGTH], 1, seed=4))
    with watching(reader()) as watched, torch.no_grad():
        reader()(material.windows[:1])
    assert_array_equal(whole.spread.entropy, spread(watched).entropy)
    assert whole.spread.n[-1] == LENGTH


def test_haystacks_are_as_long_as_there_is_room() -> None:
    assert shortest(tokenizer("words")) <= LENGTH // 2
    made = evaluated()
    assert {answer.length for answer in made.answers} == {LENGTH // 2, LENGTH}  # a quarter is too short
    assert {answer.task for answer in made.answers} == set(TASKS)
    assert {answer.length for answer in evaluated(lengths=[500, 400]).answers} == {400, 500}
    assert evaluated(length=64).answers == ()
    assert evaluated(haystacks=0).answers == ()


def test_token_ids_are_read_like_their_text() -> None:
    used = tokenizer("byte-level")
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(used), "max_position_embeddings": 2048}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    ids = torch.tensor(used(PROSE)["input_ids"])
    options: dict[str, Any] = {"length": 1500, "lengths": [1500], "windows": 1, "haystacks": 1}
    assert same(measured(model, used, PROSE, **options), measured(model, used, ids, **options))


def test_windows_begin_as_the_tokenizer_begins_a_text() -> None:
    used = tokenizer("marked")
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(used)}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    windows = prepare(model, used, PROSE, length=100, windows=4).windows
    assert windows.shape == (4, 100)
    assert (windows == used.convert_tokens_to_ids("<s>")).nonzero().tolist() == [[row, 0] for row in range(4)]


def test_progress_goes_from_nothing_to_all() -> None:
    seen: list[tuple[float, str]] = []
    evaluated(on_progress=lambda share, doing: seen.append((share, doing)))
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(seen) == 2 + 2 * len(TASKS) + 1
    assert seen[1][1] == "loss, window 2 of 2"
    assert seen[2][1] == "needles, single at 320 tokens"


def test_the_length_is_what_the_model_reads() -> None:
    model = random_model("gpt2")
    assert measured(model, None, tokens(500), haystacks=0).losses.shape == (2, model.config.n_positions - 1)
    with pytest.raises(InvalidValue, match="length = 65: GPT2LMHeadModel reads at most 64 tokens"):
        measured(model, None, tokens(500), haystacks=0, length=65)
    with pytest.raises(InvalidValue, match="length = 2,000: LlamaForCausalLM reads at most 1,024 tokens"):
        evaluated(lengths=[400, 2000])


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InvalidValue, match="the text has 100 tokens: 2 windows of 640 need 1,280"):
        measured(reader(), None, tokens(100), length=LENGTH, haystacks=0)
    with pytest.raises(InvalidValue, match="text holds token ids from 7 to 99999: LlamaForCausalLM knows 0 to"):
        measured(reader(), None, torch.full((2000,), 7).index_fill(0, torch.tensor([5]), 99_999), length=LENGTH)
    with pytest.raises(InvalidValue, match="needed to hide needles"):
        measured(reader(), None, tokens(2000), length=LENGTH)
    with pytest.raises(InvalidValue, match="seed = -1"):
        evaluated(seed=-1)
    with pytest.raises(InvalidValue, match="needle length = 100: must be at least"):
        evaluated(lengths=[100])
    with pytest.raises(InvalidValue, match="BertModel predicts no next token"):
        measured(random_model("bert"), None, tokens(500), length=64, haystacks=0)


def test_answers_are_plain_data() -> None:
    answer = asdict(evaluated().answers[0])
    assert [type(value) for value in answer.values()] == [str, int, float, int, int, float, float, float]
