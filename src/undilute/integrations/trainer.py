"""How does the dilution of a Hugging Face Trainer's model get into its logs?

    trainer.add_callback(DilutionCallback(every=100))

The first forward pass of every 100th step is measured while it runs; no pass is added. A callback is not given a way to
log: the Trainer hands each log to its callbacks in the order in which they were added, reporters first, so that what a
later callback puts into it comes too late. So this one sends a log event of its own, as ``Trainer.log`` does: it is in
``state.log_history`` and reaches every callback, whatever ``report_to`` is.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from contextlib import ExitStack
from typing import Any

from torch import nn

from undilute.errors import InvalidValue, MissingExtra
from undilute.integrations.monitor import EVERY, ROWS, DilutionMonitor, uncompiled
from undilute.rules.parameters import count

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler
    from transformers.training_args import ParallelMode
except ModuleNotFoundError as error:
    raise MissingExtra(str(error.name), "models") from None


class DilutionCallback(TrainerCallback):
    """Logs entropy, effective keys, top weight and sink share of the model in training.

    Parameters
    ----------
    every : steps (updates of the weights) between measurements; with gradient accumulation the first of a step's
        passes is measured
    rows : rows to sample of each sequence
    per_layer : the same numbers for each layer too

    Attributes
    ----------
    latest : what the last step gave, by key (see :func:`undilute.integrations.monitor.summary`); None if it was not
        measured

    Examples
    --------
    >>> DilutionCallback(every=50).latest is None
    True
    """

    def __init__(self, every: int = EVERY, rows: int = ROWS, *, per_layer: bool = False) -> None:
        self.every = count("every", every)
        self.rows = count("rows", rows)
        self.per_layer = per_layer
        self._monitor: DilutionMonitor | None = None
        self._armed = ExitStack()

    @property
    def latest(self) -> dict[str, float] | None:
        return None if self._monitor is None else self._monitor.latest

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.parallel_mode == ParallelMode.NOT_DISTRIBUTED:
            raise InvalidValue(
                f"the Trainer runs copies of the model in threads on {args.n_gpu} GPUs (DataParallel), which cannot be "
                "measured: start it with torchrun or accelerate, or show it one GPU (CUDA_VISIBLE_DEVICES=0)."
            )
        self._armed.close()
        self._monitor = DilutionMonitor(kwargs["model"], 1, self.rows, per_layer=self.per_layer)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._monitor is None:  # added while the training was under way
            self.on_train_begin(args, state, control, **kwargs)
        assert self._monitor is not None
        self._armed.close()
        self._monitor.latest = None
        if self._is_due(state.global_step + 1):
            self._arm(kwargs["model"], self._monitor)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self._armed.close()
        if self.latest is not None:
            return _log(self.latest, args, state, control)
        if self._monitor is not None and self._is_due(state.global_step):
            warnings.warn(
                f"step {state.global_step} was not measured: it never called {type(self._monitor.model).__name__}. If "
                "another model is trained, use undilute.integrations.DilutionMonitor around its forward pass.",
                stacklevel=2,
            )
        return control

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._armed.close()

    def _is_due(self, step: int) -> bool:
        return step % self.every == 0

    def _arm(self, model: nn.Module, monitor: DilutionMonitor) -> None:
        """Measure the next forward pass of ``model`` and no other.

        The Trainer has no event for a step that fails, so the measurement must end with the pass, whatever ends that;
        torch's forward hooks would not run after a KeyboardInterrupt.
        """
        forward, own = model.forward, model.__dict__.get("forward")  # own: another wrapper, such as accelerate's

        def disarm() -> None:
            model.__dict__.pop("forward", None)
            if own is not None:
                model.__dict__["forward"] = own

        @functools.wraps(forward)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self._armed.close()
            with monitor:
                return forward(*args, **kwargs)

        self._armed.enter_context(uncompiled())  # compiled code would not come to see the new forward
        self._armed.callback(disarm)
        model.__dict__["forward"] = measured


def _log(
    values: dict[str, float], args: TrainingArguments, state: TrainerState, control: TrainerControl
) -> TrainerControl:
    """What ``Trainer.log`` does."""
    logs = values if state.epoch is None else values | {"epoch": state.epoch}
    state.log_history.append(logs | {"step": state.global_step})
    handler = _handler()
    if handler is None:
        return control
    due = control.should_log  # the handler takes this log for the one that is due
    control = handler.on_log(args, state, control, dict(logs))
    control.should_log = due
    return control


def _handler() -> CallbackHandler | None:
    """The handler that is calling: a callback is given neither it nor the Trainer, so look among the callers."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(handler := frame.f_locals.get("self"), CallbackHandler):
            return handler
        frame = frame.f_back
    return None
