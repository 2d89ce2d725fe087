"""What if a long prompt is cut down to what matters before the model reads it?  A treatment of what it reads.

    with undilute.reading(model, tokenizer, budget=512) as reading:
        pipeline(long_prompt)
    reading.last                                                       # what was selected
    undilute.apply(model, ["ssmax", undilute.reading(model, tokenizer)])

While it is in force, ``model.generate`` looks at every prompt. A short one goes through untouched. Of a long one the
end is the question and all before it the documents. The model reads the selected passages and the question, and what
comes back has the original prompt in front, as if it had been read. In a chat, what the template puts around the text
of the last user stays as it is.

``undilute.evaluate`` asks its questions the same way. Its loss on plain text does not change: a pass over a text that
nobody asks about reads all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models.read_once import READER, ReadOnce
from undilute.models.texts import beginning
from undilute.rules.parameters import count
from undilute.selection import forms, scorers
from undilute.selection.answering import check_causal, marked, plain
from undilute.selection.result import Selection
from undilute.selection.scorers import Scorer, Subject
from undilute.selection.select import BUDGET, SCORER, select
from undilute.treatment.apply import InForce

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Find: TypeAlias = "str | Callable[[str], str] | None"
ROOM = 256  # tokens that a prompt may have beyond the budget before it is worth selecting
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
NOT_TEXT = ("pixel_values", "input_features", "input_values", "image_embeds", "pixel_values_videos")
UNREADABLE = ("past_key_values", "negative_prompt_ids")


def reading(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    budget: int = BUDGET,
    scorer: str | Scorer = SCORER,
    longer_than: int | None = None,
    question: Find = None,
) -> Reading:
    """Let a model read only what matters of long prompts, while a context lasts; or as a treatment, with ``apply``.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    tokenizer : its tokenizer
    budget, scorer : as of :func:`undilute.select`
    longer_than : prompts with more tokens are selected; by default 256 more than the budget
    question : what is asked: a text, or a function from the prompt's text to it. By default what follows the last blank
        line, in a chat that of the last user's message. If the prompt holds the text that is given, its last place
        divides documents from question; otherwise the text only says what to look for

    Returns
    -------
    Reading
        In force inside ``with``; ``last`` is the selection of the last long prompt.
    """
    return Reading(tokenizer, budget=budget, scorer=scorer, longer_than=longer_than, question=question, model=model)


class Reading:
    """A treatment of what a model reads.

    Parameters
    ----------
    tokenizer : of the model
    budget, scorer, longer_than, question : as of :func:`reading`
    model : that ``with`` treats; ``undilute.apply`` needs none

    Attributes
    ----------
    last : the selection of the last long prompt; None before there was one
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        budget: int = BUDGET,
        scorer: str | Scorer = SCORER,
        longer_than: int | None = None,
        question: Find = None,
        model: PreTrainedModel | None = None,
    ) -> None:
        self.tokenizer, self.budget, self.scorer, self.model = tokenizer, count("budget", budget), scorer, model
        self.longer_than = budget + ROOM if longer_than is None else count("longer_than", longer_than)
        if not (question is None or callable(question) or (isinstance(question, str) and question.strip())):
            raise InvalidValue(
                f"question = {question!r}: must be a text, or a function from the prompt's text to the question in it."
            )
        self.question = question
        self.last: Selection | None = None
        self._in_force: InForce | None = None
        self.chosen_by: Any = scorer

    @property
    def label(self) -> str:
        name = self.scorer if isinstance(self.scorer, str) else self.scorer.label
        return f"reading by {name}, {self.budget:,} tokens"

    def enter(self, model: PreTrainedModel) -> InForce:
        """Put it in force for ``model.generate``; an error, and nothing changed, if the model cannot have it."""
        check_causal(model)
        if not callable(getattr(model, "generate", None)):
            raise InvalidValue(
                f"{type(model).__name__} has no generate: only what it reads before writing is selected."
            )
        if self._in_force is not None or isinstance(model.__dict__.get("generate"), _Generate):
            raise InvalidValue("a reading is in force already: undo it before another is entered.")
        self.chosen_by = scorers.get(self.scorer, Subject(model, self.tokenizer))
        before = model.__dict__.get("generate")
        generate: Any = model.generate
        ours = _Generate(self, model, generate)
        model.__dict__["generate"] = ours
        model.__dict__[READER] = partial(_Selected, self, model)

        def undo() -> None:
            if model.__dict__.get("generate") is not ours:
                raise InvalidValue("model.generate was replaced while the reading was in force: undo that first.")
            del model.__dict__["generate"], model.__dict__[READER]
            if before is not None:
                model.__dict__["generate"] = before
            self._in_force = None

        self._in_force = InForce(
            undo, f"Of prompts with more than {self.longer_than:,} tokens, {self.budget:,} are read."
        )
        return self._in_force

    def __enter__(self) -> Self:
        if self.model is None:
            raise InvalidValue("this reading was made without a model: use undilute.apply(model, reading).")
        self.enter(self.model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_force is not None:
            self._in_force.undo()

    # ---------------------------------------------------------------- one prompt

    def shortened(self, model: PreTrainedModel, ids: Tensor) -> Tensor:
        """The prompt (tokens,) with the passages that matter in place of the documents."""
        prompt = parted(self.tokenizer, ids.tolist())
        documents, gap, end, asked = self._divided(prompt.text)
        self.last = select(model, self.tokenizer, asked, documents, budget=self.budget, scorer=self.chosen_by)
        made = [*prompt.before, *plain(self.tokenizer, prompt.head + self.last.text + gap + end + prompt.tail)]
        return torch.tensor([*made, *prompt.after], dtype=ids.dtype, device=ids.device)

    def _divided(self, text: str) -> tuple[str, str, str, str]:
        """Documents, the white space after them, the end of the prompt, and what is asked."""
        asked = self.question(text) if callable(self.question) else self.question
        if asked is not None and (not isinstance(asked, str) or not asked.strip()):
            raise InvalidValue(f"the question found in the prompt is {asked!r}: must be a text with something in it.")
        place = -1 if asked is None else text.rfind(asked)
        if place < 0:
            ends = [each.end() for each in BLANK_LINE.finditer(text.rstrip())]
            if not ends:
                raise InvalidValue(
                    "the long prompt has no blank line before its question: put one there, or say with question = … "
                    "what is asked."
                )
            place = ends[-1]
        documents = text[:place].rstrip()
        if not documents:
            raise InvalidValue("the long prompt is one question without documents before it: nothing can be left out.")
        end = text[place:]
        return documents, text[len(documents) : place], end, asked or forms.taken_out(end)


@dataclass(frozen=True)
class Prompt:
    """A prompt in parts.

    Attributes
    ----------
    before, after : tokens around the text that stay as they are
    head, tail : what belongs to the frame of a chat, as text
    text : documents and question
    """

    before: list[int]
    head: str
    text: str
    tail: str
    after: list[int]


def parted(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> Prompt:
    """The tokens around the text, and the text: of the last user, if the prompt is a chat."""
    special = {each for each in tokenizer.all_special_ids if each != tokenizer.unk_token_id}
    if getattr(tokenizer, "chat_template", None):
        try:
            frame = forms.frame(tokenizer)
        except InvalidValue:
            frame = None
        if frame is not None and (found := _in_chat(tokenizer, ids, special, frame)) is not None:
            return found
    else:
        frame = None
    start = next((place for place, each in enumerate(ids) if each not in special), len(ids))
    stop = next((len(ids) - place for place, each in enumerate(reversed(ids)) if each not in special), start)
    text = _decoded(tokenizer, ids[start:stop])
    if frame is not None and frame.after and frame.turn and text.endswith(frame.after) and frame.turn in text:
        begin, end = text.rindex(frame.turn) + len(frame.turn), len(text) - len(frame.after)
        return Prompt(ids[:start], text[:begin], text[begin:end], frame.after, ids[stop:])
    return Prompt(ids[:start], "", text, "", ids[stop:])


def _in_chat(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], special: set[int], frame: forms.Frame
) -> Prompt | None:
    """The last user's text, found by the special tokens of the frame; None if they are not there."""
    turn, after = marked(tokenizer, frame.turn), marked(tokenizer, frame.after)
    marks = [place for place, each in enumerate(turn) if each in special]
    ends = [each for each in after if each in special]
    if not marks or not ends:
        return None
    opening = turn[: marks[-1] + 1]
    head = _decoded(tokenizer, turn[marks[-1] + 1 :])
    for stop in range(len(ids) - 1, len(opening) - 1, -1):
        if ids[stop - len(opening) : stop] != opening:
            continue
        if not _decoded(tokenizer, ids[stop : stop + len(turn) + 8]).startswith(head):
            continue
        close = _closing(ids, stop, after, ends[0])
        if close is None:
            return None
        text = _decoded(tokenizer, ids[stop:close]).removeprefix(head)
        return Prompt(ids[:stop], head, text, "", ids[close:])
    return None


def _closing(ids: list[int], start: int, after: list[int], mark: int) -> int | None:
    """Where the user's text ends: where the rest is what the template ends with, or else at the last such mark."""
    if ids[len(ids) - len(after) :] == after and len(ids) - len(after) >= start:
        return len(ids) - len(after)
    return next((place for place in range(len(ids) - 1, start - 1, -1) if ids[place] == mark), None)


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class _Selected:
    """A text of which the model reads what matters for each question: as ``ReadOnce``, for an evaluation."""

    def __init__(self, by: Reading, model: PreTrainedModel, ids: Tensor) -> None:
        self.by, self.model, self.ids = by, model, ids

    def ask(self, question: Tensor) -> Tensor:
        """Logits (vocabulary,) after what was selected of the text and the question (tokens,)."""
        ids = self.ids
        if len(ids) + len(question) > self.by.longer_than:
            start = list(beginning(self.by.tokenizer))
            begun = len(start) if ids[: len(start)].tolist() == start else 0
            text, asked = (_decoded(self.by.tokenizer, each.tolist()) for each in (ids[begun:], question))
            self.by.last = select(
                self.model, self.by.tokenizer, asked, text, budget=self.by.budget, scorer=self.by.chosen_by
            )
            ids = torch.tensor([*start, *plain(self.by.tokenizer, self.by.last.text)])
        return ReadOnce(self.model, ids).ask(question)


# ---------------------------------------------------------------- generate


class _Generate:
    """``model.generate`` that selects long prompts first."""

    def __init__(self, by: Reading, model: PreTrainedModel, generate: Callable[..., Any]) -> None:
        self.by, self.model, self.generate = by, model, generate

    def __call__(self, inputs: Tensor | None = None, generation_config: Any = None, *others: Any, **named: Any) -> Any:
        ids = named.get("input_ids") if inputs is None else inputs
        embedded = named.get("inputs_embeds")
        if embedded is not None and embedded.shape[1] > self.by.longer_than:
            raise InvalidValue("inputs_embeds of a long prompt cannot be selected: give input_ids.")
        rows = _rows(ids, named.get("attention_mask"), self._stated("pad_token_id", generation_config, named))
        if embedded is not None or all(len(each) <= self.by.longer_than for each in rows):
            return self.generate(inputs, generation_config, *others, **named)
        assert ids is not None
        others_left = {name: value for name, value in named.items() if name not in ("input_ids", "attention_mask")}
        self._check(others_left, ids, generation_config)
        made = [self._one(row, ids[place], generation_config, others, others_left) for place, row in enumerate(rows)]
        return made[0] if len(made) == 1 else self._together(made, generation_config, others_left)

    def _check(self, named: dict[str, Any], ids: Tensor, config: Any) -> None:
        """Refuse what belongs to the whole prompt and cannot be shortened with it."""
        if named.get("token_type_ids") is not None and not bool(named["token_type_ids"].any()):
            del named["token_type_ids"]
        for name, value in named.items():
            whole = isinstance(value, Tensor) and value.ndim > 1 and value.shape[:2] == ids.shape
            if value is not None and (name in UNREADABLE or name in NOT_TEXT or whole):
                raise InvalidValue(
                    f"{name} belongs to the whole prompt, which is shortened before it is read: leave it out, or undo "
                    "the reading."
                )
        if len(ids) > 1 and named.get("streamer") is not None:
            raise InvalidValue("streamer: long prompts are read one by one, and a streamer takes one; give one prompt.")
        if len(ids) > 1 and self._stated("return_dict_in_generate", config, named):
            raise InvalidValue(
                "return_dict_in_generate: long prompts are read one by one, and what is returned besides their tokens "
                "cannot be joined; give one prompt."
            )

    def _stated(self, name: str, config: Any, named: dict[str, Any]) -> Any:
        """A setting of this call, of its configuration, or of the model's; None if it is nowhere."""
        places = (getattr(each, name, None) for each in (config, self.model.generation_config))
        return next((each for each in (named.get(name), *places) if each is not None), None)

    def _one(self, row: Tensor, given: Tensor, config: Any, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What comes after one prompt (tokens,), with ``given``, the prompt as it came, in front."""
        read = self.by.shortened(self.model, row) if len(row) > self.by.longer_than else row
        named = {**named, **self._lengths(len(given), len(read), config, named)}
        output = self.generate(read[None], config, *others, attention_mask=torch.ones_like(read[None]), **named)
        is_tensor = isinstance(output, Tensor)
        sequences = output if is_tensor else output.sequences
        front = given[None].expand(len(sequences), -1).to(sequences.device)
        whole = torch.cat([front, sequences[:, len(read) :]], 1)
        if is_tensor:
            return whole
        output.sequences = whole
        return output

    def _lengths(self, given: int, read: int, config: Any, named: dict[str, Any]) -> dict[str, int]:
        """Lengths that count the prompt, for the prompt that is read."""
        made: dict[str, int] = {}
        for length, new in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            value = self._stated(length, config, named)
            if value is not None and self._stated(new, config, named) is None:
                made[length] = max(int(value) - given + read, 0)
        if "max_length" in made and made["max_length"] <= read:
            most = self._stated("max_length", config, named)
            raise InvalidValue(
                f"max_length = {most}: must be more than the {given:,} tokens of the prompt; give max_new_tokens."
            )
        return made

    def _together(self, made: list[Any], config: Any, named: dict[str, Any]) -> Tensor:
        """Rows of several prompts, padded after their end."""
        padding = self._padding(config, named)
        longest = max(each.shape[1] for each in made)
        return torch.cat([torch.nn.functional.pad(each, (0, longest - each.shape[1]), value=padding) for each in made])

    def _padding(self, config: Any, named: dict[str, Any]) -> int:
        """The token that fills rows after their end."""
        ends = self._stated("eos_token_id", config, named)
        end = ends[0] if isinstance(ends, list) else ends
        places = (self._stated("pad_token_id", config, named), self.by.tokenizer.pad_token_id, end, 0)
        return next(int(each) for each in places if each is not None)


def _rows(ids: Tensor | None, mask: Tensor | None, padding: int | None) -> list[Tensor]:
    """The tokens of each prompt (batch, tokens), without the padding that a mask, or else the pad token, tells."""
    if ids is None or ids.ndim != 2:
        return []
    if mask is None and padding is not None and len(ids) > 1:
        real = ids != padding
        mask = real.cumsum(1).bool() & real.flip(1).cumsum(1).flip(1).bool()
    if mask is None or mask.shape != ids.shape:
        return list(ids)
    return [row[own.bool()] for row, own in zip(ids, mask, strict=True)]
