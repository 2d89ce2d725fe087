"""``undilute export``: a plan leaves this library, as a checkpoint or a GGUF file that any engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from undilute.cli.evaluation import Model, progress_bar
from undilute.cli.options import Cache, Trust, require
from undilute.cli.select import loaded
from undilute.errors import InvalidValue

console = Console()
DTYPES = ("float32", "float16", "bfloat16")


def export_plan(
    model: Model = "smollm2",
    plan: Annotated[Path | None, typer.Option(help="The plan, from undilute tune or treat.")] = None,
    to: Annotated[Path | None, typer.Option(help="A folder, or a file that ends in .gguf.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only say what is exact, approximate or impossible, and why.")
    ] = False,
    heads: Annotated[
        str, typer.Option(help="Write a list of heads instead: vllm-hook, qrhead, dysco or duo-attention.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16; by default as it is.")] = "",
    approximate: Annotated[bool, typer.Option("--approximate", help="Allow what is only nearly the plan.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Leave out what cannot be exported.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Fold a plan into weights, and write them as any engine reads them: transformers, vLLM, llama.cpp."""
    from undilute.exporting import explain as explained
    from undilute.exporting import export
    from undilute.treatment import Plan

    require("transformers", "models")
    if plan is None and not heads:
        raise InvalidValue("no plan: give --plan FILE, as undilute tune or undilute treat writes it.")
    read = None if plan is None else Plan.load(plan)
    if explain and read is not None:
        _show(explained(read))
        return
    if to is None:
        raise InvalidValue("no place: give --to FOLDER or --to FILE.gguf; or --explain to see what can be exported.")
    kind = _dtype(dtype)
    network, tokenizer = loaded(model, cache, trust_remote_code, silent=False)
    if heads:
        _list_heads(network, tokenizer, read, heads, to)
        return
    with progress_bar() as tell:
        made = export(
            network,
            read,
            to,
            tokenizer=tokenizer,
            dtype=kind,
            approximate=approximate,
            partial=partial,
            overwrite=overwrite,
            source=model,
            name=model,
            on_progress=tell,
        )
    console.print(made.summary(), highlight=False, soft_wrap=True, markup=False)


def _dtype(name: str) -> Any:
    import torch

    if name and name not in DTYPES:
        raise InvalidValue(f"--dtype = {name!r}: must be {', '.join(DTYPES)}.")
    return getattr(torch, name) if name else None


def _show(explanation: Any) -> None:
    """A line for each rule."""
    from undilute.exporting.result import counted, rows

    found = rows(explanation)
    if found:
        table = Table(*found[0])
        for row in found:
            table.add_row(*map(str, row.values()))
        console.print(table)
    console.print(f"{counted(explanation)}.", highlight=False, markup=False)


def _list_heads(network: Any, tokenizer: Any, plan: Any, format: str, to: Path) -> None:
    """The heads of the plan, or those that find what is asked for, as another tool reads them."""
    from undilute.cli.output import wrote
    from undilute.exporting import head_lists
    from undilute.selection.finding import retrieval_heads
    from undilute.treatment.layers import first_calls, layers_of

    calls = first_calls(network)
    layers = layers_of(calls)
    if plan is None:
        with progress_bar() as tell:
            found = retrieval_heads(network, tokenizer, on_progress=tell).heads
        at = {layer.name: index for index, layer in enumerate(layers)}
        chosen = [(at[layer], head) for layer, head in found]
    else:
        plan.check_fits(type(network).__name__, layers)
        chosen = plan.heads
    keys = [call.key.shape[1] for call in calls.values()]
    wrote(head_lists.write(chosen, layers, to, format, kv_heads=keys))
