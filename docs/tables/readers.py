"""Readers for README and docs: recall and gold kept for each task, read from the results of a run."""

from __future__ import annotations

from undilute.report import markdown
from undilute.selection import Comparison

NAMES = {"none": "everything, as far as the window goes", "oracle": "oracle: what answers the question"}


def table(found: Comparison, length: int) -> str:
    """A line for each reader at one length: recall with its interval, and gold kept, for each task.

    Parameters
    ----------
    found : of ``undilute compare --select``
    length : tokens of the haystacks
    """
    body = []
    for reader in found.readers:
        cells = [_cell(found, reader, task, length) for task in found.tasks]
        some = found.of(reader, None, length)
        tokens = sum(each.answered for each in some) / len(some)
        body.append([NAMES.get(reader, f"`{reader}`"), *cells, f"{tokens:,.0f}"])
    return markdown.table(["reader", *found.tasks, "tokens to answer from"], body)


def _cell(found: Comparison, reader: str, task: str, length: int) -> str:
    right, kept = found.recall(reader, task, length), found.kept(reader, task, length)
    interval = "" if right.low is None or right.high is None else f" [{right.low:.0f}, {right.high:.0f}]"
    return f"{right.value:.0f}{interval} · {kept.value:.0f}"
