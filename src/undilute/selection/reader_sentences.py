"""What does a comparison of readers say, in sentences?  The answer first; where heads lose, it says so."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from undilute.evaluation.changes import Change, change, likelihood
from undilute.evaluation.result import Mean
from undilute.evaluation.sentences import FEWEST_BLOCKS
from undilute.selection.judging import FULL, ORACLE, Read

if TYPE_CHECKING:
    from undilute.selection.comparison import Comparison

HEADS = "heads"
RANDOM = "random"  # which finds nothing, whatever the budget
NOT_KEPT = 90.0  # percent of gold kept, below which the budget hides something
ALL = "reading everything (none)"


def findings(found: Comparison) -> list[str]:
    """The answer, the best of each task, heads against others, what was hidden or cut, cost, and how much was asked."""
    return [
        _answer(found),
        *_by_task(found),
        *_against_heads(found),
        *_hidden(found),
        *_cut(found),
        *_guessed(found),
        *_cost(found),
        *_oracle(found),
        _amount(found),
    ]


def _answer(found: Comparison) -> str:
    length = found.lengths[-1]
    where = f"At {length:,} tokens"
    recalls = {reader: found.recall(reader, length=length) for reader in found.readers}
    if not found.scorers:
        said = " and ".join(f"{_named(reader)} {percent(recalls[reader])}" for reader in found.readers)
        return f"{where}, the share of questions answered right is, after {said}."
    top = max(recalls[reader].value for reader in found.scorers)
    first, *others = [reader for reader in found.scorers if recalls[reader].value == top]
    best = f"{first}, as well as {_and(others)}," if others else first
    if FULL not in found.readers:
        return f"{where}, {best} answers most questions right: {percent(recalls[first])}."
    line = found.difference(first, FULL, length=length)
    figures = f"{top:.0f} % of the questions right instead of {recalls[FULL].value:.0f} %"
    match line.verdict:
        case "better":
            return f"{where}, {best} beats {ALL}: {figures} ({points(line)})."
        case "worse":
            return f"{where}, no selection beats {ALL}: {best} answers {figures} ({points(line)})."
        case _:
            return f"{where}, no selection differs clearly from {ALL}: {best} answers {figures} ({points(line)})."


def _by_task(found: Comparison) -> list[str]:
    """The best reader of each task, with those that are as good."""
    readers = [each for each in found.readers if each != ORACLE]
    if len(readers) < 2 or len(found.tasks) < 2:
        return []
    said = []
    for task in found.tasks:
        values = {reader: found.recall(reader, task).value for reader in readers}
        top = max(values.values())
        best = [reader for reader in readers if values[reader] == top]
        others = sorted((reader for reader in readers if reader not in best), key=lambda reader: -values[reader])
        rest = ", ".join(f"{reader} {values[reader]:.0f} %" for reader in others)
        verb = "is" if len(best) == 1 else "are"
        said.append(f"{task}: best {verb} {_and(best)} with {top:.0f} %{f'; {rest}' if rest else ''}.")
    return said


def _against_heads(found: Comparison) -> list[str]:
    """Every scorer that does without the heads, against them: over everything, and where it is clearly better."""
    if HEADS not in found.readers:
        return []
    said = []
    for reader in found.scorers:
        if HEADS in reader.split("+"):
            continue
        line = found.difference(reader, HEADS)
        how = {"better": "is better than", "worse": "is worse than"}.get(line.verdict, "does not differ clearly from")
        figures = f"{line.after:.1f} % instead of {line.before:.1f} % ({points(line)})"
        said.append(f"Over everything, {reader} {how} the model's own {HEADS}: {figures}.")
        if len(found.tasks) > 1:
            lines = {task: found.difference(reader, HEADS, task=task) for task in found.tasks}
            better = [
                f"{task} ({own.after:.0f} % instead of {own.before:.0f} %, {_likely(own)})"
                for task, own in lines.items()
                if own.verdict == "better"
            ]
            if better:
                said.append(f"{reader} is better than {HEADS} in {_and(better)}.")
    return said


def _hidden(found: Comparison) -> list[str]:
    """Tasks in which a selection did not keep all that the answer needs."""
    said = []
    for task in found.tasks:
        kept = {reader: found.kept(reader, task).value for reader in found.scorers if reader != RANDOM}
        lost = {reader: share for reader, share in kept.items() if share < NOT_KEPT}
        if lost:
            shares = _and([f"{reader} for {share:.0f} %" for reader, share in lost.items()])
            said.append(
                f"In {task}, the budget of {found.settings.get('budget', 0):,} tokens hides something: all that an "
                f"answer needs was kept by {shares} of the questions."
            )
    return said


def _cut(found: Comparison) -> list[str]:
    window = found.settings.get("window")
    if FULL not in found.readers or window is None:
        return []
    said = []
    for length in found.lengths:
        if length > window:
            read = statistics.fmean(each.answered for each in found.of(FULL, length=length))
            kept = found.kept(FULL, length=length).value
            said.append(
                f"A text of {length:,} tokens does not fit into the model's window of {window:,}: none was cut to the "
                f"last {read:,.0f}, which hold what is needed for {kept:.0f} % of the questions."
            )
    return said


def _guessed(found: Comparison) -> list[str]:
    """Tasks in which no reader clearly beats guessing."""
    said = []
    for task in found.tasks:
        every = [found.of(reader, task) for reader in found.readers]
        if len({each.haystack for each in every[0]}) >= FEWEST_BLOCKS and not any(map(_beats_guessing, every)):
            chance = 100 * statistics.fmean(each.chance for each in every[0])
            said.append(
                f"Answers in {task} cannot be told from guesses after any reader ({chance:.0f} % right by guessing): "
                "that task says little here."
            )
    return said


def _beats_guessing(some: Sequence[Read]) -> bool:
    right, chance, blocks = (
        np.array([getattr(each, name) for each in some]) for name in ("right", "chance", "haystack")
    )
    return change("", "", chance, right, blocks, better="higher").verdict == "better"


def _cost(found: Comparison) -> list[str]:
    length = found.lengths[-1]
    parts = []
    for reader in found.readers:
        some = found.of(reader, length=length)
        choose, answer = (statistics.fmean(getattr(each, name) for each in some) for name in ("chosen", "answered"))
        seconds = statistics.median(each.seconds for each in some)
        tokens = f"{choose:,.0f} tokens to choose and {answer:,.0f} to answer" if choose else f"{answer:,.0f} tokens"
        parts.append(f"{reader} {tokens}, {seconds:.2g} s")
    return [f"What a question costs at {length:,} tokens: {'; '.join(parts)}."]


def _oracle(found: Comparison) -> list[str]:
    if ORACLE not in found.readers:
        return []
    return [
        f"The oracle, which is given the right passages alone, answers {percent(found.recall(ORACLE))}: no selection "
        "can be expected to do better with this model."
    ]


def _amount(found: Comparison) -> str:
    asked = found.of(found.readers[0])
    blocks = len({(each.task, each.haystack) for each in asked})
    lines = sum(map(len, found.changes.values()))
    said = (
        f"Every reader was asked {_number(len(asked), 'question')} about {_number(blocks, 'set')} of facts, hidden in "
        f"{_number(len({each.text for each in asked}), 'text')} at {_number(len(found.lengths), 'length')}."
    )
    if lines:
        said += f" The {_number(lines, 'line')} of the comparison are not corrected for being many."
    if blocks < FEWEST_BLOCKS:
        said += f" Fewer than {FEWEST_BLOCKS} sets cannot show a clear difference."
    return said


# ---------------------------------------------------------------- words for figures


def percent(share: Mean) -> str:
    """A share with its interval.

    >>> percent(Mean(93.75, 86.0, 100.0, 32))
    '93.8 % (86 to 100)'
    """
    known = share.low == share.low
    return f"{share.value:.1f} %" + (f" ({share.low:.0f} to {share.high:.0f})" if known else "")


def points(line: Change) -> str:
    """A difference in percentage points, with its interval and likelihood."""
    said = f"{line.difference:+.1f} points"
    if line.low is not None and line.high is not None:
        said += f", {line.low:+.1f} to {line.high:+.1f}, {_likely(line)}"
    return said.replace("-", "−")


def _likely(line: Change) -> str:
    return "p unknown" if line.p_value is None else likelihood(line.p_value)


def _named(reader: str) -> str:
    return ALL if reader == FULL else reader


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _number(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
