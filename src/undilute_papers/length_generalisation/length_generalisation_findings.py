"""What the runs of length generalisation say, in sentences, beside the papers' claims and in pictures."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from undilute.report.result import Chart, Comparison, Series, Verdict
from undilute_papers.length_generalisation.summary import ERRORS, Model, Outcomes
from undilute_papers.length_generalisation.tasks import chance
from undilute_papers.reproduction import seeds_that_train
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.over_seeds import leads
from undilute_papers.reproduction.seeds_that_train import TRAINED

if TYPE_CHECKING:
    from undilute_papers.length_generalisation.length_generalisation import LengthGeneralisation

HOLDS = 90.0  # %
MARGIN = 2.0  # points: a smaller difference is none
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


def comparisons(outcomes: Outcomes, experiment: LengthGeneralisation) -> list[Comparison]:
    """The papers' claims, held against the mean accuracy beyond the training length, for each task."""
    known = outcomes.models()
    claims = [
        _claim(outcomes, what, task, better, worse)
        for what, better, worse in CLAIMS
        for task in experiment.tasks
        if better in known and worse in known
    ]
    as_entmax = [outcomes.trained("as-entmax")] if ("as-entmax", "as-entmax") in known else []
    return claims + seeds_that_train.reported_elsewhere(" and ".join(experiment.tasks), as_entmax)


def _claim(outcomes: Outcomes, what: str, task: str, better: Model, worse: Model) -> Comparison:
    means = [statistics.fmean(outcomes.beyond(task, model)) for model in (better, worse)]
    gain, uncertainty = means[0] - means[1], outcomes.uncertainty_of_difference(task, better, worse)
    computed = f"{means[0]:.1f} % against {means[1]:.1f} % beyond {outcomes.train_length} tokens: {gain:+.1f} points"
    unlearned = [model[0] for model in (better, worse) if not outcomes.learned(task, model)]
    if unlearned:
        short = " and ".join(dict.fromkeys(unlearned))
        note = f"{short} had not learned {task} at {outcomes.train_length} tokens ({TRAINED:g} % of the answers)."
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
    said += [_gaps(outcomes, task) for task in experiment.tasks]
    said += [_focus(outcomes, task) for task in experiment.tasks]
    said += [_head(outcomes, task) for task in experiment.tasks]
    said.append(_plateau(outcomes, experiment))
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


def _gaps(outcomes: Outcomes, task: str) -> str:
    """What the argmax adds at the longest length, for every model that learned the task."""
    learned = [model for model in _own(outcomes) if outcomes.learned(task, model)]
    if not learned:
        return ""
    longest = max(outcomes.lengths(task, learned[0]))
    gaps = {label(model): outcomes.gap_to_argmax(task, model, longest) for model in learned}
    shown = ", ".join(f"{name} {gaps[name]:+.1f}" for name in sorted(gaps, key=lambda name: gaps[name]))
    return f"{task.capitalize()}: what the argmax in every head adds at {longest:,} tokens, in points: {shown}."


def _focus(outcomes: Outcomes, task: str) -> str:
    """Focus beside every other model at the longest length, seed by seed."""
    focus = ("focus", "focus")
    if focus not in outcomes.models():
        return ""
    longest = max(outcomes.lengths(task, focus))
    others = {label(model): outcomes.by_seed(task, model, longest) for model in _own(outcomes) if model != focus}
    ahead = leads(outcomes.by_seed(task, focus, longest), others)
    of_whom = f"{task.capitalize()}: how far focus is ahead at {longest:,} tokens, in points, with the paired t-test"
    return f"{of_whom} over seeds: {ahead}." if ahead else ""


def _plateau(outcomes: Outcomes, experiment: LengthGeneralisation) -> str:
    trainings = {trained: outcomes.trained(trained) for trained, evaluated in outcomes.models() if trained == evaluated}
    tasks = " and ".join(experiment.tasks)
    return seeds_that_train.sentence(trainings, f"of the answers to {tasks} at {experiment.train_length} tokens")


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
