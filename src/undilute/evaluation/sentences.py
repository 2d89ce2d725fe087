"""What do the figures say, in sentences?  The answer comes first. Worse is called worse, and unclear, unclear."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from undilute.evaluation.changes import (
    ENTROPY,
    LOG_PROBABILITY,
    LOSS,
    RECALL,
    Change,
    Verdict,
    after_tokens,
    change,
    likelihood,
)
from undilute.evaluation.measure import Answer, Measurement
from undilute.models.text_loss import position_buckets

IS: dict[Verdict, str] = {
    "better": "is better",
    "worse": "is worse",
    "no clear difference": "shows no clear difference",
}
FEWEST_BLOCKS = 6  # of equal sign for a p-value below 0.05: 2 / 2 ** 6
CLOSE = 0.05  # a ratio of times or of memory this near to 1 is called about the same


def as_it_is(measured: Measurement) -> list[str]:
    """Sentences about an untreated model: how good it is, where it guesses, and what it costs."""
    said = f"Under {measured.label}, {LOSS} is {measured.losses.mean():.3f} nats"
    if measured.answers:
        right, chance = (100 * statistics.fmean(getattr(a, n) for a in measured.answers) for n in ("right", "chance"))
        said += f", and {RECALL} {right:.1f} % ({chance:.1f} % by guessing)"
    first, last = position_buckets(measured.losses.shape[1] + 1)[-1]
    end = measured.losses[:, first - 1 : last].mean()
    sentences = [f"{said}.", f"At the end of the window, {after_tokens(first, last)}, the loss is {end:.3f} nats."]
    sentences += [
        f"Answers in {task} cannot be told from guesses ({_chance(measured, task):.0f} % right by guessing): that task "
        "says little here."
        for task in guessed_tasks([measured])
    ]
    if measured.cost is not None:
        cost = measured.cost
        sentences.append(
            f"Reading {cost.tokens:,} tokens takes {cost.prefill_seconds:.3g} s, one more token "
            f"{cost.decode_seconds:.3g} s."
        )
    return [*sentences, f"{how_much(measured)}."]


def findings(before: Measurement, after: Measurement, changes: Sequence[Change]) -> list[str]:
    """Sentences for a report.

    Parameters
    ----------
    before, after : of the same material
    changes : of ``changes(before, after)``

    Returns
    -------
    list of str
        The answer about loss and recall, then where it comes from, what the questions cannot show, attention, cost, and
        how much was measured.
    """
    lines = {each.what: each for each in changes}
    said = [
        _answer(before, after, lines),
        _by_position(after, lines),
        _by_group(lines, [f", {task}" for task in after.tasks], "By task, needle recall"),
        _by_group(lines, [f" at {n:,} tokens" for n in after.lengths], "By length, needle recall"),
        *_log_probability(lines),
        *_uninformative(before, after),
        *_attention(lines),
        *_cost(before, after),
        amount(after, changes),
    ]
    return [sentence for sentence in said if sentence]


def _answer(before: Measurement, after: Measurement, lines: dict[str, Change]) -> str:
    parts = [f"{LOSS} {IS[lines[LOSS].verdict]} ({figures(lines[LOSS])})"]
    if RECALL in lines:
        parts.append(f"{RECALL} {IS[lines[RECALL].verdict]} ({figures(lines[RECALL])})")
    else:
        parts.append(f"{RECALL} was not measured")
    return f"With {after.label} instead of {before.label}, {', and '.join(parts)}."


def figures(line: Change) -> str:
    """A change in figures.

    >>> figures(Change("loss", "nats", 2.5, 2.75, 0.25, 0.125, 0.375, 0.0004, "lower", 40))
    '2.500 → 2.750 nats, difference +0.250, 95 % interval +0.125 to +0.375, p < 0.001'
    """
    digits = 1 if line.unit == "%" else 3
    shown = f"{_number(line.before, digits)} → {_number(line.after, digits)} {line.unit}"
    shown += f", difference {_number(line.difference, digits, sign='+')}"
    if line.low is None or line.high is None or line.p_value is None:
        return f"{shown}, too little data for an interval"
    ends = _number(line.low, digits, sign="+"), _number(line.high, digits, sign="+")
    return f"{shown}, 95 % interval {ends[0]} to {ends[1]}, {likelihood(line.p_value)}"


def _number(value: float, digits: int, sign: str = "") -> str:
    shown = f"{value:{sign}.{digits}f}"
    if float(shown) == 0 and value != 0:
        shown = f"{value:{sign}.1g}"  # too small for the digits, and yet not nothing
    return shown.lstrip("+-") if float(shown) == 0 else shown.replace("-", "−")


def _by_position(after: Measurement, lines: dict[str, Change]) -> str:
    names = [after_tokens(*bucket) for bucket in position_buckets(after.losses.shape[1] + 1)]
    by_verdict = _sorted(lines, LOSS, [f" {name}" for name in names])
    if not by_verdict:
        return ""
    last = lines[f"{LOSS} {names[-1]}"]
    return f"By position, the loss {_verdicts(by_verdict)}. At the end of the window, {names[-1]}: {figures(last)}."


def _by_group(lines: dict[str, Change], names: Sequence[str], start: str) -> str:
    by_verdict = _sorted(lines, RECALL, names)
    return f"{start} {_verdicts(by_verdict)}." if by_verdict else ""


def _sorted(lines: dict[str, Change], what: str, names: Sequence[str]) -> dict[Verdict, list[str]]:
    """Names of the groups that got better, worse and neither."""
    made: dict[Verdict, list[str]] = {}
    for name in names:
        if what + name in lines:
            made.setdefault(lines[what + name].verdict, []).append(name.strip(", "))
    return made


def _verdicts(by_verdict: dict[Verdict, list[str]]) -> str:
    """
    >>> _verdicts({"worse": ["at 512 tokens"], "no clear difference": ["at 1,024 tokens", "at 2,048 tokens"]})
    'is worse at 512 tokens, and shows no clear difference at 1,024 tokens and at 2,048 tokens'
    """
    parts = [f"{words} {_listed(by_verdict[verdict])}" for verdict, words in IS.items() if verdict in by_verdict]
    return ", and ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return _and([name if name.startswith(("at ", "after ")) else f"in {name}" for name in names])


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _log_probability(lines: dict[str, Change]) -> list[str]:
    if LOG_PROBABILITY not in lines:
        return []
    line = lines[LOG_PROBABILITY]
    return [f"The log-probability of the right answers among the candidates {IS[line.verdict]}: {figures(line)}."]


def _uninformative(before: Measurement, after: Measurement) -> list[str]:
    """Tasks whose answers cannot be told from guesses, before or after: they say nothing about the treatment."""
    said = []
    for task in guessed_tasks([before, after]):
        old, new = (
            100 * statistics.fmean(answer.right for answer in each.asked(task=task)) for each in (before, after)
        )
        said.append(
            f"Answers in {task} cannot be told from guesses, before or after ({old:.0f} % and {new:.0f} % right, "
            f"{_chance(before, task):.0f} % by guessing): that task says little here."
        )
    return said


def _chance(measured: Measurement, task: str) -> float:
    """The share of right answers in a task by guessing, in percent."""
    return 100 * statistics.fmean(answer.chance for answer in measured.asked(task=task))


def guessed_tasks(measurements: Sequence[Measurement]) -> list[str]:
    """Tasks with enough haystacks to tell, in which no measurement clearly beats guessing."""
    found: list[str] = []
    for task in measurements[0].tasks:
        asked = [each.asked(task=task) for each in measurements]
        enough = len({answer.haystack for answer in asked[0]}) >= FEWEST_BLOCKS
        if enough and not any(beats_guessing(answers) for answers in asked):
            found.append(task)
    return found


def beats_guessing(answers: Sequence[Answer]) -> bool:
    """Whether answers are clearly better than guesses, by the same test as a change."""
    right, chance, blocks = (
        np.array([getattr(answer, name) for answer in answers]) for name in ("right", "chance", "haystack")
    )
    return change("", "", chance, right, blocks, better="higher").verdict == "better"


def _attention(lines: dict[str, Change]) -> list[str]:
    if ENTROPY not in lines:
        return []
    line = lines[ENTROPY]
    way = {"better": "narrower", "worse": "wider"}.get(line.verdict)
    how = f"attention is {way}" if way else "attention is neither clearly narrower nor clearly wider"
    return [f"Averaged over all heads and sampled rows, {how}: entropy {figures(line)}."]


def _cost(before: Measurement, after: Measurement) -> list[str]:
    if before.cost is None or after.cost is None:
        return []
    old, new = before.cost, after.cost
    said = (
        f"Time to read {new.tokens:,} tokens: {_ratio(new.prefill_seconds, old.prefill_seconds, 's')}; for one more "
        f"token: {_ratio(new.decode_seconds, old.decode_seconds, 's')}"
    )
    if old.extra_megabytes and new.extra_megabytes is not None:
        said += f"; memory for reading: {_ratio(new.extra_megabytes, old.extra_megabytes, 'MB')}"
    return [f"{said}."]


def _ratio(new: float, old: float, unit: str) -> str:
    """
    >>> _ratio(3.0, 2.0, "s"), _ratio(2.02, 2.0, "s")
    ('1.50 times as much (3 s instead of 2 s)', 'about the same (2.02 s instead of 2 s)')
    """
    times = new / old
    words = "about the same" if abs(times - 1) <= CLOSE else f"{times:.2f} times as much"
    return f"{words} ({new:.3g} {unit} instead of {old:.3g} {unit})"


def how_much(after: Measurement) -> str:
    """How much was measured."""
    windows, tokens = after.losses.shape
    said = f"Measured on {windows} {_plural('window', windows)} of {tokens + 1:,} tokens"
    if after.answers:
        haystacks = len({answer.haystack for answer in after.answers})
        questions = len(after.answers)
        said += f" and {questions} {_plural('question', questions)} about {haystacks} {_plural('haystack', haystacks)}"
    return said


def amount(after: Measurement, changes: Sequence[Change]) -> str:
    """How much was measured, and how much that can show."""
    said = (
        f"{how_much(after)}. The {len(changes)} lines of the comparison are not corrected for multiple testing: about "
        "one in twenty would be called better or worse without any real difference."
    )
    if few := sum(line.count < FEWEST_BLOCKS for line in changes):
        said += (
            f" {few} of them {'rests' if few == 1 else 'rest'} on fewer than {FEWEST_BLOCKS} blocks of text or "
            "haystacks, too few to show a clear difference."
        )
    return said


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


# ---------------------------------------------------------------- many treatments


def compared(measurements: Sequence[Measurement], changes: Mapping[str, Sequence[Change]]) -> list[str]:
    """The answer, a sentence for each treatment, what the questions cannot show, and how much was measured.

    Parameters
    ----------
    measurements : of the same material; the untreated model first
    changes : from the first measurement to each of the others, by their labels
    """
    before, *others = measurements
    lines = {label: {each.what: each for each in own} for label, own in changes.items()}
    parts = [_by_verdict(what, lines) for what in (LOSS, RECALL) if all(what in own for own in lines.values())]
    guessed = [
        f"Answers in {task} cannot be told from guesses under any rule ({_chance(before, task):.0f} % right by "
        "guessing): that task says little here."
        for task in guessed_tasks(measurements)
    ]
    return [
        f"Compared with {before.label}, {'; '.join(parts)}.",
        *(_of_rule(each, before, lines[each.label]) for each in others),
        *guessed,
        amount(before, [each for own in changes.values() for each in own]),
    ]


def _by_verdict(what: str, lines: Mapping[str, Mapping[str, Change]]) -> str:
    """Which rules are better, worse, and neither."""
    said = []
    for verdict, words in IS.items():
        labels = [label for label, own in lines.items() if own[what].verdict == verdict]
        if labels:
            said.append(f"{words} under {_and(labels)}")
    return f"{what} {', and '.join(said)}"


def _of_rule(measured: Measurement, before: Measurement, lines: Mapping[str, Change]) -> str:
    parts = [f"{what} {figures(lines[what])}" for what in (LOSS, RECALL) if what in lines]
    if measured.cost is not None and before.cost is not None:
        times = measured.cost.prefill_seconds / before.cost.prefill_seconds
        parts.append(f"{times:.2f} times the time to read {measured.cost.tokens:,} tokens")
    return f"{measured.label}: {'; '.join(parts)}."
