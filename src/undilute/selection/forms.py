"""How is a question put after a text?  As the end of it, so that the answer is what comes next.

Measured on SmolLM2-135M-Instruct: a statement that is begun once more is completed rightly most often after "According
to the text," and far less often in a chat (docs/select.md).
"""

from __future__ import annotations

from undilute.errors import InvalidValue

CONTENT_FREE = "N/A"  # what attention on a passage is compared with: asked for nothing, it is there all the same
ASKED = "\n\nQuestion: {question}\nAnswer:"
BEGUN = "\n\nAccording to the text, {question}"


def form_of(question: str) -> str:
    """The form for a question, or for a statement that is begun and to be completed.

    Examples
    --------
    >>> form_of("Who keeps a heron?").format(question="Who keeps a heron?")
    '\\n\\nQuestion: Who keeps a heron?\\nAnswer:'
    """
    if not isinstance(question, str) or not question.strip():
        raise InvalidValue(f"question = {question!r}: must be a question, or the beginning of a statement to complete.")
    return ASKED if question.rstrip().endswith("?") else BEGUN


def put(question: str) -> str:
    """The question as it stands after a text.

    Examples
    --------
    >>> put("The special word of Zoe is")
    '\\n\\nAccording to the text, The special word of Zoe is'
    """
    return form_of(question).format(question=question.strip())


def put_nothing(question: str) -> str:
    """The same form with nothing asked."""
    return form_of(question).format(question=CONTENT_FREE)
