"""``undilute tune``: learn what each head is multiplied by, judge it on what was not learned from, write the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undilute.cli.evaluation import Model, progress_bar
from undilute.cli.options import Cache, More, Trust, require, whole_numbers
from undilute.cli.output import put
from undilute.cli.select import loaded
from undilute.errors import InvalidValue

console = Console()
EVERY = "all"
Texts = Annotated[
    list[Path] | None,
    typer.Option(
        help="Text: the first half of each file is learned from, the second judges. Default: what CPython ships."
    ),
]


def tune_model(
    more: More = None,
    model: Model = "smollm2",
    text: Texts = None,
    output: Annotated[Path, typer.Option(help="File for the plan.")] = Path("plan.json"),
    learn: Annotated[str, typer.Option(help="What is learned: beta (logits), gain (output), or both.")] = "beta,gain",
    rows: Annotated[
        str, typer.Option(help="all, which can be exported, or question: only rows that read a question or answer it.")
    ] = EVERY,
    on: Annotated[str, typer.Option(help="Learn from answers to questions, or from the text itself.")] = "answers",
    rule: Annotated[str, typer.Option(help="temperature, ssmax or llama4.")] = "temperature",
    heads: Annotated[
        str, typer.Option(help="all, retrieval, the best N of these, or a pattern as layers.12.*")
    ] = EVERY,
    pairs: Annotated[
        Path | None, typer.Option(help='Your own {"prompt": …, "answer": …}, one a line, in place of hidden facts.')
    ] = None,
    budget: Annotated[float, typer.Option(help="Nats that the loss on plain text may rise by.")] = 0.01,
    seeds: Annotated[int, typer.Option(help="Runs to take the mean of.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of facts, places and order.")] = 0,
    steps: Annotated[int, typer.Option(help="Steps of learning, at most.")] = 72,
    haystacks: Annotated[int, typer.Option(help="Haystacks that judge, of each of four wordings and length.")] = 2,
    needle_lengths: Annotated[str, typer.Option(help="Their lengths in tokens.")] = "512,1024,2048",
    checkpoint: Annotated[Path | None, typer.Option(help="Folder from which a killed run goes on.")] = None,
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Learn one factor for each head's logits and output, and write a plan that can be applied or exported."""
    from undilute import files
    from undilute.models import texts
    from undilute.tuning import Judging, Settings, tune

    require("transformers", "models")
    given = [*(text or []), *(more or [])]
    read = [file for path in given for file in texts.meant(path)]
    files.check_writable(output, read=[*read, Path(model), *([pairs] if pairs else [])])
    prose = texts.read_each(given)
    judging = Judging(lengths=tuple(whole_numbers("--needle-lengths", needle_lengths)), haystacks=haystacks)
    if not haystacks:
        judging = Judging(haystacks=0, other_haystacks=0)
    network, tokenizer = loaded(model, cache, trust_remote_code, silent=False)
    with progress_bar() as tell:
        plan = tune(
            network,
            tokenizer,
            prose,
            learn=[each.strip() for each in learn.split(",") if each.strip()],
            on=_one_of("--on", on, ("answers", "text")),  # type: ignore[arg-type]
            rows=_one_of("--rows", rows, (EVERY, "question")),  # type: ignore[arg-type]
            rule=rule,
            heads=int(heads) if heads.isdecimal() else heads,
            pairs=pairs,
            budget=budget,
            settings=Settings(steps=steps),
            seeds=seeds,
            seed=seed,
            judging=judging,
            checkpoint=checkpoint,
            on_progress=tell,
        )
    for sentence in (plan.summary, *plan.made["tuned"]["sentences"]):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    put({output: plan.to_json()})
    if rows == EVERY:
        said = f"undilute export --model {model} --plan {output} --to FOLDER   makes an ordinary checkpoint of it."
        console.print(said, highlight=False, soft_wrap=True, markup=False)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidValue(f"{option} = {value!r}: must be {' or '.join(allowed)}.")
    return value
