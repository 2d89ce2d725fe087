"""``undilute treat`` and ``undilute compare``: give a model other rules, and measure whether that helped.

The first half of the text is what rules are fitted to and heads are chosen by; everything is judged by the second.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from undilute import interrupts, rules
from undilute.cli.files import wrote
from undilute.errors import InvalidValue, MissingExtra
from undilute.progress import Progress as OnProgress
from undilute.rules.parameters import count

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from undilute.evaluation.measure import Material
    from undilute.evaluation.outcome import Evaluation
    from undilute.report.result import Result
    from undilute.treatment.apply import Treatment
    from undilute.treatment.plan import Plan

console = Console()
FOLDER = Path("undilute-out")
BASELINE = "softmax"
NEEDED = {"transformers": "models", "matplotlib": "plot", "plotly": "plot", "jinja2": "plot"}
PLAN = "plan.json"
NO_FIGURES = ("output", "save_plan", "cache")  # options that change none

Model = Annotated[str, typer.Option(help="smollm2, a hub id such as gpt2, a folder, or a .gguf file.")]
Texts = Annotated[
    list[Path] | None,
    typer.Option(help="Text: its first half to fit to, its second to judge by; by default what CPython ships."),
]
More = Annotated[list[Path] | None, typer.Argument(help="Further text files, as in --text docs/*.txt.")]
Length = Annotated[int | None, typer.Option(help="Tokens of a window; 2,048 or what the model reads by default.")]
Heads = Annotated[str, typer.Option(help="all, diluting (as a diagnosis finds them), or a pattern such as layers.12.*")]
Hold = Annotated[str, typer.Option(help="What --calibrate keeps as it is at a short length: top or entropy.")]
Windows = Annotated[int | None, typer.Option(help="Windows of text to read for the loss.")]
Haystacks = Annotated[int | None, typer.Option(help="Haystacks of each task and length; 0 for no needles.")]
NeedleLengths = Annotated[
    str, typer.Option(help="Tokens of haystacks, separated by commas; by default a quarter, half and all of --length.")
]
Seed = Annotated[int, typer.Option(help="Seed of the needles and of the intervals.")]
Cache = Annotated[bool, typer.Option(help="Keep an unpacked GGUF file for the next time.")]
Trust = Annotated[bool, typer.Option(help="Let the model run Python code of its own.")]


# ---------------------------------------------------------------- the commands


def treat(
    context: typer.Context,
    more: More = None,
    model: Model = "smollm2",
    rule: Annotated[str | None, typer.Option(help="The rule that heads get.", show_default="adaptive")] = None,
    text: Texts = None,
    length: Length = None,
    heads: Heads = "all",
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Fit the rule to each head first.")] = False,
    hold: Hold = "top",
    select: Annotated[
        bool, typer.Option("--select", help="Calibrate, and treat only heads for which that lowers the loss.")
    ] = False,
    plan: Annotated[Path | None, typer.Option(help="Apply this file, which an earlier run wrote.")] = None,
    save_plan: Annotated[Path | None, typer.Option(help="Write the plan to this file too.")] = None,
    windows: Windows = None,
    haystacks: Haystacks = None,
    needle_lengths: NeedleLengths = "",
    seed: Seed = 0,
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = FOLDER / "treat",
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Give heads of a model another rule: loss by position, needle recall, entropy and speed, before and after."""
    if plan is not None and (calibrate or select or heads != "all" or rule is not None):
        raise InvalidValue(
            f"--plan = {str(plan)!r} says which heads get which rule: give it without --rule, --heads, --calibrate and "
            "--select."
        )
    _check_hold(hold, calibrate or select)
    rule = rule or "adaptive"
    name = rule if plan is None else plan
    _check_before(output, [name], [*(text or []), *(more or []), Path(model)], save_plan)
    start = time.perf_counter()
    options = Options(length, windows, haystacks, needle_lengths, seed)
    subject = _subject(model, [*(text or []), *(more or [])], options, cache, trust_remote_code)
    with _steps(3 + (calibrate or select)) as steps:
        chosen = subject.heads(heads)
        if calibrate or select:
            given = subject.calibrated(rule, chosen, hold, select, steps)
        else:
            given = subject.planned(name, chosen)
        label = _label(rule, heads, calibrate, select) if plan is None else _short(plan, [plan])
        before, after = subject.evaluated({BASELINE: None, label: given}, steps)
    result = _treated(before, after, given, seed, _seen_elsewhere(given, subject.ids))
    settings = {"model": model, "rules": label, "heads": heads, "plan": given.summary, **subject.settings}
    result = replace(result, settings=settings, command=_command(context), seconds=time.perf_counter() - start)
    _finish(result, output, {PLAN: given}, save_plan)


