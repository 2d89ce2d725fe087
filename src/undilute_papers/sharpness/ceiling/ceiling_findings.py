"""What the arms say about the ceiling, in sentences and beside the printed values."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from undilute.evaluation.changes import likelihood
from undilute.report.result import Comparison
from undilute_papers.reproduction import seeds_that_train
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.over_seeds import leads
from undilute_papers.sharpness.ceiling.set_ups import ADDED, PUBLISHED, TRIED, Arm
from undilute_papers.sharpness.ceiling.summary import Change, Group, Outcomes
from undilute_papers.sharpness.ceiling.training import FOCUS, OWN
from undilute_papers.sharpness.max_retrieval.max_retrieval_findings import beside_print, unless_too_short
from undilute_papers.sharpness.max_retrieval.published import PRINTED
from undilute_papers.sharpness.max_retrieval.summary import TRAINED_ON

if TYPE_CHECKING:
    from undilute_papers.sharpness.ceiling.ceiling import Ceiling

TARGET = {1024: 99.0, 4096: 97.0, 16384: 90.0}  # %


def shown(experiment: Ceiling) -> list[int]:
    """The sizes that sentences are about: those of the target, as far as they are tested, or else the largest."""
    return [items for items in TARGET if items in experiment.sizes] or [max(experiment.sizes)]


def comparisons(outcomes: Outcomes, experiment: Ceiling) -> list[Comparison]:
    """The published arm beside the printed table, and ASEntmax beside what is said of it."""
    made = []
    for rule, evaluated in (("softmax", OWN), ("adaptive", "adaptive")):
        group = Group(PUBLISHED.name, evaluated)
        for items in outcomes.values.get(group, {}):
            if items in PRINTED:
                made.append(beside_print(rule, items, outcomes.of(group, items), f"{rule}, arm {group.arm}"))
    as_entmax = [arm.name for arm in outcomes.arms if arm.set_up.rule == "as-entmax"]
    trained = [outcomes.trained(Group(name, OWN)) for name in as_entmax]
    made += seeds_that_train.reported_elsewhere("max retrieval with decay and linear path", trained)
    return unless_too_short(made, experiment.steps)


def sentences(outcomes: Outcomes, experiment: Ceiling) -> list[str]:
    """What came out; the answer first."""
    sizes = shown(experiment)
    said = [_ladder(outcomes), _best(outcomes, sizes), _target(outcomes, experiment), _untried(outcomes, sizes)]
    said += [_worth(outcomes, arm, other, sizes) for arm, other in outcomes.pairs()]
    said += [_focus(outcomes), _inference(outcomes), _gaps(outcomes), _resolution(outcomes)]
    said += [_plateau(outcomes), _scope(experiment)]
    return [sentence for sentence in said if sentence]


def _own(arm: Arm) -> Group:
    return Group(arm.name, OWN)


def _ladder(outcomes: Outcomes) -> str:
    """From the first arm to the best, each step with what it brings."""
    items = outcomes.largest
    best = outcomes.best_arm()
    way = outcomes.way_to(best)
    start, end = (outcomes.mean(_own(arm), items) for arm in (way[0], best))
    if best == way[0]:
        beyond = f"; none of {len(outcomes.arms) - 1} other arms has more" if len(outcomes.arms) > 1 else ""
        return f"At {items:,} items {best.name} has {end:.1f} % with its own rule{beyond}."
    changes = [outcomes.change(_own(after), _own(before), items) for before, after in pairwise(way)]
    steps = ", ".join(f"{each.group.arm} {each.after - each.before:+.1f}{_doubt(each)}" for each in changes)
    return (
        f"At {items:,} items one head that learned on sets of {TRAINED_ON} goes from {start:.1f} % ({way[0].name}) to "
        f"{end:.1f} % ({best.name}), every arm with its own rule; in points, each beside the one before: {steps}."
    )


def _doubt(change: Change) -> str:
    return "" if change.verdict in ("better", "worse") else f" ({change.verdict})"


def _worth(outcomes: Outcomes, arm: Arm, other: Arm, sizes: Sequence[int]) -> str:
    """What one arm brings, at every size that is shown."""
    changes = [outcomes.change(_own(arm), _own(other), items) for items in sizes]
    said = f"{arm.changes[:1].upper()}{arm.changes[1:]} ({arm.name} beside {other.name})"
    return f"{said}: {_at_sizes(changes)}."


def _at_sizes(changes: Sequence[Change]) -> str:
    return ", ".join(
        f"{each.verdict} at {each.items:,} items ({each.before:.1f} → {each.after:.1f} %{_p(each)})" for each in changes
    )


def _p(change: Change) -> str:
    if change.p_value is None or change.verdict == "too few seeds to tell":
        return ""
    return f", {likelihood(change.p_value)}"


def _ranked(outcomes: Outcomes) -> list[Group]:
    """Every arm under every rule but the argmax, the best at the largest size first."""
    groups = [group for group in outcomes.values if group.evaluated_with != ARGMAX]
    return sorted(groups, key=lambda group: -outcomes.mean(group, outcomes.largest))


def _label(group: Group) -> str:
    return f"{group.arm} with its own rule" if group == group.own else f"{group.arm} with {group.evaluated_with}"


def _slashed(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def _best(outcomes: Outcomes, sizes: Sequence[int]) -> str:
    """The best pair of arm and rule: mean, worst seed, and the published figures."""
    ranked = _ranked(outcomes)
    best = ranked[0]
    means, worst, argmax = (
        _slashed([measure(outcomes.of(group, items)) for items in sizes])
        for measure, group in ((statistics.fmean, best), (min, best), (statistics.fmean, best.argmax))
    )
    published = ""
    if all(items in PRINTED for items in sizes):
        printed = _slashed([PRINTED[items].adaptive for items in sizes])
        published = f", where {printed} % was published with adaptive temperature"
    return (
        f"The best of {len(ranked)} pairs of arm and rule, chosen by its mean at {outcomes.largest:,} items, is "
        f"{_label(best)}: {means} % at {' / '.join(f'{items:,}' for items in sizes)} items on the mean, {worst} % with "
        f"the worst seed{published}; the argmax of the same logits has {argmax} %."
    )


def _target(outcomes: Outcomes, experiment: Ceiling) -> str:
    """Does any pair of arm and rule reach the target, with every seed trained?"""
    wanted, at = _slashed(list(TARGET.values())), " / ".join(f"{items:,}" for items in TARGET)
    target = f"at least {wanted} % at {at} items on the mean, with every seed trained"
    missing = [f"{items:,}" for items in (TRAINED_ON, *TARGET) if items not in experiment.sizes]
    if missing:
        return f"Whether the target is met, {target}, is not known: sets of {', '.join(missing)} were not tested."
    ranked = _ranked(outcomes)
    met = [group for group in ranked if _meets(outcomes, group, statistics.fmean)]
    if not met:
        lacking = _slashed([max(0.0, TARGET[items] - outcomes.mean(ranked[0], items)) for items in TARGET])
        failed = len(seeds_that_train.failed(outcomes.trained(ranked[0])))
        untrained = f", and {failed} of its seeds did not train" if failed else ""
        return f"The target, {target}, is missed: {_label(ranked[0])} lacks {lacking} points{untrained}."
    always = [group for group in met if _meets(outcomes, group, min)]
    by_all = (
        f"; every single seed meets it with {', '.join(map(_label, always))}" if always else ", if not by each seed"
    )
    return f"The target, {target}, is met by {', '.join(map(_label, met))}{by_all}."


def _meets(outcomes: Outcomes, group: Group, measure: Callable[[Sequence[float]], float]) -> bool:
    reached = all(measure(outcomes.of(group, items)) >= least for items, least in TARGET.items())
    return reached and not seeds_that_train.failed(outcomes.trained(group))


def _untried(outcomes: Outcomes, sizes: Sequence[int]) -> str:
    """The best pair over the seeds that had no part in the choice of the arms."""
    best = _ranked(outcomes)[0]
    by_size = [outcomes.by_seed(best, items) for items in sizes]
    untried = [seed for seed in by_size[0] if seed not in TRIED]
    if not untried or len(untried) == len(by_size[0]):
        return ""
    means = _slashed([statistics.fmean(accuracies[seed] for seed in untried) for accuracies in by_size])
    tried = " and ".join(map(str, TRIED))
    added = " and ".join(arm.name for arm in outcomes.arms if arm in ADDED)
    later = f"{added} came later, when all seeds of the others were known; " if added else ""
    return (
        f"The arms were settled after trials with the seeds {tried}; {later}over the {len(untried)} other seeds "
        f"{_label(best)} has {means} %."
    )


def _focus(outcomes: Outcomes) -> str:
    """Focus beside every other rule in the same training at the largest size, seed by seed."""
    items = outcomes.largest
    others: dict[str, dict[str, dict[int, float]]] = {}
    for arm, other in outcomes.rivals():
        others.setdefault(arm.name, {})[other.name] = outcomes.by_seed(_own(other), items)
    ahead = {arm: leads(outcomes.by_seed(Group(arm, OWN), items), found) for arm, found in others.items()}
    shown = "; ".join(f"{arm} beside {lead}" for arm, lead in ahead.items() if lead)
    of_whom = (
        f"How far focus is ahead of other rules in the same training at {items:,} items, in points, with the paired"
    )
    return f"{of_whom} t-test over seeds: {shown}." if shown else ""


def _inference(outcomes: Outcomes) -> str:
    """Which K is best at inference, and how it does beside the rule of training."""
    items = outcomes.largest
    tested = [[Group(arm.name, name) for name in FOCUS] for arm in outcomes.arms]
    best = [max(groups, key=lambda group: outcomes.mean(group, items)) for groups in tested]
    won = [f"{name} in {sum(group.evaluated_with == name for group in best)}" for name in FOCUS]
    changes = [outcomes.change(group, group.own, items) for group in best]
    verdicts = [each.verdict for each in changes]
    counted = [f"{verdict} in {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts)]
    highest = max(changes, key=lambda each: each.after)
    return (
        f"Focus at inference on the same logits, at {items:,} items in {len(best)} arms: the best K on the mean is "
        f"{', '.join(won)}; it is, beside the rule of training, {', '.join(counted)}; the highest is "
        f"{highest.after:.1f} % ({_label(highest.group)}), where the arm's own rule has {highest.before:.1f} %."
    )


def _gaps(outcomes: Outcomes) -> str:
    """What the argmax adds at the largest size, for every arm."""
    items = outcomes.largest
    gaps = {arm.name: outcomes.gap_to_argmax(_own(arm), items) for arm in outcomes.arms}
    ranked = sorted(gaps, key=lambda name: gaps[name])
    reached = {name: outcomes.mean(Group(name, ARGMAX), items) for name in ranked}
    shown = ", ".join(f"{name} {gaps[name]:+.1f} ({reached[name]:.1f} %)" for name in ranked)
    return f"What the argmax of the same logits adds at {items:,} items, in points, and what it reaches: {shown}."


def _resolution(outcomes: Outcomes) -> str:
    """How fine the logits are, for every arm, beside how fine they would have to be."""
    found = {arm.name: outcomes.resolutions(arm.name) for arm in outcomes.arms}
    known = {name: statistics.median(values) for name, values in found.items() if values}
    if not known:
        return ""
    shown = ", ".join(f"{name} {value * 1e6:,.0f}" for name, value in known.items())
    needed = 1e6 / (outcomes.largest + 1)
    return (
        "Deviation of the logits over classes near the top, in millionths of priority, median over the seeds whose "
        f"logits rise there: {shown}; the two largest of {outcomes.largest:,} items are {needed:,.0f} apart on average."
    )


def _plateau(outcomes: Outcomes) -> str:
    trainings = {arm.name: outcomes.trained(_own(arm)) for arm in outcomes.arms}
    known = {name: accuracies for name, accuracies in trainings.items() if accuracies}
    return seeds_that_train.sentence(known, f"at {TRAINED_ON} items with their own rule")


def _scope(experiment: Ceiling) -> str:
    seeds = "One seed" if experiment.seeds == 1 else f"{experiment.seeds} seeds"
    return (
        f"{seeds} of each arm, paired by seed; {experiment.steps:,} steps where an arm does not say more; up to "
        f"{experiment.sets:,} test sets a size, the same for every arm and rule; chance is 10 %. A difference is clear "
        "where its own paired t-test has p < 0.05, as one in twenty would have by chance alone."
    )
