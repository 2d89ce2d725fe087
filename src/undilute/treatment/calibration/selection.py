"""Which heads do better with the rule?  Those that lower the next-token loss of the calibration text.

A gate g between a head's own output and the treated one, own + g·(treated − own), is 0 in the untreated model. One
backward pass over each window gives the slope of the loss in every head's gate, which orders the heads. Then we try how
many of the best to take: 1, 2, 4, … of them, while the slope promises a gain, each with a forward pass over each window
under the real rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undilute.models.forward_pass import evaluating
from undilute.models.head_rules import HeadRules
from undilute.models.passes import module_of
from undilute.models.text_loss import losses
from undilute.models.watch import watch
from undilute.models.watched_call import WatchedCall
from undilute.progress import Progress
from undilute.treatment.apply import apply
from undilute.treatment.layers import Head
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Trial:
    """One number of heads that was tried, and the loss of the calibration text with it, in nats a token.

    A head of a module that runs several times in a pass counts once.
    """

    heads: int
    loss: float


def selected(model: PreTrainedModel, plan: Plan, windows: Tensor, on_progress: Progress) -> tuple[Plan, list[Trial]]:
    """The plan for the heads that lower the loss, perhaps none; and what was tried.

    Parameters
    ----------
    model : a causal language model
    plan : a rule for every candidate; if it has none, there is nothing to try
    windows : (windows, tokens) of the calibration text
    on_progress : (share, what is under way)
    """
    if not plan.heads:
        return plan, []
    slopes = gate_slopes(model, plan, windows, lambda share: on_progress(share / 3, "ranking heads"))
    together: dict[tuple[str, int], list[Head]] = {}  # the runs of a module have one set of rules
    for layer, head in plan.heads:
        together.setdefault((module_of(plan.layers[layer].name), head), []).append((layer, head))
    better = [runs for runs in together.values() if slopes[runs[0]] < 0]
    order = sorted(better, key=lambda runs: (slopes[runs[0]], runs))
    sizes = sorted({0, len(order), *(2**power for power in range(len(order).bit_length()))})
    trials = []
    for number, size in enumerate(sizes):
        on_progress((1 + 2 * number / len(sizes)) / 3, f"trying {size} heads")
        with apply(model, plan.only(list(chain(*order[:size])))):
            trials.append(Trial(size, float(losses(model, windows).mean())))
    best = min(trials, key=lambda trial: (trial.loss, trial.heads))
    return plan.only(list(chain(*order[: best.heads]))), trials


def gate_slopes(
    model: PreTrainedModel, plan: Plan, windows: Tensor, on_window: Callable[[float], None]
) -> dict[Head, float]:
    """d(loss) / d(gate) of every head of the plan, at a gate of 0, the mean over the windows, in nats a token."""
    with apply(model, plan) as treated:
        rules = dict(treated.rules)
    layers = [module_of(layer.name) for layer in plan.layers]
    gates = {name: torch.zeros(each.heads, device=model.device, requires_grad=True) for name, each in rules.items()}
    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad(), evaluating(model), watch(model, _gated(rules, gates), replace=True):
            for number, ids in enumerate(windows, start=1):
                given = ids[None].to(model.device)
                model(input_ids=given, labels=given, use_cache=False).loss.backward()
                on_window(number / len(windows))
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
    slopes = {name: gate.grad / len(windows) for name, gate in gates.items() if gate.grad is not None}
    return {(layer, head): float(slopes[layers[layer]][head]) for layer, head in plan.heads}


def _gated(rules: dict[str, HeadRules], gates: dict[str, Tensor]) -> Callable[[WatchedCall], Tensor | None]:
    """own + g·(treated − own), in the place of a layer's own output."""

    def gate(call: WatchedCall) -> Tensor | None:
        if call.layer not in rules:
            return None
        with torch.no_grad():
            change = rules[call.layer].attend(call).transpose(1, 2) - call.output
        return call.output + gates[call.layer].to(call.output.dtype)[:, None] * change

    return gate