def compare(
    context: typer.Context,
    more: More = None,
    model: Model = "smollm2",
    which: Annotated[
        str, typer.Option("--rules", help="Rules, or files of plans, separated by commas; softmax is always there.")
    ] = "softmax,adaptive,ssmax,top-k,entmax15",
    text: Texts = None,
    length: Length = None,
    heads: Heads = "all",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Add the fitted form of every rule that has one.")
    ] = False,
    hold: Hold = "top",
    windows: Windows = None,
    haystacks: Haystacks = None,
    needle_lengths: NeedleLengths = "",
    seed: Seed = 0,
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = FOLDER / "compare",
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Several rules on one model, with the same text and questions: one table, and one page of heat maps."""
    given = [name for name in dict.fromkeys(map(str.strip, which.split(","))) if name not in ("", BASELINE)]
    names = [Path(name) if name.endswith(".json") else name for name in given]
    if not names:
        raise InvalidValue(f"--rules = {which!r}: must name at least one rule beside {BASELINE}, such as ssmax.")
    _check_before(output, names, [*(text or []), *(more or []), Path(model)])
    start = time.perf_counter()
    options = Options(length, windows, haystacks, needle_lengths, seed)
    subject = _subject(model, [*(text or []), *(more or [])], options, cache, trust_remote_code)
    fitted = [name for name in given if calibrate and name in _fits()]
    with _steps(2 + len(names) + 2 * len(fitted)) as steps:
        chosen = subject.heads(heads)
        plans: dict[str, Plan | None] = {BASELINE: None}
        for name in names:
            plans[_short(name, names)] = subject.planned(name, chosen)
        calibrated = {name: subject.calibrated(name, chosen, hold, False, steps) for name in fitted}
        plans |= {_label(name, heads, True, False): plan for name, plan in calibrated.items()}
        evaluations = subject.evaluated(plans, steps)
    result = _compared(evaluations, seed)
    settings = {"model": model, "rules": tuple(plans), "heads": heads, **subject.settings}
    result = replace(result, settings=settings, command=_command(context), seconds=time.perf_counter() - start)
    _finish(result, output, {f"plan-{name}.json": plan for name, plan in calibrated.items()})


def _short(name: str | Path, names: Sequence[str | Path]) -> str:
    """What a line is called: a rule by its name, a plan by that of its file, or by its path if another is called so.

    >>> plans = [Path("old/wide.json"), Path("new/wide.json"), Path("plans/narrow.json"), "my.rule"]
    >>> [_short(name, plans) for name in plans]
    ['old/wide.json', 'new/wide.json', 'narrow', 'my.rule']
    """
    called = [BASELINE, *(other.stem if isinstance(other, Path) else other for other in names)]
    return name.stem if isinstance(name, Path) and called.count(name.stem) == 1 else str(name)


# ---------------------------------------------------------------- what is treated


@dataclass(frozen=True)
class Options:
    """What is measured, as it was typed."""

    length: int | None
    windows: int | None
    haystacks: int | None
    needle_lengths: str
    seed: int

    def given(self) -> dict[str, Any]:
        """Those that were given, by the names that ``prepare`` has for them."""
        lengths = whole_numbers("--needle-lengths", self.needle_lengths) if self.needle_lengths else None
        options = {"length": self.length, "windows": self.windows, "haystacks": self.haystacks, "lengths": lengths}
        return {name: value for name, value in options.items() if value is not None} | {"seed": self.seed}


@dataclass(frozen=True)
class Subject:
    """A model, the text to fit to, and what it is judged by.

    Attributes
    ----------
    model, tokenizer : as loaded
    ids : (tokens,), the whole text
    material : windows and questions of its second half
    settings : what these depend on
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    ids: Tensor
    material: Material
    settings: Mapping[str, Any]

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return int(self.material.windows.shape[1])

    def heads(self, heads: str) -> str | list[str]:
        """A pattern, or the heads that a diagnosis of the first half finds to dilute."""
        if heads != "diluting":
            return "*" if heads == "all" else heads
        from undilute.diagnosis import diagnose
        from undilute.models.splits import halves

        found = diagnose(self.model, self.tokenizer, halves(self.ids)[0], self.length).heads.diluting
        if not found:
            raise InvalidValue(
                f"--heads = 'diluting': no head dilutes at {self.length:,} tokens, so there is none to treat; give all "
                "or a pattern."
            )
        return [f"{head.name}.heads.{head.head}" for head in found]

    def planned(self, name: str | Path, heads: str | Sequence[str]) -> Plan:
        """The plan for a rule, or that of a file; an error if the model cannot have it, before anything is measured."""
        from undilute.treatment.apply import apply

        patterns = [heads] if isinstance(heads, str) else heads
        treatment: Treatment = name if isinstance(name, Path) else dict.fromkeys(patterns, name)
        with _naming(str(name)), apply(self.model, treatment) as treated:
            return treated.plan

    def calibrated(self, rule: str, heads: str | Sequence[str], hold: str, select: bool, steps: Steps) -> Plan:
        """The plan with a rule fitted to the first half of the text."""
        from undilute.treatment import calibrate

        return calibrate(
            self.model,
            self.tokenizer,
            self.ids,
            rule,
            heads=heads,
            length=self.length,
            hold=hold,  # type: ignore[arg-type]  # checked there
            select=select,
            on_progress=steps.next(f"fitting {rule}"),
        )

    def evaluated(self, plans: Mapping[str, Plan | None], steps: Steps) -> list[Evaluation]:
        """An evaluation under each plan, by label, time and memory included; None is the model as it is."""
        from undilute.evaluation.cost import costs
        from undilute.evaluation.measure import measure
        from undilute.treatment.apply import apply

        def under(plan: Plan | None) -> Callable[[], AbstractContextManager[Any]]:
            return nullcontext if plan is None else lambda: apply(self.model, plan)

        evaluations = []
        for label, plan in plans.items():
            with nullcontext() if plan is None else _naming(label), under(plan)():
                evaluations.append(measure(self.model, self.material, label, on_progress=steps.next(label)))
        steps.next("measuring time and memory")(0.0, "")
        found = costs({label: under(plan) for label, plan in plans.items()}, self.model, self.material.windows[0])
        return [replace(each, cost=found[each.label]) for each in evaluations]


