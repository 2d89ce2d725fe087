"""Which run of a shared layer is this?  ALBERT runs one attention module twelve times in a pass; each is a layer.

Layers are counted in the order in which they run. A module that runs more than once in a pass of the outermost model is
as many layers, which have its name and the number of the run, counted from 0 as layers and heads are:

    albert.encoder.albert_layer_groups.0.albert_layers.0.attention.passes.1

A run begins where the module is called: several attention calls within (one for each image) are one run. The same
queries and keys once more (DiffLlama, for the other half of its values) are the same rows, and what gradient
checkpointing computes again on the way back is none. A further batch or a generated token is another pass of the model,
and begins again at 0.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

PASSES = ".passes."


class Run(NamedTuple):
    """One run of an attention module: the module's name in the model, and how often it ran before in the same pass."""

    module: str
    number: int


def layer_names(runs: Collection[Run]) -> list[str]:
    """The names of layers, one for each run; a module that runs once is a layer of its own name.

    Examples
    --------
    >>> layer_names([Run("first", 0), Run("shared", 0), Run("shared", 1)])
    ['first', 'shared.passes.0', 'shared.passes.1']
    """
    shared = {run.module for run in runs if run.number}
    return [f"{run.module}{PASSES}{run.number}" if run.module in shared else run.module for run in runs]


def module_of(layer: str) -> str:
    """The name of the module that a layer is a run of.

    Examples
    --------
    >>> module_of("shared.passes.1"), module_of("first")
    ('shared', 'first')
    """
    return re.sub(rf"{re.escape(PASSES)}\d+$", "", layer)


def is_numbered_alike(layers: Iterable[str]) -> bool:
    """Whether the layers' own names count them as we do; not so in hybrids, where other layers are counted too.

    Examples
    --------
    >>> is_numbered_alike(["h.0.attn", "h.1.attn"]), is_numbered_alike(["layers.4.self_attn", "layers.12.self_attn"])
    (True, False)
    """
    first = (re.search(r"(?<![^.])\d+(?![^.])", name) for name in layers)
    return all(number is None or int(number[0]) == index for index, number in enumerate(first))


class Hooks(AbstractContextManager["Hooks"]):
    """Hooks on the modules of a model, which are gone when the context is left."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.hooks: list[Any] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.hooks:
            self.hooks.pop().remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Hooks:
        """A copy of the model has the hooks too; nobody asks about it."""
        return self


class Runs(Hooks):
    """Inside the context, ``of`` says which run of its module an attention call belongs to.

    Parameters
    ----------
    model : a Hugging Face model; any model within it may be the one that is called
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._names = {module: name for name, module in model.named_modules()}
        self._pass = _Pass()
        self._counted: set[nn.Module] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Runs:
        from transformers import PreTrainedModel

        for part in self.model.modules():
            if isinstance(part, PreTrainedModel):
                self.hooks.append(part.register_forward_pre_hook(self._begin))
                self.hooks.append(part.register_forward_hook(self._end, always_call=True))
        return self

    def of(self, module: nn.Module, query: Tensor, key: Tensor) -> tuple[Run, bool]:
        """The run that an attention call of a module belongs to, and whether its rows were there before."""
        with self._lock:
            if module not in self._counted:
                self._counted.add(module)
                self.hooks.append(module.register_forward_pre_hook(self._run))
        number = self._pass.numbers.setdefault(module, 0)  # the first run was under way before it was counted
        run = Run(self._names.get(module, type(module).__name__), number)
        if torch._C._current_graph_task_id() != -1:  # inside of backward
            return run, True
        before = [each() for each in self._pass.attended_with.get(module, ())]
        if before and before[0] is query and before[1] is key:
            return run, True
        self._pass.attended_with[module] = weakref.ref(query), weakref.ref(key)
        return run, False

    def _begin(self, part: nn.Module, _: Any) -> None:
        if self._pass.outermost is None:
            self._pass.outermost = part
            self._pass.numbers.clear()

    def _end(self, part: nn.Module, *_: Any) -> None:
        if self._pass.outermost is part:
            self._pass.outermost = None

    def _run(self, module: nn.Module, _: Any) -> None:
        numbers = self._pass.numbers
        numbers[module] = numbers.get(module, -1) + 1 if self._pass.outermost is not None else 0


class _Pass(threading.local):
    """The pass of a thread: the model that was called, the runs of each module so far, and what it attended with last.

    Runs are counted from 0.
    """

    def __init__(self) -> None:
        self.outermost: nn.Module | None = None
        self.numbers: dict[nn.Module, int] = {}
        self.attended_with: dict[nn.Module, tuple[weakref.ref[Tensor], weakref.ref[Tensor]]] = {}
