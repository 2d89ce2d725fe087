"""What the runs of max retrieval say, in sentences, beside the printed values and in pictures."""

from __future__ import annotations

import statistics
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from undilute.report.result import Chart, Comparison, Row, Series
from undilute_papers.report.comparisons import compared
from undilute_papers.reproduction import seeds_that_train
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.over_seeds import ENOUGH_SEEDS, SIGNIFICANT, interval, leads, percents
from undilute_papers.sharpness.max_retrieval.published import PRINTED, SECONDARY
from undilute_papers.sharpness.max_retrieval.summary import TRAINED_ON, Group, Outcomes

if TYPE_CHECKING:
    from undilute_papers.sharpness.max_retrieval.max_retrieval import MaxRetrieval

WITHIN = 4.0  # points: what we call agreement with the printed table
PUBLISHED_STEPS = 100_000
ENOUGH_STEPS = 20_000  # with fewer, the figures say nothing about the printed ones
SET_SIZE = "16"  # of the set-up that was settled on
FOCUS = (
    "Focus keeps K = 16 keys, so on training sets of at most 16 items it is entmax with a learned scale, and only "
    "larger sets tell the two apart."
)
SEEN = range(5)  # seeds whose figures were known when the set-up was settled


def comparisons(outcomes: Outcomes, experiment: MaxRetrieval) -> list[Comparison]:
    """Every printed accuracy and p-value beside ours, for each reading of the training set's size; then the claims."""
    made = []
    for size in experiment.set_sizes:
        for evaluated in ("softmax", "adaptive"):
            group = Group("softmax", size, "constant", evaluated)
            if group in outcomes.values:
                made += [_accuracy(outcomes, group, items) for items in outcomes.sizes(group) if items in PRINTED]
    rows = outcomes.paired(experiment.set_sizes[0], "constant")
    if rows and _seeds(outcomes, Group("softmax", experiment.set_sizes[0], "constant", "softmax")) >= ENOUGH_SEEDS:
        made += _p_values(rows) + _claims(rows)
    made += seeds_that_train.reported_elsewhere("max retrieval", _as_entmax(outcomes))
    return unless_too_short(made, experiment.steps)


def unless_too_short(made: Sequence[Comparison], steps: int) -> list[Comparison]:
    """Comparisons with what was printed; a short training says nothing about it, whichever way it comes out."""
    if steps >= ENOUGH_STEPS:
        return list(made)
    few = f"{steps:,} steps of training are too few to tell."
    return [replace(each, verdict="other set-up", note=f"{few} {each.note}".strip()) for each in made]


def _accuracy(outcomes: Outcomes, group: Group, items: int) -> Comparison:
    of = f"{group.evaluated_with}, trained on {group.set_size}"
    return beside_print(group.evaluated_with, items, outcomes.of(group, items), of)


def beside_print(rule: str, items: int, accuracies: Sequence[float], of: str) -> Comparison:
    """The mean of accuracies in %, ``of`` what, beside the printed one of softmax or adaptive temperature."""
    printed, computed = getattr(PRINTED[items], rule), statistics.fmean(accuracies)
    low, high = percents(accuracies)
    note = f"{computed - printed:+.1f} points."
    return compared(
        f"accuracy at {items:,} items, %: {of}",
        printed,
        computed,
        within=WITHIN,
        low=low,
        high=high,
        note=f"{note} Printed value from a secondary copy." if items in SECONDARY else note,
    )


def _as_entmax(outcomes: Outcomes) -> list[dict[int, float]]:
    own = [group for group in outcomes.values if group == group.own and group.trained_with == "as-entmax"]
    return [outcomes.trained(group) for group in own]


def _p_values(rows: Sequence[Row]) -> list[Comparison]:
    """The paired t-test of adaptive temperature against softmax: on the same side of 0.05 as printed?"""
    made = []
    for row in rows:
        printed = PRINTED.get(int(row["items"] or 0))
        if printed is not None and printed.p_value is not None and isinstance(row["p_value"], float):
            same = (printed.p_value < SIGNIFICANT) == (row["p_value"] < SIGNIFICANT)
            what = f"p-value of adaptive against softmax at {row['items']:,} items"
            made.append(Comparison(what, printed.p_value, row["p_value"], "agrees" if same else "differs"))
    return made


