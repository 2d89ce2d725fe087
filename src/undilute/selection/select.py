"""What should a model read?  Only the passages that matter for the question.

    sel = undilute.select(model, tokenizer, "Who keeps a heron?", documents, budget=512, scorer="heads")
    sel.text; sel.passages[0].score

The documents are split into passages, a scorer says how much each matters, and the best are kept as far as the budget
goes. Documents may be longer than what the model reads at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.rules.parameters import count
from undilute.selection import scorers
from undilute.selection.forms import form_of
from undilute.selection.keeping import Kept, Nothing
from undilute.selection.passages import SIZE, Documents, Passage, named, split
from undilute.selection.result import Selected, Selection
from undilute.selection.scorers import Scorer, Scores, Subject

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from undilute.selection.library import Library

BUDGET = 512
SCORER = "heads"


def select(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    documents: Documents | Library,
    *,
    budget: int = BUDGET,
    scorer: str | Scorer = SCORER,
    size: int | None = None,
    on_progress: Progress | None = None,
) -> Selection:
    """The passages of some documents that matter for a question.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not; only ``heads`` runs it
    tokenizer : its tokenizer
    question : a question, or the beginning of a statement that the documents complete
    documents : a text, several, {name: text}, or a :class:`undilute.Library`, which keeps what was read for further
        questions; of any length
    budget : tokens that the kept passages may have in all
    scorer : who chooses: "heads" (the model's own retrieval heads), "bm25", "embedding", fused as in "heads+bm25", or
        an object (``undilute.selection.scorers``)
    size : tokens of a passage, at most; by default 96, or what a library has
    on_progress : called with (share done, what is being done)

    Returns
    -------
    Selection
        The kept passages, best first; ``text`` has them in the order of the documents.
    """
    return select_each(
        model, tokenizer, [question], documents, budget=budget, scorer=scorer, size=size, on_progress=on_progress
    )[0]


def select_each(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    documents: Documents | Library,
    *,
    budget: int = BUDGET,
    scorer: str | Scorer = SCORER,
    size: int | None = None,
    on_progress: Progress | None = None,
) -> list[Selection]:
    """A selection for each of several questions about the same documents, which are read once for all of them."""
    for question in questions:
        form_of(question)
    count("budget", budget)
    start = time.perf_counter()
    shelf = shelved(tokenizer, documents, size)
    by = scorers.get(scorer, Subject(model, tokenizer))
    found = by.scores(list(questions), shelf.passages, shelf.kept, on_progress or quiet)
    seconds = (time.perf_counter() - start) / len(questions)
    return [
        Selection(
            question=question,
            passages=within(scores, shelf.passages, budget),
            documents=shelf.documents,
            among=len(shelf.passages),
            tokens=sum(each.tokens for each in shelf.passages),
            read=scores.read,
            scorer=by.label,
            budget=budget,
            seconds=seconds,
        )
        for question, scores in zip(questions, found, strict=True)
    ]


@dataclass(frozen=True)
class Shelf:
    """Documents, their passages, and where work on them is kept."""

    documents: dict[str, str]
    passages: Sequence[Passage]
    kept: Kept


def shelved(tokenizer: PreTrainedTokenizerBase, documents: Any, size: int | None) -> Shelf:
    """The documents as a shelf; a library is one already."""
    if isinstance(documents, Shelf):
        if size is not None:
            raise InvalidValue(f"size = {size}: a library's passages are cut already; give the size to the library.")
        return documents
    texts = named(documents)
    return Shelf(texts, split(texts, tokenizer, SIZE if size is None else size), Nothing())


def within(scores: Scores, passages: Sequence[Passage], budget: int) -> tuple[Selected, ...]:
    """The best passages that fit into the budget together, best first."""
    kept: list[Selected] = []
    free = budget
    some_matter = bool((scores.values > scores.floor).any())
    for rank, place in enumerate(scores.order.tolist(), start=1):
        passage = passages[place]
        if not passage.text.strip() or (some_matter and scores.values[place] <= scores.floor):
            continue
        if passage.tokens <= free:
            kept.append(Selected(passage, float(scores.values[place]), rank))
            free -= passage.tokens
        elif not kept:
            raise InvalidValue(
                f"budget = {budget}: must be at least one passage, and the best has {passage.tokens} tokens; give a "
                "larger budget or a smaller size."
            )
    return tuple(kept)
