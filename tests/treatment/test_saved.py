"""A treated model that is saved keeps its rules next to its weights; test_loaded.py has what comes of them."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import transformers
from torch import Tensor

import undilute as ud
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue
from undilute.models.read_once import READER
from undilute.treatment.saved import plan_in_force

PLAN = "undilute_plan.json"
MIXED = {"layers.0.heads.1": "ssmax", "layers.1": "entmax15", "layers.1.heads.0": "top-k"}
IDS = tokens(1, 12)


def llama() -> Any:
    return random_model("llama", dtype=torch.float32)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(IDS).logits
        return output


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()


IN_A_NEW_PROCESS = """
import sys, torch
model, treated, ids, expected, before = torch.load(sys.argv[1], weights_only=False)
import undilute as ud
with torch.no_grad():
    assert torch.equal(model(ids).logits, expected)
    with ud.apply(model, "hard"):
        assert not torch.equal(model(ids).logits, expected)
    assert torch.equal(model(ids).logits, expected)
    assert len(ud.Plan.of(model).heads) == 5
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(ids).logits, before)
    assert torch.equal(treated.model(ids).logits, expected)
    treated.undo()
    assert torch.equal(treated.model(ids).logits, before)
print("all of it")
"""


@pytest.mark.parametrize("first", ["", "import undilute"])
def test_a_new_process_loads_it_with_its_rules(tmp_path: Path, first: str) -> None:
    model = llama()
    before = logits(model)
    treated = ud.apply(model, MIXED, learn=("s",))
    torch.save((copy.deepcopy(model), treated, IDS, logits(model), before), tmp_path / "model.pt")
    command = [sys.executable, "-c", first + IN_A_NEW_PROCESS, str(tmp_path / "model.pt")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == "all of it\n", result.stderr


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copies_have_their_own_rules(copied: Any) -> None:
    model = llama()
    before = logits(model)
    treated = ud.apply(model, MIXED)
    expected, twin = logits(model), copied(treated)
    treated.undo()
    assert torch.equal(logits(model), before)
    assert torch.equal(logits(twin.model), expected)
    twin.undo()
    assert torch.equal(logits(twin.model), before)
    assert twin.model.config._attn_implementation == model.config._attn_implementation == "sdpa"


def test_another_implementation_ends_a_treatment_for_whoever_watches_too() -> None:
    model = llama()
    before = logits(model)
    ud.apply(model, "hard")
    model.set_attn_implementation("sdpa")
    with ud.capture(model, measures=["top_weight"]) as c:
        assert torch.equal(logits(model), before)
    assert (c.layers[1].measures["top_weight"] < 1).any()
    assert not ud.Plan.of(model).heads


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_configuration_says_so_in_the_file_only(tmp_path: Path) -> None:
    model = llama()
    held = dict(model.config.__dict__)
    with ud.apply(model, MIXED, learn=("s",)) as treated:
        during = model.config._attn_implementation
        model.save_pretrained(tmp_path)
        assert model.config._attn_implementation == during
        assert ud.Plan.load(tmp_path / PLAN).to_json() == ud.Plan.of(model).to_json()
        assert treated.plan.heads == ud.Plan.load(tmp_path / PLAN).heads
    assert set(model.config.__dict__) == set(held)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["undilute_plan"] == PLAN
    assert written["attn_implementation"].startswith("undilute (")


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    model = llama()
    with ud.apply(model, "ssmax"):
        model.save_pretrained(tmp_path, is_main_process=False)
        assert not (tmp_path / PLAN).exists()
        assert not (tmp_path / "config.json").exists()
        model.save_pretrained(tmp_path, False)  # the same argument, by its place
        assert not (tmp_path / PLAN).exists()


def test_everything_is_there_before_it_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pushed = llama(), []

    def upload(self: Any, folder: Any, *args: Any, **kwargs: Any) -> None:
        pushed.append(set(files(Path(folder))))
        assert "undilute_plan" in (Path(folder) / "config.json").read_text()

    class Hub:
        def create_repo(self, name: str, **kwargs: Any) -> Any:
            return type("Repository", (), {"repo_id": name})

    monkeypatch.setattr(transformers.modeling_utils, "hf_api", Hub)
    monkeypatch.setattr(transformers.modeling_utils, "create_and_tag_model_card", MagicMock())
    monkeypatch.setattr(transformers.PreTrainedModel, "_upload_modified_files", upload)
    with ud.apply(model, "ssmax"):
        model.save_pretrained(tmp_path, push_to_hub=True, repo_id="somebody/treated")
    assert PLAN in pushed[0]


def test_what_a_model_reads_is_not_saved_and_that_is_said(tmp_path: Path) -> None:
    model = llama()
    model.__dict__[READER] = object()
    with pytest.warns(UserWarning, match="LlamaForCausalLM is saved without its reading, .*undilute.reading"):
        model.save_pretrained(tmp_path)


def test_a_model_without_rules_is_saved_as_ever(tmp_path: Path) -> None:
    model, plain = llama(), type(llama()).save_pretrained.__wrapped__
    plain(model, tmp_path / "plain")
    with ud.apply(model, MIXED):
        model.save_pretrained(tmp_path / "treated")
    model.save_pretrained(tmp_path / "undone")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "treated")
    ud.treatment.in_force(loaded).undo()
    loaded.save_pretrained(tmp_path / "again")
    assert set(files(tmp_path / "treated")) == {*files(tmp_path / "plain"), PLAN}
    assert files(tmp_path / "plain") == files(tmp_path / "undone") == files(tmp_path / "again")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "undone")  # a warning would be an error


def test_the_plan_is_the_models_without_a_pass() -> None:
    model = llama()
    assert plan_in_force(model) is None
    with ud.apply(model, MIXED):
        expected = ud.Plan.of(model)
        model.forward = None  # nobody may call it
        found = plan_in_force(model)
        del model.forward
        assert found is not None
        assert found.to_json() == expected.to_json()
        inner = plan_in_force(model.model)
        assert inner is not None
        assert inner.heads == expected.heads
        assert inner.layers[0].name == "layers.0.self_attn"


def test_rules_that_cannot_be_written_do_not_keep_the_weights_from_being_saved(tmp_path: Path) -> None:
    class Halved(ud.rules.Scale):
        def __init__(self, by: object) -> None:
            super().__init__()
            self.by = by

        def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
            return torch.full_like(logits[..., :1], 0.5)

    model = llama()
    with ud.apply(model, "ssmax"):
        model.save_pretrained(tmp_path)
    with (
        ud.apply(model, Halved(object())),
        pytest.warns(UserWarning, match="are not saved with it: .*cannot be written"),
    ):
        model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / PLAN).exists()
    with pytest.raises(InvalidValue, match=f"cannot be put in force: there is no {PLAN} next to the weights"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_trainer_saves_and_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    data = [{"input_ids": row, "labels": row} for row in tokens(4, 8)]

    def trained(steps: int, resume: bool) -> Any:
        model = llama()
        ud.apply(model, "ssmax", learn=("s",))
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, save_steps=1, report_to="none", use_cpu=True, learning_rate=0.01
        )
        transformers.Trainer(model, arguments, train_dataset=data).train(resume_from_checkpoint=resume)
        return model

    first = trained(1, resume=False)
    saved = ud.Plan.load(tmp_path / "checkpoint-1" / PLAN)
    assert saved.to_json() == ud.Plan.of(first).to_json()
    assert saved.rule_of(0, 0).scale.s != ud.rules.get("ssmax").scale.s
    assert torch.equal(logits(type(first).from_pretrained(tmp_path / "checkpoint-1")), logits(first.eval()))
    assert torch.equal(logits(trained(1, resume=True)), logits(first))


def test_a_plan_for_another_model_is_still_refused(tmp_path: Path) -> None:
    model = llama()
    with ud.apply(model, "ssmax"):
        model.save_pretrained(tmp_path)
    with pytest.raises(InvalidValue, match="the plan is for another model"):
        ud.apply(random_model("gpt2"), str(tmp_path / PLAN))
