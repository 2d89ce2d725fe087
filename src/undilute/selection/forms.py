"""How is a question put after a text?  As the end of it, so that the answer is what comes next.

Measured on SmolLM2-135M-Instruct: a statement that is begun once more is completed rightly most often after "According
to the text," and far less often in a chat (docs/select.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undilute.errors import InvalidValue
from undilute.models.reasons import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTENT_FREE = "N/A"  # what attention on a passage is compared with: asked for nothing, it is there all the same
ASKED = "\n\nQuestion: {question}\nAnswer:"
BEGUN = "\n\nAccording to the text, {question}"
ASKED_AGAIN = re.compile(r"(?s)Question: (?P<asked>.+)\nAnswer:|According to the text, (?P<begun>.+)")
PLACE, OTHER, ANSWER = "\ue0a1", "\ue0a2", "\ue0a3"  # private characters: where texts go in a chat template


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


def taken_out(end: str) -> str:
    """What is asked at the end of a prompt: without the form, if it is one of these.

    Examples
    --------
    >>> taken_out("Question: Who keeps a heron?\\nAnswer:"), taken_out("Who keeps a heron?")
    ('Who keeps a heron?', 'Who keeps a heron?')
    """
    found = ASKED_AGAIN.fullmatch(end.strip())
    return (found["asked"] or found["begun"] if found else end).strip()


# ---------------------------------------------------------------- in a chat


@dataclass(frozen=True)
class Frame:
    """What a chat template puts around the text of a single user.

    Attributes
    ----------
    before, after : of the first message and of its answer's beginning, as text
    turn : the end of ``before`` that stands before every message of a user
    """

    before: str
    after: str
    turn: str


def frame(tokenizer: PreTrainedTokenizerBase) -> Frame:
    """The frame of a tokenizer's chat template; an error if it has none that can be used."""
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidValue(
            f"chat = True: {type(tokenizer).__name__} has no chat template; give chat = False, or a model for chats."
        )
    once = _rendered(tokenizer, [("user", PLACE)])
    if once.count(PLACE) != 1:
        raise InvalidValue(
            f"chat = True: the chat template of {type(tokenizer).__name__} has the user's text {once.count(PLACE)} "
            "times; give chat = False."
        )
    before, after = once.split(PLACE)
    try:
        further = _rendered(tokenizer, [("user", PLACE), ("assistant", ANSWER), ("user", OTHER)])
        between = further.split(ANSWER)[1].split(OTHER)[0]
    except (InvalidValue, IndexError):
        between = before
    return Frame(before, after, _common_end(before, between) or before)


def _rendered(tokenizer: PreTrainedTokenizerBase, said: list[tuple[str, str]]) -> str:
    messages: Any = [{"role": role, "content": content} for role, content in said]
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # whatever a template raises
        raise InvalidValue(
            f"chat = True: the chat template of {type(tokenizer).__name__} cannot be used ({one_line(error)}); give "
            "chat = False."
        ) from None


def _common_end(one: str, other: str) -> str:
    """
    >>> _common_end("<s>system<e><s>user", "<e><s>user")
    '<e><s>user'
    """
    size = 0
    while size < min(len(one), len(other)) and one[-size - 1] == other[-size - 1]:
        size += 1
    return one[len(one) - size :]
