"""Whatever the table of architectures says, holds: each of them works as it should, or is refused in one sentence."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor
from transformers import DynamicCache
from transformers.masking_utils import eager_mask

import undilute as ud
from tests.models.attending import attending_with, tokens
from tests.models.zoo import ZOO, eager
from tests.models.zoo.architecture import ABSENT, BATCH, JOBS, KINDS, LENGTH, PADDING, REFUSED, YES, Architecture
from undilute.engine.routes import choose as routing
from undilute.errors import InvalidValue

CLOSE = 1e-4  # of the largest output: single precision, through layers of large random weights
S = 0.43  # of ssmax, by default
DIAGNOSED = 64  # tokens
ALL = 1000  # more rows than any pass here has


def working(job: str, chosen: Callable[[Architecture], bool] = lambda each: True) -> pytest.MarkDecorator:
    """A test for every architecture that is good for this job."""
    names = [name for name, each in ZOO.items() if each.outcome(job) == YES and chosen(each)]
    return pytest.mark.parametrize("name", names)


@pytest.fixture(params=["small", "large"])
def of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls as small as they are, which dense code runs, and on the route that they would take if they were large."""
    taken: set[str] = set()
    choose = routing.choose

    def noted(*args: Any) -> routing.Route:
        route = choose(*args)
        if not (args[0].is_step and args[0].softcap is not None):  # dense at any size: one pass over the keys
            taken.add(route.name)
        return route

    monkeypatch.setattr(routing, "choose", noted)
    if request.param == "large":
        monkeypatch.setattr(routing, "SMALL", 0)
    yield
    assert taken <= {"reference"} if request.param == "small" else "reference" not in taken


def read(model: Any, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs)[0]
    return output


