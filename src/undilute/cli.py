"""The ``undilute`` command."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from undilute import __version__, cli_reproduce, cli_treat, rules
from undilute.cli_files import put
from undilute.errors import InvalidValue, MissingExtra
from undilute.rules.parameters import count, shown, whole

app = typer.Typer(
    help="Measure, explain and undo attention dilution.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plot = typer.Typer(help="Pictures, with the numbers behind them.", no_args_is_help=True)
app.add_typer(plot, name="plot")
app.add_typer(cli_reproduce.app, name="reproduce")
console = Console()
LONGEST = 2**22


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        console.print(__version__, highlight=False)
        raise typer.Exit


@app.command("rules")
def list_rules(
    name: Annotated[str | None, typer.Argument(help="One rule, for its details.")] = None,
    n: Annotated[int, typer.Option("--n", help="Visible keys for the Lipschitz constant.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Every rule: formula, sums to 1?, sparse?, Lipschitz constant, route, paper."""
    from undilute.report import rule_table

    count("--n", n)
    names = rules.names() if name is None else [rules.preset(name).name]
    if as_json:
        print(json.dumps([asdict(rule_table.facts(each, n)) for each in names], indent=2, ensure_ascii=False))
    elif as_markdown:
        print(rule_table.markdown(names, n))
    elif name is not None:
        print(rule_table.details(name, n))
    else:
        console.print(rule_table.terminal(names, n))


