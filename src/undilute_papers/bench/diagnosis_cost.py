"""What does a diagnosis cost compared with the forward pass it watches?  Time and memory, measured in one run.

Ratio 1 is the same pass of the same model with torch's attention and nothing else: without the language-model head,
whose logits a diagnosis does not need either. ``output_attentions=True`` is the usual way to see attention.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from rich.table import Table
from torch import Tensor

from undilute.diagnosis import diagnose
from undilute.evaluation.cost import extra_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCHEMA = 1
PLAIN = "forward pass"


@dataclass(frozen=True)
class Cost:
    """One measured cost.

    Attributes
    ----------
    what : what ran
    length : tokens
    seconds : the best of several
    ratio : to the plain forward pass in the same run
    extra_megabytes : by which it raises the process's memory at its peak; None where that cannot be read
    """

    what: str
    length: int
    seconds: float
    ratio: float
    extra_megabytes: float | None


def measure(model: PreTrainedModel, ids: Tensor, *, repeat: int = 3, dense: int = 2048) -> list[Cost]:
    """Costs at one length, interleaved: one round of everything, then the next.

    Parameters
    ----------
    model : a causal language model with torch's attention
    ids : (tokens,)
    repeat : take the best of so many
    dense : up to how many tokens to measure ``output_attentions=True`` too
    """
    contenders: dict[str, Callable[[], object]] = {
        PLAIN: lambda: model.base_model(ids[None], use_cache=False),
        "diagnosis": lambda: diagnose(model, None, ids, len(ids), windows=1),
        "forward pass with its head": lambda: model(ids[None], use_cache=False),
    }
    if len(ids) <= dense:
        contenders["output_attentions=True"] = lambda: _watched(model, ids)
    best = dict.fromkeys(contenders, float("inf"))
    with torch.inference_mode():
        model.base_model(ids[None], use_cache=False)  # brings the weights into memory
        for _ in range(repeat):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - start)
        memory = {name: extra_memory(run) for name, run in contenders.items()}
    return [Cost(name, len(ids), best[name], best[name] / best[PLAIN], memory[name]) for name in contenders]


def table(costs: Sequence[Cost]) -> Table:
    """The costs for a terminal."""
    made = Table(box=None)
    for heading in ("tokens", "what", "time / forward pass", "seconds", "extra MB"):
        made.add_column(heading, justify="left" if heading == "what" else "right")
    for cost in costs:
        memory = "–" if cost.extra_megabytes is None else f"{cost.extra_megabytes:,.0f}"
        made.add_row(f"{cost.length:,}", cost.what, f"{cost.ratio:.2f}", f"{cost.seconds:.1f}", memory)
    return made


def to_json(costs: Sequence[Cost], machine: dict[str, str | int], command: str) -> str:
    """Everything that was measured, and on what."""
    content = {"schema": SCHEMA, "command": command, "machine": machine, "costs": [asdict(cost) for cost in costs]}
    return json.dumps(content, indent=1) + "\n"


def from_json(text: str) -> list[Cost]:
    """The costs of :func:`to_json`."""
    return [Cost(**cost) for cost in json.loads(text)["costs"]]


def _watched(model: PreTrainedModel, ids: Tensor) -> object:
    """The usual way: eager attention that returns every weight."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        return model.base_model(ids[None], use_cache=False, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
