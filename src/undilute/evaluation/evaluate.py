"""Did it help?  A model is judged before and after treatment, in pairs, on text that nothing was fitted to.

    r = undilute.evaluate(model, tokenizer, text, treatment="ssmax")
    r.summary(); r.frame(); r.save_html("treated.html")
    undilute.compare(model, tokenizer, text, {"adaptive": "adaptive", "plan": "plan.json"})

Treatments are fitted to the first half of the text and judged on the second. Every treatment reads the same windows
and answers the same questions, and time and memory are measured in turns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from undilute.errors import InvalidValue
from undilute.evaluation import cost
from undilute.evaluation.changes import changes
from undilute.evaluation.measure import HAYSTACKS, WINDOWS, Material, Measurement, measure, prepare
from undilute.evaluation.result import PLAN, Evaluation, Kind
from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.head_rules import own_rules
from undilute.models.texts import fingerprint, halves, tokenised
from undilute.progress import Progress, quiet
from undilute.treatment.apply import Several, Treatment, entered, get
from undilute.treatment.kinds.rules import Rules, Treated
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BASELINE = "softmax"


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    treatment: Any = None,
    *,
    label: str | None = None,
    length: int | None = None,
    windows: int = WINDOWS,
    lengths: Sequence[int] | None = None,
    haystacks: int = HAYSTACKS,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    name: str | None = None,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Judge a treatment of a causal language model: loss by position, needle recall, entropy, time and memory.

    Parameters
    ----------
    model : of Hugging Face; it is left as it was
    tokenizer : its tokenizer; None if ``text`` holds token ids and ``haystacks`` is 0
    text : the text, or token ids (tokens,); treatments are fitted to its first half and judged on its second
    treatment : whatever ``undilute.apply`` takes: a rule, {pattern: rule}, a plan or the path of one, an object with a
        label and ``enter(model)``, a list of these. Or a function that fits one, such as
        ``functools.partial(undilute.calibrate, rule="ssmax")``: it is called with (model, tokenizer, token ids of the
        whole text, on_progress=…). None to judge the model without treatment
    label : a name for the treatment; by default its own
    length : tokens per window; by default 2,048, or as many as the model reads
    windows : number of windows, evenly spread over the second half
    lengths : tokens of each haystack with its question; by default a quarter, half and all of ``length``, where needles
        fit
    haystacks : for each task and length; 0 for none
    tasks : names of tasks; by default all of them (``undilute.evaluation.tasks``)
    seed : of the needles and the intervals
    name : a name for the model; by default what it was loaded from
    on_progress : called with (share done, what is being done)

    Returns
    -------
    Evaluation
        Before and after, in pairs. The same arguments give the same figures, except for time and memory.

    Examples
    --------
    >>> import torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> made = ud.evaluate(model, None, torch.arange(800) % 50, "ssmax", length=128, haystacks=0)
    >>> [change.what for change in made.changes["ssmax"]][:2]
    ['next-token loss', 'next-token loss after 1–63 tokens']
    """
    ask = partial(prepare, length=length, windows=windows, lengths=lengths, haystacks=haystacks, tasks=tasks, seed=seed)
    given = {} if treatment is None else {label or _label(treatment): treatment}
    return _judged("treat" if given else "evaluate", model, tokenizer, text, given, ask, name, on_progress or quiet)


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    treatments: Mapping[str, Any] | Sequence[Any],
    *,
    length: int | None = None,
    windows: int = WINDOWS,
    lengths: Sequence[int] | None = None,
    haystacks: int = HAYSTACKS,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    name: str | None = None,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Judge several treatments of one model on the same text and questions, each compared with the untreated model.

    Parameters
    ----------
    treatments : {label: treatment}; or a list of treatments, which keep their own labels
    model, tokenizer, text, length, windows, lengths, haystacks, tasks, seed, name, on_progress : as for
        :func:`evaluate`
    """
    ask = partial(prepare, length=length, windows=windows, lengths=lengths, haystacks=haystacks, tasks=tasks, seed=seed)
    given = dict(treatments) if isinstance(treatments, Mapping) else labelled(treatments)
    if not given:
        raise InvalidValue("treatments is empty: must hold at least one.")
    return _judged("compare", model, tokenizer, text, given, ask, name, on_progress or quiet)


def labelled(treatments: Sequence[Any]) -> dict[str, Any]:
    """Treatments by what they are called: a plan by the name of its file, or by its path if another is called so.

    Examples
    --------
    >>> list(labelled(["old/wide.json", Path("new/wide.json"), "plans/narrow.json", "ssmax"]))
    ['old/wide.json', 'new/wide.json', 'narrow', 'ssmax']
    """
    if isinstance(treatments, str) or not isinstance(treatments, Sequence):
        what = repr(treatments) if isinstance(treatments, str) else f"a {type(treatments).__name__}"
        raise InvalidValue(f"treatments is {what}: must be a list of treatments, or {{label: treatment}}.")
    called = [_label(each) for each in treatments]
    found: dict[str, Any] = {}
    for label, each in zip(called, treatments, strict=True):
        alone = [BASELINE, *called].count(label) == 1
        found[str(each) if not alone and isinstance(each, str | PathLike) else label] = each
    if len(found) < len(treatments):
        raise InvalidValue(f"treatments = {called}: two of them have the same name; give {{label: treatment}}.")
    return found


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class _Ready:
    """A treatment that the model can have: to be entered again, in one sentence, and as a plan if it is one."""

    treatment: Treatment
    summary: str
    plan: Plan | None


def _judged(
    id: Kind,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    given: Mapping[str, Any],
    ask: partial[Material],
    name: str | None,
    on_progress: Progress,
) -> Evaluation:
    """Prepare, fit, try out, measure, compare: whatever is wrong shows as early as it can."""
    start = time.perf_counter()
    before = "the model as it is" if _has_rules(model) else BASELINE
    _check_labels(before, given)
    ids = tokenised(tokenizer, text)
    material, seed = ask(model, tokenizer, halves(ids)[1]), ask.keywords["seed"]
    fits = [label for label, each in given.items() if _is_fit(each)]
    steps = _Steps(on_progress, 2 + len(given) + len(fits))
    ready = {label: _tried(model, label, each) for label, each in given.items() if label not in fits}
    for label in fits:
        with _naming(label), _leaving_as_it_is(model):
            fitted = given[label](model, tokenizer, ids, on_progress=steps.next(f"fitting {label}"))
        ready[label] = _tried(model, label, fitted)
    ready = {label: ready[label] for label in given}
    first, *others = _measured(model, material, before, ready, steps)
    on_progress(1.0, "done")
    settings = {"model": name or getattr(model, "name_or_path", "") or type(model).__name__}
    return Evaluation(
        id,
        (first, *others),
        {each.label: changes(first, each, seed=seed) for each in others},
        _plans(id, ready, fits),
        _notes(id, ready, fits, ids),
        settings | _settings(id, before, ready, material, seed),
        time.perf_counter() - start,
    )


def _check_labels(before: str, labels: Iterable[Any]) -> None:
    for label in labels:
        if not isinstance(label, str) or not label.strip():
            raise InvalidValue(f"label = {label!r}: must be text, which tables and charts show.")
        if label == before:
            raise InvalidValue(f"{before!r} is the name of the untreated model: give the treatment another label.")


def _has_rules(model: PreTrainedModel) -> bool:
    """Whether something was done to the model before, so that it is not to be called softmax."""
    by_name = IMPLEMENTATION in str(getattr(model.config, "_attn_implementation", ""))
    return by_name or any(map(own_rules, model.modules()))


@contextmanager
def _leaving_as_it_is(model: PreTrainedModel) -> Iterator[None]:
    """Refuse a function that leaves its treatment in force: it would be in all figures, those of before included."""

    def state() -> list[object]:
        return [model.config._attn_implementation, *map(own_rules, model.modules())]

    before = state()
    yield
    if any(old is not new and old != new for old, new in zip_longest(before, state())):
        raise InvalidValue("the function that fits it left the model treated: must undo what it applied.")


def _is_fit(given: Any) -> bool:
    """Whether it is a function that makes a treatment, and not one itself; rules can be called too."""
    return callable(given) and not isinstance(given, Treatment | nn.Module | type)


def _label(given: Any) -> str:
    """What a treatment calls itself; softmax as a rule is not the model's own."""
    if _is_fit(given):
        while isinstance(given, partial):
            given = given.keywords.get("rule") or given.func
        return given if isinstance(given, str) else str(getattr(given, "__name__", type(given).__name__))
    if isinstance(given, PathLike) or (isinstance(given, str) and given.endswith(".json")):
        return Path(given).stem
    label = get(given).label
    return f"{BASELINE} as a rule" if label == BASELINE else label


