"""A treated layer computes what its rules say, and measuring sees the weights that it uses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import undilute as ud
from tests.models.attending import SIZES, attending_with, random_model, tokens
from undilute.errors import InvalidValue, UnknownName
from undilute.models.head_rules import HeadRules
from undilute.models.implementations import register_with_transformers
from undilute.rules.base import Rule

ENTROPY = ["entropy", "top_weight", "sink_share", "top_weight_without_sink", "logit_spread", "spread_bound"]


def weights_of(model: Any, ids: Tensor, rule: Rule, mask: Tensor | None = None) -> list[Tensor]:
    """(batch, heads, queries, keys) of every layer: the rule on dense logits, in the model's own flow."""
    from transformers.masking_utils import eager_mask

    found: list[Tensor] = []

    def dense(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        z = query @ key.repeat_interleave(groups, 1).mT * options["scaling"]
        hidden = torch.zeros_like(z, dtype=torch.bool) if attention_mask is None else attention_mask < -1e300
        found.append(rule(z.masked_fill(hidden, -torch.inf)))
        return (found[-1] @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None

    with attending_with(model, dense, eager_mask), torch.no_grad():
        model(ids, attention_mask=mask)
    return found


@pytest.mark.parametrize("kind", ["llama", "gemma3", "bert"])
@pytest.mark.parametrize("name", ud.rules.names())
def test_a_treated_model_is_measured_with_its_own_weights(kind: str, name: str) -> None:
    model, ids, rule = random_model(kind), tokens(1, 20), ud.rules.get(name)
    with torch.no_grad(), ud.apply(model, rule), ud.capture(model, rows=20, measures=ENTROPY) as c:
        model(ids)
    for layer, weights in zip(c.layers, weights_of(model, ids, rule), strict=True):
        w = weights[0].abs()
        mass = w.sum(-1, keepdim=True)
        p = w / mass.clamp(min=1e-300)
        entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
        np.testing.assert_allclose(layer.measures["entropy"], entropy, atol=1e-7)
        np.testing.assert_allclose(layer.measures["top_weight"], w.amax(-1), atol=1e-9)
        sink = (w[..., 0] + (1 - mass[..., 0]).clamp(min=0)).numpy()
        np.testing.assert_allclose(layer.measures["sink_share"], sink, atol=1e-9)
        rest = w[..., 1:].amax(-1) / w[..., 1:].sum(-1).clamp(min=1e-300)
        np.testing.assert_allclose(layer.measures["top_weight_without_sink"], rest, atol=1e-7)


@pytest.mark.parametrize("outer", ["apply", "capture"])
def test_measuring_and_treating_compose_in_any_order(outer: str) -> None:
    model, ids = random_model("llama"), tokens(1, 30)

    def measured() -> Any:
        with torch.no_grad():
            if outer == "apply":
                with ud.apply(model, "entmax15"), ud.capture(model, measures=ENTROPY) as c:
                    model(ids)
            else:
                with ud.capture(model, measures=ENTROPY) as c, ud.apply(model, "entmax15"):
                    model(ids)
        return c.frame()

    expected = weights_of(model, ids, ud.rules.get("entmax15"))[1][0]
    found = measured()
    top = found[found.layer == 1].top_weight.to_numpy().reshape(4, -1)
    np.testing.assert_allclose(top, expected.amax(-1), atol=1e-9)
    assert model.config._attn_implementation == "sdpa"


def test_a_treated_model_can_be_diagnosed() -> None:
    model, ids = random_model("llama"), tokens(128)
    plain = ud.diagnose(model, None, ids, target=4096)
    with ud.apply(model, ud.rules.get("temperature", T=0.25)):
        sharp = ud.diagnose(model, None, ids, target=4096)
    first = [head.medians["entropy"] for head in plain.heads if head.layer == 0]
    assert all(after.medians["entropy"] < before for after, before in zip(sharp.heads, first, strict=False))


@pytest.mark.parametrize("name", ud.rules.names())
def test_the_name_of_a_rule_is_an_attention_implementation(name: str) -> None:
    model, ids = random_model("gemma3"), tokens(2, 20)
    mask = torch.tensor([[1] * 20, [0] * 5 + [1] * 15])
    with torch.no_grad(), ud.apply(model, name):
        expected = model(ids, attention_mask=mask)[0]
    model.set_attn_implementation(f"undilute:{name}")
    with torch.no_grad():
        found = model(ids, attention_mask=mask)[0]
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1, 5:], expected[1, 5:])


def test_a_rule_of_ones_own_is_one_too() -> None:
    @ud.rules.register("as-hard-as-it-gets")
    def hardest() -> ud.rules.Map:
        return ud.rules.Hard()

    try:
        config = transformers.LlamaConfig(**SIZES)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="undilute:as-hard-as-it-gets")
        with ud.capture(model, measures=["top_weight"]) as c, torch.no_grad():
            model(tokens(1, 20))
        assert (c.layers[0].measures["top_weight"] == 1.0).all()
    finally:
        ud.rules.unregister("as-hard-as-it-gets")
    with pytest.raises(UnknownName, match="as-hard-as-it-gets"):
        model(tokens(1, 20))


def test_a_treatment_over_an_implementation_keeps_its_rule_for_the_other_heads() -> None:
    model, ids = random_model("llama"), tokens(1, 20)
    model.set_attn_implementation("undilute:hard")
    with (
        torch.no_grad(),
        ud.apply(model, {"layers.0.heads.1": "softmax"}),
        ud.capture(model, measures=["top_weight"]) as c,
    ):
        model(ids)
    alone = (c.layers[0].measures["top_weight"] == 1.0).all(1)
    assert alone.tolist() == [True, False, True, True]
    assert model.config._attn_implementation == "undilute:hard"


def test_names_are_there_if_transformers_is_imported_later() -> None:
    """In a fresh process: importing undilute neither imports transformers nor comes too late for it."""
    script = """
import importlib.util, inspect, sys
import undilute
assert "transformers" not in sys.modules
importlib.util.find_spec("transformers.modeling_utils")  # asking is not importing
from transformers import AttentionInterface, AttentionMaskInterface
assert "undilute:ssmax" in AttentionInterface._global_mapping
assert "undilute:ssmax" in AttentionMaskInterface._global_mapping
import transformers.modeling_utils
assert "class PreTrainedModel" in inspect.getsource(transformers.modeling_utils)
assert hasattr(transformers.PreTrainedModel, "undilute_guards")  # who refuses the names where they mean nothing
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_names_are_there_if_transformers_was_imported_before() -> None:
    transformers.AttentionInterface._global_mapping.pop("undilute:hard")
    transformers.AttentionMaskInterface._global_mapping.pop("undilute:hard")
    register_with_transformers()
    assert "undilute:hard" in transformers.AttentionInterface._global_mapping
    assert "undilute:hard" in transformers.AttentionMaskInterface._global_mapping


def test_rules_for_other_heads_are_refused() -> None:
    model = random_model("llama")
    ud.apply(model, "ssmax")
    model.model.layers[0].self_attn.add_module("undilute_rules", HeadRules([(range(3), ud.rules.get("ssmax"))]))
    with ud.capture(model), pytest.raises(InvalidValue, match="attends with 4 heads: its rules are for 3"):
        model(tokens(1, 8))


def test_one_heads_share_of_the_parameters() -> None:
    rules = HeadRules([((1, 3), ud.rules.Rule(ud.rules.LogLength(torch.tensor([0.1, 0.3])))), ((0, 2), Rule())])
    assert float(rules.of_head(3).scale.s) == pytest.approx(0.3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="head 4: must be one of the layer's 4"):
        rules.of_head(4)
