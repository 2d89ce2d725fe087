"""What came out of a tuning, in words?  Sentences computed from the figures, for terminal, plans and model cards."""

from __future__ import annotations

from collections.abc import Sequence

from undilute.evaluation.changes import Change
from undilute.tuning.frontier import Point
from undilute.tuning.judging import Judged


def of_choice(points: Sequence[Point], point: Point, budget: float, rows: str) -> list[str]:
    """What was chosen, and what it was chosen by."""
    untreated = points[0]
    if point.scale == 0:
        return [
            f"Nothing that was learned answers better within {budget:g} nats of loss on plain text: the plan changes "
            "nothing."
        ]
    said = [
        f"Chosen by questions that nothing was learned from: {100 * untreated.right:.0f} % right before, "
        f"{100 * point.right:.0f} % with {point.scale:g} of what was learned."
    ]
    if rows == "all":
        said.append(
            f"There, loss on plain text changes by {point.text_loss:+.3f} nats [{point.low:+.3f}, {point.high:+.3f}]; "
            f"the budget was {budget:g}."
        )
    else:
        said.append("Only rows that read a question or answer it are treated: plain text is read as before.")
    return said


def of_judged(judged: Judged) -> list[str]:
    """What the judges say, good or bad."""
    said = [
        f"Recall at {length:,} tokens, in names, words and wordings that were not learned from: {_moved(each, 0)}."
        for length, each in judged.recall.items()
    ]
    if judged.loss:
        said.append(f"Loss on held-out text, in nats: {_moved(judged.loss[0], 3)}.")
    if judged.other:
        said.append(
            "Tasks of another kind: "
            + "; ".join(f"{task} {_moved(each, 0)}" for task, each in judged.other.items())
            + "."
        )
    if worse := [each.what for each in (*judged.recall.values(), *judged.other.values()) if each.verdict == "worse"]:
        said.append(f"Clearly worse: {', '.join(worse)}.")
    return said


def _moved(each: Change, digits: int) -> str:
    """
    >>> _moved(Change("", "%", 70.0, 90.0, 20.0, 10.0, 30.0, 0.01, "higher", 8), 0)
    '70 → 90 % (+20 [+10, +30], 8 haystacks)'
    """
    unit = " %" if each.unit == "%" else ""
    blocks = "haystacks" if each.unit == "%" else "runs of text"
    ends = ""
    if each.low is not None and each.high is not None:
        ends = f" [{each.low:+.{digits}f}, {each.high:+.{digits}f}]"
    return (
        f"{each.before:.{digits}f} → {each.after:.{digits}f}{unit} ({each.difference:+.{digits}f}{ends}, "
        f"{each.count:,} {blocks})"
    )
