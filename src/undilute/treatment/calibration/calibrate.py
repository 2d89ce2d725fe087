"""Which parameters does a rule need in this model?  Read off its own rows on the user's text; no weight is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models.attention_call import AttentionCall
from undilute.models.capture import SHORTEST
from undilute.models.limits import readable_length
from undilute.models.tensor_parallel import check_whole
from undilute.models.text_loss import check_head
from undilute.models.texts import SHORTEST_LENGTH, beginning, fingerprint, halves, known_tokens, tokenised, windows
from undilute.models.watch import check_supported
from undilute.progress import Progress, quiet
from undilute.rules import registry
from undilute.rules.base import Rule
from undilute.rules.parameters import count
from undilute.treatment.calibration import entropy_curve, length_scales
from undilute.treatment.calibration.selection import selected
from undilute.treatment.calibration.sharpening import Hold, Sharpened, sharpened
from undilute.treatment.layers import Head, by_layer, first_calls, heads_of, layers_of
from undilute.treatment.plan import Assignment, Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Fit = Callable[[Sharpened, Sequence[int], int, bool], tuple[Rule, NDArray[np.float64]]]
FITS: dict[str, Fit] = {
    "ssmax": length_scales.log_length,
    "logn": length_scales.log_n,
    "adaptive": lambda layer, heads, reference, _: entropy_curve.entropy_curve(layer, heads, reference),
}
WINDOWS = 2
OCTAVES = 3  # from the reference length to the length, by default
SHORTEST_REFERENCE = 2 * SHORTEST  # so that there are rows on both sides of it
FITTING = 0.4  # of the time, if heads are selected afterwards


def calibrate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    rule: str = "ssmax",
    *,
    heads: str | Iterable[Any] | None = None,
    length: int | None = None,
    reference: int | None = None,
    hold: Hold = "top",
    select: bool = False,
    on_progress: Progress | None = None,
) -> Plan:
    """Fit a rule to the heads of a causal language model, without training, and return what to apply.

    Only the first half of the text is read; judge the plan by the second (``undilute treat`` does).

    Parameters
    ----------
    model, tokenizer : of Hugging Face; the tokenizer may be None if ``text`` holds token ids
    text : the text, or token ids (tokens,)
    rule : "ssmax" and "logn" get a scale per head that keeps its median row as sharp as it is at ``reference`` tokens;
        "adaptive" gets a monotone curve β(H) per head, defined for every entropy, that keeps its rows from growing
        wider than they are up to ``reference``; any other rule has nothing to fit, and needs ``select``. Layers whose
        sliding window is shorter than twice the reference do not dilute and are left alone
    heads : a pattern, or patterns, pairs (layer, head) or heads of a diagnosis (``d.heads.diluting``); all by default
    length : tokens per window; by default 2,048, or as many as the model reads
    reference : the length at which the head is as sharp as it should be; by default an eighth of ``length``
    hold : for "ssmax" and "logn": the "top" weight, sink left out, or the "entropy" of the row
    select : keep only those heads whose treatment lowers the next-token loss of the calibration text
    on_progress : called with (share done, what is being done)

    Returns
    -------
    Plan
        Deterministic: the same model and text give the same plan.

    Examples
    --------
    >>> import torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=256, bos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> plan = ud.calibrate(model, None, torch.arange(600) % 50, rule="adaptive", heads="layers.1.*")
    >>> plan.summary
    'adaptive, calibrated at 256 tokens, for 4 of 8 heads of GPT2LMHeadModel.'
    """
    _check(model, rule, hold, select)
    calls = first_calls(model)
    for call in calls.values():
        check_whole(call)
    _check_causal(model, calls)
    chosen = heads_of("*" if heads is None else heads, layers_of(calls))
    length, reference = _lengths(model, length, reference)
    ids, _ = halves(known_tokens(tokenised(tokenizer, text), model))
    what = "the first half of the text, which calibration reads,"
    read = windows(ids, length, WINDOWS, what, start=beginning(tokenizer))
    progress = on_progress or quiet
    fitting = _part(progress, 0.0, FITTING if select else 1.0)
    assignments, figures = _assigned(model, rule, hold, read, reference, chosen, fitting)
    made = {
        "rule": f"{rule}, calibrated at {length:,} tokens," if rule in FITS else rule,
        "preset": rule,
        "length": length,
        "reference": reference,
        "hold": _held(rule, hold),
        "windows": len(read),
        "text": fingerprint(ids),
        **figures,
    }
    plan = Plan(type(model).__name__, layers_of(calls), assignments, made)
    if select:
        plan = _selected(model, plan, read, len(chosen), _part(progress, FITTING, 1.0))
    progress(1.0, "calibrated")
    return plan


def _check(model: PreTrainedModel, rule: str, hold: Hold, select: bool) -> None:
    """Refuse what can be refused before the model is run."""
    check_supported(model)
    registry.preset(rule)
    if hold not in get_args(Hold):
        raise InvalidValue(f"hold = {hold!r}: must be {' or '.join(map(repr, get_args(Hold)))}.")
    if rule not in FITS and not select:
        raise InvalidValue(
            f"rule = {rule!r} has no parameter to fit: must be {', '.join(FITS)}; or give select = True to choose the "
            "heads that do better with it."
        )
    if select:
        check_head(model)


def _check_causal(model: PreTrainedModel, calls: Mapping[str, AttentionCall]) -> None:
    if any(call.looks_ahead for call in calls.values()):
        raise InvalidValue(
            f"{type(model).__name__} looks ahead, so all its rows see the whole input: must be a causal model, to fit "
            "a rule to how a head changes with length or to the next-token loss."
        )


def _lengths(model: PreTrainedModel, length: int | None, reference: int | None) -> tuple[int, int]:
    """Length of a window and reference length, checked."""
    length = readable_length(model, length)
    if length < SHORTEST_LENGTH:
        raise InvalidValue(f"length = {length}: must be at least {SHORTEST_LENGTH} tokens, or there is nothing to fit.")
    if reference is None:
        reference = max(length >> OCTAVES, SHORTEST_REFERENCE)
    if not SHORTEST_REFERENCE <= count("reference", reference) <= length // 2:
        raise InvalidValue(
            f"reference = {reference:,}: must be from {SHORTEST_REFERENCE}, so that shorter rows are measured as well, "
            f"to half of the length, {length // 2:,}, so that there are longer rows to hold."
        )
    return length, reference


def _assigned(
    model: PreTrainedModel,
    rule: str,
    hold: Hold,
    read: Tensor,
    reference: int,
    chosen: Sequence[Head],
    progress: Progress,
) -> tuple[list[Assignment], dict[str, Any]]:
    """The rule for every chosen head, fitted if it has something to fit, and figures about the fit."""
    if rule not in FITS:
        return [Assignment(index, tuple(heads), registry.get(rule)) for index, heads in by_layer(chosen).items()], {}
    measured = sharpened(
        model,
        read,
        "entropy" if rule == "adaptive" else hold,
        lambda number: progress(number / len(read), f"measured window {number} of {len(read)}"),
    )
    assignments, factors = [], {}
    for index, heads in by_layer(chosen).items():
        if measured[index].n.max() < 2 * reference:  # a sliding window holds it already
            continue
        made, factor = FITS[rule](measured[index], heads, reference, hold == "entropy")
        assignments.append(Assignment(index, tuple(heads), made))
        factors[f"layers.{index}"] = [round(float(each), 4) for each in factor]
    return assignments, {"largest_factor": factors}


def _selected(model: PreTrainedModel, plan: Plan, read: Tensor, candidates: int, progress: Progress) -> Plan:
    """The plan for the heads that lower the loss, with what was tried."""
    kept, trials = selected(model, plan, read, progress)
    tried = [{"heads": trial.heads, "loss": trial.loss} for trial in trials]
    return replace(kept, made={**kept.made, "candidates": candidates, "selected": len(kept.heads), "tried": tried})


def _part(progress: Progress, begin: float, end: float) -> Progress:
    """Progress through a part of the work, as progress through all of it."""
    return lambda share, doing: progress(begin + (end - begin) * share, doing)


def _held(rule: str, hold: Hold) -> str | None:
    return None if rule not in FITS else "the entropy of wide rows" if rule == "adaptive" else hold