def _subject(name: str, paths: Sequence[Path], options: Options, cache: bool, trust_remote_code: bool) -> Subject:
    """Load the model, read the text, and make the questions: whatever is wrong with them shows here."""
    from undilute import models
    from undilute.evaluation.measure import prepare
    from undilute.models import texts
    from undilute.models.splits import halves, tokenised

    given = options.given()
    prose = texts.read(paths)
    with console.status(Text(f"loading {name} …")):
        model, tokenizer = models.load(name, cache=cache, trust_remote_code=trust_remote_code)
        ids = tokenised(tokenizer, prose)
        material = prepare(model, tokenizer, halves(ids)[1], **given)
    settings = {
        "text": tuple(map(str, paths)) or "what CPython ships",
        "length": int(material.windows.shape[1]),
        "windows": len(material.windows),
        "needle lengths": tuple(sorted({haystack.length for haystack in material.haystacks})),
        "haystacks in all": len(material.haystacks),
        "seed": options.seed,
    }
    return Subject(model, tokenizer, ids, material, settings)


# ---------------------------------------------------------------- names and checks


def _label(rule: str, heads: str, calibrate: bool, select: bool) -> str:
    """A treatment in a few words.

    >>> _label("ssmax", "diluting", True, False), _label("top-k", "layers.3.*", False, True)
    ('calibrated ssmax for diluting heads', 'top-k for selected heads of layers.3.*')
    """
    if rule == BASELINE:
        rule = f"{BASELINE} as a rule"  # beside the model's own
    fitted = (calibrate or select) and rule in _fits()
    which = "" if heads == "all" else "diluting heads" if heads == "diluting" else heads
    if select:
        which = f"selected heads of {which}" if which else "selected heads"
    return f"{'calibrated ' * fitted}{rule}{f' for {which}' if which else ''}"


def _fits() -> Mapping[str, Any]:
    """The rules that have something to fit."""
    from undilute.treatment.calibration.calibrate import FITS

    return FITS


def _check_hold(hold: str, is_used: bool) -> None:
    if hold != "top" and not is_used:
        raise InvalidValue(f"--hold = {hold!r} says what --calibrate keeps: give it with --calibrate.")


