"""What does a model answer if it reads only what matters?  And what, if it is given everything?

    reply = undilute.ask(model, tokenizer, "Who keeps a heron?", documents, budget=512, full=True)
    reply.answer; reply.cited; reply.full.answer

The passages of a selection stand in one prompt, with the question at its end (``undilute.selection.forms``). The answer
is the likeliest next token, again and again, up to the first line break: the same every time.

Documents are text and nothing else. A mark of the chat template that stands in them, such as ``<|im_end|>``, is read as
the letters it is written with, so that no document can end the user's turn.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation.words import standing_in
from undilute.models.forward_pass import check_reads_tokens, evaluating
from undilute.models.limits import maximum_length
from undilute.models.question_rows import QUESTION_ROWS, reading_text
from undilute.models.read_once import ReadOnce
from undilute.models.texts import beginning
from undilute.progress import Progress
from undilute.rules.parameters import count
from undilute.selection import forms
from undilute.selection.passages import Documents
from undilute.selection.result import Order, Selected, Selection, check_order, finite, joined
from undilute.selection.scorers import Scorer
from undilute.selection.select import BUDGET, SCORER, select

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from undilute.selection.library import Library

MAX_TOKENS = 40
SCHEMA = "undilute.reply/1"
_WORDS = """
a an and any are as at be been but by can could did do does for from had has have he her his how i if in into is it
its me my no nor not of on one or our she so some such than that the their them then there these they this those to
too up us was we were what when where which who whom whose why will with would yes you your
"""
FUNCTION_WORDS = frozenset(_WORDS.split())


@dataclass(frozen=True)
class Choice:
    """A given answer, and how likely the model finds it.

    Attributes
    ----------
    text : the answer
    total : log-probability of all its tokens, in nats
    mean : the same for one token; this decides, or short answers would win for being short
    probability : e^mean over the sum of e^mean of all choices
    tokens : how many it has
    """

    text: str
    total: float
    mean: float
    probability: float
    tokens: int


@dataclass(frozen=True)
class Full:
    """What the model answers if it is given the documents as they are.

    Attributes
    ----------
    answer, choices, prompt : as of :class:`Reply`
    tokens : of the documents
    cut : how many of them, at the end, did not fit into the model's window and were not read
    """

    answer: str
    choices: tuple[Choice, ...]
    prompt: str = field(repr=False)
    tokens: int
    cut: int

    @property
    def sentence(self) -> str:
        """How much of the documents was read."""
        if not self.cut:
            return f"The whole documents were read: {self.tokens:,} tokens."
        return (
            f"The documents have {self.tokens:,} tokens; the last {self.cut:,} did not fit into the model's window and "
            "were cut off."
        )


@dataclass(frozen=True)
class Reply:
    """An answer from the passages that matter.

    Attributes
    ----------
    answer : what the model says; the likeliest of the choices, if there were any
    choices : those given, likeliest first
    selection : what was chosen
    cited : numbers of the passages that hold the answer's words, from 1, as in ``selection.passages``
    full : the answer from the whole documents, if asked for
    prompt : all that the model read for the answer, without the tokens that begin every text
    seconds : that it took in all
    """

    answer: str
    choices: tuple[Choice, ...]
    selection: Selection
    cited: tuple[int, ...]
    full: Full | None
    prompt: str = field(repr=False)
    seconds: float

    @property
    def question(self) -> str:
        """That was asked."""
        return self.selection.question

    def summary(self) -> str:
        """The answer, where it stands, and what was read, in a few sentences."""
        numbers = ", ".join(f"[{number}]" for number in self.cited)
        where = f"Its words stand in {numbers}." if numbers else "No passage that was read holds its words."
        said = [f"Answer: {self.answer or '(nothing)'}", where, self.selection.summary()]
        if self.full is not None:
            said += [f"With everything: {self.full.answer or '(nothing)'}", self.full.sentence]
        return "\n".join(said)

    def data(self) -> dict[str, Any]:
        """Everything as plain data, with a schema version."""
        return {
            "schema": SCHEMA,
            "question": self.question,
            "answer": self.answer,
            "choices": [_choice(each) for each in self.choices],
            "cited": list(self.cited),
            "prompt": self.prompt,
            "seconds": self.seconds,
            "selection": self.selection.data(),
            "full": None
            if self.full is None
            else {
                "answer": self.full.answer,
                "choices": [_choice(each) for each in self.full.choices],
                "tokens": self.full.tokens,
                "cut": self.full.cut,
            },
        }

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.reply(self)


def _choice(one: Choice) -> dict[str, Any]:
    figures = {"total": finite(one.total), "mean": finite(one.mean), "probability": one.probability}
    return {"text": one.text, **figures, "tokens": one.tokens}


# ---------------------------------------------------------------- asking


def ask(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    documents: Documents | Library,
    *,
    budget: int = BUDGET,
    scorer: str | Scorer = SCORER,
    size: int | None = None,
    order: Order = "document",
    chat: bool | None = None,
    titles: bool = False,
    choices: Sequence[str] | None = None,
    max_tokens: int = MAX_TOKENS,
    full: bool = False,
    on_progress: Progress | None = None,
) -> Reply:
    """Answer a question from the passages of some documents that matter for it.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    tokenizer : its tokenizer
    question : a question, or the beginning of a statement that the documents complete
    documents, budget, scorer, size : as of :func:`undilute.select`
    order : of the passages in the prompt: that of the documents, or "best last"
    chat : put passages and question into the model's chat template. By default not, because small models complete a
        text far better than they answer in a chat
    titles : put the name of its document before the passages of each
    choices : answers to choose from, at least two; the one whose tokens are likeliest on average wins, and nothing is
        written
    max_tokens : of the answer, which ends at the first line break in any case
    full : answer from the whole documents too, whose end is cut off where the model's window ends
    on_progress : called with (share done, what is being done)

    Returns
    -------
    Reply
        The answer and what was read for it. A passage is cited if it holds all content words of the answer, those of
        the question left out if others remain; where none holds all, those with the most, if that is half or more.
        This shows where the answer's words stand. It does not show why the model said them.
    """
    start = time.perf_counter()
    count("max_tokens", max_tokens)
    check_order(order)
    given = () if choices is None else check_choices(choices)
    asker = _Asker(model, tokenizer, question, bool(chat), given, max_tokens)
    found = select(
        model, tokenizer, question, documents, budget=budget, scorer=scorer, size=size, on_progress=on_progress
    )
    passages = found.in_order if order == "document" else found.passages[::-1]
    text = titled(passages) if titles else joined(passages)
    asker.check_fits(text)
    with evaluating(model):
        answer, ranked, prompt = asker.answer(text)
        whole = asker.answer_from_all(found.documents, titles) if full else None
    cited = cited_for(answer, question, [each.text for each in found.passages])
    return Reply(answer, ranked, found, cited, whole, prompt, time.perf_counter() - start)


def titled(passages: Sequence[Selected]) -> str:
    """Passages with the name of their document before those that stand together in it."""
    parts: list[tuple[str, list[Selected]]] = []
    for each in passages:
        if not parts or parts[-1][0] != each.document:
            parts.append((each.document, []))
        parts[-1][1].append(each)
    return "\n\n".join(f"{name}:\n{joined(tuple(own))}" for name, own in parts)


def check_choices(given: Sequence[str]) -> tuple[str, ...]:
    """The different answers to choose from, without white space around them."""
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise InvalidValue(f"choices = {given!r}: must be a list of answers, such as ['Zoe', 'Adam'].")
    found = tuple(dict.fromkeys(each.strip() for each in given))
    if len(found) < 2 or "" in found:
        raise InvalidValue(f"choices = {list(given)!r}: must be at least two different answers, none of them empty.")
    return found


class _Asker:
    """Puts a question after texts, and lets the model answer."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        question: str,
        chat: bool,
        choices: Sequence[str],
        max_tokens: int,
    ) -> None:
        check_causal(model)
        self.model, self.tokenizer, self.choices = model, tokenizer, choices
        self.frame = forms.frame(tokenizer) if chat else None
        self.asked = f"\n\n{question.strip()}" if chat and forms.form_of(question) else forms.put(question)
        self.limit = maximum_length(model)
        said = max([max_tokens] if not choices else [len(self._said(each)) for each in choices])
        self.max_tokens, self.room = max_tokens, None if self.limit is None else self.limit - said
        least = len(self.tokens(""))
        if self.room is not None and least >= self.room:
            raise InvalidValue(
                f"the question has {least:,} tokens and its answer up to {said:,}: {type(model).__name__} reads at "
                f"most {self.limit:,}, and some are needed for what it is about; ask a shorter question."
            )

    def tokens(self, text: str) -> list[int]:
        """The prompt: the text, the question after it, and what stands around them."""
        if self.frame is None:
            return [*beginning(self.tokenizer), *plain(self.tokenizer, text + self.asked)]
        before, after = marked(self.tokenizer, self.frame.before), marked(self.tokenizer, self.frame.after)
        return [*before, *plain(self.tokenizer, (text + self.asked).lstrip()), *after]

    def prompt(self, text: str) -> str:
        """The same as text."""
        if self.frame is None:
            return text + self.asked
        return f"{self.frame.before}{(text + self.asked).lstrip()}{self.frame.after}"

    def check_fits(self, text: str) -> None:
        size = len(self.tokens(text))
        if self.room is not None and size > self.room:
            raise InvalidValue(
                f"the prompt has {size:,} tokens and its answer up to {(self.limit or 0) - self.room:,}: "
                f"{type(self.model).__name__} reads at most {self.limit:,}; give a smaller budget."
            )

    def answer(self, text: str) -> tuple[str, tuple[Choice, ...], str]:
        """The answer, the choices ranked, and the prompt."""
        ids = torch.tensor(self.tokens(text))
        if self.choices:
            ranked = likelihoods(self.model, ids, {each: self._said(each) for each in self.choices})
            return ranked[0].text, ranked, self.prompt(text)
        return written(self.model, self.tokenizer, ids, self.max_tokens), (), self.prompt(text)

    def answer_from_all(self, documents: Mapping[str, str], titles: bool) -> Full:
        """The answer from the documents as they are, as far as the window goes."""
        text = "\n\n".join(f"{name}:\n{each}" if titles else each for name, each in documents.items()).strip()
        read = self._beginning(text)
        answer, ranked, prompt = self.answer(read)
        tokens = len(plain(self.tokenizer, text))
        return Full(answer, ranked, prompt, tokens, tokens - len(plain(self.tokenizer, read)))

    def _beginning(self, text: str) -> str:
        """As much of a text as fits, from its beginning: the longest part, found by bisection."""
        if (room := self.room) is None:
            return text
        fits, beyond = 0, 2 * room
        while beyond < len(text) and len(self.tokens(text[:beyond])) <= room:
            fits, beyond = beyond, 2 * beyond
        beyond = min(beyond, len(text))
        if len(self.tokens(text[:beyond])) <= room:
            return text[:beyond]
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            if len(self.tokens(text[:middle])) <= room:
                fits = middle
            else:
                beyond = middle
        return text[:fits]

    def _said(self, choice: str) -> list[int]:
        """The tokens of a choice where it follows the question."""
        if self.frame is not None:
            return plain(self.tokenizer, choice)
        before = plain(self.tokenizer, self.asked)
        whole = plain(self.tokenizer, f"{self.asked} {choice}")
        return whole[len(before) :] if whole[: len(before)] == before else plain(self.tokenizer, f" {choice}")


