"""A saved model has its rules again when it is loaded; where it cannot have them, nobody loses them unawares."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from tests.models.attending import SIZES, random_model, tokens
from undilute.errors import InvalidValue
from undilute.treatment import in_force
from undilute.treatment.loaded import SENTENCE

PLAN, AUTO = "undilute_plan.json", transformers.AutoModelForCausalLM
MIXED = {"layers.0.heads.1": "ssmax", "layers.1": "entmax15", "layers.1.heads.0": "top-k"}
IDS = tokens(1, 12)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(IDS).logits
        return output


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()


def saved(folder: Path, kind: str = "llama", treatment: Any = "ssmax", **options: Any) -> tuple[Any, Tensor, Tensor]:
    """A model without rules, its logits, and those that it had when it was saved with rules."""
    model = random_model(kind, "eager" if kind == "gemma2" else "sdpa", dtype=torch.float32)
    before = logits(model)
    with ud.apply(model, treatment):
        model.save_pretrained(folder, **options)
        return model, before, logits(model)


def edited(path: Path, **entries: Any) -> None:
    """Change entries of a JSON file; None takes one out."""
    content = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# ---------------------------------------------------------------- with undilute


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_it_comes_back_exactly_and_can_be_undone(tmp_path: Path, kind: str) -> None:
    model, before, expected = saved(tmp_path, kind, {"layers.0.heads.1": "ssmax(s=0.7)"})
    assert not torch.equal(before, expected)
    for source in (AUTO, type(model)):
        loaded = source.from_pretrained(tmp_path)
        assert torch.equal(logits(loaded), expected)
        assert ud.Plan.of(loaded).heads == [(0, 1)]
        assert not hasattr(loaded.config, "undilute_plan")
        treated = in_force(copied := copy.deepcopy(loaded))
        assert treated is not None
        treated.undo()
        assert torch.equal(logits(copied), before)
        treated = in_force(loaded)
        assert treated is not None
        treated.undo()
        assert torch.equal(logits(loaded), before)
        assert loaded.config._attn_implementation == model.config._attn_implementation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_was_learned_comes_back_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    random_model("llama", dtype=dtype).save_pretrained(tmp_path / "plain")
    model = AUTO.from_pretrained(tmp_path / "plain")
    with ud.apply(model, MIXED, learn=("s",)) as treated:
        treated.parameters()[0].data += 0.1234567
        if dtype == torch.bfloat16:
            treated.parameters()[0].data = treated.parameters()[0].data.to(dtype)
        model.save_pretrained(tmp_path / "treated")
        expected = logits(model)
    loaded, info = AUTO.from_pretrained(tmp_path / "treated", output_loading_info=True)
    assert loaded.dtype == dtype
    assert torch.equal(logits(loaded), expected)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    assert loaded._keys_to_ignore_on_load_unexpected == model._keys_to_ignore_on_load_unexpected
    loaded.save_pretrained(tmp_path / "again")
    for file in (PLAN, "config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "treated" / file).read_bytes()


def test_a_head_may_be_dropped_or_added(tmp_path: Path) -> None:
    model, _, expected = saved(tmp_path / "whole", treatment=MIXED)
    base = transformers.AutoModel.from_pretrained(tmp_path / "whole")
    assert type(base) is transformers.LlamaModel
    assert torch.equal(model.lm_head(base(IDS).last_hidden_state), expected)
    base.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        again = AUTO.from_pretrained(tmp_path / "base")
        again.lm_head.weight.copy_(model.lm_head.weight)
    assert torch.equal(logits(again), expected)
    other = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole")
    assert ud.Plan.of(other).heads == ud.Plan.of(again).heads


def test_shards_subfolders_and_given_state(tmp_path: Path) -> None:
    model, _, expected = saved(tmp_path / "inside", max_shard_size="20KB")
    assert (tmp_path / "inside" / "model.safetensors.index.json").exists()
    assert torch.equal(logits(AUTO.from_pretrained(tmp_path, subfolder="inside")), expected)
    with ud.apply(model, "ssmax"):
        model.save_pretrained(tmp_path / "state", state_dict=model.state_dict())
    assert torch.equal(logits(AUTO.from_pretrained(tmp_path / "state")), expected)


def test_a_model_of_the_hub_is_read_as_the_user_says(tmp_path: Path) -> None:
    commit, home = "0123456789abcdef0123456789abcdef01234567", tmp_path / "cache" / "models--somebody--treated"
    _, _, expected = saved(tmp_path / "folder")
    shutil.copytree(tmp_path / "folder", home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "second").write_text(commit)
    where = {"cache_dir": tmp_path / "cache", "local_files_only": True, "revision": "second"}
    for source in (AUTO, transformers.LlamaForCausalLM):
        assert torch.equal(logits(source.from_pretrained("somebody/treated", **where)), expected)
    (home / "snapshots" / commit / PLAN).unlink()
    with pytest.raises(InvalidValue, match=f"rules of 'somebody/treated' cannot .* no {PLAN} next to the weights"):
        AUTO.from_pretrained("somebody/treated", **where)


def composite() -> Any:
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**SIZES, head_dim=8, query_pre_attn_scalar=8),
        vision_config=transformers.SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            image_size=28,
            patch_size=14,
        ),
        mm_tokens_per_image=4,
    )
    torch.manual_seed(0)
    return transformers.Gemma3ForConditionalGeneration(config).eval()


def test_a_model_of_several_parts(tmp_path: Path) -> None:
    model = composite()
    with ud.apply(model, "ssmax"):
        model.save_pretrained(tmp_path)
        expected = logits(model)
    written = json.loads((tmp_path / "config.json").read_text())
    for config in (written, written["text_config"], written["vision_config"]):
        assert (config["undilute_plan"], config["attn_implementation"]) == (PLAN, SENTENCE)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), expected)
    for config in (loaded.config, loaded.config.text_config, loaded.config.vision_config, model.config.text_config):
        assert not {"undilute_plan", "attn_implementation"} & set(config.__dict__)
    with pytest.raises(InvalidValue, match="the plan is for another model"):
        transformers.Gemma3ForCausalLM.from_pretrained(
            tmp_path, config=transformers.AutoConfig.from_pretrained(tmp_path).text_config
        )


def test_a_rule_by_name_for_one_part(tmp_path: Path) -> None:
    model = composite()
    model.set_attn_implementation({"text_config": "undilute:ssmax", "vision_config": "eager"})
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    names = [each._attn_implementation for each in (loaded.config, loaded.config.text_config)]
    assert names == ["sdpa", "undilute:ssmax"]
    assert in_force(loaded) is None


def test_a_rule_by_name(tmp_path: Path) -> None:
    model = random_model("llama", "undilute:ssmax", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert not (tmp_path / PLAN).exists()
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "undilute:ssmax"
    assert torch.equal(logits(loaded), logits(model))
    made = AUTO.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    assert made.config._attn_implementation == "undilute:ssmax"
    made.set_attn_implementation("sdpa")
    made.save_pretrained(tmp_path / "plain")
    assert "undilute" not in (tmp_path / "plain" / "config.json").read_text()
    with pytest.warns(UserWarning, match=r"not in force now: .*attn_implementation='undilute:ssmax'\) puts them back"):
        type(model).from_pretrained(tmp_path, attn_implementation="sdpa")
    type(model).from_pretrained(tmp_path, attn_implementation="undilute:ssmax")  # a warning would be an error


def test_another_implementation_is_the_users_choice_and_said(tmp_path: Path) -> None:
    _, before, expected = saved(tmp_path, treatment=MIXED)
    with pytest.warns(UserWarning, match=r"LlamaForCausalLM was saved with attention rules .* not in force") as heard:
        loaded = AUTO.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert torch.equal(logits(loaded), before)
    assert in_force(loaded) is None
    sentence = str(heard[0].message)
    assert f"undilute.apply(model, {str(tmp_path / PLAN)!r}) puts them back" in sentence
    ud.apply(loaded, str(tmp_path / PLAN))
    assert torch.equal(logits(loaded), expected)
    loaded = AUTO.from_pretrained(tmp_path)
    loaded.set_attn_implementation("eager")
    loaded.save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / PLAN).exists()


def test_a_plan_that_was_left_in_the_folder_does_not_count(tmp_path: Path) -> None:
    model, before, _ = saved(tmp_path)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(AUTO.from_pretrained(tmp_path)), before)


def test_a_configuration_alone_makes_no_model_without_rules(tmp_path: Path) -> None:
    model, _, expected = saved(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(InvalidValue, match="only from_pretrained puts in force"):
        AUTO.from_config(config)
    with pytest.raises(InvalidValue, match="only from_pretrained puts in force"):
        type(model).from_pretrained(None, config=config, state_dict={})
    assert torch.equal(logits(AUTO.from_pretrained(tmp_path, config=config)), expected)
    assert AUTO.from_config(config, attn_implementation="sdpa").config._attn_implementation == "sdpa"


# ---------------------------------------------------------------- what cannot be put in force


def unknown_rule(plan: Path) -> None:
    plan.write_text(plan.read_text().replace('"LogLength"', '"Unheard"'))


DAMAGED: dict[str, tuple[Any, str]] = {
    "missing": (Path.unlink, f"there is no {PLAN} next to the weights"),
    "no JSON": (lambda plan: plan.write_bytes(b"\x80\x04cos\nsystem\n."), "it is not text in UTF-8"),
    "cut": (lambda plan: plan.write_text(plan.read_text()[:200]), "it is not JSON"),
    "another form": (lambda plan: edited(plan, schema="undilute.plan/99"), "its schema is 'undilute.plan/99'"),
    "another model": (lambda plan: edited(plan, architecture="Other", layers=[], assignments=[]), "for another model"),
    "a rule nobody knows": (unknown_rule, "unknown scale 'Unheard'.*; a rule of your own must be imported first"),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_plan_is_one_sentence(tmp_path: Path, how: str) -> None:
    _, before, _ = saved(tmp_path)
    damage, words = DAMAGED[how]
    damage(tmp_path / PLAN)
    with pytest.raises(InvalidValue, match=words) as refused:
        AUTO.from_pretrained(tmp_path)
    said = str(refused.value)
    assert said.startswith(f"the attention rules of {str(tmp_path)!r} cannot be put in force: ")
    assert said.endswith("; from_pretrained(…, attn_implementation='sdpa') loads the model without them.")
    assert "\n" not in said
    with pytest.warns(UserWarning, match="not in force now"):
        assert torch.equal(logits(AUTO.from_pretrained(tmp_path, attn_implementation="sdpa")), before)


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("other.json", "'undilute_plan' of its configuration is 'other.json': must be"),
        (None, "is None: must be 'undilute_plan.json' or a rule's name"),
        ("undilute:unheard", "unknown rule 'unheard'.*a rule of your own must be imported first"),
    ],
)
def test_a_damaged_note_is_one_sentence(tmp_path: Path, note: str | None, words: str) -> None:
    saved(tmp_path)
    edited(tmp_path / "config.json", undilute_plan=note)
    with pytest.raises(InvalidValue, match=f"rules of 'LlamaForCausalLM' cannot be put in force: .*{words}"):
        AUTO.from_pretrained(tmp_path)


# ---------------------------------------------------------------- without undilute

PLAIN = """
import sys, transformers
transformers.logging.set_verbosity_error()
from transformers import AutoConfig, AutoModelForCausalLM, pipeline

