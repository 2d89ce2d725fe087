"""``attn_implementation="undilute:…"`` is refused wherever it would mean nothing, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import undilute as ud
from tests.models.architectures import CONFIGURATIONS, FALCON, IMAGES, PLAIN, SEQUENCES, T5, built, llava
from tests.models.attending import SIZES, random_model, tokens
from undilute.errors import InvalidValue
from undilute.models.own_attention import has_own_attention, stand_guard

NAME = "undilute:ssmax"
OWN = ["bloom", "codegen", "xglm", "mpt", "mpnet", "deberta-v2", "gptj", "gpt-neo", "falcon"]
PARTLY = ["longt5", "git", "mamba"]
WAYS: dict[str, Callable[[Any, Any], object]] = {
    "from a configuration": lambda family, config: family._from_config(config, attn_implementation=NAME),
    "constructed": lambda family, config: family(_named(config)),
    "given it": lambda family, config: family(config).set_attn_implementation(NAME),
    "given it by name": lambda family, config: family(config).set_attn_implementation({"": NAME}),
}
WORKING = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "GptOssForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
    "OPTForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "GlmForCausalLM",
    "CohereForCausalLM",
    "GraniteForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DogeForCausalLM",
    "AfmoeForCausalLM",
    "JambaForCausalLM",
    "BambaForCausalLM",
    "SmolLM3ForCausalLM",
    "BertModel",
    "RobertaModel",
    "DistilBertModel",
    "ElectraModel",
    "ModernBertModel",
    "AlbertModel",
    "DPRQuestionEncoder",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "PegasusForConditionalGeneration",
    "MarianMTModel",
    "WhisperForConditionalGeneration",
    "ViTModel",
    "SiglipModel",
    "CLIPModel",
    "Dinov2Model",
    "LlavaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "VisionEncoderDecoderModel",
    "EncoderDecoderModel",
    "DetrModel",
]


def _named(config: Any) -> Any:
    config._attn_implementation = NAME
    return config


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*OWN, *PARTLY])
def test_a_model_with_attention_of_its_own_is_refused_before_anything_runs(kind: str, way: str) -> None:
    family, config = CONFIGURATIONS[kind]()
    with pytest.raises(InvalidValue, match=r"\w+.* AttentionInterface, so attn_implementation = 'undilute:ssmax' can"):
        WAYS[way](family, config)


@pytest.mark.parametrize("kind", ["bloom", "gptj"])
def test_a_saved_model_is_refused_too(kind: str, tmp_path: Path) -> None:
    model = built(kind)
    model.save_pretrained(tmp_path)
    with pytest.raises(InvalidValue, match=f"{type(model).__name__} computes its attention in its own code"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=NAME)


@pytest.mark.parametrize("kind", OWN)
def test_what_was_refused_is_as_it_was(kind: str) -> None:
    model, ids = built(kind), tokens(1, 12)
    before = model.config._attn_implementation
    for refused in (
        lambda: model.set_attn_implementation(NAME),
        lambda: ud.apply(model, "ssmax"),
        lambda: ud.capture(model).__enter__(),
    ):
        with pytest.raises(InvalidValue, match="in its own code"):
            refused()
    assert model.config._attn_implementation == before
    with torch.no_grad():
        assert model(ids)[0].isfinite().all()


@pytest.mark.parametrize("kind", ["bloom", "codegen", "xglm", "mpt", "mpnet"])
def test_no_mask_is_made_for_a_model_that_came_by_the_name_otherwise(kind: str) -> None:
    model = built(kind)
    model.config._attn_implementation_internal = NAME
    with pytest.raises(InvalidValue, match="in its own code"), torch.no_grad():
        model(tokens(2, 12), attention_mask=torch.tensor([[1] * 12, [1] * 9 + [0] * 3]))


@pytest.mark.parametrize("name", WORKING)
def test_the_file_of_a_model_that_supports_it_says_so(name: str) -> None:
    assert not has_own_attention(getattr(transformers, name))


@pytest.mark.parametrize(
    ("family", "config"),
    [
        (transformers.LlamaForCausalLM, lambda: transformers.LlamaConfig(**SIZES)),
        (transformers.DPRQuestionEncoder, lambda: transformers.DPRConfig(**PLAIN)),
        (transformers.T5ForConditionalGeneration, lambda: transformers.T5Config(**T5)),
        (transformers.BartForConditionalGeneration, lambda: transformers.BartConfig(**SEQUENCES)),
        (transformers.ViTModel, lambda: transformers.ViTConfig(**IMAGES)),
        (transformers.LlavaForConditionalGeneration, lambda: llava(transformers.LlamaConfig(**SIZES))),
        (transformers.ClapTextModel, lambda: transformers.ClapTextConfig(**PLAIN)),
        (
            transformers.EncoderDecoderModel,
            lambda: transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
                transformers.BertConfig(**PLAIN), transformers.BertConfig(**PLAIN)
            ),
        ),
        (
            transformers.DetrModel,  # its images go through a convolutional network, which never attends
            lambda: transformers.DetrConfig(
                backbone_config=transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]),
                **{name: value for name, value in SEQUENCES.items() if "_" in name and "vocab" not in name},
            ),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_model_that_supports_it_is_not_refused(family: Any, config: Callable[[], Any]) -> None:
    model = family._from_config(config(), attn_implementation=NAME)
    assert model.config._attn_implementation == NAME
    model.set_attn_implementation("eager")
    model.set_attn_implementation(NAME)
    assert model.config._attn_implementation == NAME


def test_a_part_without_it_is_refused_and_the_other_can_have_it() -> None:
    config = llava(transformers.FalconConfig(**FALCON))
    with pytest.raises(InvalidValue, match=r"Falcon\w+ computes .* as {'text_config': 'undilute:ssmax'}"):
        transformers.LlavaModel._from_config(config, attn_implementation=NAME)
    model = transformers.LlavaModel(llava(transformers.FalconConfig(**FALCON)))
    with pytest.raises(InvalidValue, match=r"Falcon\w+ computes"):
        model.set_attn_implementation(NAME)
    with pytest.raises(InvalidValue, match=r"Falcon\w+ computes"):
        model.set_attn_implementation({"text_config": NAME})
    assert model.config.vision_config._attn_implementation == "sdpa"
    model.set_attn_implementation({"vision_config": NAME})
    assert model.config.vision_config._attn_implementation == NAME
    assert model.config.text_config._attn_implementation == "sdpa"


def test_a_part_with_attention_of_its_own_keeps_it_while_others_are_watched() -> None:
    """Falcon asks for its name, and reads torch's masks as numbers under any but "sdpa"."""
    torch.manual_seed(0)
    model = transformers.LlavaModel(llava(transformers.FalconConfig(**FALCON))).eval()
    ids, mask = tokens(2, 12), torch.tensor([[1] * 12, [0] * 4 + [1] * 8])
    with torch.no_grad():
        before = model(ids, attention_mask=mask)[0]
        with ud.capture(model):
            assert torch.equal(model(ids, attention_mask=mask)[0], before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["FNetModel", "FNetForMaskedLM", "ResNetModel"])
