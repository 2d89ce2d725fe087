"""What do ``undilute treat`` and ``undilute compare`` share?  Options, what they load, and what they leave behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from undilute import interrupts, rules
from undilute.cli.options import require, whole_numbers
from undilute.cli.output import typed, wrote
from undilute.errors import InvalidValue
from undilute.progress import Progress as OnProgress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from undilute.evaluation import Evaluation

console = Console()
FOLDER = Path("undilute-out")
BASELINE = "softmax"
NEEDED = {"transformers": "models", "matplotlib": "plot", "jinja2": "plot", "pydantic": "plot"}
PLAN = "plan.json"
NO_FIGURES = ("output", "save_plan", "cache")  # options that change none

Model = Annotated[str, typer.Option(help="smollm2, a hub id such as gpt2, a folder, or a .gguf file.")]
Texts = Annotated[
    list[Path] | None,
    typer.Option(help="Text; rules are fitted to its first half, judged on its second. Default: what CPython ships."),
]
Length = Annotated[int | None, typer.Option(help="Tokens per window; by default 2,048, or the model's limit.")]
FOUND = ("diluting", "retrieval")
Heads = Annotated[
    str, typer.Option(help="all, diluting or retrieval (as a diagnosis finds them), or a pattern such as layers.12.*")
]
Hold = Annotated[str, typer.Option(help="What --calibrate keeps at its value at a short length: top or entropy.")]
Windows = Annotated[int | None, typer.Option(help="Windows of text to measure the loss on.")]
Haystacks = Annotated[int | None, typer.Option(help="Haystacks for each task and length; 0 for no needles.")]
NeedleLengths = Annotated[
    str, typer.Option(help="Haystack lengths in tokens, separated by commas; by default ¼, ½ and all of --length.")
]
Seed = Annotated[int, typer.Option(help="Seed of the needles and the intervals.")]


# ---------------------------------------------------------------- before


def check_before(
    output: Path, names: Sequence[str | Path], read: Sequence[Path], save_plan: Path | None = None
) -> None:
    """Refuse what can be refused before a model is loaded."""
    from undilute import files
    from undilute.report import result_files
    from undilute.treatment.plan import Plan

    for package, extra in NEEDED.items():
        require(package, extra)
    for name in names:
        if isinstance(name, Path):
            Plan.load(name)
        else:
            rules.get(name)
    own = [output / each for each in (result_files.RESULTS, result_files.PAGE, PLAN)]
    files.check_writable(*own, *([save_plan] if save_plan else []), read=read)
    inside = save_plan is not None and os.path.realpath(save_plan.parent) == os.path.realpath(output)
    if save_plan is not None and inside and save_plan.suffix in (".csv", ".png"):
        raise InvalidValue(
            f"--save-plan = {str(save_plan)!r} could overwrite a table or chart in {str(output)!r}: choose a name that "
            "ends in .json."
        )


@dataclass(frozen=True)
class Subject:
    """A model, the text to fit to and to judge by, and which heads are treated."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    ids: Tensor
    heads: Sequence[str]

    def rule(self, name: str) -> dict[str, str]:
        """A rule for these heads."""
        return dict.fromkeys(self.heads, name)


def load(
    name: str, paths: Sequence[Path], heads: str, length: int | None, cache: bool, trust_remote_code: bool
) -> Subject:
    """Load the model, read the text, and find the heads."""
    from undilute import models
    from undilute.models import texts
    from undilute.models.texts import tokenised

    prose = texts.read(paths)
    with console.status(Text(f"loading {name} …")):
        model, tokenizer = models.load(name, cache=cache, trust_remote_code=trust_remote_code)
        ids = tokenised(tokenizer, prose)
    if heads not in FOUND:
        return Subject(model, tokenizer, ids, ["*" if heads == "all" else heads])
    with console.status(f"looking for {heads} heads …"):
        return Subject(model, tokenizer, ids, _found(model, tokenizer, ids, length, heads))