def refused(make):
    try:
        make()
    except ValueError as error:
        return str(error)
    raise SystemExit("not refused")

for folder in sys.argv[1:]:
    config = AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    for make in (
        lambda: AutoModelForCausalLM.from_pretrained(folder),
        lambda: kind.from_pretrained(folder),
        lambda: AutoModelForCausalLM.from_config(config),
        lambda: kind(config),
        lambda: pipeline("text-generation", model=folder),
    ):
        print(refused(make).replace("\\n", " "))
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    plain.save_pretrained(folder + "-plain")
assert not any("undilute" in name for name in sys.modules)
"""


def test_without_undilute_a_sentence_names_it(tmp_path: Path) -> None:
    saved(tmp_path / "plan")
    saved(tmp_path / "gpt2", "gpt2")
    random_model("llama", "undilute:ssmax", dtype=torch.float32).save_pretrained(tmp_path / "name")
    folders = [str(tmp_path / name) for name in ("plan", "gpt2", "name")]
    result = subprocess.run([sys.executable, "-c", PLAIN, *folders], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    said = result.stdout.splitlines()
    assert len(said) == 15
    for each in said:
        assert re.search(r"saved with attention rules of the package undilute .*pip install undilute, and import", each)
    for folder in folders:  # saved again by plain transformers: without rules, and undilute says so
        with pytest.warns(UserWarning, match="was saved with attention rules that are not in force now"):
            AUTO.from_pretrained(folder + "-plain")


WITH = """
import sys, torch
from {first} import *
from {second} import *
import transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids, expected = torch.load(sys.argv[2])
with torch.no_grad():
    print(torch.equal(model(ids).logits, expected))
"""


@pytest.mark.parametrize("order", [("undilute", "transformers.utils"), ("transformers.modeling_utils", "undilute")])
def test_a_new_process_that_imports_undilute_has_the_rules(tmp_path: Path, order: tuple[str, str]) -> None:
    _, _, expected = saved(tmp_path / "model", "gpt2", MIXED)
    torch.save((IDS, expected), tmp_path / "expected.pt")
    script = WITH.format(first=order[0], second=order[1])
    command = [sys.executable, "-c", script, str(tmp_path / "model"), str(tmp_path / "expected.pt")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == "True\n", result.stderr
