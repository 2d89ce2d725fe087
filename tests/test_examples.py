"""The examples run in small, with a real Trainer: they learn what they say they learn, and go on after a stop."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import runpy
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import finetune_scales, train_from_scratch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

import undilute as ud
from tests.models.small import HEADS, LAYERS, LLAMA, WORDS, tokenizer
from undilute import models
from undilute.evaluation.measure import Measurement, Spread
from undilute.models.text_loss import losses

FILES = Path(__file__).parent.parent / "examples"
STEPS = 4


@pytest.fixture(autouse=True, scope="module")
def _denormals_as_before() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose attention is sharp enough to tell rules apart, and words to read."""
    path = tmp_path_factory.mktemp("example")
    torch.manual_seed(0)
    LlamaForCausalLM(type(LLAMA)(**{**LLAMA.to_dict(), "initializer_range": 0.3})).save_pretrained(path / "model")
    tokenizer().save_pretrained(path / "model")
    words = random.Random(0).choices(WORDS[2:], k=2000)
    (path / "words.txt").write_text(" ".join(words))
    return path


def options(folder: Path, output: Path, **changed: Any) -> list[str]:
    given = {
        "model": folder / "model",
        "text": folder / "words.txt",
        "steps": STEPS,
        "length": 64,
        "evaluate-at": 128,
        "windows": 2,
        "haystacks": 0,
        "save-every": 2,
        "output": output,
    }
    return [str(part) for name, value in (given | changed).items() for part in (f"--{name}", value)]


