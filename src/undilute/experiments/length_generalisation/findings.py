"""What the runs of length generalisation say, in sentences, beside the papers' claims and in pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from undilute.experiments.evaluated import ARGMAX
from undilute.experiments.length_generalisation.tasks import chance
from undilute.experiments.over_seeds import interval
from undilute.experiments.result import Chart, Comparison, Series, Verdict

if TYPE_CHECKING:
    from undilute.experiments.length_generalisation.length_generalisation import LengthGeneralisation

LEARNED = 90.0  # %, at the training length: a model below it has not learned the task, and says nothing about length
HOLDS = 90.0  # %
MARGIN = 2.0  # points: a smaller difference is none
ERRORS = 1.96  # standard errors on either side, of a single seed
CLAIMS = (  # what, (trained with, evaluated with) better than (trained with, evaluated with)
    ("SSMax generalises further than softmax (arXiv:2501.19399)", ("ssmax", "ssmax"), ("softmax", "softmax")),
    (
        "ASEntmax generalises further than softmax (arXiv:2506.16640)",
        ("as-entmax", "as-entmax"),
        ("softmax", "softmax"),
    ),
    ("ASEntmax generalises further than SSMax (arXiv:2506.16640)", ("as-entmax", "as-entmax"), ("ssmax", "ssmax")),
    (
        "ASEntmax generalises further than entmax without its scale (arXiv:2506.16640)",
        ("as-entmax", "as-entmax"),
        ("entmax15", "entmax15"),
    ),
    (
        "adaptive temperature at inference helps on the same weights (arXiv:2410.01104)",
        ("softmax", "adaptive"),
        ("softmax", "softmax"),
    ),
)
Model = tuple[str, str]  # trained with, evaluated with


class Outcomes:
    """Every test of every run.

    Parameters
    ----------
    found : what ``carry_out`` returned, for any number of runs
    train_length : what counts as beyond it
    """

    def __init__(self, found: Sequence[Mapping[str, Any]], train_length: int) -> None:
        self.train_length = train_length
        self.tests: dict[tuple[str, Model, int], dict[int, dict[str, Any]]] = {}  # (task, model, length) → seed → test
        for outcome in sorted(found, key=lambda each: each["run"]["seed"]):
            trained, seed = outcome["run"]["rule"], outcome["run"]["seed"]
            for accuracy, attention in zip(outcome["accuracy"], outcome["attention"], strict=True):
                key = (accuracy["task"], (trained, accuracy["evaluated_with"]), accuracy["length"])
                self.tests.setdefault(key, {})[seed] = {**accuracy, **attention}

    def models(self) -> list[Model]:
        """Every pair of rules: trained with, evaluated with."""
        return list(dict.fromkeys(model for _, model, _ in self.tests))

    def lengths(self, task: str, model: Model) -> list[int]:
        """The lengths it was tested at."""
        return [length for t, m, length in self.tests if (t, m) == (task, model)]

    def of(self, task: str, model: Model, length: int, what: str = "accuracy") -> list[float]:
        """One measure, a value per seed."""
        return [float(test[what]) for test in self.tests[task, model, length].values()]

    def mean(self, task: str, model: Model, length: int, what: str = "accuracy") -> float:
        """Its mean over seeds."""
        return statistics.fmean(self.of(task, model, length, what))

    def beyond(self, task: str, model: Model) -> list[float]:
        """Mean accuracy over all lengths beyond the training length, a value per seed."""
        seeds = zip(*(self.of(task, model, n) for n in self.lengths(task, model) if n > self.train_length), strict=True)
        return [statistics.fmean(accuracies) for accuracies in seeds]

    def learned(self, task: str, model: Model) -> bool:
        """Is the task solved at the training length, with the rule of training?"""
        trained = model[0]
        return self.mean(task, (trained, trained), self.train_length) >= LEARNED

    def interval(self, task: str, model: Model, length: int) -> tuple[float, float]:
        """Around the mean accuracy, within 0 … 100: the 95 % t-interval over seeds, or of a single seed 1.96 standard
        errors over its test sequences."""
        accuracies = self.of(task, model, length)
        low, high = interval(accuracies)
        if len(accuracies) == 1:
            half = ERRORS * self.mean(task, model, length, "accuracy_error")
            low, high = low - half, high + half
        return max(0.0, low), min(100.0, high)

    def uncertainty(self, task: str, model: Model) -> float:
        """Of the mean accuracy beyond the training length, in points: half of such an interval."""
        accuracies = self.beyond(task, model)
        if len(accuracies) > 1:
            return _half(accuracies)
        tested = [n for n in self.lengths(task, model) if n > self.train_length]
        return ERRORS * math.hypot(*(self.mean(task, model, n, "accuracy_error") for n in tested)) / len(tested)

    def uncertainty_of_difference(self, task: str, a: Model, b: Model) -> float:
        """Of the difference of two such means: over seeds that of the paired differences; of a single seed as if the
        two had been tested on different sequences. They share them, which makes it rather too large."""
        differences = [x - y for x, y in zip(self.beyond(task, a), self.beyond(task, b), strict=True)]
        if len(differences) > 1:
            return _half(differences)
        return math.hypot(self.uncertainty(task, a), self.uncertainty(task, b))


def _half(values: Sequence[float]) -> float:
    low, high = interval(values)
    return (high - low) / 2


def comparisons(outcomes: Outcomes, experiment: LengthGeneralisation) -> list[Comparison]:
    """The papers' claims, held against the mean accuracy beyond the training length, for each task."""
    known = outcomes.models()
    return [
        _claim(outcomes, what, task, better, worse)
        for what, better, worse in CLAIMS
        for task in experiment.tasks
        if better in known and worse in known
    ]


