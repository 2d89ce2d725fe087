"""A treated model that is saved has its rules again when it is loaded, or says that it has not."""

from __future__ import annotations

import copy
import json
import pickle
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
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue
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


def test_a_saved_model_says_that_its_rules_are_not_in_force(tmp_path: Path) -> None:
    model = llama()
    with ud.apply(model, MIXED, learn=("s",)) as treated:
        treated.parameters()[0].data += 0.125
        model.save_pretrained(tmp_path)
        expected = logits(model)
    assert not hasattr(model.config, "undilute_plan")
    assert json.loads((tmp_path / "config.json").read_text())["undilute_plan"] == PLAN
    with pytest.warns(UserWarning, match=r"LlamaForCausalLM was saved with attention rules .* not in force") as heard:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    sentence = str(heard[0].message)
    command = sentence[sentence.index("undilute.apply") : sentence.index(" puts")]
    assert command == f"undilute.apply(model, {str(tmp_path / PLAN)!r})"
    ud.apply(loaded, str(tmp_path / PLAN))
    assert torch.equal(logits(loaded), expected)


def test_a_rule_by_name_is_asked_for_again(tmp_path: Path) -> None:
    """transformers saves no implementation: the model comes back with softmax."""
    model = random_model("llama", "undilute:ssmax", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert not (tmp_path / PLAN).exists()
    assert not hasattr(model.config, "undilute_plan")
    with pytest.warns(UserWarning, match=r"not in force now: .*attn_implementation='undilute:ssmax'\) puts them back"):
        type(model).from_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="undilute:ssmax").eval()
    assert torch.equal(logits(again), logits(model))
    again.set_attn_implementation("sdpa")
    again.save_pretrained(tmp_path)
    type(model).from_pretrained(tmp_path)


def test_a_model_without_rules_is_saved_as_ever(tmp_path: Path) -> None:
    model, plain = llama(), type(llama()).save_pretrained.__wrapped__
    plain(model, tmp_path / "plain")
    with ud.apply(model, MIXED):
        model.save_pretrained(tmp_path / "treated")
    model.save_pretrained(tmp_path / "undone")
    with pytest.warns(UserWarning, match="not in force now"):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "treated")
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
    with (
        ud.apply(model, Halved(object())),
        pytest.warns(UserWarning, match="are not saved with it: .*cannot be written"),
    ):
        model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / PLAN).exists()
    with pytest.warns(UserWarning, match=f"undilute.apply with {PLAN} of"):
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
    assert torch.equal(logits(trained(1, resume=True)), logits(first))


def test_a_plan_for_another_model_is_still_refused(tmp_path: Path) -> None:
    model = llama()
    with ud.apply(model, "ssmax"):
        model.save_pretrained(tmp_path)
    with pytest.raises(InvalidValue, match="the plan is for another model"):
        ud.apply(random_model("gpt2"), str(tmp_path / PLAN))