def _tried(model: PreTrainedModel, label: str, given: Any) -> _Ready:
    """Refuse what the model cannot have, before anything is measured."""
    with _naming(label):
        treatment = get(given)
        with entered(treatment, model) as now:
            plan = now.plan if isinstance(now, Treated) else None
            summary = now.summary
    return _Ready(treatment if plan is None else get(plan), summary or label, plan)


def _measured(
    model: PreTrainedModel, material: Material, before: str, ready: Mapping[str, _Ready], steps: _Steps
) -> list[Measurement]:
    """The model as it is and under each treatment, time and memory included."""

    def entering(treatment: Treatment) -> Callable[[], AbstractContextManager[Any]]:
        return lambda: treatment.enter(model)

    contexts: dict[str, Callable[[], AbstractContextManager[Any]]] = {before: nullcontext}
    contexts |= {label: entering(each.treatment) for label, each in ready.items()}
    found = []
    for label, context in contexts.items():
        with _naming(label if label in ready else ""), context():
            found.append(measure(model, material, label, on_progress=steps.next(label)))
    steps.next("measuring time and memory")(0.0, "")
    costs = cost.costs(contexts, model, material.windows[0])
    return [replace(each, cost=costs[each.label]) for each in found]


@contextmanager
def _naming(label: str) -> Iterator[None]:
    """Say under which treatment something cannot be done."""
    try:
        yield
    except InvalidValue as error:
        if not label:
            raise
        raise InvalidValue(f"{label}: {error}") from error