def _claim(outcomes: Outcomes, what: str, task: str, better: Model, worse: Model) -> Comparison:
    means = [statistics.fmean(outcomes.beyond(task, model)) for model in (better, worse)]
    gain, uncertainty = means[0] - means[1], outcomes.uncertainty_of_difference(task, better, worse)
    computed = f"{means[0]:.1f} % against {means[1]:.1f} % beyond {outcomes.train_length} tokens: {gain:+.1f} points"
    unlearned = [model[0] for model in (better, worse) if not outcomes.learned(task, model)]
    if unlearned:
        short = " and ".join(dict.fromkeys(unlearned))
        note = f"{short} had not learned {task} at {outcomes.train_length} tokens ({LEARNED:g} % of the answers)."
        return Comparison(f"{what}: {task}", "better", computed, "other set-up", note=note)
    seeds = len(outcomes.beyond(task, better))
    verdict = _verdict(gain, uncertainty) if seeds > 1 else "other set-up"
    note = (
        f"Mean over all tested lengths beyond training; the difference is known to ± {uncertainty:.1f} points "
        f"({_kind(seeds)}), and one of at most {MARGIN:g} points is none."
    )
    if seeds == 1:
        note += " That is about two networks: one training each says too little about the rules."
    elif verdict == "other set-up":
        note += " That leaves open whether one is better."
    return Comparison(f"{what}: {task}", "better", computed, verdict, note=note)


def _verdict(gain: float, uncertainty: float) -> Verdict:
    """Is it better?  What the uncertainty leaves open cannot be held against the claim.

    >>> _verdict(9.0, 3.0), _verdict(0.5, 1.5), _verdict(-9.0, 3.0), _verdict(9.0, 30.0), _verdict(1.9, 2.0)
    ('agrees', 'differs', 'differs', 'other set-up', 'other set-up')
    """
    if gain > max(MARGIN, uncertainty):
        return "agrees"
    return "differs" if gain + uncertainty <= MARGIN else "other set-up"


