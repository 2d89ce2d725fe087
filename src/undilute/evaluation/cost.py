"""What does it take to run?  Time to read a text, time for one more token, and memory, measured in turns."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models.forward_pass import evaluating
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUNDS = 2
STEPS = 8  # the last tokens of a text, read one at a time


@dataclass(frozen=True)
class Cost:
    """What it takes to run.

    Attributes
    ----------
    tokens : read at once for these figures
    prefill_seconds : for reading ``tokens``, the best of several
    decode_seconds : for one more token after them, from the cache; the best of several
    extra_megabytes : by which reading raises the process's memory at its peak; None where that cannot be read
    """

    tokens: int
    prefill_seconds: float
    decode_seconds: float
    extra_megabytes: float | None


def cost(model: PreTrainedModel, ids: Tensor, *, rounds: int = ROUNDS) -> Cost:
    """What the model takes to read all but the last 8 of ``ids`` (tokens,) at once, and to go on by one of these.

    Examples
    --------
    >>> import transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> made = cost(transformers.GPT2LMHeadModel(config), torch.arange(40))
    >>> made.tokens, made.prefill_seconds > 0, made.decode_seconds > 0
    (32, True, True)
    """
    return costs({"": nullcontext}, model, ids, rounds=rounds)[""]


def costs(
    treatments: Mapping[str, Callable[[], AbstractContextManager[Any]]],
    model: PreTrainedModel,
    ids: Tensor,
    *,
    rounds: int = ROUNDS,
) -> dict[str, Cost]:
    """The same under several treatments in turns: a slow moment of the machine does not hit one of them alone.

    Parameters
    ----------
    treatments : label → what makes a context in which the model is treated; ``contextlib.nullcontext`` for as it is
    model : a causal Hugging Face language model
    ids : (tokens,), what it reads: all but the last 8 at once, these one at a time
    rounds : of everything, at least 1; the best of them counts
    """
    if len(ids) <= STEPS:
        raise InvalidValue(f"ids has {len(ids)} tokens: must have more than the {STEPS} that are read one at a time.")
    found: dict[str, list[_Round]] = {label: [] for label in treatments}
    ids = ids[None].to(model.device)
    with evaluating(model):
        with torch.inference_mode():
            model.base_model(input_ids=ids[:, :1])  # brings the weights into memory
        for _ in range(count("rounds", rounds)):
            for label, treatment in treatments.items():
                with treatment(), torch.inference_mode():
                    found[label].append(_round(model, ids))
    return {label: _best(ids.shape[1] - STEPS, own) for label, own in found.items()}


@dataclass(frozen=True)
class _Round:
    prefill_seconds: float
    decode_seconds: float
    extra_megabytes: float | None


def _round(model: PreTrainedModel, ids: Tensor) -> _Round:
    seconds: list[float] = []
    caches: list[Any] = []

    def read() -> None:
        start = time.perf_counter()
        caches.append(model.base_model(input_ids=ids[:, :-STEPS], use_cache=True).past_key_values)
        _wait(model)
        seconds.append(time.perf_counter() - start)

    memory = extra_memory(read) if model.device.type == "cpu" else None
    if not seconds:  # memory cannot be read here
        read()
    return _Round(seconds[0], min(_steps(model, ids, caches[0])), memory)


def _steps(model: PreTrainedModel, ids: Tensor, cache: Any) -> Iterator[float]:
    """Seconds for each of the last tokens; the cache grows by one in each."""
    for place in range(ids.shape[1] - STEPS, ids.shape[1]):
        start = time.perf_counter()
        model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
        _wait(model)
        yield time.perf_counter() - start


def _wait(model: PreTrainedModel) -> None:
    """For a device that works while Python goes on."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _best(tokens: int, found: list[_Round]) -> Cost:
    memory = [each.extra_megabytes for each in found if each.extra_megabytes is not None]
    return Cost(
        tokens,
        min(each.prefill_seconds for each in found),
        min(each.decode_seconds for each in found),
        min(memory) if memory else None,
    )


def extra_memory(run: Callable[[], object]) -> float | None:
    """Megabytes by which ``run()`` raises this process's resident memory at its peak; None where Linux is not there."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the peak
        before = _status("VmRSS")
        run()
        return max(0.0, (_status("VmHWM") - before) / 1024)
    except OSError:
        return None


def _status(field: str) -> int:
    """A field of /proc/self/status in kB."""
    with open(f"/proc/{os.getpid()}/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith(field)))
