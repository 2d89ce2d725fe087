"""How do the numbers about dilution get into a Hugging Face Trainer's logs?

    trainer.add_callback(DilutionCallback(trainer, every=100))

The first forward pass of every 100th step is measured while it runs; no pass is added. A callback has no way to log:
each log goes to the callbacks in the order they were added, reporters first, so what a later one adds comes too late.
The Trainer has one, ``Trainer.log``. So each measurement is a separate log, which is in ``state.log_history`` and
reaches every callback, whatever ``report_to`` is.
"""

from __future__ import annotations

import functools
import warnings
from contextlib import ExitStack
from typing import Any

from torch import nn

from undilute.errors import InvalidValue, MissingExtra
from undilute.integrations.monitor import EVERY, ROWS, DilutionMonitor, uncompiled
from undilute.rules.parameters import count

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.training_args import ParallelMode
except ModuleNotFoundError as error:
    raise MissingExtra(str(error.name), "models") from None


class DilutionCallback(TrainerCallback):
    """Log entropy, effective keys, top weight and sink share of a model in training.

    Parameters
    ----------
    trainer : the Trainer that the callback is added to, and whose logs get the numbers
    every : steps (updates of the weights) between measurements; with gradient accumulation the first of a step's
        passes is measured
    rows : rows to sample from each sequence
    per_layer : also give the numbers of each layer

    Attributes
    ----------
    latest : what the last step gave, by key (see :func:`undilute.integrations.monitor.summary`); None if it was not
        measured

    Examples
    --------
    >>> import transformers
    >>> model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50))
    >>> options = transformers.TrainingArguments(use_cpu=True, report_to="none")
    >>> trainer = transformers.Trainer(model, options)
    >>> trainer.add_callback(DilutionCallback(trainer, every=50))
    """

    def __init__(self, trainer: Trainer, every: int = EVERY, rows: int = ROWS, *, per_layer: bool = False) -> None:
        if not isinstance(trainer, Trainer):
            raise InvalidValue(
                f"trainer is a {type(trainer).__name__}: must be the Trainer whose logs the numbers go to, as in "
                "trainer.add_callback(DilutionCallback(trainer, every=100))."
            )
        self.trainer = trainer
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
            due = control.should_log  # a log takes itself for the one that is due
            Trainer.log(self.trainer, dict(self.latest))  # not a subclass's, which may log more of its own
            control.should_log = due
        elif self._monitor is not None and self._is_due(state.global_step):
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
