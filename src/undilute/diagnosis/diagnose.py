"""Which heads of a model dilute, from what length, how badly at the length you care about, and what would help?

One forward pass of a causal model is enough: row t sees t + 1 keys, so rows at log-spaced positions give every measure
over n. An encoder's rows all see the whole input, so it is run at several lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute.diagnosis.kinds import Thresholds
from undilute.diagnosis.result import Diagnosis, Subject
from undilute.diagnosis.verdicts import NEEDED, Question, verdicts
from undilute.errors import InvalidValue
from undilute.models.capture import Capture, LayerSample, X, capture
from undilute.models.forward_pass import check_reads_tokens, evaluating, first_pass, forward_pass
from undilute.models.limits import maximum_length
from undilute.models.texts import tokens
from undilute.models.watch import check_attended, check_supported
from undilute.rules.parameters import count, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

USUAL_TARGET = 131_072
USUAL_ROWS = 64  # of each head, nine in each octave of n at 2,048 tokens: more rows of one text add little
FEWEST_ROWS = 16
ENCODER_ROWS = 16  # sampled at each length


def diagnose(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    length: int | None = None,
    target: int = USUAL_TARGET,
    *,
    rows: int = USUAL_ROWS,
    measures: Iterable[str] | None = None,
    x: X = "values",
    top: int = 5,
    sinks: int = 1,
    recent: int = 64,
    thresholds: Thresholds | None = None,
    seed: int = 0,
    name: str | None = None,
    on_layer: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Measure every head over context length on one text, and say what each does.

    Parameters
    ----------
    model : a Hugging Face causal language model or encoder (``undilute.models.load``)
    tokenizer : its tokenizer; None if ``text`` holds token ids
    text : the text, or token ids (tokens,)
    length : tokens to read; by default 2,048, or as many as the text and the model have
    target : the length to forecast
    rows : sampled rows of each head, at least 16
    measures : names of measures to keep in addition to those the verdict needs; all by default
    x : what the weights select from in d̃ and N_s/N: "values" or the layer's "input"
    top, sinks, recent : what the measures count, see :func:`undilute.capture`
    thresholds : between the kinds of heads
    seed : of the bootstrap intervals
    name : of the model, for the report
    on_layer : called with each layer's name when it has been measured, for progress

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=256)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> d = ud.diagnose(model, None, torch.arange(256) % 50, target=4096)
    >>> len(d.heads), d.frame().shape[0]
    (8, 8)
    """
    check_supported(model)
    check_reads_tokens(model)
    if count("rows", rows) < FEWEST_ROWS:
        raise InvalidValue(f"rows = {rows}: must be at least {FEWEST_ROWS}, or there is no curve to fit.")
    whole("seed", seed, 0)
    count("target", target)
    ids = tokens(tokenizer, text, model, length)
    if target < len(ids):
        raise InvalidValue(
            f"target = {target:,}: must be at least the {len(ids):,} tokens that are measured; a forecast looks ahead."
        )
    wanted = None if measures is None else [*NEEDED, *measures]
    capturing = capture(model, rows, measures=wanted, x=x, top=top, sinks=sinks, recent=recent, on_layer=on_layer)
    layers = measured(model, tokenizer, ids, capturing)
    question = Question(len(ids), target, sinks, recent, thresholds or Thresholds(), seed)
    return Diagnosis(
        subject=Subject(
            model=name or str(getattr(model.config, "_name_or_path", "")) or type(model).__name__,
            architecture=type(model).__name__,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            implementation=str(model.config._attn_implementation),
            maximum_length=maximum_length(model),
            tokens=pieces(tokenizer, ids),
            x=x,
            top=top,
            sinks=sinks,
            rows=rows,
        ),
        question=question,
        layers=layers,
        heads=verdicts(layers, question),
    )


def measured(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, ids: Tensor, capturing: Capture
) -> list[LayerSample]:
    """Run the model over the tokens and return what was captured."""
    with torch.inference_mode(), evaluating(model):
        probe = replace(capturing, rows=2, measures=[], on_layer=None)
        with probe:
            first_pass(model, ids[: min(4, len(ids))])
        check_attended(model, len(probe.layers))
        if any(layer.looks_ahead for layer in probe.layers):
            capturing = replace(capturing, rows=min(capturing.rows, ENCODER_ROWS))
            inputs = [_shortened(tokenizer, ids, length) for length in encoder_lengths(len(ids))]
        else:
            inputs = [ids]
        with capturing:
            for each in inputs:
                forward_pass(model, each)
    return capturing.layers


def encoder_lengths(longest: int) -> list[int]:
    """Lengths at which an encoder is run: two in each octave.

    Examples
    --------
    >>> encoder_lengths(128)
    [16, 23, 32, 45, 64, 91, 128]
    """
    steps = max(2, round(2 * math.log2(longest / 16)) + 1)
    return [round(n) for n in np.geomspace(16, longest, steps)]


def pieces(tokenizer: PreTrainedTokenizerBase | None, ids: Tensor) -> list[str]:
    """Each token as readable text; its number, after a space, if there is no tokenizer."""
    if tokenizer is None:
        return [f" {number}" for number in ids.tolist()]
    return [str(tokenizer.decode([number])) for number in ids.tolist()]


def _shortened(tokenizer: PreTrainedTokenizerBase | None, ids: Tensor, length: int) -> Tensor:
    """The first tokens, closed by the last one if that is the encoder's end mark."""
    if tokenizer is not None and int(ids[-1]) in set(tokenizer.all_special_ids):
        return torch.cat([ids[: length - 1], ids[-1:]])
    return ids[:length]
