"""A text that was read once answers as one that is read again with every question, and attends the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from tests.models.architectures import built
from tests.models.attending import SIZES, random_model, tokens
from tests.models.zoo import causal, hybrids
from undilute.errors import InvalidValue
from undilute.models.read_once import Answered, LastRow, ReadOnce, cache_of, takes_together, tensors_of

TEXT = 23
QUESTIONS = [tokens(size, seed=size) for size in (4, 1, 7)]
SEVERAL = {
    "of different lengths": QUESTIONS,
    "one": QUESTIONS[:1],
    "one token": QUESTIONS[1:2],
    "twice the same": [QUESTIONS[2], QUESTIONS[0], QUESTIONS[2]],
}
PLAIN = ("llama", "gpt2")
SLIDING = {"mistral": "sdpa", "qwen2": "sdpa", "gemma2": "eager", "gpt-oss": "eager"}


def hybrid(name: str) -> Any:
    (found,) = [each for each in hybrids.ARCHITECTURES if each.model == name]
    return found.build()


def read_again(model: Any, text: Tensor, question: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits after a plain pass over everything, and the last row of each layer, (heads, tokens)."""
    rows: dict[str, Tensor] = {}

    def keep(call: Any) -> None:
        rows.setdefault(call.layer, call.weights(0, torch.tensor([call.queries - 1]))[:, 0])

    with ud.watch(model, keep), torch.no_grad():
        logits = model(input_ids=torch.cat([text, question])[None], use_cache=False).logits[0, -1]
    return logits, rows


def shapes(model: Any, run: Callable[[], object]) -> list[tuple[int, int]]:
    """Queries and keys of the first layer in each pass."""
    seen: list[tuple[str, int, int]] = []
    with ud.watch(model, lambda call: seen.append((call.layer, call.queries, call.keys))):
        run()
    return [(queries, keys) for layer, queries, keys in seen if layer == seen[0][0]]