def _check_before(
    output: Path, names: Sequence[str | Path], read: Sequence[Path], save_plan: Path | None = None
) -> None:
    """Say what can be said before a model is loaded."""
    from undilute import files
    from undilute.report import result_files as experiment_files
    from undilute.treatment.plan import Plan

    for package, extra in NEEDED.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, extra)
    for name in names:
        if isinstance(name, Path):
            Plan.load(name)
        else:
            rules.preset(name)
    own = [output / each for each in (experiment_files.RESULTS, experiment_files.PAGE, PLAN)]
    files.check_writable(*own, *([save_plan] if save_plan else []), read=read)
    inside = save_plan is not None and os.path.realpath(save_plan.parent) == os.path.realpath(output)
    if save_plan is not None and inside and save_plan.suffix in (".csv", ".png"):
        raise InvalidValue(
            f"--save-plan = {str(save_plan)!r} could be one of the tables and charts in {str(output)!r}: choose a name "
            "that ends in .json."
        )


@contextmanager
def _naming(label: str) -> Iterator[None]:
    """Say under which rule something cannot be done."""
    try:
        yield
    except InvalidValue as error:
        raise InvalidValue(f"{label}: {error}") from error


def whole_numbers(name: str, text: str) -> list[int]:
    """What an option of numbers says.

    >>> whole_numbers("--lengths", "512, 1024")
    [512, 1024]
    """
    try:
        return [count(name, int(n)) for n in text.split(",")]
    except ValueError:
        raise InvalidValue(f"{name} = {text!r}: must be whole numbers separated by commas.") from None


# ---------------------------------------------------------------- while it runs, and after


class Steps:
    """Progress through pieces of work of about the same size, one after the other."""

    def __init__(self, tell: OnProgress, total: int) -> None:
        self.tell, self.total, self.done = tell, total, 0

    def next(self, what: str) -> OnProgress:
        """Begin another piece; what is returned reports how far it is."""
        begun = self.done
        self.done += 1

        def report(share: float, doing: str) -> None:
            self.tell((begun + share) / self.total, f"{what}: {doing}" if doing else what)

        return report


@contextmanager
def _steps(total: int) -> Iterator[Steps]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("preparing", total=1.0)
        yield Steps(lambda share, doing: progress.update(task, completed=share, description=doing), total)


def _seen_elsewhere(plan: Plan, ids: Tensor) -> list[str]:
    """A warning, if a plan was fitted to something else than the half of this text that is not judged by."""
    from undilute.models.splits import fingerprint, halves

    fitted_to = plan.made.get("text")
    if fitted_to is None or fitted_to == fingerprint(halves(ids)[0]):
        return []
    return [
        "The plan was fitted to another text: whether that has anything in common with the one it is judged by here "
        "is not known."
    ]


def _treated(before: Evaluation, after: Evaluation, plan: Plan, seed: int, warnings: Sequence[str]) -> Result:
    from undilute.evaluation.changes import changes
    from undilute.evaluation.sentences import findings
    from undilute.report.evaluation_result import treated

    found = changes(before, after, seed=seed)
    answer, *others = findings(before, after, found)
    return treated(before, after, found, [answer, f"The treatment: {plan.summary}", *warnings, *others], settings={})


def _compared(evaluations: Sequence[Evaluation], seed: int) -> Result:
    from undilute.evaluation.changes import changes
    from undilute.report.evaluation_result import compared

    before, *others = evaluations
    return compared(evaluations, {each.label: changes(before, each, seed=seed) for each in others}, settings={})


def _finish(result: Result, folder: Path, plans: Mapping[str, Plan], save_plan: Path | None = None) -> None:
    """Write everything or nothing; ``save_plan`` is where the only plan goes too."""
    from undilute.report import evaluation_text as treatment_text
    from undilute.report import result_files as experiment_files

    also = {name: plan.to_json() for name, plan in plans.items()}
    elsewhere = {} if save_plan is None else {save_plan: also[PLAN]}
    experiment_files.save(result, folder, also, elsewhere)
    interrupts.keep(f"the results had been written to {str(folder)!r}")
    for part in treatment_text.terminal(result):
        console.print(part)
    wrote(*(folder / name for name in plans), folder / experiment_files.PAGE, *elsewhere)


def _command(context: typer.Context) -> str:
    """What to type for these figures: every option that they depend on and that is not at its default."""
    words = ["undilute", str(context.info_name)]
    for each in context.command.params:
        value = context.params.get(str(each.name))
        if each.name in NO_FIGURES or value == each.default or value in (None, [], ()):
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            flag = [] if each.param_type_name == "argument" else [each.opts[0]]
            words += flag if one is True else [*flag, str(one)]
    return shlex.join(words)
