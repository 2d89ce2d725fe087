"""Which parameters does a rule need in this model?  Read off its own rows on the user's text; no weight is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undilute.diagnosis.diagnose import SHORTEST_LENGTH, USUAL_LENGTH
from undilute.errors import InvalidValue
from undilute.models.capture import SHORTEST
from undilute.models.intercept import check_supported
from undilute.models.limits import maximum_length
from undilute.rules import registry
from undilute.rules.base import Rule
from undilute.rules.parameters import count
from undilute.treatment.attention_layers import first_calls, layers_of
from undilute.treatment.calibration import entropy_curve, length_scales
from undilute.treatment.calibration.selection import selected
from undilute.treatment.calibration.sharpening import Hold, Sharpened, sharpened
from undilute.treatment.evaluation.pieces import beginning
from undilute.treatment.patterns import Head, by_layer, heads_of
from undilute.treatment.plan import Assignment, Plan
from undilute.treatment.splits import fingerprint, halves, tokenised, windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Progress = Callable[[float, str], None]
Fit = Callable[[Sharpened, Sequence[int], int, bool], tuple[Rule, NDArray[np.float64]]]
FITS: dict[str, Fit] = {
    "ssmax": length_scales.log_length,
    "logn": length_scales.log_n,
    "adaptive": lambda layer, heads, reference, _: entropy_curve.entropy_curve(layer, heads, reference),
}
WINDOWS = 2
OCTAVES = 3  # from the reference length to the length, by default
SHORTEST_REFERENCE = 2 * SHORTEST  # so that there are rows on both sides of it


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
    rule : "ssmax" and "logn" get a scale per head that holds its median row at the sharpness it has at ``reference``
        tokens; "adaptive" gets a monotone curve β(H) per head, defined for every entropy, that holds its rows at the
        widest they are up to ``reference``; any other rule has nothing to fit, and needs ``select``. Layers whose
        sliding window is shorter than twice the reference hold by themselves and are left alone
    heads : a pattern, or patterns, pairs (layer, head) or heads of a diagnosis (``d.heads.diluting``); all by default
    length : tokens of a window; by default 2,048, or what the model and the text have
    reference : the length at which the head is as sharp as it should be; by default an eighth of ``length``
    hold : for "ssmax" and "logn": the "top" weight, sink left out, or the "entropy" of the row
    select : keep only those heads whose treatment lowers the next-token loss of the calibration text
    on_progress : called with (share done, what is under way)

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
    check_supported(model)
    progress = on_progress or (lambda share, doing: None)
    registry.preset(rule)
    if hold not in get_args(Hold):
        raise InvalidValue(f"hold = {hold!r}: must be {' or '.join(map(repr, get_args(Hold)))}.")
    if rule not in FITS and not select:
        raise InvalidValue(
            f"rule = {rule!r} has no parameter that is fitted: must be {', '.join(FITS)}; or select = True chooses the "
            "heads that are better off with it."
        )
    calls = first_calls(model)
    layers = layers_of(calls)
    chosen = heads_of("*" if heads is None else heads, layers)
    length, reference = _lengths(model, length, reference)
    ids, _ = halves(tokenised(tokenizer, text))
    start = torch.tensor(() if tokenizer is None else beginning(tokenizer), dtype=torch.int64)
    read = windows(ids, length - len(start), WINDOWS, "the first half of the text, which calibration reads,")
    read = torch.cat([start.expand(len(read), -1), read], 1)
    share = 0.4 if select else 1.0

    def fitting(part: float, doing: str) -> None:
        progress(share * part, doing)

    if rule in FITS:
        assignments, figures = _fitted(model, rule, hold, read, reference, chosen, fitting)
    else:
        assignments, figures = _as_it_is(rule, chosen), {}
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
    plan = Plan(type(model).__name__, layers, assignments, made)
    if select:
        plan, trials = selected(model, plan, read, lambda part, doing: progress(share + (1 - share) * part, doing))
        tried = [{"heads": trial.heads, "loss": trial.loss} for trial in trials]
        plan = replace(plan, made={**plan.made, "candidates": len(chosen), "selected": len(plan.heads), "tried": tried})
    progress(1.0, "calibrated")
    return plan


def _lengths(model: PreTrainedModel, length: int | None, reference: int | None) -> tuple[int, int]:
    """Length of a window and reference length, checked."""
    limit = maximum_length(model)
    if length is None:
        length = min(USUAL_LENGTH, limit or USUAL_LENGTH)
    if count("length", length) < SHORTEST_LENGTH:
        raise InvalidValue(f"length = {length}: must be at least {SHORTEST_LENGTH} tokens, or there is nothing to fit.")
    if limit is not None and length > limit:
        raise InvalidValue(f"length = {length:,}: {type(model).__name__} reads at most {limit:,} tokens.")
    if reference is None:
        reference = max(length >> OCTAVES, SHORTEST_REFERENCE)
    if not SHORTEST_REFERENCE <= count("reference", reference) <= length // 2:
        raise InvalidValue(
            f"reference = {reference:,}: must be from {SHORTEST_REFERENCE}, where the rows that are measured begin, to "
            f"half of the length, {length // 2:,}, so that there are longer rows to hold."
        )
    return length, reference


def _fitted(
    model: PreTrainedModel,
    rule: str,
    hold: Hold,
    read: Tensor,
    reference: int,
    chosen: Sequence[Head],
    progress: Progress,
) -> tuple[list[Assignment], dict[str, Any]]:
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


def _as_it_is(rule: str, chosen: Sequence[Head]) -> list[Assignment]:
    return [Assignment(index, tuple(heads), registry.get(rule)) for index, heads in by_layer(chosen).items()]


def _held(rule: str, hold: Hold) -> str | None:
    return None if rule not in FITS else "the entropy of wide rows" if rule == "adaptive" else hold