def _claims(rows: Sequence[Row]) -> list[Comparison]:
    """What the summary says about adaptive temperature, held against the paired test."""
    beyond = [row for row in rows if int(row["items"] or 0) > 16]
    if len(beyond) < 2:
        return []
    gains = {int(row["items"] or 0): float(row["gain"] or 0.0) for row in beyond}
    sure = [
        items for items, row in zip(gains, beyond, strict=True) if _significant(row["p_value"]) and gains[items] > 0
    ]
    missing = [f"{items:,}" for items in gains if items not in sure]
    best, largest = max(gains, key=lambda items: gains[items]), max(gains)
    return [
        Comparison(
            "adaptive temperature is significantly better at all sizes beyond training (paired t-test, p < 0.05)",
            "at every size tested",
            f"at {len(sure)} of {len(gains)} sizes",
            "differs" if missing else "agrees",
            note=f"Not at {', '.join(missing)} items." if missing else "",
        ),
        Comparison(
            "its gain becomes more pronounced as the scale increases",
            "largest at the largest size",
            f"largest, {gains[best]:+.1f} points, at {best:,} items; {gains[largest]:+.1f} at {largest:,}",
            "agrees" if best == largest else "differs",
            note="In the printed table the gain is largest at 1,024 items: 3.9 points, against 1.6 at 16,384.",
        ),
    ]


def _significant(p_value: object) -> bool:
    return isinstance(p_value, float) and p_value < SIGNIFICANT


def sentences(outcomes: Outcomes, experiment: MaxRetrieval) -> list[str]:
    """What came out; each sentence only where its runs are there."""
    said = [_against_the_table(outcomes, experiment, size) for size in experiment.set_sizes]
    said += [_decay(outcomes, experiment)]
    said += [_best(outcomes, experiment, schedule) for schedule in experiment.schedules]
    said += [_gaps(outcomes, experiment, schedule) for schedule in experiment.schedules]
    said += [seeds_that_train.sentence(outcomes.trainings(), f"at {TRAINED_ON} items with their own rule")]
    said += [_focus(outcomes, experiment, schedule) for schedule in experiment.schedules]
    said += [FOCUS if "focus" in experiment.trained() else "", _choice(outcomes, experiment), _scope(experiment)]
    return [sentence for sentence in said if sentence]


def _against_the_table(outcomes: Outcomes, experiment: MaxRetrieval, size: str) -> str:
    away = _away(outcomes, size)
    if not away:
        return ""
    far = [f"{name} at {items:,}" for (name, items), gap in away.items() if abs(gap) > WITHIN]
    name, items = max(away, key=lambda key: abs(away[key]))
    few = f" (after {experiment.steps:,} steps, too few to compare)" if experiment.steps < ENOUGH_STEPS else ""
    unscaled = "" if experiment.scaled else ", but with logits that are not divided by √128,"
    return (
        f"Trained as published{unscaled} on sets of {size.replace('-', ' to ')} items{few}, softmax and adaptive "
        f"temperature land within {WITHIN:g} points of the printed table in {len(away) - len(far)} of {len(away)} cases"
        f"{f', all but {_listed(far)}' if 0 < len(far) <= 4 else ''}; "
        f"the largest difference is {away[name, items]:+.1f} points ({name}, {items:,} items)."
    )


def _away(outcomes: Outcomes, size: str, but: Container[int] = ()) -> dict[tuple[str, int], float]:
    """Our mean minus the printed accuracy by (rule, items), over all seeds ``but`` some; empty where there are none."""
    found = {}
    for name in ("softmax", "adaptive"):
        group = Group("softmax", size, "constant", name)
        for items in outcomes.values.get(group, {}):
            accuracies = [value for seed, value in outcomes.by_seed(group, items).items() if seed not in but]
            if items in PRINTED and accuracies:
                found[name, items] = statistics.fmean(accuracies) - getattr(PRINTED[items], name)
    return found


