"""Every attention call of any pass is seen as the model has it, and the model never notices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.testing import assert_close

import undilute as ud
from tests.models.architectures import SEQUENCES, built
from tests.models.attending import KINDS, SIZES, dense_layers, random_model, tokens
from undilute.errors import InvalidValue
from undilute.models import WatchedCall
from undilute_papers.reproduction.attended import each_layer

IDS = torch.arange(128) % 50
LLAMA = ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def watched(model: Any, run: Callable[[], Any]) -> list[WatchedCall]:
    calls: list[WatchedCall] = []
    with ud.watch(model, calls.append), torch.no_grad():
        run()
    return calls


@pytest.mark.parametrize(("kind", "implementation"), KINDS)
def test_a_call_has_the_weights_and_the_output_of_the_dense_oracle(kind: str, implementation: str) -> None:
    model, ids = random_model(kind, implementation), tokens(2, 14)
    close = 1e-9 if implementation == "sdpa" else 1e-5  # eager attention has a softmax in single precision
    dense = dense_layers(model, ids)
    calls = watched(model, lambda: model(ids))
    for call, expected in zip(calls, dense, strict=True):
        assert model.get_submodule(call.layer) is call.module
        assert (call.run.number, call.is_repeat, call.is_cross, call.rules) == (0, False, False, None)
        groups = call.query.shape[1] // call.value.shape[1]
        for batch in range(2):
            for some in ([*range(14)], [13], [9, 3]):
                rows = torch.tensor(some)
                weights = call.weights(batch, rows)
                assert_close(weights, expected.weights[batch][:, rows], atol=close, rtol=100 * close)
                seen = call.visible(batch, rows)
                assert seen is None or bool((weights[~seen.expand_as(weights)] == 0).all())
                made = weights @ call.value[batch].repeat_interleave(groups, 0)
                assert_close(made.transpose(0, 1), call.output[batch][rows], atol=close, rtol=100 * close)


@pytest.mark.parametrize("kind", ["llama", "mistral", "bert", "gpt-oss"])
def test_the_output_is_the_same_bit_for_bit(kind: str) -> None:
    model, ids = random_model(kind, "eager", torch.float32), tokens(2, 9)
    with torch.no_grad():
        plain = model(ids)[0]
        with ud.watch(model, lambda call: call.weights(0, torch.tensor([3]))):  # what it returns is ignored
            assert torch.equal(model(ids)[0], plain)
        assert torch.equal(model(ids)[0], plain)


def test_gradients_are_the_same() -> None:
    model, ids = random_model("llama"), tokens(1, 9)

    def gradient() -> Tensor:
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        found: Tensor = model.model.layers[0].self_attn.q_proj.weight.grad
        return found.clone()

    plain = gradient()
    with ud.watch(model, lambda call: call.weights(0, torch.tensor([3]))):
        assert torch.equal(gradient(), plain)


def test_every_call_of_a_generation_is_seen() -> None:
    model, ids = random_model("llama"), tokens(1, 6)
    calls: list[tuple[str, int, int, float]] = []

    def on_call(call: WatchedCall) -> None:
        last = torch.tensor([call.queries - 1])
        calls.append((call.layer, call.queries, call.keys, float(call.weights(0, last)[0].sum())))

    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options)
    with ud.watch(model, on_call):
        assert torch.equal(model.generate(ids, **options), plain)
    expected = [(layer, *shape) for shape in ((6, 6), (1, 7), (1, 8)) for layer in LLAMA]
    assert [call[:3] for call in calls] == expected
    assert [call[3] for call in calls] == pytest.approx([1.0] * 6)


def test_a_treated_layer_says_its_rules_and_has_their_weights() -> None:
    model, ids = random_model("llama"), tokens(1, 9)
    with ud.apply(model, {"layers.1.*": "sparsemax"}):
        first, second = watched(model, lambda: model(ids))
    assert first.rules is None
    assert second.rules is not None
    assert second.rules.of_head(0) == second.rules.groups[0][1]
    weights = second.weights(0, torch.arange(9))
    assert bool((weights == 0).any())
    made = weights @ second.value[0].repeat_interleave(2, 0)
    assert_close(made.transpose(0, 1), second.output[0])


def test_a_rule_by_name_is_said_too() -> None:
    model = random_model("llama", "undilute:ssmax")
    calls = watched(model, lambda: model(tokens(1, 9)))
    assert all(call.rules is not None and call.implementation == "undilute:ssmax" for call in calls)


def test_watches_inside_each_other_and_out_of_order() -> None:
    model, ids = random_model("llama"), tokens(1, 5)
    outer: list[str] = []
    inner: list[str] = []
    alone: list[str] = []
    with torch.no_grad():
        plain = model(ids).logits
        one, two = (
            ud.watch(model, lambda call: outer.append(call.layer)),
            ud.watch(model, lambda call: inner.append(call.layer)),
        )
        one.__enter__()
        two.__enter__()
        with ud.capture(model) as c, ud.apply(model, "softmax"):
            assert torch.equal(model(ids).logits, plain)
        with ud.watch(model, lambda call: alone.append(call.layer), alone=True):
            model(ids)
        one.__exit__(None, None, None)
        model(ids)
        two.__exit__(None, None, None)
        model(ids)
    assert (outer, inner, alone) == (LLAMA, LLAMA * 2, LLAMA)
    assert [layer.name for layer in c.layers] == LLAMA
    assert model.config._attn_implementation == "sdpa"
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_of_whoever_watches_leaves_the_model_as_it_was(error: type[BaseException]) -> None:
    model, ids = random_model("llama"), tokens(1, 5)
    plain = model(ids).logits

    def fail(call: WatchedCall) -> None:
        raise error

    with pytest.raises(error), ud.watch(model, fail):
        model(ids)
    assert model.config._attn_implementation == "sdpa"
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert torch.equal(model(ids).logits, plain)


def test_an_encoder_looks_ahead() -> None:
    model = random_model("bert")
    calls = watched(model, lambda: model(tokens(1, 7), attention_mask=torch.tensor([[1, 1, 1, 1, 1, 0, 0]])))
    assert all(call.looks_ahead and not call.is_cross for call in calls)
    assert [call.sequences[0].real.tolist() for call in calls] == [[0, 1, 2, 3, 4]] * 2
    assert bool((calls[0].weights(0, torch.tensor([0]))[..., 5:] == 0).all())


def test_a_cross_attention_knows_the_decoders_padding_though_nobody_asked_before() -> None:
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SEQUENCES)).eval()
    padding = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    crossing: list[tuple[str, list[list[int]], list[int]]] = []

    def on_call(call: WatchedCall) -> None:
        if call.is_cross:
            real = [each.real.tolist() for each in call.sequences]
            crossing.append((call.layer, real, [each.start for each in call.sequences]))

    with ud.watch(model, on_call), torch.no_grad():
        model(input_ids=tokens(2, 8), decoder_input_ids=tokens(2, 5), decoder_attention_mask=padding)
    assert crossing
    assert all(layer.endswith("encoder_attn") for layer, _, _ in crossing)
    assert [(real, start) for _, real, start in crossing] == [([[2, 3, 4], [0, 1, 2, 3, 4]], [-2, 0])] * len(crossing)


def test_what_a_call_knows_it_still_knows_when_the_pass_is_over() -> None:
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SEQUENCES)).eval()
    padding, inputs = torch.tensor([[0, 0, 1, 1, 1]]), {"input_ids": tokens(1, 8), "decoder_input_ids": tokens(1, 5)}
    calls = watched(model, lambda: model(**inputs, decoder_attention_mask=padding))
    of_decoder = [call for call in calls if "decoder" in call.layer]
    assert {call.is_cross for call in of_decoder} == {True, False}
    assert all(call.sequences[0].real.tolist() == [2, 3, 4] for call in of_decoder)
    assert all(call.input is not None and call.input.shape == (1, 5, 32) for call in of_decoder)


def test_runs_of_a_shared_layer_are_numbered_and_rows_that_come_again_are_marked() -> None:
    albert = built("albert")
    assert [call.run.number for call in watched(albert, lambda: albert(tokens(1, 5)))] == [0, 1, 2]
    twice = transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**SIZES)).eval()
    calls = watched(twice, lambda: twice(tokens(1, 5)))
    assert [call.is_repeat for call in calls] == [False, True] * 2


def test_the_hidden_states_of_the_layer_are_at_hand_while_it_attends() -> None:
    model, ids = random_model("llama"), tokens(1, 5)
    given: list[Tensor | None] = []
    with ud.watch(model, lambda call: given.append(call.input)), torch.no_grad():
        hidden = model.model(ids, output_hidden_states=True).hidden_states
    for layer, found, states in zip(model.model.layers, given, hidden, strict=False):
        assert found is not None
        assert torch.equal(found, layer.input_layernorm(states))


def test_what_is_returned_takes_the_place_of_the_output() -> None:
    model, ids = random_model("llama"), tokens(1, 5)
    with torch.no_grad():
        plain = model(ids).logits
        with ud.watch(model, lambda call: None, replace=True):
            assert torch.equal(model(ids).logits, plain)
        with ud.watch(model, lambda call: 2 * call.output if call.layer == LLAMA[0] else None, replace=True):
            changed = model(ids).logits
        model.model.layers[0].self_attn.o_proj.weight.mul_(2)
        assert_close(changed, model(ids).logits)
        assert not torch.equal(changed, plain)


def test_gradients_flow_through_what_takes_the_outputs_place() -> None:
    model, ids = random_model("llama"), tokens(1, 5)
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    with ud.watch(model, lambda call: factor * call.output, replace=True):
        model(ids, labels=ids).loss.backward()
    assert factor.grad is not None
    assert float(factor.grad) != 0.0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda call: call.output[:, :1], r"on_call returned \(1, 1, 4, 8\) instead of model.layers.0.self_attn"),
        (lambda call: 0.0, r"returned float .* must be a tensor of shape \(1, 5, 4, 8\), or None to leave it"),
    ],
)
def test_what_cannot_be_an_output_is_refused(returned: Callable[[WatchedCall], Any], message: str) -> None:
    model = random_model("llama")
    with pytest.raises(InvalidValue, match=message), ud.watch(model, returned, replace=True):
        model(tokens(1, 5))


def test_a_copy_is_not_watched() -> None:
    model, calls = random_model("llama"), []
    with ud.watch(model, calls.append), torch.no_grad():
        copy.deepcopy(model)(tokens(1, 5))
        assert not calls
        model(tokens(1, 5))
    assert len(calls) == 2
    assert repr(calls[1]) == "WatchedCall(model.layers.1.self_attn, 4 heads, 5 queries, 5 keys)"


def test_a_watcher_must_be_a_function_and_the_model_one_that_attends() -> None:
    with pytest.raises(InvalidValue, match="on_call is a NoneType: must be a function of one attention call"):
        ud.watch(random_model("llama"), None).__enter__()  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="model is a Linear: must be a Hugging Face model"):
        ud.watch(torch.nn.Linear(2, 2), print).__enter__()


@pytest.mark.parametrize(
    "use",
    [
        lambda model: ud.apply(model, "ssmax"),
        lambda model: ud.calibrate(model, None, IDS),
        lambda model: ud.diagnose(model, None, IDS),
        lambda model: each_layer(model, IDS, print),
    ],
    ids=["apply", "calibrate", "diagnose", "each_layer"],
)
def test_a_model_that_never_attends_is_named(use: Callable[[Any], object]) -> None:
    config = transformers.GPT2Config(n_embd=8, n_layer=0, n_head=2, n_positions=128, vocab_size=50, bos_token_id=1)
    model = transformers.GPT2LMHeadModel(config)
    with pytest.raises(InvalidValue, match=r"GPT2LMHeadModel made no attention call .* neither read nor changed"):
        use(model)
    assert model.config._attn_implementation == "sdpa"
