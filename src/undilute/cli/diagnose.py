"""``undilute diagnose``: which heads of a model find what is asked for, which dilute, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from undilute.cli.evaluation import progress_bar
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
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Texts to read: files, folders or patterns; by default three that CPython ships."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a window; by default 1,024, or fewer if need be.")
    ] = None,
    target: Annotated[int | None, typer.Option(help="Length to forecast; by default 4 times --length.")] = None,
    windows: Annotated[int, typer.Option(help="Windows to read of each text, spread over it.")] = 2,
    offset: Annotated[int, typer.Option(help="Tokens to leave out at the start of each text.")] = 0,
    probe: Annotated[
        bool | None, typer.Option(help="Hide facts and ask for them. By default where the model can be asked.")
    ] = None,
    haystacks: Annotated[int, typer.Option(help="Texts to hide facts in, to find heads and again to judge them.")] = 8,
    quick: Annotated[bool, typer.Option("--quick", help="Try no remedies, and give no advice.")] = False,
    rows: Annotated[int, typer.Option(help="Rows to sample from each head in each window.")] = 32,
    x: Annotated[str, typer.Option(help="What d̃ and N_s/N look at: the layer's values, or its input.")] = "values",
    top: Annotated[int, typer.Option(help="The N of top-N mass, d̃ and N_s/N.")] = 5,
    sinks: Annotated[int, typer.Option(help="How many of the first tokens count as the sink.")] = 1,
    recent: Annotated[int, typer.Option(help="How many of the last keys count as recent.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the facts and the intervals.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained, interactive page.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write one row per head as CSV.")] = None,
    save_plan: Annotated[
        Path | None, typer.Option(help="Write what helped as a plan, for treat and apply; an error if nothing did.")
    ] = None,
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """See which heads of a model find what is asked for, which dilute, what is to be expected, and what helps."""
    from undilute import files, models
    from undilute.diagnosis import diagnose
    from undilute.models import texts
    from undilute.report import diagnosis_data, diagnosis_page, diagnosis_text

    if target is not None:
        count("--target", target)
        if length is not None and target < length:
            raise InvalidValue(
                f"--target = {shown(target)}: must be at least --length = {shown(length)}; a forecast looks ahead."
            )
    if save_plan is not None and (quick or probe is False):
        raise InvalidValue(
            f"--save-plan = {str(save_plan)!r}: a plan holds what was tried and helped, and "
            f"{'--quick' if quick else '--no-probe'} tries nothing; leave one of them out."
        )
    given = [*(text or []), *(more or [])]
    read = [file for path in given for file in texts.meant(path)]
    weights = [Path(model), *(Path(model).iterdir() if Path(model).is_dir() else ())]
    files.check_writable(*filter(None, (html, as_json, as_csv, save_plan)), read=[*read, *weights])
    for wanted, package, extra in (
        (html, "jinja2", "plot"),
        (as_csv, "pandas", "models"),
        (save_plan, "pydantic", "plot"),
    ):
        if wanted is not None:
            require(package, extra)
    prose = texts.read_each(given)
    with console.status(Text(f"loading {model} …")):
        network, tokenizer = models.load(model, cache=cache, trust_remote_code=trust_remote_code)
    with progress_bar() as on_progress:
        found = diagnose(
            network,
            tokenizer,
            prose,
            length,
            target,
            windows=windows,
            offset=offset,
            probe=probe,
            haystacks=haystacks,
            quick=quick,
            rows=rows,
            x=x,  # type: ignore[arg-type]  # checked there
            top=top,
            sinks=sinks,
            recent=recent,
            seed=seed,
            name=model,
            on_progress=on_progress,
            on_start=lambda sentence: console.print(Text(sentence, style="dim")),
        )
        contents: dict[Path, str | bytes] = {}
        if html is not None:
            contents[html] = diagnosis_page.page(found)
        if as_json is not None:
            contents[as_json] = diagnosis_data.to_json(found)
        if as_csv is not None:
            contents[as_csv] = found.frame().to_csv(index=False)
    best = found.trials.best
    if save_plan is not None and best is not None:
        contents[save_plan] = best.plan.to_json()
    for part in diagnosis_text.terminal(found):
        console.print(part)
    put(contents)
    if save_plan is not None and best is None:
        why = "nothing that was tried helped" if found.trials.tried else str(found.trials.why_not).rstrip(".")
        raise InvalidValue(f"--save-plan = {str(save_plan)!r}: {why}, so there is no plan to write.")