def check_causal(model: PreTrainedModel) -> None:
    """Refuse a model that cannot go on with a text."""
    check_reads_tokens(model)
    has_no_head = model is model.base_model and model.get_output_embeddings() is None
    if getattr(model.config, "is_encoder_decoder", False) or has_no_head:
        raise InvalidValue(
            f"{type(model).__name__} does not go on with a text: must be a causal language model, such as "
            "AutoModelForCausalLM loads."
        )


def plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text in which special tokens are the letters they are written with."""
    found: Any = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False, split_special_tokens=True)
    return [int(token) for token in found["input_ids"]]


def marked(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text in which special tokens are what they stand for."""
    found: Any = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False, split_special_tokens=False)
    return [int(token) for token in found["input_ids"]]


# ---------------------------------------------------------------- the model


def written(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Tensor, most: int) -> str:
    """What the model goes on with after ``ids`` (tokens,): the likeliest token each time, up to the end of a line."""
    ends = ends_of(model, tokenizer)
    said: list[int] = []
    read, past, text = ids[None].to(model.device), None, ""
    with torch.inference_mode():
        while len(said) < most:
            output = (
                model(input_ids=read, past_key_values=past, use_cache=True) if past is not None else _first(model, read)
            )
            token = int(_checked(model, output.logits[0, -1]).argmax())
            if token in ends:
                break
            said.append(token)
            text = str(tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)).lstrip()
            if "\n" in text:
                break
            past = getattr(output, "past_key_values", None)
            new = torch.tensor([[token]], device=model.device)
            read = new if past is not None else torch.cat([read, new], 1)
    return text.split("\n")[0].strip()