@plot.command("rules")
def plot_rules(
    which: Annotated[str, typer.Option("--rules", help="Names separated by commas; all by default.")] = "",
    gap: Annotated[float, typer.Option(help="Logit of the token that matters; the others average 0.")] = 6.0,
    noise: Annotated[float, typer.Option(help="Standard deviation of the other logits.")] = 1.0,
    longest: Annotated[int, typer.Option(help="Largest n; lengths are powers of two up to it.")] = 65_536,
    seeds: Annotated[int, typer.Option(help="Rows to average over.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the random logits.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("undilute-out/rules"),
) -> None:
    """How each rule's top weight and entropy move as n grows: PNG, HTML and CSV."""
    from undilute.experiments.rule_curves import needle_curves
    from undilute.report import files, rule_plots

    names = ("rules.png", "rules.html", "rules.csv")
    files.check_writable(*(output / name for name in names))
    if not 2 <= longest <= LONGEST:
        raise InvalidValue(f"--longest = {shown(longest)}: must be between 2 and {LONGEST:,}.")
    chosen = {name: rules.get(name) for name in map(str.strip, which.split(",") if which else rules.names())}
    if chosen.pop("temperature", None) is not None:  # its default, T = 1, would be softmax once more
        chosen["temperature (T = 0.5)"] = rules.get("temperature", T=0.5)
    lengths = [2**k for k in range(1, longest.bit_length())]
    with console.status("measuring …"):
        points = needle_curves(chosen, lengths=lengths, gap=gap, noise=noise, seeds=seeds, seed=seed)
        subtitle = f"one logit of {gap:g} among n − 1 from N(0, {noise:g}²)"
        table = files.csv_text([asdict(point) for point in points])
        contents: list[str | bytes] = [rule_plots.png(points, subtitle), rule_plots.page(points, subtitle), table]
    console.print(rule_plots.terminal(points))
    put({output / name: content for name, content in zip(names, contents, strict=True)})


@app.command("audit")
def audit_statements(
    id: Annotated[
        str | None, typer.Argument(help="One statement, such as B13, with its parts; all by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random cases; every verdict must reproduce from any.")] = 0,
    details: Annotated[
        bool, typer.Option("--details", help="Printed and corrected form, proof, numbers, plot.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with formulas and plots.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the plots of --details.")] = Path("undilute-out/audit"),
) -> None:
    """Every statement of the papers: verdict, and evidence computed now; exit code 1 if one does not reproduce."""
    from undilute import audit
    from undilute.report import audit_page, audit_plots, audit_table, files

    chosen = audit.statements(id)
    drawn = {output / f"{each.id}.png": each.curve for each in chosen if details and each.curve is not None}
    files.check_writable(*filter(None, (html, as_json)), *drawn)
    with Progress(console=console, transient=True) as progress:
        results = [each.run(seed) for each in progress.track(chosen, description="checking …")]
    contents: dict[Path, str | bytes] = {}
    if details:
        for result in results:
            console.print(audit_table.details(result))
        contents |= {path: audit_plots.draw(curve(), "png") for path, curve in drawn.items()}
    else:
        console.print(audit_table.terminal(results))
    console.print(audit_table.summary(results, seed), highlight=False)
    if html is not None:
        contents[html] = audit_page.page(results, seed)
    if as_json is not None:
        contents[as_json] = audit_page.to_json(results, seed)
    put(contents)
    if not all(result.reproduces for result in results):
        raise typer.Exit(1)


@app.command("diagnose")
def diagnose_model(
    more: Annotated[list[Path] | None, typer.Argument(help="Further text files, as in --text docs/*.txt.")] = None,
    model: Annotated[
        str, typer.Option(help="smollm2, minilm, a hub id such as gpt2, a folder, or a .gguf file.")
    ] = "smollm2",
    text: Annotated[list[Path] | None, typer.Option(help="Text to read; by default what CPython ships.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens to read; 2,048 or what there is by default.")] = None,
    target: Annotated[int, typer.Option(help="The length to forecast.")] = 131_072,
    rows: Annotated[int, typer.Option(help="Sampled rows of each head.")] = 64,
    x: Annotated[str, typer.Option(help="What d̃ and N_s/N look at: the layer's values, or its input.")] = "values",
    top: Annotated[int, typer.Option(help="The N of top-N mass, d̃ and N_s/N.")] = 5,
    sinks: Annotated[int, typer.Option(help="How many of the first tokens count as sink.")] = 1,
    recent: Annotated[int, typer.Option(help="How many of the last keys count as recent.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap intervals.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page to explore, self-contained.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write one line per head as CSV.")] = None,
    cache: Annotated[bool, typer.Option(help="Keep an unpacked GGUF file for the next time.")] = True,
    trust_remote_code: Annotated[bool, typer.Option(help="Let the model run Python code of its own.")] = False,
) -> None:
    """What every head of a model does as context grows: which dilute, from what length, how badly, what would help."""
    from undilute import models
    from undilute.diagnosis import diagnose
    from undilute.models import texts
    from undilute.report import diagnosis_data, diagnosis_page, diagnosis_text, files

    count("--target", target)
    if length is not None and target < length:
        raise InvalidValue(
            f"--target = {shown(target)}: must not be below --length = {shown(length)}; a forecast looks ahead."
        )
    read = [*(text or []), *(more or [])]
    files.check_writable(*filter(None, (html, as_json, as_csv)), read=[*read, Path(model)])
    for wanted, package, extra in ((html, "jinja2", "plot"), (as_csv, "pandas", "models")):
        if wanted is not None and importlib.util.find_spec(package) is None:
            raise MissingExtra(package, extra)
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


app.command("treat")(cli_treat.treat)
app.command("compare")(cli_treat.compare)


@app.command("bench-diagnosis")
def bench_diagnosis(
    model: Annotated[str, typer.Option(help="As for diagnose.")] = "smollm2",
    lengths: Annotated[str, typer.Option(help="Tokens, separated by commas.")] = "2048,8192",
    repeat: Annotated[int, typer.Option(help="Take the best of so many.")] = 3,
    dense: Annotated[int, typer.Option(help="Up to how many tokens to measure output_attentions=True too.")] = 2048,
    output: Annotated[Path, typer.Option(help="Folder for the file.")] = Path("undilute-out/bench"),
) -> None:
    """Time and memory of a diagnosis beside the forward pass it watches, measured in one run: table and JSON."""
    from undilute import models
    from undilute.diagnosis.diagnose import tokens
    from undilute.experiments import diagnosis_cost, speed
    from undilute.models import texts
    from undilute.report import files

    sizes = cli_treat.whole_numbers("--lengths", lengths)
    count("--repeat", repeat)
    whole("--dense", dense, 0)
    files.check_writable(output / "diagnosis.json", read=[Path(model)])
    with console.status(Text(f"loading {model} …")):
        network, tokenizer = models.load(model)
    read = [tokens(tokenizer, texts.shipped(), network, length) for length in sizes]
    with Progress(console=console, transient=True) as progress:
        every = progress.track(read, description="measuring …")
        costs = [cost for ids in every for cost in diagnosis_cost.measure(network, ids, repeat=repeat, dense=dense)]
    console.print(diagnosis_cost.table(costs))
    command = f"undilute bench-diagnosis --model {model} --lengths {lengths} --repeat {repeat} --dense {dense}"
    put({output / "diagnosis.json": diagnosis_cost.to_json(costs, speed.machine(), command)})


BENCHED = (
    "temperature,ssmax,logn,softmax1,sink,adaptive,sparsemax,entmax15,entmax,focus,"
    "sigmoid,sa-softmax,softpick,top-k,hard"
)


@app.command("bench")
def bench(
    which: Annotated[str, typer.Option("--rules", help="Names separated by commas.")] = BENCHED,
    lengths: Annotated[str, typer.Option(help="Lengths separated by commas.")] = "1024,4096,16384",
    spreads: Annotated[str, typer.Option(help="Spread of the logits: normal, diffuse (0.3), sharp (3).")] = "normal",
    backward: Annotated[bool, typer.Option(help="Measure forward + backward too.")] = True,
    decode: Annotated[int, typer.Option(help="Keys for one decoding step; 0 for none.")] = 32_768,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 8,
    repeat: Annotated[int, typer.Option(help="Take the best of so many.")] = 5,
    dense: Annotated[int, typer.Option(help="Up to how many keys to measure dense code too.")] = 4096,
    output: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("undilute-out/bench"),
) -> None:
    """Time and memory of each rule as ratios to torch's own attention, measured in one run: table, JSON and chart."""
    from undilute.experiments import speed
    from undilute.report import files, speed_report

    chosen = {name: rules.get(name) for name in map(str.strip, which.split(","))}
    if "entmax" in chosen:
        chosen["entmax 1.3"] = rules.get("entmax", alpha=1.3)  # its default, 1.5, is entmax15 once more
        del chosen["entmax"]
    sizes = cli_treat.whole_numbers("--lengths", lengths)
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
    command = f"undilute bench --rules {which} --lengths {lengths} --spreads {spreads} --decode {decode}"
    command += f" --heads {heads} --repeat {repeat} --dense {dense}{'' if backward else ' --no-backward'}"
    subtitle = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32, {heads} heads"
    contents: dict[str, str | bytes] = {
        "speed.json": speed_report.to_json(figures, machine, command),
        "speed.png": speed_report.chart(figures, subtitle),
    }
    put({output / name: content for name, content in contents.items()})
