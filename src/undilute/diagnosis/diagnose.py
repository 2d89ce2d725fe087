"""Which heads of a model find what is asked for, which dilute, how will that go on, and what would help?

Three parts, each on the user's own texts:

    plain text    one pass over each of some windows. Row t of a causal model sees t + 1 keys, so rows at log-spaced
                  positions give every measure over n. An encoder's rows all see the whole input, so it is run at
                  several lengths.
    probe         facts are hidden and asked for: ``undilute.diagnosis.probe``
    trials        what theory suggests is applied and measured: ``undilute.diagnosis.trials``
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute.diagnosis import probe as probing
from undilute.diagnosis import trials as trying
from undilute.diagnosis.heads import Head, Heads
from undilute.diagnosis.kinds import Thresholds, is_found
from undilute.diagnosis.probe import HAYSTACKS, Probe
from undilute.diagnosis.result import Diagnosis, Subject, TextRead
from undilute.diagnosis.retrieval import of_each
from undilute.diagnosis.trials import Trials
from undilute.diagnosis.verdicts import NEEDED, Question, Reading, verdicts
from undilute.diagnosis.windows import WINDOWS, Text, TextsLike, Window, given_texts, joined, length_of, split, spread
from undilute.errors import InvalidValue, UndiluteError
from undilute.models.capture import Capture, X, capture
from undilute.models.forward_pass import check_reads_tokens, evaluating, first_pass, forward_pass
from undilute.models.limits import maximum_length
from undilute.models.read_once import ReadOnce
from undilute.models.reasons import one_line
from undilute.models.text_loss import check_head
from undilute.models.watch import check_attended, check_supported
from undilute.progress import Progress, quiet
from undilute.rules.parameters import count, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

USUAL_LENGTH = 1024
FURTHEST = 4  # times the measured length that a forecast reaches by default: what was checked
USUAL_ROWS = 32  # of each head and window, five in each octave of n: more rows of one text add little
FEWEST_ROWS = 16
ENCODER_ROWS = 16  # sampled at each length
FEWEST_HAYSTACKS = 2  # one has no standard error
SINKS = 8  # the sink is at most one part in so many of a window
TRIED = 16  # tokens that show whether a model can be asked

Say = Callable[[str], None]


def diagnose(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: TextsLike,
    length: int | None = None,
    target: int | None = None,
    *,
    windows: int = WINDOWS,
    offset: int = 0,
    probe: bool | None = None,
    haystacks: int = HAYSTACKS,
    quick: bool = False,
    rows: int = USUAL_ROWS,
    measures: Iterable[str] | None = None,
    x: X = "values",
    top: int = 5,
    sinks: int = 1,
    recent: int = 64,
    thresholds: Thresholds | None = None,
    seed: int = 0,
    name: str | None = None,
    on_progress: Progress | None = None,
    on_start: Say | None = None,
) -> Diagnosis:
    """Measure every head over context length, on plain text and when asked, and try what could help.

    Parameters
    ----------
    model : a Hugging Face causal language model or encoder (``undilute.models.load``)
    tokenizer : its tokenizer; None if ``text`` holds token ids, which are not probed then
    text : a text, several, or several by name; each as text or as token ids (tokens,). Those that are shorter than a
        window are read one after another, as one
    length : tokens of a window, and of the longest haystack; by default 1,024, or as many as the texts and the model
        have
    target : the length to forecast; by default 4 times the length, which is what a forecast is checked by
    windows : how many to read of each text, spread over it; fewer if a text is too short
    offset : tokens to leave out at the start of each text
    probe : whether to hide facts and ask for them. By default that is done where it can be: the model must be a causal
        language model and the texts long enough. True makes it an error if it cannot
    haystacks : texts that facts are hidden in, of each of two sets: one finds heads, the other judges them
    quick : do not try what could help. There is no advice then
    rows : sampled rows of each head in each window, at least 16
    measures : names of measures to keep in addition to those the verdict needs; all by default
    x : what the weights select from in d̃ and N_s/N: "values" or the layer's "input"
    top, sinks, recent : what the measures count, see :func:`undilute.capture`
    thresholds : between the kinds of heads
    seed : of the facts and of the resampling
    name : of the model, for the report
    on_progress : called with the share that is done and what is under way
    on_start : called with a sentence before each long part: how much it reads, and about how long that takes

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=256)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> d = ud.diagnose(model, None, torch.arange(2000) % 50, windows=3)
    >>> len(d.heads), d.question.length, d.question.target, d.why_no_probe
    (8, 256, 1024, 'there is no tokenizer to hide facts with.')
    """
    check_supported(model)
    check_reads_tokens(model)
    if count("rows", rows) < FEWEST_ROWS:
        raise InvalidValue(f"rows = {rows}: must be at least {FEWEST_ROWS}, or there is no curve to fit.")
    whole("seed", seed, 0)
    count("windows", windows)
    if count("haystacks", haystacks) < FEWEST_HAYSTACKS:
        raise InvalidValue(
            f"haystacks = {haystacks}: must be at least {FEWEST_HAYSTACKS}, or chance cannot be told from a head that "
            "finds what is asked for."
        )
    if length is not None:
        count("length", length)
    texts = joined(given_texts(text, tokenizer, model, offset), model, length, USUAL_LENGTH)
    length = length_of(texts, model, length, usual=USUAL_LENGTH)
    if target is not None and count("target", target) < length:
        raise InvalidValue(
            f"target = {target}: must be at least the {length:,} tokens that are measured; a forecast looks ahead."
        )
    target = target or FURTHEST * length
    if whole("sinks", sinks, 0) > length // SINKS:
        raise InvalidValue(
            f"sinks = {sinks:,}: must be at most {length // SINKS:,}, an eighth of the {length:,} tokens, or too few "
            "are left beside them."
        )
    wanted = None if measures is None else [*NEEDED, *measures]
    capturing = capture(model, rows, measures=wanted, x=x, top=top, sinks=sinks, recent=recent)
    parts = [split(each, length) for each in texts]
    chosen = [each for which, (own, _) in enumerate(parts) for each in spread(own, which, length, windows)]
    is_encoder = looks_ahead(model, chosen[0].ids)
    asked_in = _roomy([own for own, _ in parts], tokenizer, length)
    kept = _roomy([apart for _, apart in parts], tokenizer, length)
    why_not: str | None = "it was not asked for."
    if probe is not False:
        why_not = _why_no_probe(model, tokenizer, chosen[0].ids, is_encoder, asked_in)
    if probe and why_not is not None:
        raise InvalidValue(f"probe = True: {why_not}")
    question = Question(length, target, sinks, recent, thresholds or Thresholds(), seed)
    work = _Work(on_progress or quiet, on_start or _silent)
    asking = None if why_not is not None else probing.planned(_given(tokenizer), length, haystacks)
    work.expect(
        plain=len(chosen) * length,
        probe=0 if asking is None else asking.tokens,
        trials=0 if quick or asking is None or not kept else trying.tokens_of(kept, length, trying.MOST),
    )

    readings = _read(model, tokenizer, chosen, capturing, work, is_encoder)
    heads = Heads(verdicts(readings, question))
    probed: Probe | None = None
    if asking is not None:
        work.start("probe", "The probe hides facts in your texts and asks for them.")
        try:
            probed = probing.probe(
                model, _given(tokenizer), asked_in, asking, sinks=sinks, seed=seed, on_progress=work.within
            )
        except (UndiluteError, RuntimeError) as error:  # RuntimeError: torch's; plain text is worth having without it
            if probe:
                raise
            why_not = _why_not_asked(model, error)
        else:
            heads = Heads(_asked(heads, probed, question), probed)
    trials = Trials(why_not=_why_no_trials(quick, probed, kept))
    if trials.why_not is None and probed is not None:
        work.start("trials", "What theory suggests is tried on the last third of each text.")
        suggested = trying.remedies(heads, probed, length)
        trials = trying.tried(model, _given(tokenizer), kept, length, suggested, seed=seed, on_progress=work.within)
    return Diagnosis(
        subject=Subject(
            model=name or str(getattr(model.config, "_name_or_path", "")) or type(model).__name__,
            architecture=type(model).__name__,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            implementation=str(model.config._attn_implementation),
            maximum_length=maximum_length(model),
            texts=tuple(
                TextRead(each.name, len(each.ids), tuple(one.start for one in chosen if one.text == which))
                for which, each in enumerate(texts)
            ),
            tokens=pieces(tokenizer, chosen[0].ids),
            x=x,
            top=top,
            sinks=sinks,
            rows=rows,
        ),
        question=question,
        readings=readings,
        heads=heads,
        probe=probed,
        why_no_probe=why_not,
        trials=trials,
    )


def _asked(heads: Heads, probe: Probe, question: Question) -> list[Head]:
    """The heads with what they do when asked; those that find what is asked for become retrieval heads."""
    limits = question.thresholds
    found = of_each(probe, factor=limits.found_in_one, seed=question.seed)
    places = probe.places
    made = []
    for head in heads:
        place = places.get((head.name, head.head))
        if place is None:
            made.append(head)
            continue
        own = found[place]
        if is_found(*own.score, limits):
            made.append(replace(head, kind="retrieval", share=own.share, asked=own))
        else:
            made.append(replace(head, asked=own))
    return made


# ---------------------------------------------------------------- whether there is anything to ask or to try


def _roomy(texts: Sequence[Text | None], tokenizer: PreTrainedTokenizerBase | None, length: int) -> list[Text]:
    """Those that haystacks can be made of."""
    if tokenizer is None:
        return []
    return [text for text in texts if text is not None and probing.has_room(tokenizer, text, length)]


def _why_no_probe(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    ids: Tensor,
    is_encoder: bool,
    roomy: Sequence[Text],
) -> str | None:
    """Why a model that reads ``ids`` cannot be asked for facts, in one sentence; None if it can. It is tried."""
    if tokenizer is None:
        return "there is no tokenizer to hide facts with."
    if is_encoder:
        return f"{type(model).__name__} looks at later tokens: an encoder says no next word, so it cannot be asked."
    try:
        check_head(model)
        probing.planned(tokenizer, len(ids), 1)
        with evaluating(model):
            ReadOnce(model, ids[: TRIED - 1]).attended(ids[TRIED - 1 : TRIED])
    except Exception as error:  # whatever a model of another kind makes of a cache
        return _why_not_asked(model, error)
    if not roomy:
        return f"no text has sentences of {len(ids):,} tokens to hide facts in: give a longer one, or a smaller length."
    return None


def _why_not_asked(model: PreTrainedModel, error: Exception) -> str:
    """What went wrong when a model was asked, in one sentence."""
    if isinstance(error, UndiluteError):
        return str(error)
    return f"{type(model).__name__} cannot be asked ({one_line(error)})."


def _why_no_trials(quick: bool, probe: Probe | None, kept: Sequence[Text]) -> str | None:
    if quick:
        return "nothing was tried, as asked for."
    if probe is None:
        return "nothing was tried, because recall cannot be measured without the probe."
    if not kept:
        return "nothing was tried, because the texts are too short to keep a part of them for it."
    return None


def _given(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    assert tokenizer is not None
    return tokenizer


# ---------------------------------------------------------------- plain text


def _read(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    windows: Sequence[Window],
    capturing: Capture,
    work: _Work,
    is_encoder: bool,
) -> list[Reading]:
    """Run the model over each window and return what was captured."""
    work.start("plain", "Plain text is read.")
    readings = []
    if is_encoder:
        capturing = replace(capturing, rows=min(capturing.rows, ENCODER_ROWS))
    with torch.inference_mode(), evaluating(model):
        for number, window in enumerate(windows):
            work.within(number / len(windows), f"reading, window {number + 1} of {len(windows)}")
            inputs = [window.ids]
            if is_encoder:
                inputs = [_shortened(tokenizer, window.ids, n) for n in encoder_lengths(len(window.ids))]
            capturing.clear()
            with capturing:
                for ids in inputs:
                    forward_pass(model, ids)
            readings.append(Reading(window.text, capturing.layers))
    work.within(1.0, "reading")
    return readings


def looks_ahead(model: PreTrainedModel, ids: Tensor) -> bool:
    """Whether a model's rows see later keys, as an encoder's do; an error if it cannot be read at all."""
    trial = capture(model, 2, measures=[])
    with torch.inference_mode(), evaluating(model), trial:
        first_pass(model, ids[: min(4, len(ids))])
    check_attended(model, len(trial.layers))
    return any(layer.looks_ahead for layer in trial.layers)


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


# ---------------------------------------------------------------- progress


def _silent(sentence: str) -> None:
    """Nobody wants to know."""


class _Work:
    """Progress over all parts, by the tokens that they read; the pace of the first says how long the others take."""

    def __init__(self, tell: Progress, say: Say) -> None:
        self.tell, self.say = tell, say
        self.parts: dict[str, int] = {}
        self.now, self.begun = "", time.perf_counter()
        self.pace: float | None = None

    def expect(self, **tokens: int) -> None:
        self.parts = tokens

    def start(self, part: str, sentence: str) -> None:
        if self.now == "plain":
            self.pace = (time.perf_counter() - self.begun) / max(self.parts["plain"], 1)
        self.now, self.begun = part, time.perf_counter()
        expected = "" if self.pace is None else f", about {_about(self.pace * self.parts[part])}"
        self.say(f"{sentence} It reads {self.parts[part]:,} tokens{expected}.")

    def within(self, share: float, doing: str) -> None:
        names = list(self.parts)
        before = sum(self.parts[name] for name in names[: names.index(self.now)])
        done = before + share * self.parts[self.now]
        self.tell(min(done / max(sum(self.parts.values()), 1), 1.0), doing)


def _about(seconds: float) -> str:
    """A time in words.

    >>> _about(47.0), _about(130.0)
    ('47 s', '2 min')
    """
    return f"{max(seconds, 1):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