class _Steps:
    """Progress through pieces of work of about the same size, one after the other."""

    def __init__(self, tell: Progress, total: int) -> None:
        self.tell, self.total, self.done = tell, total, 0

    def next(self, what: str) -> Progress:
        """Begin another piece; what is returned reports how far it is."""
        begun = self.done
        self.done += 1

        def report(share: float, doing: str) -> None:
            self.tell((begun + share) / self.total, f"{what}: {doing}" if doing else what)

        return report


# ---------------------------------------------------------------- what is kept of it


def _settings(id: Kind, before: str, ready: Mapping[str, _Ready], material: Material, seed: int) -> dict[str, Any]:
    treated = [{"plan": each.summary} for each in ready.values() if id == "treat"]
    return {
        "rules": (before, *ready) if id == "compare" else next(iter(ready), before),
        **(treated[0] if treated else {}),
        "length": int(material.windows.shape[1]),
        "windows": len(material.windows),
        "needle lengths": tuple(sorted({haystack.length for haystack in material.haystacks})),
        "haystacks in all": len(material.haystacks),
        "seed": seed,
    }


def _plans(id: Kind, ready: Mapping[str, _Ready], fits: Sequence[str]) -> dict[str, Plan]:
    """File → plan: the one that was judged, or those of many that were fitted here."""
    kept = ready if id == "treat" else fits
    plans = {label: plan for label in kept if (plan := ready[label].plan) is not None}
    if id == "treat":
        return dict(zip([PLAN], plans.values(), strict=False))
    presets = [plan.made.get("preset") for plan in plans.values()]
    named = [
        label if presets.count(preset) > 1 else str(preset or label)
        for preset, label in zip(presets, plans, strict=True)
    ]
    names = [re.sub(r"[^a-zA-Z0-9]+", "-", each) for each in named]
    if len(set(names)) < len(names):  # letters that no file has may be all that two labels differ in
        names = [f"{place}-{name}".strip("-") for place, name in enumerate(names, start=1)]
    return {f"plan-{name}.json": plan for name, plan in zip(names, plans.values(), strict=True)}


def _notes(id: Kind, ready: Mapping[str, _Ready], fits: Sequence[str], ids: Tensor) -> list[str]:
    """What a treatment is, and whether it was fitted to something other than the first half of this text."""
    notes = [f"The treatment: {each.summary}" for each in ready.values() if id == "treat"]
    seen = fingerprint(halves(ids)[0])
    for label, each in ready.items():
        texts = {plan.made.get("text") for plan in _plans_in(each.treatment)}
        if label in fits and not texts - {None}:
            notes.append(
                f"{label} was made by a function that was given the whole text: if it learned from the second half, "
                "the figures flatter it."
            )
        if texts - {None, seen}:
            what = "The plan" if id == "treat" else f"The plan of {label}"
            notes.append(
                f"{what} was fitted to another text. It is not known whether that text overlaps with the one it is "
                "judged on here."
            )
    return notes


def _plans_in(treatment: Treatment) -> list[Plan]:
    """The plans that a treatment consists of."""
    if isinstance(treatment, Several):
        return [plan for part in treatment.parts for plan in _plans_in(part)]
    return [treatment.given] if isinstance(treatment, Rules) and isinstance(treatment.given, Plan) else []
