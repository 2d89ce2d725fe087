"""Where is a question read and answered?  In the rows that a plan with ``rows="question"`` acts on.

A pass that continues a cache reads what comes after a text, so all of its queries count. A pass that begins has text
and question in one, and its last ``QUESTION_ROWS`` queries count; padding does not, on either side. Who knows better
says so:

    with reading_text():             # nothing in here is a question
        cache = model(ids, use_cache=True).past_key_values
    with reading_text(questions=5):  # the last 5 queries of each pass are one
        model(torch.cat([ids, question], 1))

It is said for the thread that runs the model. Gradient checkpointing computes a pass again on the way back: call
``backward`` inside too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models.attention_call import AttentionCall
from undilute.rules.parameters import shown, whole

ROWS = ("all", "question")
QUESTION_ROWS = 32  # of a pass that begins: its last queries
_told: ContextVar[int | None] = ContextVar("undilute_question_rows", default=None)


@contextmanager
def reading_text(questions: int = 0) -> Iterator[None]:
    """Inside, a plan for question rows acts only on the last ``questions`` queries of a pass; on none by default.

    Examples
    --------
    >>> with reading_text(questions=5):
    ...     told()
    5
    """
    before = _told.set(whole("questions", questions, 0))
    try:
        yield
    finally:
        _told.reset(before)


def told() -> int | None:
    """How many queries of a pass are a question's, if it is known."""
    return _told.get()


def check_rows(rows: object) -> None:
    """Raise unless it says on which rows a plan acts."""
    if rows not in ROWS:
        raise InvalidValue(f"rows = {shown(rows)}: must be {' or '.join(map(repr, ROWS))}.")


def question_rows(call: AttentionCall, questions: int | None) -> list[Tensor] | None:
    """The queries of each sequence that read a question, in order; None if all of them do.

    Parameters
    ----------
    call : of a causal layer
    questions : how many queries are a question's, as :func:`told` has it
    """
    if questions is None and call.offset > 0:
        return None
    last = QUESTION_ROWS if questions is None else questions
    if call.queries <= last:
        return None
    if call.offset < 0:
        raise InvalidValue(
            f"rows = 'question': a pass over {call.queries} tokens whose last one is padding in all sequences, with a "
            "cache of fixed size, does not say where its questions end; pad on the left."
        )
    batch, every = call.query.shape[0], torch.arange(call.queries, device=call.query.device)
    if call.mask is None or not last:
        return [every[call.queries - last :]] * batch
    return [every[call.real(each)][-last:] for each in range(batch)]