def check(got: Answered, model: Any, text: Tensor, question: Tensor) -> None:
    """That an answer is that of a plain pass, token by token of the text."""
    logits, rows = read_again(model, text, question)
    within = 1e-5 if model.config._attn_implementation == "eager" else 1e-10  # eager attention has a softmax in float32
    torch.testing.assert_close(got.logits, logits.double(), rtol=0, atol=within)
    assert [row.layer for row in got.rows] == list(rows)
    for row, whole in zip(got.rows, rows.values(), strict=True):
        assert row.weights.shape[0] == len(whole)
        each = torch.stack([row.on(place, place + 1) for place in range(len(text))], -1)
        torch.testing.assert_close(each, whole[:, : len(text)].float(), rtol=0, atol=1e-6)
        torch.testing.assert_close(row.on(5, 19), whole[:, 5:19].sum(-1).float(), rtol=0, atol=1e-6)
        seen = row.weights.shape[-1]  # a cache may have dropped the first; none of them are another question's
        assert seen == len(text) + row.first + len(question)
        torch.testing.assert_close(row.weights, whole[:, whole.shape[-1] - seen :].float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_question_is_answered_as_if_all_was_read(kind: str, implementation: str) -> None:
    model, text = random_model(kind, implementation), tokens(TEXT)
    read = ReadOnce(model, text)
    for question in QUESTIONS:
        assert shapes(model, partial(read.ask, question)) == [(len(question), TEXT + len(question))]
        got = read.attended(question)
        check(got, model, text, question)
        torch.testing.assert_close(read.ask(question), got.logits, rtol=0, atol=1e-12)
        assert [row.first for row in got.rows] == [0] * len(got.rows)
        assert all(torch.equal(row.on_each(TEXT), row.weights[:, :TEXT]) for row in got.rows)


@pytest.mark.parametrize("kind", SLIDING)
def test_what_a_sliding_window_has_dropped_has_no_attention(kind: str) -> None:
    model, text = random_model(kind, SLIDING[kind]), tokens(TEXT)
    read = ReadOnce(model, text)
    for question in QUESTIONS:
        got = read.attended(question)
        check(got, model, text, question)
        sliding = [place for place, is_sliding in enumerate(read.cache.is_sliding) if is_sliding]
        assert sliding
        for place in sliding:
            row = got.rows[place]
            kept = TEXT + row.first
            assert 0 < kept < TEXT
            assert row.on_each(TEXT).shape[-1] == kept
            assert not row.on(0, TEXT - kept).any()


def test_the_first_key_is_known_where_a_model_tells_no_positions() -> None:
    """PhiMoE does not hand its attention function positions, Llama 4 has chunks instead of a window."""
    for name, own in (
        ("PhimoeForCausalLM", {"sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1}),
        (
            "Llama4ForCausalLM",
            {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 48}
            | {"no_rope_layers": [1, 0], "attention_chunk_size": 6}
            | {"layer_types": ["chunked_attention", "full_attention"]},
        ),
    ):
        kind: Any = getattr(transformers, name)
        torch.manual_seed(0)
        model = kind._from_config(kind.config_class(**SIZES, **own, pad_token_id=0)).eval()
        text, question = tokens(20), QUESTIONS[0]
        logits, rows = read_again(model, text, question)
        got = ReadOnce(model, text).attended(question)
        torch.testing.assert_close(got.logits.float(), logits, rtol=0, atol=1e-4)
        assert got.rows[0].first == -15
        for row, whole in zip(got.rows, rows.values(), strict=True):
            torch.testing.assert_close(row.on(17, 20), whole[:, 17:20].sum(-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("first", [2, 0, -3, -9])
def test_a_row_knows_where_its_text_stands(first: int) -> None:
    """Keys 0 to 7 hold the text's tokens from −first on."""
    row = LastRow("layer", torch.arange(1.0, 9.0)[None], first)
    for start in range(8):
        for stop in range(start, 9):
            keys = [place + first for place in range(start, stop) if 0 <= place + first < 8]
            assert row.on(start, stop).tolist() == [sum(key + 1.0 for key in keys)]
    assert row.on_each(6).tolist() == [[place + first + 1.0 for place in range(6) if 0 <= place + first < 8]]


# ---------------------------------------------------------------- caches that are missing, or wrong


@pytest.mark.parametrize("name", ["RecurrentGemmaForCausalLM", "JambaForCausalLM", "BambaForCausalLM"])
def test_without_a_cache_that_can_be_trusted_the_text_is_read_again(name: str) -> None:
    """RecurrentGemma returns no cache; Jamba's forgets its state when more than one token follows."""
    model, text = hybrid(name), tokens(TEXT)
    read = ReadOnce(model, text)
    assert read.cache is None
    for question in QUESTIONS:
        size = TEXT + len(question)
        assert shapes(model, partial(read.ask, question)) == [(size, size)]
        check(read.attended(question), model, text, question)
    assert not takes_together(read, QUESTIONS)


@pytest.mark.parametrize("name", ["Qwen3NextForCausalLM", "Lfm2ForCausalLM"])
def test_a_recurrent_cache_that_is_right_is_used(name: str) -> None:
    model, text = hybrid(name), tokens(TEXT)
    read = ReadOnce(model, text)
    question = QUESTIONS[2]
    assert shapes(model, lambda: read.ask(question)) == [(len(question), TEXT + len(question))]
    torch.testing.assert_close(read.ask(question).float(), read_again(model, text, question)[0], rtol=0, atol=1e-4)
    assert not takes_together(read, QUESTIONS)  # the questions would see each other in the recurrent layers


def test_a_model_that_never_attends_answers() -> None:
    read = ReadOnce(built("mamba"), tokens(TEXT))
    logits, rows = read.attended(QUESTIONS[0])
    assert rows == []
    assert logits.dtype == torch.float64
    assert torch.equal(logits, read.ask(QUESTIONS[0]))


@pytest.mark.parametrize("size", [1, 2, 16, 17])
def test_a_text_too_short_to_try_a_cache_on_is_read_again(size: int) -> None:
    model, text = hybrid("Lfm2ForCausalLM"), tokens(size)
    logits, _ = read_again(model, text, QUESTIONS[0])
    torch.testing.assert_close(ReadOnce(model, text).ask(QUESTIONS[0]).float(), logits, rtol=0, atol=1e-4)


def test_asking_leaves_the_text_as_it_was_read() -> None:
    model, text = random_model("mistral"), tokens(TEXT)
    read = ReadOnce(model, text)
    first = read.ask(QUESTIONS[0])
    for question in QUESTIONS:
        read.attended(question)
    assert torch.equal(read.ask(QUESTIONS[0]), first)


# ---------------------------------------------------------------- questions asked together


def together(model: Any, text: Tensor, questions: Sequence[Tensor]) -> list[Answered]:
    """The answers of one pass, of which it is checked that it was one."""
    read = ReadOnce(model, text)
    assert takes_together(read, questions)
    asked = sum(map(len, questions))
    assert shapes(model, lambda: read.ask_together(questions)) == [(asked, len(text) + asked)]
    found = read.attended_together(questions)
    for answer, logits in zip(found, read.ask_together(questions), strict=True):
        assert torch.equal(answer.logits, logits)
    return found


@pytest.mark.parametrize("questions", SEVERAL.values(), ids=SEVERAL.keys())
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PLAIN)
def test_questions_asked_together_do_not_see_each_other(
    kind: str, implementation: str, questions: Sequence[Tensor]
) -> None:
    model, text = random_model(kind, implementation), tokens(TEXT)
    for question, answer in zip(questions, together(model, text, questions), strict=True):
        check(answer, model, text, question)


@pytest.mark.parametrize("kind", SLIDING)
@pytest.mark.parametrize("window", [8, 1000])
def test_models_with_sliding_windows_take_one_question_at_a_time(kind: str, window: int) -> None:
    """Whatever the length: who asks once, with a short text, goes on with longer ones."""
    model = random_model(kind, SLIDING[kind])
    model.config.sliding_window = window
    for size in (3, TEXT):
        assert not takes_together(ReadOnce(model, tokens(size)), QUESTIONS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", PLAIN)
def test_rounding_is_no_difference(kind: str, dtype: torch.dtype) -> None:
    assert takes_together(ReadOnce(random_model(kind, dtype=dtype), tokens(40)), QUESTIONS)


class Forgetful(transformers.LlamaForCausalLM):
    """A model that makes its own of the mask it is given."""

    def forward(self, *given: Any, attention_mask: Tensor | None = None, **named: Any) -> Any:
        return super().forward(*given, **named)


class Strict(transformers.LlamaForCausalLM):
    """A model that wants no such mask."""

    def forward(self, *given: Any, attention_mask: Tensor | None = None, **named: Any) -> Any:
        if attention_mask is not None:
            raise TypeError("masks have two dimensions")
        return super().forward(*given, **named)


@pytest.mark.parametrize("kind", [Forgetful, Strict])
def test_a_model_that_ignores_or_refuses_the_mask_is_found_out(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind(transformers.LlamaConfig(**SIZES)).eval()
    read = ReadOnce(model, tokens(TEXT))
    assert not takes_together(read, QUESTIONS)
    assert takes_together(read, QUESTIONS[:1]) == (kind is Forgetful)  # one question needs no mask


@pytest.mark.parametrize("treatment", ["llama4(beta=2, floor_length=4)", "ssmax", "entmax15", "top-k(k=5)"])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_treated_model_answers_as_it_is_treated(kind: str, treatment: str) -> None:
    model, text = random_model(kind), tokens(TEXT)
    untreated = ReadOnce(model, text).ask(QUESTIONS[0])
    with ud.apply(model, treatment):
        read = ReadOnce(model, text)
        found = together(model, text, QUESTIONS)
        for question, answer in zip(QUESTIONS, found, strict=True):
            check(read.attended(question), model, text, question)
            check(answer, model, text, question)
    assert (found[0].logits - untreated).abs().max() > 1e-3


def test_a_treated_model_with_sliding_windows_answers_as_it_is_treated() -> None:
    model, text = random_model("mistral"), tokens(TEXT)
    with ud.apply(model, "ssmax"):
        check(ReadOnce(model, text).attended(QUESTIONS[0]), model, text, QUESTIONS[0])


@pytest.mark.parametrize("kind", PLAIN)
def test_broken_weights_are_named(kind: str) -> None:
    model = random_model(kind)
    with torch.no_grad():
        model.get_output_embeddings().weight[3] = torch.nan
    read = ReadOnce(model, tokens(TEXT))
    assert not takes_together(read, QUESTIONS)
    with pytest.raises(InvalidValue, match=rf"{type(model).__name__} computes logits that are not finite"):
        read.ask(QUESTIONS[0])


# ---------------------------------------------------------------- read only as deep as a layer

IN_ZOO = (
    *("Qwen3ForCausalLM", "DiffLlamaForCausalLM", "DeepseekV3ForCausalLM", "Gemma3nForCausalLM", "Llama4ForCausalLM"),
    *("JambaForCausalLM", "RecurrentGemmaForCausalLM", "Lfm2ForCausalLM", "Zamba2ForCausalLM", "FalconH1ForCausalLM"),
)
DEEP = dict.fromkeys((*PLAIN, "gemma3"), "sdpa") | SLIDING | dict.fromkeys(IN_ZOO, "")


def deep(kind: str) -> Any:
    if DEEP[kind]:
        return random_model(kind, DEEP[kind])
    (found,) = [each for each in (*causal.ARCHITECTURES, *hybrids.ARCHITECTURES) if each.model == kind]
    return found.build()


def check_rows(got: list[list[LastRow]], wanted: list[list[LastRow]], text: int, within: float = 1e-5) -> None:
    for rows, whole in zip(got, wanted, strict=True):
        assert [row.layer for row in rows] == [row.layer for row in whole]
        for row, other in zip(rows, whole, strict=True):
            for place in range(text):
                torch.testing.assert_close(row.on(place, place + 1), other.on(place, place + 1), rtol=0, atol=within)


@pytest.mark.parametrize("size", [TEXT, 1])
@pytest.mark.parametrize("kind", DEEP)
def test_what_is_looked_at_up_to_a_layer_is_what_is_attended_to(kind: str, size: int) -> None:
    model, text = deep(kind), tokens(size)
    whole = ReadOnce(model, text)
    wanted = [whole.attended(each).rows for each in QUESTIONS]
    can = takes_together(whole, QUESTIONS)
    check_rows(whole.looked(QUESTIONS, together=can), wanted, size)
    for depth, row in enumerate(wanted[0], start=1):
        read = ReadOnce(model, text, until=row.layer)
        upto = [rows[:depth] for rows in wanted]
        check_rows(alone := read.looked(QUESTIONS, together=False), upto, size)
        check_rows(read.looked(QUESTIONS, together=can), upto, size)
        kept = {name: each.clone() for name, each in tensors_of(read.cache).items()}
        assert bool(kept) == (read.cache is not None and not any(read.cache.is_sliding))
        again = ReadOnce(model, text, until=row.layer, cache=cache_of(model, kept))
        for mine, theirs in zip(again.looked(QUESTIONS, together=False), alone, strict=True):
            assert all(torch.equal(one.weights, other.weights) for one, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("treatment", ["ssmax", "entmax15"])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_treated_model_is_looked_at_as_it_is_treated(kind: str, treatment: str) -> None:
    model, text = random_model(kind), tokens(TEXT)
    plain = ReadOnce(model, text).attended(QUESTIONS[0]).rows
    with ud.apply(model, treatment):
        wanted = [ReadOnce(model, text).attended(each).rows for each in QUESTIONS]
        read = ReadOnce(model, text, until=plain[-1].layer)
        check_rows(read.looked(QUESTIONS, together=True), wanted, TEXT)
        check_rows(read.looked(QUESTIONS, together=False), wanted, TEXT)
    assert (wanted[0][-1].weights - plain[-1].weights).abs().max() > 1e-3


def test_no_layer_above_is_run() -> None:
    model, text = random_model("gpt2"), tokens(TEXT)
    seen: list[str] = []
    with ud.watch(model, lambda call: seen.append(call.layer)):
        read = ReadOnce(model, text, until="transformer.h.1.attn")
        read.looked(QUESTIONS, together=True)
        read.looked(QUESTIONS[:1], together=False)
    assert seen == ["transformer.h.0.attn", "transformer.h.1.attn"] * 3


def hooks_of(model: Any) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_the_model_is_left_as_it_was() -> None:
    model, text = random_model("llama"), tokens(TEXT)
    until, before = "model.layers.0.self_attn", model(text[None]).logits
    own = model.config._attn_implementation, hooks_of(model)

    def look() -> None:
        ReadOnce(model, text, until=until).looked(QUESTIONS, together=True)

    def broken(call: Any) -> None:
        raise RuntimeError("broken")

    look()
    with pytest.raises(RuntimeError, match="broken"), ud.watch(model, broken):
        look()
    with pytest.raises(InvalidValue, match=r"LlamaForCausalLM has no layer 'model.layers.9.self_attn'"):
        ReadOnce(model, text, until="model.layers.9.self_attn")
    said: list[str] = []

    def elsewhere() -> None:
        try:
            look()
        except InvalidValue as error:
            said.append(str(error))

    with ud.watch(model, lambda call: None):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)
    assert len(said) == 1
    assert "another thread is watching" in said[0]
    assert (model.config._attn_implementation, hooks_of(model)) == own
    assert torch.equal(model(text[None]).logits, before)
    assert len(model(text[None], output_hidden_states=True).hidden_states) == 3


@pytest.mark.parametrize("together", [True, False])
def test_attention_that_is_not_finite_is_named(together: bool) -> None:
    model = random_model("llama")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0] = torch.nan
    read = ReadOnce(model, tokens(TEXT), until="model.layers.1.self_attn")
    with pytest.raises(InvalidValue, match="LlamaForCausalLM computes weights of attention that are not finite"):
        read.looked(QUESTIONS, together=together)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_keys_and_values_stay_in_half_precision(dtype: torch.dtype) -> None:
    read = ReadOnce(random_model("llama", dtype=dtype), tokens(TEXT), until="model.layers.1.self_attn")
    assert {each.dtype for each in tensors_of(read.cache).values()} == {dtype}