def _choice(outcomes: Outcomes, experiment: MaxRetrieval) -> str:
    """How the set-up was arrived at, and what the seeds say that had no part in it."""
    size = experiment.set_sizes[0]
    if not _away(outcomes, size) or size != SET_SIZE or not experiment.scaled or experiment.steps < ENOUGH_STEPS:
        return ""
    said = (
        "The paper leaves the start of the weights and the size of a training set open: Flax's start and sets of 16 "
        "were settled after a look at its table, since torch's start and sets of 5 to 16 had come out lower on a few "
        "seeds, so agreement is that of a set-up chosen among several."
    )
    unseen = _away(outcomes, size, but=SEEN)
    if unseen:
        near = sum(abs(gap) <= WITHIN for gap in unseen.values())
        said += (
            f" Over the seeds alone that were trained after it was settled (all but {SEEN[0]} to {SEEN[-1]}), "
            f"{near} of {len(unseen)} cases are within {WITHIN:g} points, the largest difference being "
            f"{max(unseen.values(), key=abs):+.1f}."
        )
    return said


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _decay(outcomes: Outcomes, experiment: MaxRetrieval) -> str:
    """What the decay of the learning rate does, over the seeds that were trained both ways."""
    size = experiment.set_sizes[0]
    groups = [Group("softmax", size, schedule, "softmax") for schedule in ("constant", "cosine")]
    if any(group not in outcomes.values for group in groups):
        return ""
    items = min(outcomes.sizes(groups[0]), key=lambda n: abs(n - 1024))
    found = [outcomes.by_seed(group, items) for group in (*groups, groups[0].argmax)]
    both = [seed for seed in found[0] if seed in found[1]]
    if not both:
        return ""
    constant, cosine, argmax = (statistics.fmean(each[seed] for seed in both) for each in found)
    text = (
        f"With the learning rate decayed by a cosine instead of constant, softmax goes from {constant:.1f} to "
        f"{cosine:.1f} % at {items:,} items, over the {len(both)} seeds trained both ways; the argmax of the constant "
        f"rate's logits brings {argmax - constant:+.1f} points"
    )
    if experiment.steps >= ENOUGH_STEPS and cosine - constant > max(WITHIN, argmax - constant):
        text += ": the noise of training at a constant rate, more than dispersion, sets the published figures"
    return text + "."


def _own(outcomes: Outcomes, experiment: MaxRetrieval, schedule: str) -> dict[str, Group]:
    """Every rule on the weights trained with it, by name, in the first set size."""
    kinds = [Group(rule, experiment.set_sizes[0], schedule, rule) for rule in experiment.trained()]
    return {group.trained_with: group for group in kinds if group in outcomes.values}


def _best(outcomes: Outcomes, experiment: MaxRetrieval, schedule: str) -> str:
    own = _own(outcomes, experiment, schedule)
    if len(own) < 2:
        return ""
    items = max(outcomes.sizes(next(iter(own.values()))))
    ranked = sorted(own, key=lambda rule: -outcomes.mean(own[rule], items))
    shown = ", ".join(f"{rule} {outcomes.mean(own[rule], items):.1f}" for rule in ranked)
    return f"Accuracy at {items:,} items by rule, {schedule} rate, %: {shown}."


def _gaps(outcomes: Outcomes, experiment: MaxRetrieval, schedule: str) -> str:
    """What the argmax of the same logits gets right at the largest size, and how much of it a rule loses."""
    own = _own(outcomes, experiment, schedule)
    if not own:
        return ""
    items = max(outcomes.sizes(next(iter(own.values()))))
    gaps = {rule: outcomes.gap_to_argmax(group, items) for rule, group in own.items()}
    ranked = sorted(gaps, key=lambda rule: gaps[rule])
    shown = ", ".join(f"{rule} {gaps[rule]:+.1f} ({outcomes.mean(own[rule].argmax, items):.1f} %)" for rule in ranked)
    return (
        f"What the argmax of the same logits adds at {items:,} items, in points, and what it reaches, {schedule} rate: "
        f"{shown}."
    )


def _focus(outcomes: Outcomes, experiment: MaxRetrieval, schedule: str) -> str:
    """Focus beside every other rule at the largest size, seed by seed."""
    own = _own(outcomes, experiment, schedule)
    focus = own.pop("focus", None)
    if focus is None:
        return ""
    items = max(outcomes.sizes(focus))
    others = {rule: outcomes.by_seed(group, items) for rule, group in own.items()}
    adaptive = Group("softmax", experiment.set_sizes[0], schedule, "adaptive")
    if adaptive in outcomes.values:
        others["adaptive on softmax's weights"] = outcomes.by_seed(adaptive, items)
    ahead = leads(outcomes.by_seed(focus, items), others)
    of_whom = (
        f"How far focus is ahead at {items:,} items, {schedule} rate, in points, with the paired t-test over seeds"
    )
    return f"{of_whom}: {ahead}." if ahead else ""