def _found(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, ids: Tensor, length: int | None, kind: str
) -> list[str]:
    """Patterns of the heads of one kind, as a diagnosis of the first half finds them."""
    from undilute.diagnosis import diagnose
    from undilute.models.limits import readable_length
    from undilute.models.texts import halves

    length, asks = readable_length(model, length), kind == "retrieval"
    heads = diagnose(model, tokenizer, halves(ids)[0], length, probe=asks, quick=True).heads
    found = heads.retrieval if asks else heads.diluting
    if not found:
        does = "finds what is asked for" if asks else "dilutes"
        raise InvalidValue(
            f"--heads = {kind!r}: no head {does} at {length:,} tokens, so none would be treated; give all or a pattern."
        )
    return [f"{head.name}.heads.{head.head}" for head in found]


def calibrated(subject: Subject, rule: str, length: int | None, hold: str, select: bool) -> Callable[..., Any]:
    """A function that fits a rule to these heads when its turn comes."""
    from undilute.treatment import calibrate

    options = {"rule": rule, "heads": subject.heads, "length": length, "hold": hold, "select": select}
    return partial(calibrate, **options)  # type: ignore[arg-type]  # checked there


def fits(rule: str) -> bool:
    """Whether a rule has something to fit."""
    from undilute.treatment.calibration.calibrate import FITS

    return rule in FITS


def labelled(rule: str, heads: str, calibrate: bool, select: bool = False) -> str:
    """A treatment in a few words, as its options say it.

    >>> labelled("ssmax", "diluting", True), labelled("top-k", "layers.3.*", False, True)
    ('calibrated ssmax for diluting heads', 'top-k for selected heads of layers.3.*')
    """
    name = f"{BASELINE} as a rule" if rule == BASELINE else rule  # which is not the model's own
    fitted = (calibrate or select) and fits(rule)
    which = "" if heads == "all" else f"{heads} heads" if heads in FOUND else heads
    if select:
        which = f"selected heads of {which}" if which else "selected heads"
    return f"{'calibrated ' * fitted}{name}{f' for {which}' if which else ''}"


def asked(
    length: int | None, windows: int | None, haystacks: int | None, needle_lengths: str, seed: int
) -> dict[str, Any]:
    """The options that were typed, by the names ``undilute.evaluate`` has for them; the others keep its defaults."""
    lengths = whole_numbers("--needle-lengths", needle_lengths) if needle_lengths else None
    options = {"length": length, "windows": windows, "haystacks": haystacks, "lengths": lengths}
    return {name: value for name, value in options.items() if value is not None} | {"seed": seed}


# ---------------------------------------------------------------- while it runs, and after


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """A bar on the terminal, and what tells it how far the work is."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("preparing", total=1.0)
        yield lambda share, doing: progress.update(task, completed=share, description=doing)


def finish(
    found: Evaluation,
    context: typer.Context,
    settings: Mapping[str, Any],
    seconds: float,
    folder: Path,
    save_plan: Path | None = None,
) -> None:
    """Write everything or nothing, and print it. The only plan is also written to ``save_plan``."""
    from undilute.report import evaluation_text, result_files

    shown = {"model": "", "rules": "", **settings, **found.settings}  # in this order
    found = replace(found, settings=shown, command=typed(context, *NO_FIGURES), seconds=seconds)
    elsewhere = {} if save_plan is None else {save_plan: found.plans[PLAN].to_json()}
    found.save(folder, elsewhere)
    interrupts.keep(f"the results had been written to {str(folder)!r}")
    for part in evaluation_text.terminal(found.report()):
        console.print(part)
    wrote(*(folder / name for name in found.plans), folder / result_files.PAGE, *elsewhere)


def text_setting(paths: Sequence[Path]) -> tuple[str, ...] | str:
    """Which text was read."""
    return tuple(map(str, paths)) or "what CPython ships"