def _kind(seeds: int) -> str:
    """Which interval it is."""
    if seeds == 1:
        return f"{ERRORS:g} standard errors over the test sequences of one seed"
    return f"95 % interval by Student's t over {seeds} seeds"


def sentences(outcomes: Outcomes, experiment: LengthGeneralisation) -> list[str]:
    """What came out."""
    said = [_beside_softmax(outcomes, experiment)]
    said += [_answer(outcomes, task, experiment) for task in experiment.tasks]
    said += [_reach(outcomes, task) for task in experiment.tasks]
    said += [_argmax(outcomes, task) for task in experiment.tasks]
    said += [_head(outcomes, task) for task in experiment.tasks]
    return [*[each for each in said if each], _scope(experiment)]


def _own(outcomes: Outcomes) -> list[Model]:
    """Every model but those with the argmax, in the order of the options."""
    return [model for model in outcomes.models() if model[1] != ARGMAX]


def label(model: Model) -> str:
    """What to call it in a legend."""
    trained, evaluated = model
    return trained if evaluated in (trained, ARGMAX) else f"{evaluated} on {trained}'s weights"


def _beside_softmax(outcomes: Outcomes, experiment: LengthGeneralisation) -> str:
    """Softmax and the range of all others at the longest length, on the tasks that it and one more learned."""
    softmax, longest, shown = ("softmax", "softmax"), experiment.longest, []
    for task in experiment.tasks:
        learned = [model for model in _own(outcomes) if outcomes.learned(task, model)]
        others = {label(model): outcomes.mean(task, model, longest) for model in learned if model != softmax}
        if softmax in learned and others:
            low, high = min(others, key=lambda name: others[name]), max(others, key=lambda name: others[name])
            between = f"{others[low]:.1f} ({low})" + (f" to {others[high]:.1f} ({high})" if len(others) > 1 else "")
            own = outcomes.mean(task, softmax, longest)
            shown.append(f"{task}: softmax {own:.1f} % of the answers right, the others {between}")
    times = longest // experiment.train_length
    return f"At {longest:,} tokens, {times:,} times as long as in training, {'; '.join(shown)}." if shown else ""


def _answer(outcomes: Outcomes, task: str, experiment: LengthGeneralisation) -> str:
    models = _own(outcomes)
    learned = [model for model in models if outcomes.learned(task, model)]
    if not learned:
        best = max(outcomes.mean(task, model, experiment.train_length) for model in models)
        return (
            f"No model learned {task} at {experiment.train_length} tokens (the best has {best:.0f} % of the answers "
            f"right after {experiment.steps:,} steps), so this run says nothing about longer ones."
        )
    ranked = sorted(learned, key=lambda model: -statistics.fmean(outcomes.beyond(task, model)))
    shown = ", ".join(
        f"{label(model)} {statistics.fmean(outcomes.beyond(task, model)):.1f} ± {outcomes.uncertainty(task, model):.1f}"
        for model in ranked
    )
    text = (
        f"{task.capitalize()}, mean accuracy over {2 * experiment.train_length:,} to {experiment.longest:,} tokens "
        f"after training on at most {experiment.train_length}, %: {shown} ({_kind(experiment.seeds)})."
    )
    missing = [label(model) for model in models if model not in learned]
    return text + (f" Not learned at {experiment.train_length} tokens: {', '.join(missing)}." if missing else "")


def _reach(outcomes: Outcomes, task: str) -> str:
    reached = {}
    for model in _own(outcomes):
        held = 0
        for length in outcomes.lengths(task, model):
            if outcomes.mean(task, model, length) < HOLDS:
                break
            held = length
        if held:
            reached[label(model)] = held
    if not reached:
        return ""
    shown = ", ".join(f"{name} {held:,}" for name, held in sorted(reached.items(), key=lambda each: -each[1]))
    return f"{task.capitalize()} stays at {HOLDS:g} % or more up to this many tokens: {shown}."


