"""What calibration fits is what the rows need: against closed forms, brute force, and the real model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import undilute as ud
from tests.evaluation.tokenizers import PROSE, tokenizer
from tests.models.attending import SIZES, random_model, tokens
from undilute.errors import InvalidValue, UnknownName
from undilute.models.text_loss import losses
from undilute.models.watch import watch
from undilute.rules import EntropyAdaptive, EntropyCurve, LogLength, LogN
from undilute.treatment.calibration import entropy_curve, length_scales
from undilute.treatment.calibration.selection import _gated, gate_slopes, selected
from undilute.treatment.calibration.sharpening import BETAS, Sharpened, needed, sharpened

LENGTHS = np.unique(np.geomspace(16, 4096, 200).round().astype(np.int64))


def one_key_before_equal_others(gap: float) -> Sharpened:
    """A head whose top key leads n − 1 equal ones by ``gap``: logit of its weight is β·gap − ln(n − 1)."""
    measured = np.array([[beta * gap - np.log(LENGTHS - 1)] for beta in BETAS])
    return Sharpened(LENGTHS, measured)


@pytest.mark.parametrize("gap", [2.0, 4.0, 8.0])
def test_log_length_holds_the_weight_of_a_lone_key(gap: float) -> None:
    """β·gap = gap + ln((n−1)/(n₀−1)): the slope in ln n is 1/gap, from 1 at the reference on."""
    made, factor = length_scales.log_length(one_key_before_equal_others(gap), [0], 256, falls=False)
    assert isinstance(made.scale, LogLength)
    assert float(made.scale.s) == pytest.approx(1 / gap, rel=0.02)  # type: ignore[arg-type]
    at = made.scale.at_length(torch.tensor([[16.0], [256.0], [4096.0]]))
    assert isinstance(at, torch.Tensor)
    torch.testing.assert_close(at.flatten(), torch.tensor([1.0, 1.0, float(factor[0])]))
    assert factor[0] == pytest.approx(1 + math.log(16) / gap, rel=0.02)


def test_log_n_finds_its_length() -> None:
    """Where β = ln n / ln L is what holds the weight, L is found."""
    scale = math.log(300.0)
    wanted = np.maximum(1.0, np.log(LENGTHS) / scale)
    measured = np.array([[beta - wanted] for beta in BETAS])
    made, factor = length_scales.log_n(Sharpened(LENGTHS, measured), [0], 256, falls=False)
    assert isinstance(made.scale, LogN)
    assert math.log(float(made.scale.train_length)) == pytest.approx(scale, rel=0.01)
    assert factor[0] == pytest.approx(math.log(4096) / scale, rel=0.01)


def test_a_head_that_holds_its_weight_is_left_alone() -> None:
    measured = np.array([np.full((1, len(LENGTHS)), beta) for beta in BETAS])
    for fit in (length_scales.log_length, length_scales.log_n):
        _, factor = fit(Sharpened(LENGTHS, measured), [0], 256, False)
        assert factor[0] == pytest.approx(1.0, abs=1e-3)


def test_needed_beta_at_the_ends_of_the_grid() -> None:
    falling = np.linspace(3.0, 1.0, len(BETAS))
    assert needed(falling, 5.0, falls=True) == 1.0
    assert needed(falling, 0.5, falls=True) == BETAS[-1]
    assert needed(falling[::-1], 1.0, falls=False) == 1.0


def test_the_curve_is_what_wide_rows_need() -> None:
    """Uniform rows of n keys have H = ln n; with H(β) = ln(n)/β, the β that brings H back to H₀ is H/H₀."""
    measured = np.array([np.log(LENGTHS) / beta for beta in BETAS])
    entropies, betas = entropy_curve.fitted(measured, LENGTHS, 256)
    floor = np.quantile(np.log(LENGTHS[LENGTHS <= 256]), entropy_curve.OWN)
    assert entropies[0] == pytest.approx(floor)
    assert betas == pytest.approx(np.maximum(entropies / floor, 1.0), rel=0.02)


def test_rows_are_measured_as_the_model_has_them() -> None:
    """Against logits computed again from the formula, at every β of the grid."""
    model, ids = random_model("llama"), tokens(1, 96)
    for hold in ("top", "entropy"):
        layer = sharpened(model, ids, hold, lambda _: None)[0]  # type: ignore[arg-type]
        with ud.capture(model, rows=128, measures=["entropy", "top_weight_doubled_without_sink"]) as c, torch.no_grad():
            model(ids)
        doubled = c.layers[0].measures["top_weight_doubled_without_sink"]
        if hold == "top":
            seen = layer.n > 2
            wanted = np.log(doubled[:, seen]) - np.log1p(-doubled[:, seen])
            np.testing.assert_allclose(layer.measured[BETAS.index(2.0)][:, seen], wanted, atol=1e-6)
        else:
            np.testing.assert_allclose(layer.measured[0], c.layers[0].measures["entropy"], atol=1e-9)
            assert (np.diff(layer.measured, axis=0) <= 1e-12).all()


@pytest.mark.parametrize("preset", ["ssmax", "logn", "adaptive"])
def test_a_plan_is_deterministic_and_fits_its_heads(preset: str) -> None:
    model, ids = random_model("llama"), tokens(400)
    plan = ud.calibrate(model, None, ids, preset, heads=["layers.1.*", (0, 2)], length=128)
    assert plan.heads == [(0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert plan.to_json() == ud.calibrate(model, None, ids, preset, heads=["layers.1.*", (0, 2)], length=128).to_json()
    with torch.no_grad(), ud.apply(model, plan):
        assert model(ids[None, :64]).logits.isfinite().all()


def test_only_the_first_half_is_read() -> None:
    model, ids = random_model("llama"), tokens(400)
    other = torch.cat([ids[:200], tokens(200, seed=5)])
    plans = [ud.calibrate(model, None, each, "adaptive", length=128).to_json() for each in (ids, other)]
    assert plans[0] == plans[1]


def test_the_slope_of_a_gate_is_that_of_the_loss() -> None:
    model, ids = random_model("llama"), tokens(2, 48)
    with ud.apply(model, {"layers.0.*": "ssmax", "layers.1.heads.2": "hard"}) as treated:
        plan, rules = treated.plan, dict(treated.rules)
    slopes = gate_slopes(model, plan, ids, lambda _: None)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())

    def loss(layer: int, head: int, gate: float) -> float:
        gates = {name: torch.zeros(4, dtype=torch.float64) for name in rules}
        gates[plan.layers[layer].name][head] = gate
        with torch.no_grad(), watch(model, _gated(rules, gates), replace=True):
            return float(losses(model, ids).mean())

    for layer, head in ((0, 1), (0, 3), (1, 2)):
        numeric = (loss(layer, head, 1e-2) - loss(layer, head, -1e-2)) / 2e-2  # Llama's norms are float32: no smaller
        assert slopes[layer, head] == pytest.approx(numeric, rel=1e-2, abs=1e-5)


def test_selection_takes_what_lowers_the_loss_most() -> None:
    model, ids = random_model("llama"), tokens(2, 48)
    with ud.apply(model, "ssmax") as treated:
        plan = treated.plan
    chosen, trials = selected(model, plan, ids, lambda share, doing: None)
    assert [trial.heads for trial in trials] == sorted({trial.heads for trial in trials})
    assert trials[0].heads == 0
    assert len(chosen.heads) == min(trials, key=lambda trial: trial.loss).heads
    with ud.apply(model, chosen):
        assert float(losses(model, ids).mean()) == pytest.approx(min(trial.loss for trial in trials), abs=1e-9)


def test_a_plan_for_some_heads_keeps_each_heads_own_parameters() -> None:
    model = random_model("llama")
    with ud.apply(model, LogLength(s=torch.tensor([0.1, 0.2, 0.3, 0.4]))) as treated:
        part = treated.plan.only([(0, 3), (1, 1), (1, 2)])
    found = {head: float(rule.scale.s) for head in part.heads if (rule := part.rule_of(*head))}  # type: ignore[arg-type]
    assert found == pytest.approx({(0, 3): 0.4, (1, 1): 0.2, (1, 2): 0.3})


def test_selecting_heads_for_a_rule_without_parameters() -> None:
    plan = ud.calibrate(random_model("llama"), None, tokens(400), "top-k", length=128, select=True)
    assert plan.made["selected"] == len(plan.heads) <= plan.made["candidates"] == 8
    assert next(trial["heads"] for trial in plan.made["tried"]) == 0


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"heads": [], "rule": "ssmax"}),
        ("llama", {"heads": [], "rule": "top-k"}),
        ("mistral", {"rule": "ssmax"}),  # every layer has a sliding window, which holds by itself
    ],
)
def test_there_is_nothing_to_select_among_no_heads(kind: str, options: dict[str, Any]) -> None:
    plan = ud.calibrate(random_model(kind), None, tokens(400), length=128, select=True, **options)
    assert plan.heads == []
    assert (plan.made["selected"], plan.made["tried"]) == (0, [])


def test_windows_begin_as_the_tokenizer_begins_a_text() -> None:
    used = tokenizer("marked")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"vocab_size": len(used)})).eval()
    read: list[torch.Tensor] = []
    hook = model.model.embed_tokens.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    ud.calibrate(model, used, PROSE, length=128)
    hook.remove()
    mark = used.convert_tokens_to_ids("<s>")
    windows = [ids for ids in read if ids.shape[1] == 128]
    assert len(windows) == 2
    assert all((ids == mark).nonzero().tolist() == [[0, 0]] for ids in windows)


@pytest.fixture(scope="module")
def two_layers() -> tuple[Any, Any]:
    """The first layers of SmolLM2, with its real weights: enough to have heads that look everywhere."""
    model, tokenizer = ud.models.load("smollm2")
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers = 2
    return model, tokenizer


def test_the_refitted_curve_acts_where_the_published_one_does_nothing(two_layers: tuple[Any, Any]) -> None:
    model, tokenizer = two_layers
    text = ud.models.texts.shipped()
    plan = ud.calibrate(model, tokenizer, text, "adaptive", length=1024)
    for layer, head in plan.heads:
        rule_of = plan.rule_of(layer, head)
        assert rule_of is not None
        assert isinstance(rule_of.scale, EntropyCurve)
        betas = rule_of.scale.betas.flatten()
        assert betas[0] == 1.0
        assert bool((betas.diff() >= 0).all())
        assert bool((betas <= BETAS[-1]).all())
    ids = tokenizer(text[-20_000:], return_tensors="pt").input_ids[:, :2048]
    assert ids.shape[1] == 2048

    def captured(treatment: Any) -> np.ndarray[Any, Any]:
        with torch.no_grad(), ud.apply(model, treatment), ud.capture(model, rows=12, measures=["entropy"]) as c:
            model.model(ids)
        return np.stack([layer.measures["entropy"] for layer in c.layers])

    before, after, published = captured("softmax"), captured(plan), captured("adaptive")
    assert EntropyAdaptive().beta(6.0) == 1.0
    wide = before[0] > 5.95  # of the first layer, whose input is the same
    assert wide.sum() >= 5
    np.testing.assert_allclose(published[0][wide], before[0][wide], atol=1e-3)
    assert (after[0] <= before[0] + 1e-4).all()
    assert (after[0][wide] < before[0][wide] - 0.05).mean() > 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"text": tokens(150)},
            "the first half of the text, which calibration reads, has 75 tokens: must have at least 128",
        ),
        ({"rule": "top-k"}, "rule = 'top-k' has no parameter to fit: must be ssmax, logn, adaptive; or give select"),
        ({"hold": "mean"}, "hold = 'mean': must be 'top' or 'entropy'"),
        ({"length": 20}, "length = 20: must be at least 64"),
        ({"length": 4096}, "length = 4,096: LlamaForCausalLM reads at most 128"),
        (
            {"reference": 100},
            "reference = 100: must be from 32, so that .* to half of the length, 64",
        ),
        ({"reference": 20}, "reference = 20: must be from 32"),
        ({"heads": "layers.9.*"}, r"no head matches 'layers.9.\*'"),
        ({"heads": [(0, 7)]}, "no head 7 in layer 0"),
        ({"heads": [0.5]}, "head 0.5: must be a pattern"),
        ({"text": "words"}, "tokenizer = None"),
        ({"text": 5}, "text is a int"),
        ({"text": torch.zeros(3, 3)}, "text has shape"),
        ({"text": torch.arange(400)}, "text holds token ids from 0 to 399: LlamaForCausalLM knows 0 to 59"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"text": tokens(400), "rule": "ssmax", "length": 128} | options
    model = random_model("llama")
    with pytest.raises(InvalidValue, match=message):
        ud.calibrate(model, None, **given)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("preset", ["ssmax", "logn", "adaptive"])
def test_windows_hold_by_themselves_and_encoders_are_refused(preset: str) -> None:
    plan = ud.calibrate(random_model("gemma3"), None, tokens(400), preset, length=128)  # a window of 6 in layer 0
    assert {layer for layer, _ in plan.heads} == {1}
    with pytest.raises(InvalidValue, match="BertModel looks ahead"):
        ud.calibrate(random_model("bert"), None, tokens(400), preset, length=128)


def test_heads_are_selected_by_a_loss_that_only_causal_models_have() -> None:
    given: dict[str, Any] = {"rule": "top-k", "length": 128, "select": True}
    with pytest.raises(InvalidValue, match="BertModel predicts no next token"):
        ud.calibrate(random_model("bert"), None, tokens(400), **given)
    encoder = transformers.BertForMaskedLM(random_model("bert").config).eval()  # has a head, but of another kind
    with pytest.raises(InvalidValue, match="BertForMaskedLM looks ahead"):
        ud.calibrate(encoder, None, tokens(400), **given)


def test_log_n_leaves_rows_up_to_the_reference_alone() -> None:
    made, _ = length_scales.log_n(one_key_before_equal_others(2.0), [0], 256, falls=False)
    assert isinstance(made.scale, LogN)
    assert float(made.scale.train_length) >= 255.9
    assert isinstance(at := made.scale.at_length(torch.tensor([[256.0]])), torch.Tensor)
    assert float(at) == pytest.approx(1.0, abs=1e-4)


def test_unknown_rules_are_named() -> None:
    with pytest.raises(UnknownName, match="ssmacks"):
        ud.calibrate(random_model("llama"), None, tokens(400), "ssmacks")
