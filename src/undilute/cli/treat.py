"""``undilute treat``: give a model other rules, and measure whether that helped.

Rules are fitted and heads chosen on the first half of the text; everything is judged on the second.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from undilute.cli import evaluation as judging
from undilute.cli.evaluation import (
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
from undilute.cli.options import Cache, More, Trust
from undilute.errors import InvalidValue


def treat(
    context: typer.Context,
    more: More = None,
    model: Model = "smollm2",
    rule: Annotated[str | None, typer.Option(help="The rule to give the heads.", show_default="adaptive")] = None,
    text: Texts = None,
    length: Length = None,
    heads: Heads = "all",
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Fit the rule to each head first.")] = False,
    hold: Hold = "top",
    select: Annotated[
        bool, typer.Option("--select", help="Calibrate, and treat only heads where that lowers the loss.")
    ] = False,
    plan: Annotated[Path | None, typer.Option(help="Apply this plan, written by an earlier run.")] = None,
    save_plan: Annotated[Path | None, typer.Option(help="Also write the plan to this file.")] = None,
    windows: Windows = None,
    haystacks: Haystacks = None,
    needle_lengths: NeedleLengths = "",
    seed: Seed = 0,
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = FOLDER / "treat",
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Give a model's heads another rule: loss by position, needle recall, entropy and speed, before and after."""
    from undilute.evaluation import evaluate

    fitted = calibrate or select
    if plan is not None and (fitted or heads != "all" or rule is not None):
        raise InvalidValue(
            f"--plan = {str(plan)!r} already says which heads get which rule: leave out --rule, --heads, --calibrate "
            "and --select."
        )
    if hold != "top" and not fitted:
        raise InvalidValue(f"--hold = {hold!r} has no effect without --calibrate: give both, or neither.")
    if rule is not None and rule.endswith(".json"):
        raise InvalidValue(f"--rule = {rule!r} is the name of a file: give a rule, such as ssmax, or --plan {rule}.")
    rule, read = rule or "adaptive", [*(text or []), *(more or [])]
    judging.check_before(output, [rule if plan is None else plan], [*read, Path(model)], save_plan)
    asked = judging.asked(length, windows, haystacks, needle_lengths, seed)
    start = time.perf_counter()
    subject = judging.load(model, read, heads, length, cache, trust_remote_code)
    given = judging.calibrated(subject, rule, length, hold, select) if fitted else plan or subject.rule(rule)
    label = None if plan else judging.labelled(rule, heads, calibrate, select)
    with judging.progress_bar() as tell:
        found = evaluate(
            subject.model, subject.tokenizer, subject.ids, given, label=label, name=model, on_progress=tell, **asked
        )
    settings = {"heads": heads, "text": judging.text_setting(read)}
    judging.finish(found, context, settings, time.perf_counter() - start, output, save_plan)
