"""What do the differences between two evaluations say, in sentences?  The answer first; worse is called worse."""

from __future__ import annotations

from collections.abc import Sequence

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
from undilute.evaluation.outcome import TASKS, Answer, Evaluation, Task
from undilute.models.text_loss import position_buckets

IS = {"better": "is better", "worse": "is worse", "no clear difference": "shows no clear difference"}
FEWEST_BLOCKS = 6  # of equal sign for a p-value below 0.05: 2 / 2 ** 6
CLOSE = 0.05  # a ratio of times or of memory this near to 1 is called about the same


def findings(before: Evaluation, after: Evaluation, changes: Sequence[Change]) -> list[str]:
    """Sentences for a report.

    Parameters
    ----------
    before, after : the evaluations
    changes : of ``changes(before, after)``

    Returns
    -------
    list of str
        The answer about loss and recall, then where it comes from, what the questions cannot tell, attention, cost, and
        how much was measured.
    """
    lines = {each.what: each for each in changes}
    said = [
        _answer(before, after, lines),
        _by_position(after, lines),
        _by_group(lines, [f", {task}" for task in TASKS], "By task, needle recall"),
        _by_group(lines, [f" at {n:,} tokens" for n in _lengths(after)], "By length, needle recall"),
        *_log_probability(lines),
        *_uninformative(before, after),
        *_attention(lines),
        *_cost(before, after),
        amount(after, changes),
    ]
    return [sentence for sentence in said if sentence]


def _answer(before: Evaluation, after: Evaluation, lines: dict[str, Change]) -> str:
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
        return f"{shown}, from too little to give an interval"
    ends = _number(line.low, digits, sign="+"), _number(line.high, digits, sign="+")
    return f"{shown}, 95 % interval {ends[0]} to {ends[1]}, {likelihood(line.p_value)}"


def _number(value: float, digits: int, sign: str = "") -> str:
    shown = f"{value:{sign}.{digits}f}"
    if float(shown) == 0 and value != 0:
        shown = f"{value:{sign}.1g}"  # too small for the digits, and yet not nothing
    return shown.lstrip("+-") if float(shown) == 0 else shown.replace("-", "−")


def _by_position(after: Evaluation, lines: dict[str, Change]) -> str:
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
    parts = [f"{words} {_listed(by_verdict[verdict])}" for verdict, words in _IN_ORDER if verdict in by_verdict]
    return ", and ".join(parts)


_IN_ORDER: tuple[tuple[Verdict, str], ...] = (
    ("better", IS["better"]),
    ("worse", IS["worse"]),
    ("no clear difference", IS["no clear difference"]),
)


def _listed(names: Sequence[str]) -> str:
    named = [name if name.startswith(("at ", "after ")) else f"in {name}" for name in names]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _log_probability(lines: dict[str, Change]) -> list[str]:
    if LOG_PROBABILITY not in lines:
        return []
    line = lines[LOG_PROBABILITY]
    return [f"The log-probability of the right answers among the candidates {IS[line.verdict]}: {figures(line)}."]


def _uninformative(before: Evaluation, after: Evaluation) -> list[str]:
    """Tasks whose answers cannot be told from guesses, either way: they say nothing about the treatment."""
    said = []
    for task in guessed_tasks([before, after]):
        pairs = [[answer for answer in each.answers if answer.task == task] for each in (before, after)]
        old, new = (100 * float(np.mean([answer.right for answer in answers])) for answers in pairs)
        guessed = 100 * float(np.mean([answer.chance for answer in pairs[0]]))
        said.append(
            f"Answers in {_named(task)} cannot be told from guesses, before or after ({old:.0f} % and {new:.0f} % "
            f"right, {guessed:.0f} % by guessing): that task says little here."
        )
    return said


def guessed_tasks(evaluations: Sequence[Evaluation]) -> list[Task]:
    """Tasks with haystacks enough to tell, in which no evaluation has clearly more right than guesses would have."""
    found: list[Task] = []
    for task in TASKS:
        asked = [[answer for answer in each.answers if answer.task == task] for each in evaluations]
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


def _named(task: Task) -> str:
    return "variable tracking" if task == "tracking" else f"{task} recall"


def _attention(lines: dict[str, Change]) -> list[str]:
    if ENTROPY not in lines:
        return []
    line = lines[ENTROPY]
    way = {"better": "narrower", "worse": "wider"}.get(line.verdict)
    how = f"attention is {way}" if way else "attention is neither clearly narrower nor clearly wider"
    return [f"Averaged over all heads and sampled rows, {how}: entropy {figures(line)}."]


def _cost(before: Evaluation, after: Evaluation) -> list[str]:
    if before.cost is None or after.cost is None:
        return []
    old, new = before.cost, after.cost
    said = (
        f"Time for reading {new.tokens:,} tokens: {_ratio(new.prefill_seconds, old.prefill_seconds, 's')}; for one "
        f"more token: {_ratio(new.decode_seconds, old.decode_seconds, 's')}"
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


def amount(after: Evaluation, changes: Sequence[Change]) -> str:
    """How much was measured, and how far that goes."""
    windows, tokens = after.losses.shape
    said = f"Measured on {windows} {_plural('window', windows)} of {tokens + 1:,} tokens"
    if after.answers:
        haystacks = len({answer.haystack for answer in after.answers})
        questions = len(after.answers)
        said += f" and {questions} {_plural('question', questions)} about {haystacks} {_plural('haystack', haystacks)}"
    said += (
        f". The {len(changes)} lines of the comparison are not corrected for being many: about one in twenty would be "
        "called better or worse without any difference."
    )
    if few := sum(line.count < FEWEST_BLOCKS for line in changes):
        said += (
            f" {few} of them {'rests' if few == 1 else 'rest'} on fewer than {FEWEST_BLOCKS} blocks of text or "
            "haystacks, too few for any difference to be clear."
        )
    return said


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


def _lengths(evaluation: Evaluation) -> list[int]:
    return sorted({answer.length for answer in evaluation.answers})
