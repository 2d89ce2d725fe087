"""``undilute compare``: several rules or readers on one model, judged by the same text and the same questions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from undilute import interrupts, rules
from undilute.cli import evaluation as judging
from undilute.cli.evaluation import (
    BASELINE,
    FOLDER,
    Haystacks,
    Heads,
    Hold,
    Length,
    Model,
    NeedleLengths,
    Seed,
    Texts,
    Windows,
)
from undilute.cli.options import Cache, More, Trust, require, whole_numbers
from undilute.cli.output import typed, wrote
from undilute.errors import InvalidValue

if TYPE_CHECKING:
    from undilute.selection import Comparison

OF_RULES = {  # options that make no sense with --select, by the name of their argument
    "which": "--rules",
    "heads": "--heads",
    "calibrate": "--calibrate",
    "hold": "--hold",
    "windows": "--windows",
    "needle_lengths": "--needle-lengths",
}
OF_READERS = {  # those that need it
    "tasks": "--tasks",
    "lengths": "--lengths",
    "questions": "--questions",
    "budget": "--budget",
    "order": "--order",
    "html": "--html",
    "as_json": "--json",
}
READERS = FOLDER / "readers"
NO_FIGURES = (*judging.NO_FIGURES, "html", "as_json")  # options that change none


def compare(
    context: typer.Context,
    more: More = None,
    model: Model = "smollm2",
    which: Annotated[
        str, typer.Option("--rules", help="Rules or plan files, separated by commas; softmax is always included.")
    ] = "softmax,adaptive,ssmax,top-k,entmax15",
    select: Annotated[
        str,
        typer.Option(
            help="Compare readers instead of rules: none (everything is read), oracle, and scorers such as heads, bm25 "
            "or heads+bm25, separated by commas."
        ),
    ] = "",
    text: Texts = None,
    length: Length = None,
    heads: Heads = "all",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Also try the fitted form of every rule that has one.")
    ] = False,
    hold: Hold = "top",
    windows: Windows = None,
    haystacks: Haystacks = None,
    needle_lengths: NeedleLengths = "",
    tasks: Annotated[str, typer.Option(help="With --select: tasks, separated by commas.")] = "",
    lengths: Annotated[
        str, typer.Option(help="With --select: haystack lengths in tokens, separated by commas; beyond the window too.")
    ] = "",
    questions: Annotated[int | None, typer.Option(help="With --select: questions of a haystack, at most.")] = None,
    budget: Annotated[int | None, typer.Option(help="With --select: tokens that are selected.")] = None,
    order: Annotated[
        str | None, typer.Option(help='With --select: "best last", or "document" for the order of the text.')
    ] = None,
    seed: Seed = 0,
    html: Annotated[Path | None, typer.Option(help="With --select: also write the page to this file.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="With --select: also write all answers here.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help=f"Folder for the results; by default {FOLDER / 'compare'}, or {READERS} with --select, where a run "
            "that was stopped goes on."
        ),
    ] = None,
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Compare several rules on one model, with the same text and questions: one table and one page of heat maps.

    With --select, compare ways to choose what the model reads.
    """
    read = [*(text or []), *(more or [])]
    if select or _was_typed(context, "select"):
        _refuse(context, OF_RULES, "compares rules, and --select compares readers: give one of the two.")
        asked = {"haystacks": haystacks, "questions": questions, "budget": budget, "order": order}
        folder = READERS if output is None else output
        options = {name: value for name, value in asked.items() if value is not None}
        _compare_readers(
            context, model, _names("--select", select), read, tasks, _lengths(length, lengths), seed, folder, html,
            as_json, cache, trust_remote_code, options,
        )  # fmt: skip
        return
    _refuse(context, OF_READERS, "is for readers: give --select as well, such as --select none,heads.")
    output = FOLDER / "compare" if output is None else output
    _compare_rules(
        context, model, which, read, length, heads, calibrate, hold, windows, haystacks, needle_lengths, seed, output,
        cache, trust_remote_code,
    )  # fmt: skip


def _was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(context: typer.Context, options: dict[str, str], why: str) -> None:
    for name, option in options.items():
        if _was_typed(context, name):
            raise InvalidValue(f"{option} {why}")


# ---------------------------------------------------------------- rules


