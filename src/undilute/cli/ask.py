"""``undilute ask``: an answer from the passages that matter, and what was read for it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from undilute.cli.evaluation import progress_bar
from undilute.cli.options import Cache, Trust
from undilute.cli.select import (
    STDOUT,
    AsJson,
    Budget,
    Files,
    Folder,
    Model,
    Question,
    ScorerName,
    Size,
    check,
    leave,
    loaded,
    shelved,
)
from undilute.progress import quiet
from undilute.rules.parameters import count


def ask_model(
    paths: Files = None,
    model: Model = "smollm2",
    question: Question = "",
    budget: Budget = 512,
    scorer: ScorerName = "heads",
    size: Size = None,
    full: Annotated[bool, typer.Option("--full", help="Answer from the whole documents too, beside it.")] = False,
    order: Annotated[str, typer.Option(help='Of the passages: "document", or "best last".')] = "document",
    chat: Annotated[bool, typer.Option(help="Put everything into the model's chat template.")] = False,
    titles: Annotated[bool, typer.Option("--titles", help="Put the document's name before its passages.")] = False,
    choices: Annotated[
        str | None, typer.Option(help="Answers to choose from, separated by commas: the likeliest token by token wins.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of the answer, at most.")] = 40,
    as_json: AsJson = None,
    library: Folder = None,
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Answer a question from the passages of some documents that matter for it, and show what was read."""
    from undilute.report import selection_text
    from undilute.selection import ask
    from undilute.selection.answering import check_choices
    from undilute.selection.result import check_order, to_json

    count("--max-tokens", max_tokens)
    check_order(order)
    given = None if choices is None else check_choices(choices.split(","))
    texts = check(paths, model, question, budget, size, scorer, [as_json])
    silent = as_json == STDOUT
    network, tokenizer = loaded(model, cache, trust_remote_code, silent)
    documents = shelved(texts, tokenizer, library, size)
    with nullcontext(quiet) if silent else progress_bar() as on_progress:
        found = ask(
            network,
            tokenizer,
            question,
            documents,
            budget=budget,
            scorer=scorer,
            size=size if library is None else None,
            order=order,  # type: ignore[arg-type]  # checked above
            chat=chat,
            titles=titles,
            choices=given,
            max_tokens=max_tokens,
            full=full,
            on_progress=on_progress,
        )
    leave(lambda: selection_text.reply(found), as_json, to_json(found.data()), {})
