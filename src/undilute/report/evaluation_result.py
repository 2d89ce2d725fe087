"""What did a treatment do?  Evaluations as a result with findings, tables and charts, for the same page as all others.

The first evaluation is that of the model as it was. Sentences are made from the paired changes; a difference that is
not clear is called so, and a worse result is called worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from undilute.evaluation.changes import ENTROPY, LOSS, RECALL, Change, Verdict
from undilute.evaluation.outcome import Evaluation
from undilute.evaluation.sentences import amount, guessed_tasks
from undilute.evaluation.sentences import figures as in_figures
from undilute.models.text_loss import position_buckets
from undilute.report import evaluation_charts as treatment_charts
from undilute.report import evaluation_figures as figures
from undilute.report.result import Chart, HeatMap, Result, Row

Changes = Mapping[str, Sequence[Change]]  # by the label of what is compared with the model as it was


def treated(
    before: Evaluation,
    after: Evaluation,
    changes: Sequence[Change],
    findings: Sequence[str],
    *,
    settings: Mapping[str, Any],
    command: str = "",
    seconds: float = 0.0,
) -> Result:
    """What ``undilute treat`` found.

    Parameters
    ----------
    before, after : of the same model on the same text and questions, without and with the treatment
    changes : paired, before and after
    findings : sentences, the answer first
    settings : "model" and "rules" name the page; the others are shown as they are
    """
    every = [before, after]
    charts: list[Chart | HeatMap] = [*treatment_charts.curves(every, changes), *treatment_charts.recalls(every)]
    charts += treatment_charts.costs(every)
    tables = _tables(every, {after.label: changes})
    return Result("treat", settings, findings, [], tables, charts, seconds, command=command)


def compared(
    evaluations: Sequence[Evaluation],
    changes: Changes,
    *,
    settings: Mapping[str, Any],
    command: str = "",
    seconds: float = 0.0,
) -> Result:
    """What ``undilute compare`` found.

    Parameters
    ----------
    evaluations : of the same model on the same text and questions; that of softmax first
    changes : from the first evaluation to each of the others, by their labels
    settings, command, seconds : as for :func:`treated`
    """
    charts: list[Chart | HeatMap] = [*treatment_charts.heat_maps(evaluations), treatment_charts.entropy(evaluations)]
    tables = _tables(evaluations, changes)
    return Result("compare", settings, _answers(evaluations, changes), [], tables, charts, seconds, command=command)


# ---------------------------------------------------------------- findings of a comparison


SAID: dict[Verdict, str] = {
    "better": "is better under {}",
    "worse": "is worse under {}",
    "no clear difference": "shows no clear difference under {}",
}


def _answers(evaluations: Sequence[Evaluation], changes: Changes) -> list[str]:
    """The answer, a sentence for each rule, what the questions cannot tell, and how much was measured."""
    lines = {label: {each.what: each for each in own} for label, own in changes.items()}
    parts = [_by_verdict(what, lines) for what in (LOSS, RECALL) if all(what in own for own in lines.values())]
    answer = f"Beside {evaluations[0].label}, {'; '.join(parts)}."
    rules = [_of_rule(each, evaluations[0], lines[each.label]) for each in evaluations[1:]]
    return [
        answer,
        *rules,
        *_uninformative(evaluations),
        amount(evaluations[0], [each for own in changes.values() for each in own]),
    ]


def _by_verdict(what: str, lines: Mapping[str, Mapping[str, Change]]) -> str:
    """Which rules are better, worse, and neither."""
    said = []
    for verdict, words in SAID.items():
        labels = [label for label, own in lines.items() if own[what].verdict == verdict]
        if labels:
            said.append(words.format(_listed(labels)))
    return f"{what} {', and '.join(said)}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _of_rule(evaluation: Evaluation, baseline: Evaluation, lines: Mapping[str, Change]) -> str:
    parts = [f"{what} {in_figures(lines[what])}" for what in (LOSS, RECALL) if what in lines]
    if evaluation.cost is not None and baseline.cost is not None:
        times = figures.ratio(evaluation.cost.prefill_seconds, baseline.cost.prefill_seconds)
        parts.append(f"{times:.2f} times the time for reading {evaluation.cost.tokens:,} tokens")
    return f"{evaluation.label}: {'; '.join(parts)}."


def _uninformative(evaluations: Sequence[Evaluation]) -> list[str]:
    """Tasks that no rule can do say nothing about the rules."""
    return [
        f"Under no rule can answers in {task} be told from guesses, of which "
        f"{figures.chance(figures.answers(evaluations[0], task=task)):.0f} % are right: that task says little here."
        for task in guessed_tasks(evaluations)
    ]


# ---------------------------------------------------------------- tables


def _tables(evaluations: Sequence[Evaluation], changes: Changes) -> dict[str, list[Row]]:
    tables = {
        "changes": [_change(label, each) for label, lines in changes.items() for each in lines],
        "loss by position": [row for each in evaluations for row in _losses(each)],
        "recall": [row for each in evaluations for row in _recalls(each)],
        "entropy": [row for each in evaluations for row in _entropies(each)],
        "cost": [_cost(each, evaluations[0]) for each in evaluations if each.cost is not None],
    }
    return {name: rows for name, rows in tables.items() if rows}


ATTENTION: dict[str, str] = {"better": "narrower", "worse": "wider"}  # whether that helps, loss and recall say


def _change(label: str, change: Change) -> Row:
    return {
        "rule": label,
        "what": change.what,
        "unit": change.unit,
        "before": change.before,
        "after": change.after,
        "difference": change.difference,
        "low": change.low,
        "high": change.high,
        "p": change.p_value,
        "verdict": ATTENTION.get(change.verdict, change.verdict) if change.what == ENTROPY else change.verdict,
        "blocks": change.count,
    }


def _losses(evaluation: Evaluation) -> list[Row]:
    rows: list[Row] = []
    for first, last in position_buckets(evaluation.losses.shape[1] + 1):
        found = figures.loss_within(evaluation, first, last)
        interval = {"low": found.low, "high": found.high, "tokens": found.count}
        rows.append({"rule": evaluation.label, "from": first, "to": last, "loss": found.value, **interval})
    return rows


def _recalls(evaluation: Evaluation) -> list[Row]:
    rows: list[Row] = []
    for task in figures.tasks(evaluation):
        for length in figures.lengths(evaluation):
            asked = figures.answers(evaluation, task=task, length=length)
            if not asked:
                continue
            found = figures.recall(asked)
            rows.append(
                {
                    "rule": evaluation.label,
                    "task": task,
                    "length": length,
                    "recall, %": found.value,
                    "low": found.low,
                    "high": found.high,
                    "guessing, %": figures.chance(asked),
                    "log-probability": figures.log_probability(asked),
                    "questions": len(asked),
                    "haystacks": len({each.haystack for each in asked}),
                }
            )
    return rows


def _entropies(evaluation: Evaluation) -> list[Row]:
    return [
        {"rule": evaluation.label, "n": n, "median, nats": median, "first quartile": first, "third quartile": third}
        for n, median, first, third in figures.entropies(evaluation)
    ]


def _cost(evaluation: Evaluation, baseline: Evaluation) -> Row:
    row: dict[str, Any] = {"rule": evaluation.label, "tokens": getattr(evaluation.cost, "tokens", None)}
    for name, part in figures.COSTS.items():
        own, other = (getattr(each.cost, part, None) for each in (evaluation, baseline))
        row |= {name: own, f"{name}, ratio": figures.ratio(own, other)}
    return row