def _argmax(outcomes: Outcomes, task: str) -> str:
    learned = [model for model in outcomes.models() if model[1] == ARGMAX and outcomes.learned(task, model)]
    if not learned:
        return ""
    shown = []
    for model in learned:
        own = statistics.fmean(outcomes.beyond(task, (model[0], model[0])))
        shown.append(f"{label(model)} {own:.1f} → {statistics.fmean(outcomes.beyond(task, model)):.1f}")
    return (
        f"{task.capitalize()} with every head of the same weights replaced by the argmax of its logits, mean beyond "
        f"training, %: {', '.join(shown)}. A head that needs to average can lose by this, a diluted one can gain."
    )


def _head(outcomes: Outcomes, task: str) -> str:
    shown = []
    for model in _own(outcomes):
        if outcomes.learned(task, model):
            longest = max(outcomes.lengths(task, model))
            short, far = (outcomes.mean(task, model, n, "weight_of_answer") for n in (outcomes.train_length, longest))
            top = outcomes.mean(task, model, longest, "answer_on_top")
            shown.append(f"{label(model)} {short:.2f} → {far:.2f} (the largest in {100 * top:.0f} % of the rows)")
    if not shown:
        return ""
    return (
        f"{task.capitalize()}: weight that the fetching head gives to the token with the answer, at "
        f"{outcomes.train_length:,} and at {longest:,} tokens: {'; '.join(shown)}."
    )


def _scope(experiment: LengthGeneralisation) -> str:
    shape = f"{experiment.layers} layers of width {experiment.width}"
    seeds = "one seed" if experiment.seeds == 1 else f"{experiment.seeds} seeds"
    return (
        f"{shape}, positions “{experiment.positions}”, {experiment.steps:,} steps, {seeds} for each rule, trained on "
        f"{' and '.join(experiment.tasks)} in turn."
    )


def charts(outcomes: Outcomes, experiment: LengthGeneralisation) -> list[Chart]:
    """Accuracy, accuracy with the argmax, entropy and weights over length, for each task."""
    made = []
    for task in experiment.tasks:
        made += [
            _chart(outcomes, experiment, task, "accuracy", "accuracy, %", "{} at longer and longer contexts, by rule"),
            _chart(outcomes, experiment, task, "argmax", "accuracy, %", "{} with the argmax in every head"),
            _chart(outcomes, experiment, task, "entropy", "entropy, nats", "{}: how far the fetching head spreads"),
            _chart(
                outcomes,
                experiment,
                task,
                "weight_of_answer",
                "mean weight of the token with the answer",
                "{}: what the fetching head gives to the answer",
            ),
        ]
    return made


def _chart(
    outcomes: Outcomes, experiment: LengthGeneralisation, task: str, what: str, y_label: str, title: str
) -> Chart:
    models = _own(outcomes)
    if what == "argmax":
        models = [model for model in outcomes.models() if model[1] == ARGMAX]
    series = [_curve(outcomes, task, model, "accuracy" if what == "argmax" else what) for model in models]
    if what == "accuracy":
        lengths = outcomes.lengths(task, models[0])
        series.append(Series("chance", lengths, [100 * chance(task, length) for length in lengths], bound=True))
    shaded = f" Shaded: {_kind(experiment.seeds)}." if what in ("accuracy", "argmax") else ""
    return Chart(
        f"{task}-{what.replace('_', '-')}",
        title.format(task.capitalize()),
        "tokens",
        y_label,
        series,
        x_log=2,
        note=f"Trained on at most {experiment.train_length} tokens.{shaded}",
    )


def _curve(outcomes: Outcomes, task: str, model: Model, what: str) -> Series:
    lengths = outcomes.lengths(task, model)
    means = [outcomes.mean(task, model, length, what) for length in lengths]
    if what != "accuracy":
        return Series(label(model), lengths, means)
    around = [outcomes.interval(task, model, length) for length in lengths]
    return Series(label(model), lengths, means, [low for low, _ in around], [high for _, high in around])