def _compare_rules(
    context: typer.Context,
    model: str,
    which: str,
    read: Sequence[Path],
    length: int | None,
    heads: str,
    calibrate: bool,
    hold: str,
    windows: int | None,
    haystacks: int | None,
    needle_lengths: str,
    seed: int,
    output: Path,
    cache: bool,
    trust_remote_code: bool,
) -> None:
    from undilute.evaluation import compare as judged
    from undilute.evaluation.evaluate import labelled

    given = [name for name in rules.split_names(which) if name != BASELINE]
    names = list(dict.fromkeys(Path(name) if name.endswith(".json") else name for name in given))
    if not names:
        raise InvalidValue(f"--rules = {which!r}: must name at least one rule other than {BASELINE}, such as ssmax.")
    judging.check_before(output, names, [*read, Path(model)])
    asked = judging.asked(length, windows, haystacks, needle_lengths, seed)
    start = time.perf_counter()
    subject = judging.load(model, read, heads, length, cache, trust_remote_code)
    treatments: dict[str, Any] = {
        label: name if isinstance(name, Path) else subject.rule(name) for label, name in labelled(names).items()
    }
    for name in names:
        if calibrate and isinstance(name, str) and judging.fits(name):
            treatments[judging.labelled(name, heads, True)] = judging.calibrated(subject, name, length, hold, False)
    with judging.progress_bar() as tell:
        found = judged(subject.model, subject.tokenizer, subject.ids, treatments, name=model, on_progress=tell, **asked)
    settings = {"heads": heads, "text": judging.text_setting(read)}
    judging.finish(found, context, settings, time.perf_counter() - start, output)


# ---------------------------------------------------------------- readers


def _compare_readers(
    context: typer.Context,
    model: str,
    readers: Sequence[str],
    read: Sequence[Path],
    tasks: str,
    lengths: Sequence[int],
    seed: int,
    folder: Path,
    html: Path | None,
    as_json: Path | None,
    cache: bool,
    trust_remote_code: bool,
    options: dict[str, Any],
) -> None:
    from undilute import files, models
    from undilute.models import texts
    from undilute.report import result_files
    from undilute.selection import compare_readers
    from undilute.selection.comparison import FILE
    from undilute.selection.judging import ORDER, TASKS, check_names

    for package, extra in judging.NEEDED.items():
        require(package, extra)
    asked = _names("--tasks", tasks) if tasks else list(TASKS)
    check_names(readers, asked, options.get("order", ORDER))
    checkpoint = folder / f"answers-{max(lengths)}.jsonl"  # what is hidden depends on the longest
    own = [folder / each for each in (result_files.RESULTS, result_files.PAGE, FILE)]
    files.check_writable(*own, checkpoint, *filter(None, (html, as_json)), read=[*read, Path(model)])
    prose = texts.read_each(read)
    with judging.console.status(Text(f"loading {model} …")):
        loaded, tokenizer = models.load(model, cache=cache, trust_remote_code=trust_remote_code)
    if tokenizer is None:
        raise InvalidValue(
            f"--model = {model!r} has no tokenizer: it is needed to ask questions; give a model with one."
        )
    with judging.progress_bar() as tell:
        found = compare_readers(
            loaded,
            tokenizer,
            prose,
            readers,
            tasks=asked,
            lengths=lengths,
            seed=seed,
            name=model,
            checkpoint=checkpoint,
            on_progress=tell,
            **options,
        )
    _finish(replace(found, command=typed(context, *NO_FIGURES)), folder, html, as_json)


def _finish(found: Comparison, folder: Path, html: Path | None, as_json: Path | None) -> None:
    from undilute.report import readers_page, readers_text, result_files

    also = {} if html is None else {html: readers_page.page(found)}
    also |= {} if as_json is None else {as_json: found.to_json()}
    found.save(folder, also)
    interrupts.keep(f"the results had been written to {str(folder)!r}")
    for part in readers_text.terminal(found):
        judging.console.print(part)
    wrote(folder / result_files.PAGE, *also)


def _names(option: str, text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise InvalidValue(f"{option} = {text!r}: must be names separated by commas.")
    return names


def _lengths(length: int | None, lengths: str) -> list[int]:
    if length is not None and lengths:
        raise InvalidValue("--length and --lengths: give one of the two; --lengths takes several, as in 1024,8192.")
    if lengths:
        return list(dict.fromkeys(whole_numbers("--lengths", lengths)))
    return [1024] if length is None else whole_numbers("--length", str(length))