def accepted(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Those inputs that the model takes, as ``generate`` gives them."""
    known = inspect.signature(model.forward).parameters
    return {name: value for name, value in inputs.items() if name in known}


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=CLOSE * float(expected.abs().max()))


def assert_other(found: Tensor, expected: Tensor) -> None:
    assert found.isfinite().all()
    assert float((found - expected).abs().max()) > 10 * CLOSE * float(expected.abs().max())


@working("implementation")
def test_softmax_by_name_is_the_models_own(name: str) -> None:
    """As sdpa and as eager, where they exist; and another rule is another function."""
    architecture = ZOO[name]
    model, inputs = architecture.build("undilute:softmax"), architecture.inputs()
    found = read(model, inputs)
    for own in ("eager", "sdpa") if model._supports_sdpa else ("eager",):
        model.set_attn_implementation(own)
        assert_same(found, read(model, inputs))
    model.set_attn_implementation("undilute:ssmax")
    assert_other(read(model, inputs), found)


def dense_ssmax(module: Any, query: Tensor, key: Tensor, value: Tensor, *given: Any, **options: Any) -> Any:
    """softmax(s · log n · z) over the keys that are shown, of everything that adds to a logit z."""
    mask = given[0] if given else options.get("attention_mask")
    k, v = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scaling = options.get("scaling")
    z = query @ k.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if (softcap := options.get("softcap")) is not None:
        z = softcap * torch.tanh(z / softcap)
    for added in (options.get("position_bias"), mask):
        z = z if added is None else z + added
    shown = z > torch.finfo(z.dtype).min / 2
    z = (S * shown.sum(-1, keepdim=True).clamp(min=1).log() * z).masked_fill(~shown, -torch.inf)
    if (sink := options.get("s_aux")) is not None:
        z = torch.cat([z, sink.reshape(1, -1, 1, 1).expand(*z.shape[:-1], 1)], -1)
    weights = z.softmax(-1)[..., : v.shape[2]]
    return (weights @ v).transpose(1, 2).contiguous(), weights


@working("implementation")
@pytest.mark.usefixtures("of_any_size")
def test_ssmax_by_name_is_its_formula(name: str) -> None:
    architecture = ZOO[name]
    model, inputs = architecture.build("undilute:ssmax"), architecture.inputs()
    found = read(model, inputs)
    with attending_with(model, dense_ssmax, eager_mask):
        assert_same(found, read(model, inputs))


WRITING = [
    (name, way)
    for name, each in ZOO.items()
    for way in ("implementation", "apply")
    if each.is_causal and each.outcome(way) == YES
]


@pytest.mark.parametrize(("name", "way"), WRITING)
def test_the_last_token_changes_nothing_before_it(name: str, way: str) -> None:
    architecture = ZOO[name]
    model = architecture.build("undilute:ssmax" if way == "implementation" else None)
    inputs = architecture.inputs()
    changed = {key: value.clone() for key, value in inputs.items()}
    last = changed[architecture.text][:, -1]
    last[:] = 2 + (last - 1) % 50
    with ud.apply(model, "ssmax") if way == "apply" else contextlib.nullcontext():
        before, after = read(model, inputs), read(model, changed)
    assert_same(after[:, :-1], before[:, :-1])
    assert_other(after[:, -1], before[:, -1])


@working("cache")
@pytest.mark.usefixtures("of_any_size")
def test_a_cache_changes_nothing(name: str) -> None:
    architecture = ZOO[name]
    model, inputs = architecture.build(f"undilute:{architecture.rule}"), architecture.inputs()
    expected = read(model, inputs | {"use_cache": False})
    past: dict[str, Any] = {"past_key_values": DynamicCache(config=model.config)} if architecture.takes_cache else {}
    found, start = [], 0
    for piece in inputs[architecture.text].split(architecture.pieces, 1):
        given = inputs | {architecture.text: piece} | past
        if architecture.text == "input_ids":
            given |= accepted(model, position_ids=torch.arange(start, start + piece.shape[1]).expand(BATCH, -1))
        with torch.no_grad():
            output = model(**given)
        past = past if architecture.takes_cache else {"past_key_values": output.past_key_values}
        found.append(output[0])
        start += piece.shape[1]
    assert_same(torch.cat(found, 1), expected)


def padded(architecture: Architecture, model: Any) -> dict[str, Tensor]:
    """A batch whose last text has padding: on the left of what is read token by token, on the right of the other."""
    inputs = architecture.inputs()
    left = architecture.text == "input_ids" and architecture.is_causal
    ids, mask = inputs["input_ids"], torch.ones(BATCH, LENGTH, dtype=torch.int64)
    outside = slice(0, PADDING) if left else slice(LENGTH - PADDING, None)
    ids[-1, outside] = mask[-1, outside] = 0
    positions = accepted(model, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)) if left else {}
    return inputs | positions | {"attention_mask": mask}


@working("padding")
@pytest.mark.usefixtures("of_any_size")
def test_padding_changes_nothing(name: str) -> None:
    """Under a rule that depends on n."""
    architecture = ZOO[name]
    model = architecture.build("undilute:ssmax")
    inputs = padded(architecture, model)
    real = inputs["attention_mask"][-1].bool()
    alone = architecture.inputs() | {"input_ids": inputs["input_ids"][:, real]}
    found, expected = read(model, inputs)[-1], read(model, {key: value[-1:] for key, value in alone.items()})[0]
    assert_same(found if architecture.text == "decoder_input_ids" else found[real], expected)


def check_captured(model: Any, inputs: dict[str, Tensor]) -> None:
    """Each layer's rows have the measures of eager's weights, and the output is the very same."""
    before, calls = read(model, inputs), eager.eager_calls(model, inputs)
    truths = [call.attended(inputs.get("attention_mask")) for call in calls]
    with ud.capture(model, ALL, measures=truths[0].measures, sinks=1, top=5) as capture:
        assert torch.equal(read(model, inputs), before)
    names = [re.sub(r"\.passes\.\d+$", "", layer.name) for layer in capture.layers]  # of a layer that runs again
    assert names == [call.name for call in calls]
    for layer, truth in zip(capture.layers, truths, strict=True):
        assert_array_equal(np.stack([layer.batch, layer.position], 1), truth.places, err_msg=layer.name)
        assert_array_equal(layer.n, truth.n, err_msg=layer.name)
        for name, values in truth.measures.items():
            assert_allclose(layer.measures[name], values, rtol=CLOSE, atol=CLOSE, err_msg=f"{name}, {layer.name}")
        assert_allclose(layer.key_weights, truth.heaviest, atol=CLOSE, err_msg=layer.name)
        chosen = np.take_along_axis(truth.weights, layer.keys.clip(0), -1) * (layer.keys >= 0)
        assert_allclose(layer.key_weights, chosen, atol=CLOSE, err_msg=layer.name)


@working("capture")
def test_what_is_captured_is_what_eager_attended_to(name: str) -> None:
    check_captured(ZOO[name].build(), ZOO[name].inputs())


@working("capture", lambda each: each.outcome("padding") == YES)
def test_what_is_captured_of_a_padded_batch_is_what_eager_attended_to(name: str) -> None:
    model = ZOO[name].build()
    check_captured(model, padded(ZOO[name], model))


def state(model: Any) -> list[Any]:
    """Everything that a treatment could leave behind."""
    configurations = [part.config for part in model.modules() if hasattr(part, "config")]
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    return [
        [(each.to_dict(), each._attn_implementation) for each in configurations],
        hooks,
        [name for name, _ in model.named_modules()],
        {name: value.tolist() for name, value in model.state_dict().items()},
    ]


@working("apply")
def test_some_heads_are_treated_and_afterwards_nothing_is_left(name: str) -> None:
    architecture = ZOO[name]
    model, inputs = architecture.build(), architecture.inputs()
    before, was = read(model, inputs), copy.deepcopy(state(model))
    with ud.apply(model, {"layers.*.heads.0": architecture.rule, "layers.*.heads.1": "ssmax"}):
        assert_other(read(model, inputs), before)
    assert torch.equal(read(model, inputs), before)
    assert state(model) == was


@working("apply")
def test_some_heads_after_others_are_all_of_them(name: str) -> None:
    """Some heads run with their own share of keys, masks and biases, in another order: together they are one pass."""
    architecture = ZOO[name]
    inputs = architecture.inputs()
    expected = read(architecture.build("undilute:ssmax"), inputs)
    model = architecture.build()
    with ud.apply(model, "ssmax") as treated:
        assert_same(read(model, inputs), expected)
        heads = max(layer.heads for layer in treated.plan.layers)
    rules = [ud.rules.get("ssmax") for _ in range(3)]  # those of heads 0 and 3 run together, beside 1 and 2
    with ud.apply(model, {f"layers.*.heads.{head}": rules[head % 3] for head in range(heads)}):
        assert_same(read(model, inputs), expected)


@working("diagnose")
def test_every_head_is_diagnosed(name: str) -> None:
    model = ZOO[name].build()
    found = ud.diagnose(model, None, tokens(DIAGNOSED), target=4096, rows=16, measures=[])
    with ud.apply(model, "softmax") as treated:
        heads = [(index, head) for index, layer in enumerate(treated.plan.layers) for head in range(layer.heads)]
    assert sorted((head.layer, head.head) for head in found.heads) == heads


@contextlib.contextmanager
def refused(architecture: Architecture) -> Iterator[None]:
    """One sentence, which names the model or the value."""
    with pytest.raises(InvalidValue) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert re.fullmatch(r"[^.].*\.", message), message
    assert architecture.model in message or "undilute:ssmax" in message, message


def built(architecture: Architecture) -> None:
    read(architecture.build("undilute:ssmax"), architecture.inputs())


def given(architecture: Architecture) -> None:
    model = architecture.build()
    model.set_attn_implementation("undilute:ssmax")
    read(model, architecture.inputs())


def applied(architecture: Architecture) -> None:
    ud.apply(architecture.build(), "ssmax")


def captured(architecture: Architecture) -> None:
    model = architecture.build()
    with ud.capture(model):
        read(model, architecture.inputs())


def diagnosed(architecture: Architecture) -> None:
    ud.diagnose(architecture.build(), None, tokens(DIAGNOSED), target=4096)


ATTEMPTS = {
    "implementation": (built, given),
    "apply": (applied,),
    "capture": (captured,),
    "diagnose": (diagnosed,),
}
NOT_FOR = [
    (name, attempt)
    for name, each in ZOO.items()
    for job, attempts in ATTEMPTS.items()
    for attempt in attempts
    if each.outcome(job) == REFUSED
]


@pytest.mark.parametrize(("name", "attempt"), NOT_FOR)
def test_the_others_are_refused_in_one_sentence(name: str, attempt: Callable[[Architecture], None]) -> None:
    with refused(ZOO[name]):
        attempt(ZOO[name])


def test_learned_sinks_take_no_rule_but_softmax() -> None:
    architecture = ZOO["GptOssForCausalLM"]
    with pytest.raises(InvalidValue, match="GptOssAttention has learned sinks, which only softmax can take in"):
        read(architecture.build("undilute:entmax15"), architecture.inputs())
    with pytest.raises(InvalidValue, match="GptOssAttention has learned sinks, which only softmax can take in"):
        ud.apply(architecture.build(), "entmax15")


@pytest.mark.parametrize("name", [name for name, each in ZOO.items() if each.outcome("capture") == ABSENT])
def test_where_nothing_attends_nothing_is_captured(name: str) -> None:
    model, inputs = ZOO[name].build(), ZOO[name].inputs()
    before = read(model, inputs)
    with ud.capture(model) as capture:
        assert torch.equal(read(model, inputs), before)
    assert capture.layers == []


def test_the_table_has_every_kind_and_says_yes_no_or_never() -> None:
    assert len(ZOO) >= 60
    assert {each.kind for each in ZOO.values()} == set(KINDS)
    outcomes = {each.outcome(job) for each in ZOO.values() for job in JOBS}
    assert outcomes == {YES, REFUSED, ABSENT}
    for each in ZOO.values():
        if each.outcome("implementation") != YES:  # a rule by name is what caches and padding are tried with
            assert each.outcome("cache") == each.outcome("padding") == ABSENT
