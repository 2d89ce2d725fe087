"""``undilute diagnose``: what every head of a model does as context grows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from undilute.cli.options import Cache, More, Trust, require
from undilute.cli.output import put
from undilute.errors import InvalidValue
from undilute.rules.parameters import count, shown

console = Console()


def diagnose_model(
    more: More = None,
    model: Annotated[
        str, typer.Option(help="smollm2, minilm, a hub id such as gpt2, a folder, or a .gguf file.")
    ] = "smollm2",
    text: Annotated[list[Path] | None, typer.Option(help="Text to read; by default the text CPython ships.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens to read; by default 2,048, or fewer if need be.")] = None,
    target: Annotated[int, typer.Option(help="Length to forecast.")] = 131_072,
    rows: Annotated[int, typer.Option(help="Rows to sample from each head.")] = 64,
    x: Annotated[str, typer.Option(help="What d̃ and N_s/N look at: the layer's values, or its input.")] = "values",
    top: Annotated[int, typer.Option(help="The N of top-N mass, d̃ and N_s/N.")] = 5,
    sinks: Annotated[int, typer.Option(help="How many of the first tokens count as the sink.")] = 1,
    recent: Annotated[int, typer.Option(help="How many of the last keys count as recent.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap intervals.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained, interactive page.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write one row per head as CSV.")] = None,
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """See what every head of a model does as context grows: which dilute, from what length, how badly, what helps."""
    from undilute import files, models
    from undilute.diagnosis import diagnose
    from undilute.models import texts
    from undilute.report import diagnosis_data, diagnosis_page, diagnosis_text

    count("--target", target)
    if length is not None and target < length:
        raise InvalidValue(
            f"--target = {shown(target)}: must be at least --length = {shown(length)}; a forecast looks ahead."
        )
    read = [*(text or []), *(more or [])]
    files.check_writable(*filter(None, (html, as_json, as_csv)), read=[*read, Path(model)])
    for wanted, package, extra in ((html, "jinja2", "plot"), (as_csv, "pandas", "models")):
        if wanted is not None:
            require(package, extra)
    prose = texts.read(read)
    with console.status(Text(f"loading {model} …")):
        network, tokenizer = models.load(model, cache=cache, trust_remote_code=trust_remote_code)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("reading …", total=getattr(network.config, "num_hidden_layers", None))
        found = diagnose(
            network,
            tokenizer,
            prose,
            length,
            target,
            rows=rows,
            x=x,  # type: ignore[arg-type]  # checked there
            top=top,
            sinks=sinks,
            recent=recent,
            seed=seed,
            name=model,
            on_layer=lambda _: progress.advance(task),
        )
        progress.update(task, description="writing …")
        contents: dict[Path, str | bytes] = {}
        if html is not None:
            contents[html] = diagnosis_page.page(found)
        if as_json is not None:
            contents[as_json] = diagnosis_data.to_json(found)
        if as_csv is not None:
            contents[as_csv] = found.frame().to_csv(index=False)
    for part in diagnosis_text.terminal(found):
        console.print(part)
    put(contents)
