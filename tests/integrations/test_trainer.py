"""With a real Trainer: the numbers reach the logs at the right steps, and nothing else about the run changes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import integration_utils

import undilute as ud
from undilute.integrations import DilutionCallback, DilutionMonitor
from undilute.integrations.monitor import MEASURES

KEYS = {f"dilution/{name}" for name in (*MEASURES, "top_weight_min")}


class Reporter(TrainerCallback):
    """What ``report_to`` adds: it comes before every callback of the user's."""

    reports: list[tuple[int, dict[str, float]]]

    def __init__(self) -> None:
        type(self).reports = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.reports.append((state.global_step, dict(logs)))


class Passes(TrainerCallback):
    """Keeps the weights that each step begins with; a hook on the model keeps the inputs of its passes."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.inputs: dict[int, list[Tensor]] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        step = state.global_step + 1
        self.weights[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.inputs[step] = []

    def keep(self, module: nn.Module, args: Any, kwargs: dict[str, Tensor]) -> None:
        if module.training:
            self.inputs[max(self.inputs)].append(kwargs["input_ids"].clone())


def gpt2(dropout: float = 0.1) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, **rates))


def trainer_of(model: nn.Module, folder: Path, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    ids = torch.randint(50, (16, 40), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in ids]
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    args = TrainingArguments(str(folder), **defaults | options)
    return kind(model=model, args=args, train_dataset=data, eval_dataset=data[:4])


def is_plain(model: nn.Module) -> bool:
    return model.config._attn_implementation == "sdpa" and "forward" not in model.__dict__


@pytest.fixture
def report_to(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "reporter", Reporter)
    return "reporter"


def test_the_numbers_reach_the_history_and_the_reporters_at_the_right_steps(tmp_path: Path, report_to: str) -> None:
    trainer = trainer_of(gpt2(), tmp_path, report_to=report_to, max_steps=7)
    trainer.add_callback(DilutionCallback(trainer, every=3))
    trainer.train()
    in_history = {entry["step"]: entry for entry in trainer.state.log_history if KEYS & set(entry)}
    reported = {step: logs for step, logs in Reporter.reports if KEYS & set(logs)}
    assert sorted(in_history) == sorted(reported) == [3, 6]
    for step, logs in reported.items():
        assert set(logs) == KEYS | {"epoch"}
        assert in_history[step] == logs | {"step": step}
        assert logs["epoch"] == step / 8


def test_the_other_logs_and_the_weights_stay_the_same(tmp_path: Path, report_to: str) -> None:
    def run(every: int | None, **options: Any) -> tuple[list[tuple[int, Any]], dict[str, Tensor]]:
        trainer = trainer_of(gpt2(), tmp_path, report_to=report_to, eval_strategy="steps", eval_steps=3, **options)
        if every:
            trainer.add_callback(DilutionCallback(trainer, every=every))
        trainer.train()
        kept = ("loss", "grad_norm", "learning_rate", "eval_loss")
        logs = [(step, {key: logs[key] for key in kept if key in logs}) for step, logs in Reporter.reports]
        return [(step, each) for step, each in logs if each], trainer.model.state_dict()

    for options in ({}, {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}):
        (plain_logs, plain), (logs, weights) = run(None, **options), run(2, **options)
        assert logs == plain_logs
        assert len(logs) == 3 + 2
        assert all(torch.equal(plain[name], weights[name]) for name in plain)


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"gradient_checkpointing": True}])
def test_the_numbers_are_those_of_the_steps_first_pass(tmp_path: Path, options: dict[str, Any]) -> None:
    model, passes = gpt2(dropout=0.0), Passes()
    trainer = trainer_of(model, tmp_path, eval_strategy="steps", eval_steps=2, **options)
    callback = DilutionCallback(trainer, every=2, rows=8, per_layer=True)
    trainer.add_callback(callback)
    trainer.add_callback(passes)
    hook = model.register_forward_pre_hook(passes.keep, with_kwargs=True)
    trainer.train()
    hook.remove()
    history = {entry["step"]: entry for entry in trainer.state.log_history if KEYS & set(entry)}
    assert sorted(history) == [2, 4, 6]
    for step, entry in history.items():
        model.load_state_dict(passes.weights[step])
        with DilutionMonitor(model, every=1, rows=8, per_layer=True) as direct:
            model(passes.inputs[step][0])
        assert {key: entry[key] for key in direct.latest} == pytest.approx(direct.latest, rel=1e-6)
    assert history[2]["dilution/layer_01/entropy"] != history[6]["dilution/layer_01/entropy"]


def test_between_the_measured_passes_the_model_is_untouched(tmp_path: Path) -> None:
    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.plain: list[bool] = []

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            self.plain.append(is_plain(model))

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            assert is_plain(model)

        def on_prediction_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            assert is_plain(model)

    model, watch = gpt2(), Watch()
    trainer = trainer_of(model, tmp_path, eval_strategy="steps", eval_steps=3)
    callback = DilutionCallback(trainer, every=3)
    trainer.add_callback(callback)
    trainer.add_callback(watch)
    trainer.train()
    assert watch.plain == [True, True, False, True, True, False]  # the third and the sixth step wait for their pass
    assert is_plain(model)
    assert set(callback.latest) == KEYS


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_fails_leaves_the_model_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    def fail(*_: object) -> None:
        raise error

    class FailsLater(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == 1:
                hooks.append(model.transformer.h[1].mlp.register_forward_hook(fail))

    model = gpt2()
    hooks: list[Any] = []
    trainer = trainer_of(model, tmp_path)
    trainer.add_callback(DilutionCallback(trainer, every=2))
    trainer.add_callback(FailsLater())
    with pytest.raises(error):
        trainer.train()
    assert is_plain(model)
    hooks.pop().remove()
    trainer.remove_callback(FailsLater)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if KEYS & set(entry)] == [2, 4, 6]


def test_a_step_that_fails_before_its_pass_gives_the_next_pass_back(tmp_path: Path) -> None:
    class FailsFirst(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise RuntimeError

    model = gpt2().eval()
    wrapped = model.forward
    model.forward = wrapper = lambda *args, **kwargs: wrapped(*args, **kwargs)  # such as accelerate's
    trainer = trainer_of(model, tmp_path)
    trainer.add_callback(DilutionCallback(trainer, every=1))
    trainer.add_callback(FailsFirst())
    with contextlib.suppress(RuntimeError):
        trainer.train()
    assert model.forward is not wrapper
    model(torch.arange(8)[None])
    assert model.forward is wrapper
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch in itself
def test_a_compiled_model_is_measured_and_not_compiled_again(tmp_path: Path) -> None:
    def graphs(every: int | None) -> tuple[int, list[int]]:
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        trainer = trainer_of(gpt2(), tmp_path, torch_compile=True, torch_compile_backend="eager", max_steps=4)
        if every:
            trainer.add_callback(DilutionCallback(trainer, every=every))
        trainer.train()
        steps = [entry["step"] for entry in trainer.state.log_history if KEYS & set(entry)]
        return torch._dynamo.utils.counters["stats"]["unique_graphs"], steps

    (plain, _), (monitored, steps) = graphs(None), graphs(2)
    torch.compiler.reset()
    assert plain == monitored > 0
    assert steps == [2, 4]


def test_a_step_that_never_calls_the_model_warns(tmp_path: Path) -> None:
    class Elsewhere(Trainer):
        def compute_loss(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
            return sum(parameter.sum() for parameter in model.parameters())

    model = gpt2()
    trainer = trainer_of(model, tmp_path, Elsewhere, max_steps=3)
    trainer.add_callback(DilutionCallback(trainer, every=2))
    with pytest.warns(UserWarning, match="step 2 was not measured: it never called GPT2LMHeadModel"):
        trainer.train()
    assert is_plain(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every = 0: must be a whole number of at least 1"),
        ({"rows": 0}, "rows = 0: must be a whole number of at least 1"),
        ({"every": "often"}, "every = 'often': must be a whole number"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidValue, match=message):
        DilutionCallback(trainer_of(gpt2(), tmp_path), **options)


def test_a_callback_must_know_whose_logs_to_write() -> None:
    with pytest.raises(ud.InvalidValue, match="trainer is a int: must be the Trainer whose logs the numbers go to"):
        DilutionCallback(100)  # type: ignore[arg-type]


def test_a_subclass_that_logs_more_of_its_own_is_not_asked_to(tmp_path: Path, report_to: str) -> None:
    """TRL's Trainers add what they have gathered since the last log to the next, and forget it."""

    class Gathers(Trainer):
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log(logs | {"gathered": 1.0}, *args, **kwargs)

    trainer = trainer_of(gpt2(), tmp_path, Gathers, report_to=report_to)
    trainer.add_callback(DilutionCallback(trainer, every=2))
    trainer.train()
    assert [step for step, logs in Reporter.reports if KEYS & set(logs)] == [2, 4, 6]
    assert all(("gathered" in logs) == (not KEYS & set(logs)) for _, logs in Reporter.reports)


def test_copies_in_threads_are_refused_before_the_first_step(tmp_path: Path) -> None:
    trainer = trainer_of(gpt2(), tmp_path)
    trainer.args._n_gpu = 2  # as on a machine with two GPUs
    with pytest.raises(ud.InvalidValue, match="in threads on 2 GPUs"):
        DilutionCallback(trainer).on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)