def test_a_model_that_never_attends_is_refused(family: str, way: str) -> None:
    kind = getattr(transformers, family)
    sizes = PLAIN if "FNet" in family else {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
    config = kind.config_class(**{name: value for name, value in sizes.items() if name != "num_attention_heads"})
    with pytest.raises(InvalidValue, match=f"{family} makes no attention call through .* 'undilute:ssmax' cannot"):
        WAYS[way](kind, config)


def test_a_part_that_never_attends_may_stand_beside_one_that_does() -> None:
    """But it cannot have the name alone."""

    def config() -> Any:
        return llava(transformers.MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=60))

    model = transformers.LlavaModel._from_config(config(), attn_implementation=NAME)
    model.set_attn_implementation("eager")
    model.set_attn_implementation(NAME)
    model.set_attn_implementation({"": "eager", "text_config": "eager", "vision_config": NAME})
    refused = r"LlavaModel makes no attention call through .*, as {'text_config': 'undilute:ssmax'}"
    with pytest.raises(InvalidValue, match=refused):
        model.set_attn_implementation({"text_config": NAME})
    with pytest.raises(InvalidValue, match=refused):
        transformers.LlavaModel._from_config(config(), attn_implementation={"text_config": NAME})


def test_a_class_of_ones_own_attends_as_its_parent() -> None:
    """transformers reads the source of a class's file, and there is none in a notebook."""

    def mine(kind: str) -> Any:
        return type("Mine", (getattr(transformers, kind),), {"__module__": "a notebook"})

    model = mine("ArceeForCausalLM")(_named(transformers.ArceeConfig(**SIZES)))
    assert model.config._attn_implementation == NAME
    with pytest.raises(InvalidValue, match="Mine computes its attention in its own code"):
        mine("BloomForCausalLM")(_named(CONFIGURATIONS["bloom"]()[1]))


def test_the_guard_stands_once() -> None:
    method = transformers.PreTrainedModel.set_attn_implementation
    stand_guard(transformers.PreTrainedModel, "undilute:")
    assert transformers.PreTrainedModel.set_attn_implementation is method


def test_other_names_pass() -> None:
    model = built("bloom")
    with pytest.raises(ValueError, match="does not support an attention implementation"):
        type(model)._from_config(model.config, attn_implementation="sdpa")
    assert random_model("llama", "eager").config._attn_implementation == "eager"