def run(folder: Path, output: Path, **changed: Any) -> str:
    """What the example prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        finetune_scales.main(options(folder, output, **changed))
    return printed.getvalue()


@pytest.fixture(scope="module")
def tuned(folder: Path) -> tuple[Path, str]:
    """The folder that a whole run leaves, and what it printed."""
    return folder / "scales", run(folder, folder / "scales")


def scales_of(plan: Path) -> Tensor:
    found = [each.rule.scale.s for each in ud.Plan.load(plan).assignments]
    return torch.stack([torch.as_tensor(each) for each in found])


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# ---------------------------------------------------------------- fine-tuning scales


def test_the_start_is_the_untouched_model(folder: Path) -> None:
    model, _ = models.load(folder / "model", dtype=torch.float64)
    ids = torch.arange(100)[None]
    with torch.no_grad():
        before = model(ids).logits
        with finetune_scales.with_scales(model) as treated:
            torch.testing.assert_close(model(ids).logits, before, rtol=0, atol=1e-10)
            for each in treated.parameters():
                each.fill_(0.1)
            assert float((model(ids).logits - before).abs().max()) > 0.01


def test_training_moves_the_scales_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    model, _ = models.load(folder / "model")
    ids = torch.arange(100)[None]
    weights, before = weights_of(model), model(ids).logits
    settings = Namespace(
        model="", steps=STEPS, length=32, learning_rate=1e-2, seed=0, save_every=2, output=tmp_path / "scales"
    )
    treated = finetune_scales.with_scales(model)
    scales = finetune_scales.Scales(model, treated)
    assert sum(each.numel() for each in scales.parameters()) == LAYERS * HEADS
    finetune_scales.train(scales, torch.randint(0, 200, (8, 32)), settings)
    assert all(bool((each != 0).all()) for each in treated.parameters())
    assert not torch.equal(model(ids).logits, before)
    treated.undo()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(ids).logits, before)


def test_a_checkpoint_holds_the_scales_alone_and_a_finite_loss(tuned: tuple[Path, str]) -> None:
    checkpoint = tuned[0] / f"checkpoint-{STEPS}"
    kept = load_file(checkpoint / "model.safetensors")
    assert sum(value.numel() for value in kept.values()) == LAYERS * HEADS
    assert torch.equal(torch.stack(list(kept.values())), scales_of(tuned[0] / "plan.json"))
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    logged = [entry["loss"] for entry in history if "loss" in entry]
    assert logged
    assert all(math.isfinite(loss) for loss in logged)


def test_the_plan_applies_and_is_what_was_judged(folder: Path, tuned: tuple[Path, str]) -> None:
    path, printed = tuned
    model, _ = models.load(folder / "model")
    plan = ud.Plan.load(path / "plan.json")
    assert plan.summary == "ssmax, learned in 4 steps at 64 tokens, for 8 of 8 heads of LlamaForCausalLM."
    ids = torch.arange(100)[None]
    with torch.no_grad():
        before = model(ids).logits
        with ud.apply(model, path / "plan.json"):
            assert not torch.equal(model(ids).logits, before)
        assert torch.equal(model(ids).logits, before)
    s = scales_of(path / "plan.json")
    assert f"{int((s > 0).sum())} have become sharper" in printed
    assert "next-token loss after 64–127 tokens: " in printed
    assert "With learned scales instead of softmax, next-token loss " in printed
    assert "nats within the 64 tokens of training and by " in printed


def test_the_same_command_goes_on_after_a_stop_and_ends_the_same(
    folder: Path, tuned: tuple[Path, str], tmp_path: Path
) -> None:
    stopped = tmp_path / "scales"
    shutil.copytree(tuned[0], stopped)
    (stopped / "plan.json").unlink()
    (stopped / f"checkpoint-{STEPS}" / "trainer_state.json").unlink()  # as if stopped while writing it
    printed = run(folder, stopped)
    assert f"going on from {stopped / 'checkpoint-2'}" in printed
    assert f"{STEPS - 2} steps of 64 tokens" in printed
    assert torch.equal(scales_of(stopped / "plan.json"), scales_of(tuned[0] / "plan.json"))


def test_checkpoints_of_other_settings_are_not_continued(folder: Path, tuned: tuple[Path, str]) -> None:
    with pytest.raises(ud.InvalidValue, match=r"a training with another learning rate: .* or another --output"):
        run(folder, tuned[0], **{"learning-rate": 0.5})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "--steps = 0: must be a whole number of at least 1"),
        ({"learning-rate": -1}, "--learning-rate = -1.0: must be a finite number > 0"),
        ({"length": 129}, "--length = 129: LlamaForCausalLM reads at most 128 tokens"),
        ({"evaluate-at": 129}, "length = 129: LlamaForCausalLM reads at most 128 tokens"),
        ({"windows": 20}, "the text has 1,000 tokens: 20 windows of 128 need 2,560"),
    ],
)
def test_what_cannot_be_done_is_said_before_training(
    changed: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ud.InvalidValue, match=message):
        run(folder, tmp_path / "scales", **changed)
    assert not (tmp_path / "scales").exists()


def test_changes_within_and_beyond_the_length_of_training_are_told_apart() -> None:
    spread = Spread(np.arange(1), np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
    before, after = np.zeros((2, 9)), np.concatenate([np.full((2, 3), 0.5), np.full((2, 6), -0.25)], 1)
    said = finetune_scales.within_and_beyond(
        Measurement("before", before, (), spread), Measurement("after", after, (), spread), length=4
    )
    assert said.startswith("The loss changed by +0.5000 nats within the 4 tokens of training and by -0.2500 beyond")


# ---------------------------------------------------------------- training from scratch


def small(**changed: Any) -> Namespace:
    given = {"steps": 6, "length": 32, "width": 16, "layers": 2, "heads": 2, "seed": 0}
    return Namespace(**(given | changed))


def both() -> dict[str, LlamaForCausalLM]:
    return {
        name: train_from_scratch.small_llama(implementation, small())
        for name, implementation in train_from_scratch.IMPLEMENTATIONS.items()
    }


def test_both_start_from_the_same_weights_and_only_one_is_sparse() -> None:
    softmax, entmax = both().values()
    for name, value in softmax.state_dict().items():
        assert torch.equal(value, entmax.state_dict()[name])
    ids = torch.arange(64)[None]
    with torch.no_grad():
        plain = softmax(ids).logits
        assert not torch.equal(entmax(ids).logits, plain)
        with ud.apply(softmax, "entmax15"):
            torch.testing.assert_close(entmax(ids).logits, softmax(ids).logits)


def test_training_lowers_the_loss_of_both_and_timing_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    made, ids = both(), torch.arange(2000) % 7
    before = [losses(model, ids[None, :64]).mean() for model in made.values()]
    train_from_scratch.train(made, train_from_scratch.drawn(ids, small(steps=20)), learning_rate=1e-2)
    after = [losses(model, ids[None, :64]).mean() for model in made.values()]
    assert all(new < 0.8 * old for old, new in zip(before, after, strict=True))
    assert capsys.readouterr().out.count("step ") == 10
    weights = [weights_of(model) for model in made.values()]
    timings = train_from_scratch.seconds_per_step(made, ids, (32, 128), rounds=1)
    assert timings.keys() == {32, 128}
    assert all(0 < seconds < math.inf for times in timings.values() for seconds in times.values())
    for model, kept in zip(made.values(), weights, strict=True):
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_batches_are_windows_of_the_text_and_the_same_every_time() -> None:
    ids = torch.arange(1000)
    batches = train_from_scratch.drawn(ids, small())
    assert len(batches) == 6
    for batch, again in zip(batches, train_from_scratch.drawn(ids, small()), strict=True):
        assert torch.equal(batch, again)
        assert torch.equal(batch, batch[:, :1] + torch.arange(32))


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        (0.5, "0.50 times as long: entmax15 is faster than softmax."),
        (1.04, "1.04 times as long: entmax15 is about as fast as softmax."),
        (2.0, "2.00 times as long: entmax15 is slower than softmax."),
    ],
)
def test_the_faster_one_is_called_faster(seconds: float, verdict: str) -> None:
    (said,) = train_from_scratch.described("now", {4096: {"softmax": 1.0, "entmax15": seconds}})
    assert said.endswith(verdict)


def test_the_whole_of_training_from_scratch_in_small(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--steps", "2", "--length", "32", "--width", "16", "--layers", "1", "--heads", "2", "--rounds", "1"]
    train_from_scratch.main([*settings, "--text", str(folder / "words.txt")])
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[-4:]] == [
        "A step at 32 bytes with fresh weights",
        "A step at 128 bytes with fresh weights",
        "A step at 32 bytes after training",
        "A step at 128 bytes after training",
    ]
    assert said[-7].startswith("Loss on held-out text at 32 bytes, the length of training, softmax → entmax15: ")
    assert said[-6].startswith("Loss on held-out text at 128 bytes, longer than anything seen in training")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--width", "10", "--heads", "4"], "must be a multiple of 2 · --heads = 8"),
        (["--rounds", "0"], "--rounds = 0: must be a whole number of at least 1"),
        (["--length", "400"], "must have at least 12,800, 16 windows of --length in each half of it"),
    ],
)
def test_training_from_scratch_refuses_in_one_sentence(settings: list[str], message: str, folder: Path) -> None:
    with pytest.raises(ud.InvalidValue, match=message):
        train_from_scratch.main(["--text", str(folder / "words.txt"), *settings])


@pytest.mark.parametrize("name", ["finetune_scales.py", "train_from_scratch.py"])
def test_as_a_command_an_error_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--steps", "0"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FILES / name), run_name="__main__")
    assert left.value.code == "error: --steps = 0: must be a whole number of at least 1."
