"""``undilute compare``: several rules on one model, judged by the same text and the same questions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from undilute import rules
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
from undilute.cli.options import Cache, More, Trust
from undilute.errors import InvalidValue


def compare(
    context: typer.Context,
    more: More = None,
    model: Model = "smollm2",
    which: Annotated[
        str, typer.Option("--rules", help="Rules or plan files, separated by commas; softmax is always included.")
    ] = "softmax,adaptive,ssmax,top-k,entmax15",
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
    seed: Seed = 0,
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = FOLDER / "compare",
    cache: Cache = True,
    trust_remote_code: Trust = False,
) -> None:
    """Compare several rules on one model, with the same text and questions: one table and one page of heat maps."""
    from undilute.evaluation import compare as judged
    from undilute.evaluation.evaluate import labelled

    given = [name for name in rules.split_names(which) if name != BASELINE]
    names = list(dict.fromkeys(Path(name) if name.endswith(".json") else name for name in given))
    if not names:
        raise InvalidValue(f"--rules = {which!r}: must name at least one rule other than {BASELINE}, such as ssmax.")
    read = [*(text or []), *(more or [])]
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
