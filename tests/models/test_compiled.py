"""A compiled model attends as without the compiler: by name or treated, in training, with a cache, at any length.

The rules themselves are not compiled, so the bits are the same wherever the compiler leaves the model's own code alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from tests.models.attending import SIZES, tokens

RULES = ("ssmax", "entmax15", "adaptive", "sigmoid")  # one of each route


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        yield


def llama(name: str, how: str) -> Any:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 1}))
    if how == "by name":
        model.set_attn_implementation(f"undilute:{name}")
    else:
        ud.apply(model, name)
    return model


def with_compiled_attention(model: Any, backend: str = "eager") -> Any:
    """A copy whose attention layer alone is compiled, which takes a tenth of the time."""
    twin = copy.deepcopy(model)
    twin.model.layers[0].self_attn.compile(backend=backend)
    return twin


def check(compiled: Any, model: Any, n: int) -> None:
    """Output and every gradient."""
    found, expected = (each(tokens(2, n), use_cache=False)[0] for each in (compiled, model))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(gradients(*each) for each in ((compiled, found), (model, expected))))


def gradients(model: Any, output: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output.square().mean(), list(model.parameters()), allow_unused=True))


@pytest.mark.parametrize(("name", "how"), [*((name, "by name") for name in RULES), ("ssmax", "treated")])
def test_attention_forward_and_backward(name: str, how: str) -> None:
    model = llama(name, how)
    check(with_compiled_attention(model, "aot_eager"), model, 12)


def test_a_whole_model_at_two_lengths() -> None:
    body = llama("entmax15", "by name").model
    compiled = torch.compile(body, backend="eager")
    for n in (12, 17):
        with torch.no_grad():
            torch.testing.assert_close(compiled(tokens(2, n))[0], body(tokens(2, n))[0])


@pytest.mark.parametrize("how", ["by name", "treated"])
def test_steps_with_a_cache(how: str) -> None:
    model, ids, found, cache = llama("entmax15", how).eval(), tokens(2, 12), [], None
    compiled = with_compiled_attention(model)
    with torch.no_grad():
        for part in ids.split([8, 1, 3], 1):
            output = compiled(part, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            found.append(output.logits)
        torch.testing.assert_close(torch.cat(found, 1), model(ids).logits)


def test_what_is_learned_and_given_to_some_heads() -> None:
    model = llama("softmax", "treated")
    ud.apply(model, {"layers.0.heads.1": "ssmax"}, learn=("s",))
    check(with_compiled_attention(model, "aot_eager"), model, 9)


def test_a_treatment_of_a_compiled_model_comes_and_goes() -> None:
    model, ids = llama("softmax", "by name").eval(), tokens(1, 9)
    compiled = with_compiled_attention(model)
    with torch.no_grad():
        before = compiled(ids).logits
        with ud.apply(model, "hard"), ud.apply(compiled, "hard"):
            torch.testing.assert_close(compiled(ids).logits, model(ids).logits)
            assert not torch.allclose(compiled(ids).logits, before)
        torch.testing.assert_close(compiled(ids).logits, before)


def test_a_compiled_model_is_measured() -> None:
    model, ids = llama("ssmax", "treated").eval(), tokens(1, 9)
    compiled = with_compiled_attention(model)
    measures = ["entropy"]
    with torch.no_grad(), ud.capture(model, measures=measures) as plain, ud.capture(compiled, measures=measures) as c:
        model(ids)
        compiled(ids)
    assert (c.layers[0].measures["entropy"] == plain.layers[0].measures["entropy"]).all()


def test_a_compiled_model_is_measured_without_a_warning() -> None:
    model = llama("ssmax", "treated").eval()
    compiled = with_compiled_attention(model)
    with warnings.catch_warnings(record=True) as heard, ud.capture(compiled) as captured:
        warnings.simplefilter("always")
        compiled(tokens(2, 9), use_cache=False)
    assert len(captured.layers) == 1
    assert not [each for each in heard if "undilute" in str(each.message) or "lru_cache" in str(each.message)]