def _seeds(outcomes: Outcomes, group: Group) -> int:
    return len(outcomes.of(group, outcomes.sizes(group)[0]))


def _scope(experiment: MaxRetrieval) -> str:
    steps = f"{experiment.steps:,} steps"
    beside = f", where the paper has {PUBLISHED_STEPS:,}" if experiment.steps != PUBLISHED_STEPS else ""
    tested = f"up to {experiment.sets:,} test sets a size"
    seeds = f"Means over {experiment.seeds} seeds"
    variants = len(experiment.schedules) > 1 or len(experiment.set_sizes) > 1
    if variants and experiment.variant_seeds != experiment.seeds:
        seeds += f" of the first set-up, {experiment.variant_seeds} of its variants"
    return f"{seeds}; {steps}{beside}; {tested}, the same for every rule; chance is 10 %."


def charts(outcomes: Outcomes, experiment: MaxRetrieval) -> list[Chart]:
    """The published table; every rule by schedule; entropy and top weight."""
    made = [_published_chart(outcomes, experiment, size) for size in experiment.set_sizes]
    for schedule in experiment.schedules:
        made.append(_rules_chart(outcomes, experiment, schedule, "accuracy"))
    for what in ("argmax", "entropy", "weight_of_largest"):
        made.append(_rules_chart(outcomes, experiment, experiment.schedules[-1], what))
    return [chart for chart in made if chart is not None]


def _published_chart(outcomes: Outcomes, experiment: MaxRetrieval, size: str) -> Chart | None:
    groups = {name: Group("softmax", size, "constant", name) for name in ("softmax", "adaptive", ARGMAX)}
    if groups["softmax"] not in outcomes.values:
        return None
    series = [_curve(outcomes, group, name) for name, group in groups.items()]
    for name in ("softmax", "adaptive"):
        sizes = [items for items in outcomes.sizes(groups[name]) if items in PRINTED]
        printed = [getattr(PRINTED[items], name) for items in sizes]
        series.append(Series(f"{name}, printed", sizes, printed, printed=True))
    return _chart(
        f"published-{size}",
        f"Max retrieval as published, trained on {size.replace('-', ' to ')} items",
        "accuracy, %",
        series,
        note=f"Shaded: 95 % interval of the mean over {_seeds(outcomes, groups['softmax'])} seeds. Chance is 10 %.",
    )


TITLES = {
    "accuracy": ("accuracy, %", "How each rule carries over to larger sets, {} learning rate"),
    "argmax": ("accuracy, %", "The argmax of each network's logits, where nothing is spread, {} rate"),
    "entropy": ("entropy of the weights, nats", "How far each rule spreads its weight, {} rate"),
    "weight_of_largest": ("weight of the largest item", "What the item that matters gets, {} rate"),
}


def _rules_chart(outcomes: Outcomes, experiment: MaxRetrieval, schedule: str, what: str) -> Chart | None:
    series = []
    for rule in experiment.trained():
        evaluated = [ARGMAX] if what == "argmax" else [rule, *(["adaptive"] if rule == "softmax" else [])]
        for name in evaluated:
            group = Group(rule, experiment.set_sizes[0], schedule, name)
            label = rule if name in (rule, ARGMAX) else f"{name} on softmax's weights"
            if group in outcomes.values:
                series.append(_curve(outcomes, group, label, "accuracy" if what == "argmax" else what))
    if len(series) < 2:
        return None
    label, title = TITLES[what]
    return _chart(f"{what.replace('_', '-')}-{schedule}", title.format(schedule), label, series)


def _curve(outcomes: Outcomes, group: Group, name: str, what: str = "accuracy") -> Series:
    sizes = outcomes.sizes(group)
    around = [(percents if what == "accuracy" else interval)(outcomes.of(group, items, what)) for items in sizes]
    means = [outcomes.mean(group, items, what) for items in sizes]
    return Series(name, sizes, means, [low for low, _ in around], [high for _, high in around])


def _chart(name: str, title: str, label: str, series: Sequence[Series], note: str = "") -> Chart:
    return Chart(name, title, "items in the set", label, series, x_log=2, note=note)
