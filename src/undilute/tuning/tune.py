"""Can a minute of learning undo dilution?  One factor for each head's logits, and one for its output.

    plan = undilute.tune(model, tokenizer, texts)
    undilute.apply(model, plan)
    undilute.export(model, plan, "folder")

No weight is trained. The plan says what each head is multiplied by; ``undilute.export`` folds that into the weights, so
that any engine runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation.journal import Journal
from undilute.models import text_loss
from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.fingerprint import of_model
from undilute.models.forward_pass import check_reads_tokens, evaluating
from undilute.models.limits import maximum_length, readable_length
from undilute.models.passes import module_of
from undilute.models.question_rows import QUESTION_ROWS, check_rows
from undilute.models.texts import beginning, known_tokens, tokenised
from undilute.models.watch import check_supported
from undilute.progress import Progress, quiet
from undilute.rules.parameters import count, number, whole
from undilute.selection.finding import retrieval_heads
from undilute.treatment.apply import apply
from undilute.treatment.layers import Head, Layer, first_calls, heads_of, layers_of
from undilute.treatment.plan import Plan
from undilute.treatment.saved import plan_in_force
from undilute.tuning import samples as made_of
from undilute.tuning import sentences
from undilute.tuning.frontier import Point, as_rows, best, combined, frontier
from undilute.tuning.judging import Judging, judge, text_marks
from undilute.tuning.judging import check as check_judging
from undilute.tuning.knobs import Knobs
from undilute.tuning.learning import Learned, Settings
from undilute.tuning.learning import learn as learn_theta
from undilute.tuning.rows import Kept, together
from undilute.tuning.samples import Samples

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

On = Literal["answers", "text"]
Rows = Literal["all", "question"]
BUDGET = 0.01  # nats
HAYSTACKS = 12  # of each length, to learn from
CHOSEN = 3  # of each length, to choose by
WINDOWS, WINDOW = 4, 1024  # of plain text, to choose by
STRETCHES = 12  # of plain text that must stay as it was
RETRIEVAL = "retrieval"
PURPOSES = {"learned": "to learn from", "chosen": "to choose by", "text": "that must stay as they are"}
SHARES = {"reading": 0.35, "learning": 0.3, "choosing": 0.2, "judging": 0.15}


def tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: str | Sequence[str] | Mapping[str, str],
    *,
    learn: Sequence[str] = ("beta", "gain"),
    on: On = "answers",
    rows: Rows = "all",
    rule: str = "temperature",
    heads: str | int | Iterable[Any] = "all",
    pairs: Sequence[Mapping[str, str]] | str | PathLike[str] | None = None,
    budget: float = BUDGET,
    haystacks: int = HAYSTACKS,
    lengths: Sequence[int] = made_of.LENGTHS,
    settings: Settings | None = None,
    seeds: int = 1,
    seed: int = 0,
    judging: Judging | None = None,
    checkpoint: str | PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Plan:
    """Learn what each head's logits and output are multiplied by, and judge it on what was not learned from.

    Parameters
    ----------
    model : a causal Hugging Face language model, untreated; its weights stay as they are
    tokenizer : its tokenizer
    texts : one text, several, or {name: text}. The first half of each is learned from, the second half only judges
    learn : quantities: "beta" (factor on a head's logits) and "gain" (factor on its output); for rule "ssmax" "s" and
        "b", for "llama4" its one "beta" (``undilute.tuning.knobs``)
    on : "answers" learns from questions about facts that are hidden in the text, or from ``pairs``; "text" learns to
        predict the text
    rows : "all" for a plan that treats every row and can be exported; "question" for one that treats only rows that
        read a question or answer it, which helps more and needs Undilute to run
    rule : "temperature", "ssmax" or "llama4(floor_length=256)"
    heads : "all", "retrieval" for the heads that find what is asked for, a number for the best so many of these, or
        patterns and pairs as ``undilute.apply`` takes them
    pairs : the user's own {"prompt": …, "answer": …}, or the path of a file with one a line, in place of hidden facts
    budget : most nats that the loss on plain text may rise by; for ``rows="all"``
    haystacks, lengths : texts with facts to learn from: how many of each length, and their tokens
    settings : of the learning (:class:`undilute.tuning.Settings`)
    seeds : runs with different seeds; factors are their geometric mean
    seed : of facts, places and order
    judging : how much to judge by (:class:`undilute.tuning.Judging`); ``Judging(haystacks=0, …)`` for little
    checkpoint : a folder that a run that was killed goes on from, to the same result
    on_progress : called with (share done, what is being done)

    Returns
    -------
    Plan
        ``plan.made["tuned"]`` has settings, looks, the frontier of loss against answers, and what the judges found;
        :func:`undilute.tuning.at` makes the plan of another point of the frontier.

    Examples
    --------
    >>> import transformers, undilute as ud
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> words = Tokenizer(models.WordLevel({"?": 0, "the": 1, "cat": 2, "sat": 3}, unk_token="?"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> few = ud.tuning.Settings(steps=2, look=1)
    >>> plan = ud.tune(model, tokenizer, "the cat sat " * 2000, on="text", lengths=(96,), haystacks=1, settings=few,
    ...     judging=ud.tuning.Judging(haystacks=0, other_haystacks=0, windows=1, window=256))
    >>> len(plan.heads), plan.rows
    (8, 'all')
    """
    start = time.perf_counter()
    tell, prose = on_progress or quiet, _named(texts)
    given = made_of.read_pairs(Path(pairs)) if isinstance(pairs, str | PathLike) else pairs
    _check(model, on, rows, budget, seeds, seed)
    if on == "text" and given is not None:
        raise InvalidValue("on = 'text' with pairs: text has no answers; give one of the two.")
    judging = judging or Judging()
    how = settings or Settings()
    how = replace(how, price=0.0) if rows == "question" else how
    layers = layers_of(first_calls(model))
    asked = _Asked(
        tuple(learn),
        on,
        rows,
        rule,
        _heads(model, tokenizer, heads, layers, tell),
        tuple(lengths),
        haystacks,
        seed,
        how,
    )
    folder = _folder(checkpoint, model, tokenizer, prose, [asked, given, seeds, budget, judging])
    halves = {name: (text[: len(text) // 2], text[len(text) // 2 :]) for name, text in prose.items()}
    held_out = {name: half for name, (_, half) in halves.items()}
    check_judging(model, tokenizer, rows, held_out, judging)
    samples, windows = _samples(model, tokenizer, "\n\n".join(half for half, _ in halves.values()), given, asked)
    work = _Work(model, asked.knobs(layers), asked, tell)
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model):
        theta, learned, points = work.run(samples, windows, seeds, folder)
    point = best(points, budget) if bool(theta.any()) else points[0]
    plan = work.knobs.plan(point.scale * theta, type(model).__name__, {"rule": f"tuned {rule}"}, rows)
    record = {
        "settings": asked.as_data() | {"seeds": seeds, "budget": budget},
        "texts": text_marks(tokenizer, prose),
        "looks": [[asdict(look) for look in each.looks] for each in learned],
        "frontier": as_rows(points),
        "scale": point.scale,
        "theta": [float(str(each)) for each in theta.numpy()],
        "seconds": round(time.perf_counter() - start, 1),
    }
    said = sentences.of_choice(points, point, budget, rows)
    if point.scale and judging.is_any:
        journal = None if folder is None else folder / "judged.jsonl"
        tell_judging = work.telling("judging")
        judged = judge(model, tokenizer, plan, held_out, judging, journal=journal, on_progress=tell_judging)
        record |= {"judging": asdict(judging), "judged": judged.as_data()}
        said += sentences.of_judged(judged)
    tell(1.0, "done")
    return replace(plan, made={"rule": f"tuned {rule}", "tuned": record | {"sentences": said}})


def at(plan: Plan, scale: float) -> Plan:
    """The plan of another point of a tuned plan's frontier: its learned θ times ``scale``.

    Parameters
    ----------
    plan : from :func:`tune`
    scale : 0 for the untreated model, 1 for all that was learned
    """
    record = plan.made.get("tuned")
    if not isinstance(record, Mapping) or "theta" not in record:
        raise InvalidValue("the plan was not tuned: it has no other points; make it with undilute.tune.")
    kept = record["settings"]
    length = round(sum(kept["lengths"]) / len(kept["lengths"]))
    knobs = Knobs(plan.layers, [(layer, head) for layer, head in kept["heads"]], kept["rule"], kept["learn"], length)
    theta = number("scale", scale) * torch.tensor(record["theta"])
    made = {"rule": plan.made.get("rule"), "tuned": {**record, "scale": scale, "sentences": [], "judged": None}}
    return knobs.plan(theta, plan.architecture, made, plan.rows)


class _Work:
    """Reads, learns and chooses; the model is treated only in between."""

    def __init__(self, model: PreTrainedModel, knobs: Knobs, asked: _Asked, tell: Progress) -> None:
        self.model, self.knobs, self.asked, self.tell = model, knobs, asked, tell

    def run(
        self, samples: Samples, windows: Tensor, seeds: int, folder: Path | None
    ) -> tuple[Tensor, list[Learned], list[Point]]:
        """θ, how it was learned with each seed, and its frontier."""
        learned, chosen, text = (self._read(getattr(samples, name), name) for name in ("learned", "chosen", "text"))
        joint, rows = together(self.model, samples.learned[0]), self.asked.rows
        start, found = self.knobs.start(type(self.model).__name__, rows), []
        with _frozen(self.model), apply(self.model, start, learn=self.knobs.names):
            for turn in range(seeds):
                found.append(
                    learn_theta(
                        self.model,
                        self.knobs,
                        learned,
                        chosen,
                        text,
                        self.asked.settings,
                        joint=joint,
                        seed=self.asked.seed + turn,
                        checkpoint=None if folder is None else folder / f"seed-{turn}.safetensors",
                        on_progress=self._turn(turn, seeds),
                    )
                )
        theta = combined([each.theta for each in found])
        del learned, text  # what was kept of their texts is large
        tell = self.telling("choosing")
        return theta, found, frontier(self.model, self.knobs, theta, chosen, windows, rows, joint, tell)

    def _read(self, samples: Sequence[made_of.Sample], name: str) -> list[Kept]:
        tell, purpose = self.telling("reading"), PURPOSES[name]
        kept = []
        for place, sample in enumerate(samples):
            tell(place / len(samples), f"reading texts {purpose}, {place + 1} of {len(samples)}")
            kept.append(Kept(self.model, sample))
        return kept

    def _turn(self, turn: int, seeds: int) -> Progress:
        """Progress of learning with one seed of several."""
        tell = self.telling("learning")
        return lambda share, doing: tell((turn + share) / seeds, doing)

    def telling(self, part: str) -> Progress:
        """Progress of one part of the work."""
        names = list(SHARES)
        before = sum(SHARES[name] for name in names[: names.index(part)])
        return lambda share, doing: self.tell(before + SHARES[part] * share, doing)


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Inside, no weight of the model asks for a gradient."""
    before = [(each, each.requires_grad) for each in model.parameters()]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for each, needs in before:
            each.requires_grad_(needs)


# ---------------------------------------------------------------- what was asked for


def _named(texts: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(texts, str):
        texts = [texts]
    given = (
        dict(texts) if isinstance(texts, Mapping) else {f"text {place}": each for place, each in enumerate(texts, 1)}
    )
    for name, text in given.items():
        if not isinstance(text, str) or not text.strip():
            raise InvalidValue(f"{name} holds no text: must be some, to learn from and to judge by.")
    if not given:
        raise InvalidValue("texts is empty: must hold at least one text.")
    return given


@dataclass(frozen=True)
class _Asked:
    """What to learn, from what, and how."""

    learn: tuple[str, ...]
    on: str
    rows: str
    rule: str
    heads: Sequence[Head]
    lengths: tuple[int, ...]
    haystacks: int
    seed: int
    settings: Settings

    def __post_init__(self) -> None:
        count("haystacks", self.haystacks)
        if not self.lengths:
            raise InvalidValue("lengths is empty: must hold the tokens of at least one text to learn from.")
        for length in self.lengths:
            if count("lengths", length) <= made_of.ROWS:
                raise InvalidValue(f"lengths = {list(self.lengths)}: must be more than {made_of.ROWS} tokens each.")

    def knobs(self, layers: Sequence[Layer]) -> Knobs:
        """The θ of these heads."""
        return Knobs(layers, self.heads, self.rule, self.learn, round(sum(self.lengths) / len(self.lengths)))

    def as_data(self) -> dict[str, Any]:
        """As JSON takes it."""
        own = {name: value for name, value in asdict(self).items() if name != "settings"}
        return own | {"heads": [list(head) for head in self.heads]} | asdict(self.settings)


def _check(model: PreTrainedModel, on: str, rows: str, budget: float, seeds: int, seed: int) -> None:
    check_supported(model)
    check_reads_tokens(model)
    text_loss.check_head(model)
    check_rows(rows)
    if on not in ("answers", "text"):
        raise InvalidValue(f"on = {on!r}: must be 'answers' or 'text'.")
    if on == "text" and rows == "question":
        raise InvalidValue("on = 'text' with rows = 'question': text has no question rows; give rows = 'all'.")
    if number("budget", budget) < 0:
        raise InvalidValue(f"budget = {budget}: must be 0 nats or more.")
    count("seeds", seeds)
    whole("seed", seed, 0)
    if plan_in_force(model) is not None or str(model.config._attn_implementation).startswith(IMPLEMENTATION):
        raise InvalidValue("the model is treated: tune learns from the model as it is; undo the treatment first.")


def _heads(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    heads: str | int | Iterable[Any],
    layers: Sequence[Layer],
    tell: Progress,
) -> list[Head]:
    names = [module_of(layer.name) for layer in layers]
    if len(set(names)) < len(names):
        raise InvalidValue(
            f"{type(model).__name__} runs a module several times in one pass, which have one set of factors: tune "
            "cannot learn them."
        )
    if heads == RETRIEVAL or isinstance(heads, int):
        found = retrieval_heads(model, tokenizer, on_progress=tell).heads
        kept = found if isinstance(heads, str) else found[: count("heads", heads)]
        index = {layer.name: place for place, layer in enumerate(layers)}
        return [(index[layer], head) for layer, head in kept]
    return heads_of("*" if heads == "all" else heads, layers)


def _samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    pairs: Sequence[Mapping[str, str]] | None,
    asked: _Asked,
) -> tuple[Samples, Tensor]:
    """What to learn from and to choose by; and windows of plain text, to choose by, that nothing is learned from."""
    cut, lengths, seed = 2 * len(text) // 3, asked.lengths, asked.seed
    start = beginning(tokenizer)
    own, other = (known_tokens(tokenised(tokenizer, part), model) for part in (text[:cut], text[cut:]))
    for length in lengths:
        readable_length(model, length, name="lengths")
    if asked.on == "text":
        learned = made_of.plain(own, 2 * asked.haystacks, lengths, seed, start)
        chosen = made_of.plain(other, 2 * CHOSEN, lengths, seed, start)
    elif pairs is not None:
        learned, chosen = made_of.pairs(tokenizer, pairs, QUESTION_ROWS, seed, maximum_length(model))
    else:
        learned, chosen = made_of.generated(
            model, tokenizer, text, each=asked.haystacks, chosen=CHOSEN, lengths=lengths, seed=seed
        )
    stretches = made_of.plain(own, STRETCHES, lengths, seed + 1, start) if asked.settings.price else ()
    window = min(WINDOW, max(len(other) // WINDOWS - 1, 2), maximum_length(model) or WINDOW)
    return Samples(learned, chosen, stretches), text_loss.windows(other, window, WINDOWS, start=start)


def _folder(
    checkpoint: str | PathLike[str] | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Mapping[str, str],
    asked: object,
) -> Path | None:
    """The folder of a run with the same arguments; an error if it holds another one."""
    if checkpoint is None:
        return None
    folder = Path(checkpoint)
    settings = {"model": of_model(model, tokenizer), "texts": text_marks(tokenizer, texts), "asked": repr(asked)}
    Journal(folder / "asked.jsonl", settings)
    return folder
