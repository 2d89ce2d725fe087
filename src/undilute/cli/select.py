"""``undilute select``: the passages of some documents that matter for a question."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from undilute.cli.evaluation import progress_bar
from undilute.cli.options import Cache, Trust, require
from undilute.cli.output import put
from undilute.errors import InvalidValue
from undilute.progress import quiet
from undilute.rules.parameters import count

console = Console()
STDOUT = Path("-")

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILES", help="Documents: files, folders or patterns.", show_default=False),
]
Model = Annotated[str, typer.Option(help="smollm2, a hub id such as gpt2, a folder, or a .gguf file.")]
Question = Annotated[str, typer.Option(help="A question, or the beginning of a statement that the documents complete.")]
Budget = Annotated[int, typer.Option(help="Tokens that the kept passages may have in all.")]
ScorerName = Annotated[
    str, typer.Option("--scorer", help="Who chooses: heads, bm25, embedding, or several as in heads+bm25.")
]
Size = Annotated[int | None, typer.Option(help="Tokens of a passage, at most; by default 96.")]
AsJson = Annotated[Path | None, typer.Option("--json", help="Write it as JSON; - prints that and nothing else.")]
Folder = Annotated[
    Path | None, typer.Option("--library", help="Folder that keeps what was read, for further questions.")
]


def select_passages(
    paths: Files = None,
    model: Model = "smollm2",
    question: Question = "",
    budget: Budget = 512,
    scorer: ScorerName = "heads",
    size: Size = None,
    as_json: AsJson = None,
    html: Annotated[Path | None, typer.Option(help="Write the documents with the kept passages marked.")] = None,
    library: Folder = None,
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """See which passages of some documents matter for a question, best first."""
    from undilute.report import selection_html, selection_text
    from undilute.selection import select
    from undilute.selection.result import to_json

    texts = check(paths, model, question, budget, size, scorer, [as_json, html])
    if html is not None:
        require("jinja2", "plot")
    silent = as_json == STDOUT
    network, tokenizer = loaded(model, cache, trust_remote_code, silent)
    documents = shelved(texts, tokenizer, library, size)
    with nullcontext(quiet) if silent else progress_bar() as on_progress:
        found = select(
            network,
            tokenizer,
            question,
            documents,
            budget=budget,
            scorer=scorer,
            size=size if library is None else None,
            on_progress=on_progress,
        )
    pages = {} if html is None else {html: selection_html.page(found)}
    leave(lambda: selection_text.terminal(found), as_json, to_json(found.data()), pages)


def check(
    paths: Sequence[Path] | None,
    model: str,
    question: str,
    budget: int,
    size: int | None,
    scorer: str,
    outputs: Sequence[Path | None],
) -> dict[str, str]:
    """The documents by name; what can be refused before a model is loaded is refused."""
    from undilute import files
    from undilute.models import texts
    from undilute.selection import scorers

    if not question.strip():
        raise InvalidValue(f"--question = {question!r}: must be a question, or the beginning of a statement.")
    count("--budget", budget)
    if size is not None:
        count("--size", size)
    if not paths:
        raise InvalidValue("no documents: name the files, folders or patterns to read, such as notes/*.md.")
    scorers.check_names(scorer)
    read = [file for path in paths for file in texts.meant(path)]
    weights = [Path(model), *(Path(model).iterdir() if Path(model).is_dir() else ())]
    written = [each for each in outputs if each is not None and each != STDOUT]
    files.check_writable(*written, read=[*read, *weights])
    return texts.read_each(paths)


def loaded(model: str, cache: bool, trust_remote_code: bool, silent: bool) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from undilute import models

    with nullcontext() if silent else console.status(Text(f"loading {model} …")):
        network, tokenizer = models.load(model, cache=cache, trust_remote_code=trust_remote_code)
    if tokenizer is None:
        raise InvalidValue(f"--model = {model!r} has no tokenizer: documents are text; give a model that has one.")
    return network, tokenizer


def shelved(texts: dict[str, str], tokenizer: Any, folder: Path | None, size: int | None) -> Any:
    """The documents, in a library if there is a folder for it."""
    from undilute.selection import Library

    if folder is None:
        return texts
    make: Callable[..., Any] = Library
    return make(texts, tokenizer, folder=folder, **({} if size is None else {"size": size}))


def leave(parts: Callable[[], Any], as_json: Path | None, json: str, pages: dict[Path, str]) -> None:
    """Print the parts, or JSON alone, and write the files."""
    if as_json == STDOUT:
        sys.stdout.write(json)
    else:
        for part in parts():
            console.print(part, soft_wrap=True)
    put({**pages, **({} if as_json in (None, STDOUT) else {as_json: json})})
