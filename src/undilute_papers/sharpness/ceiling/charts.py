"""The arms in pictures: the way to the best, arms that stand beside the same one, rules on the same logits."""

from __future__ import annotations

from collections.abc import Sequence

from undilute.report.result import Chart, HeatMap, Series
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.over_seeds import percents
from undilute_papers.sharpness.ceiling.set_ups import PUBLISHED
from undilute_papers.sharpness.ceiling.summary import Group, Outcomes
from undilute_papers.sharpness.ceiling.training import OWN
from undilute_papers.sharpness.max_retrieval.published import PRINTED

CURVES = 7  # that a chart can tell apart
SHADED = "Shaded: 95 % interval of the mean over seeds. Chance is 10 %."


def charts(outcomes: Outcomes) -> list[Chart | HeatMap]:
    """Every picture."""
    return [*_ladder(outcomes), *_siblings(outcomes), _rules(outcomes), _table(outcomes)]


def _curve(outcomes: Outcomes, group: Group, name: str) -> Series:
    sizes = outcomes.sizes(group)
    around = [percents(outcomes.of(group, items)) for items in sizes]
    means = [outcomes.mean(group, items) for items in sizes]
    return Series(name, sizes, means, [low for low, _ in around], [high for _, high in around])


def _chart(name: str, title: str, series: Sequence[Series], note: str = SHADED) -> Chart:
    return Chart(name, title, "items in the set", "accuracy, %", series, x_log=2, note=note)


def _ladder(outcomes: Outcomes) -> list[Chart]:
    """The arms on the way to the best one, and what was printed of the first; a long way takes several charts."""
    curves = [_curve(outcomes, Group(arm.name, OWN), arm.name) for arm in outcomes.way_to(outcomes.best_arm())]
    title = "From {} to {}, one change at a time"
    made = []
    for first in range(0, max(1, len(curves) - 1), CURVES - 1):  # each chart goes on where the one before ends
        series = curves[first : first + CURVES]
        if series[0].name == PUBLISHED.name:
            sizes = [items for items in series[0].x if items in PRINTED]
            printed = [PRINTED[int(items)].softmax for items in sizes]
            series = [*series, Series(f"{PUBLISHED.name}, printed", sizes, printed, printed=True)]
        name = f"ladder-{first // (CURVES - 1) + 1}" if first else "ladder"
        made.append(_chart(name, title.format(curves[first].name, curves[: first + CURVES][-1].name), series))
    return made


def _siblings(outcomes: Outcomes) -> list[Chart]:
    """Every arm that several stand beside, with them: by their own rules, and by the argmax of their logits."""
    beside: dict[str, list[str]] = {}
    for arm, other in outcomes.pairs():
        beside.setdefault(other.name, []).append(arm.name)
    made = []
    for name, changed in beside.items():
        if len(changed) > 1:
            for number, part in enumerate(_parts(changed, CURVES - 1), start=1):
                made += _beside(outcomes, name, part, f"-{number}" if number > 1 else "")
    return made


def _parts(names: Sequence[str], most: int) -> list[Sequence[str]]:
    """As many as one chart takes at a time.

    >>> _parts(["a", "b", "c"], 2)
    [['a', 'b'], ['c']]
    """
    return [names[first : first + most] for first in range(0, len(names), most)]


def _beside(outcomes: Outcomes, other: str, names: Sequence[str], ending: str) -> list[Chart]:
    titles = {
        OWN: f"Arms that each change one thing about {other}, with their own rules",
        ARGMAX: f"Arms that each change one thing about {other}, with the argmax of their logits",
    }
    files = {OWN: f"beside-{other}{ending}", ARGMAX: f"argmax-beside-{other}{ending}"}
    curves = {rule: [_curve(outcomes, Group(name, rule), name) for name in (other, *names)] for rule in titles}
    return [_chart(files[rule], titles[rule], series) for rule, series in curves.items()]


def _rules(outcomes: Outcomes) -> Chart:
    """Every rule on the logits of the best arm."""
    best = outcomes.best_arm().name
    series = [_curve(outcomes, group, group.evaluated_with) for group in outcomes.groups(best)]
    return _chart("rules", f"Rules at inference on the same logits, those of {best}", series)


def _table(outcomes: Outcomes) -> HeatMap:
    """Every arm under every rule at the largest size."""
    items = outcomes.largest
    names = list(dict.fromkeys(group.evaluated_with for group in outcomes.values))
    groups = [[Group(arm.name, name) for name in names] for arm in outcomes.arms]
    values = [[outcomes.mean(each, items) if each in outcomes.values else None for each in row] for row in groups]
    return HeatMap(
        "arms",
        f"Accuracy at {items:,} items by arm, and by the rule at inference",
        "rule at inference",
        "arm",
        ["argmax" if name == ARGMAX else name for name in names],
        [arm.name for arm in outcomes.arms],
        values,
        "accuracy, %",
        better="higher",
        note="Adaptive temperature is tested on softmax's weights only.",
    )
