"""``undilute bench`` and ``undilute bench-diagnosis``: time and memory as ratios, each measured in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from undilute import rules
from undilute.cli.imports import with_imports
from undilute.cli.options import rules_named, whole_numbers
from undilute.cli.output import put, typed
from undilute.rules.parameters import count, whole

console = Console()


def bench_diagnosis(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="As for diagnose.")] = "smollm2",
    lengths: Annotated[str, typer.Option(help="Lengths in tokens, separated by commas.")] = "2048,8192",
    repeat: Annotated[int, typer.Option(help="Runs of each measurement; the best one counts.")] = 3,
    dense: Annotated[int, typer.Option(help="Measure output_attentions=True too, up to this many tokens.")] = 2048,
    output: Annotated[Path, typer.Option(help="Folder for the file.")] = Path("undilute-out/bench"),
) -> None:
    """Time and memory of a diagnosis as ratios to the forward pass it watches, measured in one run: table and JSON."""
    from undilute import files, models
    from undilute.models import texts
    from undilute_papers.bench import diagnosis_cost, speed

    sizes = whole_numbers("--lengths", lengths)
    count("--repeat", repeat)
    whole("--dense", dense, 0)
    files.check_writable(output / "diagnosis.json", read=[Path(model)])
    with console.status(Text(f"loading {model} …")):
        network, tokenizer = models.load(model)
    read = [texts.tokens(tokenizer, texts.shipped(), network, length) for length in sizes]
    with Progress(console=console, transient=True) as progress:
        every = progress.track(read, description="measuring …")
        costs = [cost for ids in every for cost in diagnosis_cost.measure(network, ids, repeat=repeat, dense=dense)]
    console.print(diagnosis_cost.table(costs))
    put({output / "diagnosis.json": diagnosis_cost.to_json(costs, speed.machine(), typed(context, "output"))})


BENCHED = (
    "temperature,ssmax,logn,softmax1,sink,adaptive,sparsemax,entmax15,entmax,focus,"
    "sigmoid,sa-softmax,softpick,top-k,hard"
)


@with_imports
def bench(
    context: typer.Context,
    which: Annotated[str, typer.Option("--rules", help="Rules separated by commas.")] = BENCHED,
    lengths: Annotated[str, typer.Option(help="Lengths separated by commas.")] = "1024,4096,16384",
    spreads: Annotated[str, typer.Option(help="Spread of the logits: normal, diffuse (0.3), sharp (3).")] = "normal",
    backward: Annotated[bool, typer.Option(help="Measure forward + backward too.")] = True,
    decode: Annotated[int, typer.Option(help="Keys for one decoding step; 0 to skip it.")] = 32_768,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 8,
    repeat: Annotated[int, typer.Option(help="Runs of each measurement; the best one counts.")] = 5,
    dense: Annotated[int, typer.Option(help="Measure dense code too, up to this many keys.")] = 4096,
    output: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("undilute-out/bench"),
) -> None:
    """Time and memory of each rule as ratios to torch's own attention, measured in one run: table, JSON and chart."""
    from undilute import files
    from undilute_papers.bench import speed, speed_report

    chosen = rules_named(which)
    if "entmax" in chosen:
        chosen["entmax 1.3"] = rules.get("entmax", alpha=1.3)  # its default, 1.5, is entmax15 once more
        del chosen["entmax"]
    sizes = whole_numbers("--lengths", lengths)
    count("--heads", heads)
    count("--repeat", repeat)
    whole("--dense", dense, 0)
    files.check_writable(output / "speed.json", output / "speed.png")
    every = speed.settings(sizes, [s.strip() for s in spreads.split(",")], backward, decode)
    figures: list[speed.Figure] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring …", total=len(every))
        for setting in every:
            figures += speed.measure(setting, chosen, heads=heads, repeat=repeat, dense=dense)
            progress.advance(task)
    for table in speed_report.terminal(figures):
        console.print(table)
    machine = speed.machine()
    subtitle = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32, {heads} heads"
    contents: dict[str, str | bytes] = {
        "speed.json": speed_report.to_json(figures, machine, typed(context, "output")),
        "speed.png": speed_report.chart(figures, subtitle),
    }
    put({output / name: content for name, content in contents.items()})
