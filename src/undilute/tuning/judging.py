"""Did it help, on what nobody has learned from?  Questions of other names, words and wordings, and held-out text.

A plan is judged before and after, in pairs: recall of facts at every length in four families of wordings that no drill
has, tasks that are of another kind altogether, and the loss on plain text by position. With ``rows="question"`` a text
is read once for both, since reading it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from undilute.evaluation.changes import Change, change, changes_of_loss
from undilute.evaluation.haystacks import Haystack, haystacks
from undilute.evaluation.journal import Journal
from undilute.evaluation.measure import Answer, answered
from undilute.evaluation.tasks.families import FAMILIES
from undilute.models import text_loss
from undilute.models.fingerprint import of_model
from undilute.models.forward_pass import evaluating
from undilute.models.limits import maximum_length
from undilute.models.read_once import ReadOnce
from undilute.models.texts import beginning, fingerprint, known_tokens, tokenised
from undilute.progress import Progress, quiet
from undilute.rules.parameters import count, whole
from undilute.treatment.apply import apply
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OTHER = ("single", "multi-value", "tracking", "two-hops", "descriptions")  # of another kind than what was learned


@dataclass(frozen=True)
class Judging:
    """How much to judge by.

    Attributes
    ----------
    lengths : tokens of the haystacks
    haystacks : of each of four families of wordings, and length
    other_length, other_haystacks : of each task of another kind; none if 0
    window, windows : tokens and number of windows of plain text, from each text
    seed : of facts and places
    """

    lengths: tuple[int, ...] = (512, 1024, 2048)
    haystacks: int = 2
    other_length: int = 1024
    other_haystacks: int = 1
    window: int = 2048
    windows: int = 1
    seed: int = 1_000

    def __post_init__(self) -> None:
        for name in ("haystacks", "other_haystacks", "windows", "seed"):
            whole(name, getattr(self, name), 0)
        for name in ("other_length", "window"):
            count(name, getattr(self, name))
        for length in self.lengths:
            count("lengths", length)

    @property
    def is_any(self) -> bool:
        """Whether there is anything to judge by."""
        return bool(self.haystacks or self.other_haystacks or self.windows)


@dataclass(frozen=True)
class Judged:
    """What came out: paired changes of recall and loss, each with its interval over haystacks or runs of text.

    Attributes
    ----------
    recall : by length, in the families
    other : by task, of another kind
    loss : on plain text, by position
    """

    recall: Mapping[int, Change]
    other: Mapping[str, Change]
    loss: Sequence[Change]

    def as_data(self) -> dict[str, Any]:
        """Everything as JSON takes it."""
        return {
            "recall": {str(length): _rounded(each) for length, each in self.recall.items()},
            "other tasks": {task: _rounded(each) for task, each in self.other.items()},
            "loss": [_rounded(each) for each in self.loss],
        }


def judge(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    texts: Mapping[str, str],
    judging: Judging,
    *,
    journal: Path | None = None,
    on_progress: Progress = quiet,
) -> Judged:
    """A plan, before and after.

    Parameters
    ----------
    model : untreated
    tokenizer : its tokenizer
    plan : to be judged
    texts : {name: text} that nothing was learned from; facts are hidden in them in turn
    judging : how much
    journal : a file that keeps what is done, so that a run that was killed goes on
    on_progress : called with (share done, what is being done)
    """
    asked = _haystacks(model, tokenizer, texts, judging)
    windows = _windows(model, tokenizer, plan.rows, texts, judging)
    done = _journal(journal, model, tokenizer, plan, texts, judging)
    with torch.inference_mode(), evaluating(model):
        for place, haystack in enumerate(asked):
            name = f"{haystack.task}, {haystack.length}, {haystack.number}"
            on_progress(place / (len(asked) + 1), f"judging, {haystack.task} at {haystack.length:,} tokens")
            if name not in done:
                pairs = _answers(model, haystack, plan)
                done.add(name, [[asdict(answer) for answer in each] for each in pairs])
    before, after = (
        [
            Answer(**each)
            for haystack in asked
            for each in done[f"{haystack.task}, {haystack.length}, {haystack.number}"][place]
        ]
        for place in (0, 1)
    )
    on_progress(len(asked) / (len(asked) + 1), "judging, plain text")
    loss = _losses(model, plan, windows)
    found = Judged(
        {
            length: _paired(before, after, f"at {length:,} tokens", length=length)
            for length in _known(model, judging)
            if judging.haystacks
        },
        {task: _paired(before, after, task, task=task) for task in OTHER if task in {each.task for each in asked}},
        loss,
    )
    on_progress(1.0, "done")
    return found


def _known(model: PreTrainedModel, judging: Judging) -> list[int]:
    """The lengths that the model reads."""
    return _read_at_once(model, judging.lengths)


def _read_at_once(model: PreTrainedModel, lengths: Sequence[int]) -> list[int]:
    most = maximum_length(model)
    return [length for length in lengths if most is None or length <= most]


def _haystacks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Mapping[str, str], judging: Judging
) -> list[Haystack]:
    """Of every family and length, and of the other tasks; each text in turn."""
    found: list[Haystack] = []
    for place, text in enumerate(texts.values()):
        share = len(range(place, judging.haystacks, len(texts)))
        seed = judging.seed + place
        found += haystacks(tokenizer, text, _known(model, judging), share, seed=seed, only=list(FAMILIES))
        others = len(range(place, judging.other_haystacks, len(texts)))
        found += haystacks(
            tokenizer, text, _read_at_once(model, [judging.other_length]), others, seed=seed, only=list(OTHER)
        )
    return [_numbered(haystack, number) for number, haystack in enumerate(found)]


def _numbered(haystack: Haystack, number: int) -> Haystack:
    return Haystack(number, haystack.task, haystack.length, haystack.ids, haystack.questions)


def _answers(model: PreTrainedModel, haystack: Haystack, plan: Plan) -> tuple[list[Answer], list[Answer]]:
    """Before and after."""

    def about(read: ReadOnce) -> list[Answer]:
        return [
            answered(haystack, number, question, read.ask(question.ids))
            for number, question in enumerate(haystack.questions)
        ]

    read = ReadOnce(model, haystack.ids)
    before = about(read)
    with apply(model, plan):
        return before, about(
            read if plan.rows == "question" and read.cache is not None else ReadOnce(model, haystack.ids)
        )


def _paired(
    before: Sequence[Answer], after: Sequence[Answer], what: str, *, length: int | None = None, task: str | None = None
) -> Change:
    """Recall in per cent, in pairs over haystacks."""
    places = [
        place
        for place, each in enumerate(before)
        if (each.task == task if task else each.length == length and each.task in FAMILIES)
    ]
    old, new = (np.array([100 * each[place].right for place in places]) for each in (before, after))
    blocks = np.array([before[place].haystack for place in places])
    return change(f"recall {what}", "%", old, new, blocks, better="higher")


def check(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: str, texts: Mapping[str, str], judging: Judging
) -> None:
    """Refuse texts that are too short to judge by, before anything is learned."""
    _haystacks(model, tokenizer, texts, judging)
    _windows(model, tokenizer, rows, texts, judging)


def _journal(
    path: Path | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    texts: Mapping[str, str],
    judging: Judging,
) -> Journal:
    """What is done already, of the same model, plan, texts and questions."""
    if path is None:
        return Journal(None, {})
    same = {"model": of_model(model, tokenizer), "plan": plan.to_json(), "texts": text_marks(tokenizer, texts)}
    return Journal(path, same | asdict(judging) | {"lengths": list(judging.lengths)})


def _windows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: str, texts: Mapping[str, str], judging: Judging
) -> Tensor | None:
    """Plain text, (windows, tokens); None where there is none to judge by: question rows leave it as it is."""
    if not judging.windows or rows == "question":
        return None
    length = min(judging.window, maximum_length(model) or judging.window)
    start = beginning(tokenizer)
    tokens = [known_tokens(tokenised(tokenizer, text), model, name) for name, text in texts.items()]
    return torch.cat([text_loss.windows(each, length, judging.windows, start=start) for each in tokens])


def _losses(model: PreTrainedModel, plan: Plan, windows: Tensor | None) -> list[Change]:
    """Loss on plain text, before and after."""
    if windows is None:
        return []
    before = text_loss.losses(model, windows)
    with apply(model, plan):
        after = text_loss.losses(model, windows)
    return changes_of_loss(before, after)


def _rounded(made: Change) -> dict[str, Any]:
    said = {name: round(each, 4) if isinstance(each, float) else each for name, each in asdict(made).items()}
    return said | {"verdict": made.verdict}


def text_marks(tokenizer: PreTrainedTokenizerBase, texts: Mapping[str, str]) -> dict[str, str]:
    """Name → fingerprint of a text, enough to know it again."""
    return {name: fingerprint(tokenised(tokenizer, text))[:16] for name, text in texts.items()}