def _first(model: PreTrainedModel, ids: Tensor) -> Any:
    output = model(input_ids=ids, use_cache=True)
    if getattr(output, "logits", None) is None or output.logits.shape[1] == 0:
        raise InvalidValue(f"{type(model).__name__} gives no next token: must be a causal language model.")
    return output


def ends_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that end an answer."""
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    every = [*(stated if isinstance(stated, list) else [stated]), tokenizer.eos_token_id]
    return {int(each) for each in every if each is not None}


def likelihoods(model: PreTrainedModel, ids: Tensor, choices: Mapping[str, Sequence[int]]) -> tuple[Choice, ...]:
    """How likely each choice is after ``ids`` (tokens,), which is read once; likeliest first."""
    read = ReadOnce(model, ids[:-1], questions=QUESTION_ROWS - 1)
    totals: dict[str, float] = {}
    with torch.inference_mode():
        for text, own in choices.items():
            after = torch.tensor([*ids[-1:].tolist(), *own[:-1]], device=model.device)[None]
            if read.cache is None:
                with reading_text(read.questions + after.shape[1]):
                    logits = model(input_ids=torch.cat([read.ids, after], 1)).logits[0]
            else:
                logits = model(input_ids=after, past_key_values=copy.deepcopy(read.cache), use_cache=True).logits[0]
            rows = _checked(model, logits[-len(own) :]).log_softmax(-1)
            totals[text] = float(rows[torch.arange(len(own)), torch.tensor(own)].sum())
    means = {text: totals[text] / len(choices[text]) for text in choices}
    shares = torch.tensor(list(means.values()), dtype=torch.float64).softmax(0).tolist()
    made = [
        Choice(text, totals[text], means[text], share, len(choices[text]))
        for text, share in zip(means, shares, strict=True)
    ]
    return tuple(sorted(made, key=lambda each: -each.mean))


def _checked(model: PreTrainedModel, logits: Tensor) -> Tensor:
    if not bool(logits.isfinite().all()):
        raise InvalidValue(
            f"{type(model).__name__} computes logits that are not finite (NaN or infinity): its weights are broken, "
            "its dtype is too narrow, or what was done to its attention is."
        )
    return logits.double().cpu()


# ---------------------------------------------------------------- where it stands


def cited_for(answer: str, question: str, passages: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the passages, from 1, that hold the answer's content words: all, or the most if that is half.

    Examples
    --------
    >>> cited_for("It is Zoe.", "Who keeps a heron?", ["Adam has a dog.", "Zoe keeps a heron."])
    (2,)
    >>> cited_for("Nobody knows", "Who keeps a heron?", ["Adam has a dog."])
    ()
    """
    words = standing_in(answer) - FUNCTION_WORDS
    words = words - standing_in(question) or words
    held = [sum(_holds(text, word) for word in words) for text in passages]
    most = max(held, default=0)
    if not words or 2 * most < len(words):
        return ()
    return tuple(number for number, own in enumerate(held, start=1) if own == most)


def _holds(text: str, word: str) -> bool:
    """Whether a text has a word; in scripts without spaces, where words are not apart, whether it has these letters."""
    around = r"\b" if word.isascii() else ""
    return re.search(f"{around}{re.escape(word)}{around}", text.lower()) is not None
