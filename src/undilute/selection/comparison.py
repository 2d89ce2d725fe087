"""Which reader answers best, and at what cost?  Readers compared on the same questions, in figures and sentences.

    found = compare_readers(model, tokenizer, texts, ["none", "bm25", "heads", "heads+bm25"], lengths=[1024, 8192])
    print(found.summary())
    found.frame()

A reader is compared with another in pairs: question by question, with haystacks as independent blocks. The same facts
are hidden at every length, so a haystack of a task is one block over all lengths.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from undilute import files
from undilute.errors import InvalidValue, MissingExtra, UnknownName
from undilute.evaluation.changes import Change, change
from undilute.evaluation.result import Mean, mean
from undilute.models.limits import maximum_length
from undilute.progress import Progress
from undilute.selection import reader_sentences
from undilute.selection.judging import (
    BUDGET,
    FULL,
    HAYSTACKS,
    ORACLE,
    ORDER,
    QUESTIONS,
    TASKS,
    Example,
    Read,
    examples,
    read_each,
)
from undilute.selection.passages import SIZE, named
from undilute.selection.result import Order
from undilute.selection.scorers import Scorer

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from undilute.report.result import Result

SCHEMA = "undilute.readers/1"
FILE = "readers.json"
RECALL = "recall"
Row: TypeAlias = dict[str, Any]


def compare_readers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Mapping[str, str],
    readers: Sequence[str],
    *,
    tasks: Sequence[str] = TASKS,
    lengths: Sequence[int] = (1024,),
    haystacks: int = HAYSTACKS,
    questions: int = QUESTIONS,
    budget: int = BUDGET,
    order: Order = ORDER,
    size: int = SIZE,
    seed: int = 0,
    given: Mapping[str, Scorer] | None = None,
    name: str | None = None,
    checkpoint: Path | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Readers compared on the same questions.

    Parameters
    ----------
    model, tokenizer, texts, readers : as of :func:`undilute.selection.judging.read_each`, and so are all options below
        except for ``name``
    name : what the model is called in the result
    checkpoint : a file for what is done already; the lengths of all runs with one file should have the same maximum,
        because what is hidden depends on it

    Returns
    -------
    Comparison
        The same for the same arguments, except for seconds.
    """
    start = time.perf_counter()
    readers, tasks, lengths = (list(dict.fromkeys(each)) for each in (readers, tasks, lengths))  # type: ignore[assignment]
    rows = read_each(
        model,
        tokenizer,
        texts,
        readers,
        tasks=tasks,
        lengths=lengths,
        haystacks=haystacks,
        questions=questions,
        budget=budget,
        order=order,
        size=size,
        seed=seed,
        given=given,
        checkpoint=checkpoint,
        on_progress=on_progress,
    )
    settings = {
        "model": name or getattr(model.config, "name_or_path", "") or type(model).__name__,
        "window": maximum_length(model),
        "readers": list(readers),
        "tasks": list(tasks),
        "lengths": sorted(lengths),
        "haystacks": haystacks,
        "questions": questions,
        "budget": budget,
        "order": order,
        "size": size,
        "seed": seed,
        "text": list(named(texts)),
    }
    shown = examples(tokenizer, texts, tasks, lengths, seed)
    return Comparison(rows, settings, shown, time.perf_counter() - start, made=_made())


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of :func:`compare_readers`.

    Attributes
    ----------
    rows : every question after what every reader gave the model
    settings : what the figures depend on
    examples : a question of each task, and what answers it
    seconds : how long it took, without what a checkpoint held already
    command : what to type for these figures, if they came from the command line
    made : versions, machine, date
    """

    rows: Sequence[Read]
    settings: Mapping[str, Any]
    examples: Sequence[Example] = ()
    seconds: float = 0.0
    command: str = ""
    made: Mapping[str, str] = field(default_factory=dict)

    # ---------------------------------------------------------------- what was compared

    @cached_property
    def readers(self) -> list[str]:
        """In the order in which they were given."""
        return list(dict.fromkeys(each.reader for each in self.rows))

    @cached_property
    def tasks(self) -> list[str]:
        """In the order in which they were given."""
        return list(dict.fromkeys(each.task for each in self.rows))

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of the haystacks, shortest first."""
        return sorted({each.length for each in self.rows})

    @property
    def baseline(self) -> str:
        """What all others are compared with: "none", or the first reader if that is not among them."""
        return FULL if FULL in self.readers else self.readers[0]

    @property
    def scorers(self) -> list[str]:
        """Readers that choose without knowing the answer."""
        return [each for each in self.readers if each not in (FULL, ORACLE)]

    def of(self, reader: str, task: str | None = None, length: int | None = None) -> list[Read]:
        """The answers after one reader, of one task, of one length, or of both; always in the same order."""
        if reader not in self.readers:
            raise UnknownName("reader", reader, self.readers)
        return self._of.get((reader, task, length), [])

    @cached_property
    def _of(self) -> dict[tuple[str, str | None, int | None], list[Read]]:
        found: dict[tuple[str, str | None, int | None], list[Read]] = {}
        for each in sorted(self.rows, key=_asked):
            for task in (None, each.task):
                for length in (None, each.length):
                    found.setdefault((each.reader, task, length), []).append(each)
        return found

    # ---------------------------------------------------------------- figures

    def recall(self, reader: str, task: str | None = None, length: int | None = None) -> Mean:
        """Right answers in percent, with the interval over haystacks."""
        return _percent(self.of(reader, task, length), lambda each: each.right)

    def kept(self, reader: str, task: str | None = None, length: int | None = None) -> Mean:
        """Questions in percent for which the model read all that the answer needs, with the interval over haystacks."""
        return _percent(self.of(reader, task, length), lambda each: float(each.kept))

    def difference(
        self, reader: str, other: str | None = None, task: str | None = None, length: int | None = None
    ) -> Change:
        """Recall after one reader minus recall after another (by default the baseline), in pairs.

        Parameters
        ----------
        reader, other : names of readers
        task, length : of one task, of one length, or of both
        """
        other = self.baseline if other is None else other
        before, after = self.of(other, task, length), self.of(reader, task, length)
        if list(map(_asked, before)) != list(map(_asked, after)):
            raise InvalidValue(f"{other!r} and {reader!r} answered different questions: they cannot be compared.")
        names = {block: number for number, block in enumerate(dict.fromkeys(map(_block, before)))}
        blocks = np.array([names[_block(each)] for each in before])
        old, new = (np.array([100 * each.right for each in some]) for some in (before, after))
        return change(
            RECALL + (f", {task}" if task else "") + (f" at {length:,} tokens" if length else ""),
            "%",
            old,
            new,
            blocks,
            better="higher",
            seed=int(self.settings.get("seed", 0)),
        )

    @cached_property
    def changes(self) -> dict[str, list[Change]]:
        """Reader → its recall minus the baseline's: over everything, by task, and by length. Not corrected for being
        many."""
        tasks = self.tasks if len(self.tasks) > 1 else []
        lengths = self.lengths if len(self.lengths) > 1 else []
        return {
            reader: [
                self.difference(reader),
                *(self.difference(reader, task=task) for task in tasks),
                *(self.difference(reader, length=length) for length in lengths),
            ]
            for reader in self.readers
            if reader != self.baseline
        }

    @cached_property
    def tables(self) -> dict[str, list[Row]]:
        """Every figure, by the name of its table: by task and length, over all tasks, changes."""
        every = [(task, length) for task in self.tasks for length in self.lengths]
        pooled = [("all", length) for length in self.lengths]
        return {
            "by task": [row for reader in self.readers for where in every for row in self._row(reader, *where)],
            "all tasks": [row for reader in self.readers for where in pooled for row in self._row(reader, *where)],
            "changes": [_change(reader, each) for reader, lines in self.changes.items() for each in lines],
        }

    def _row(self, reader: str, task: str, length: int) -> list[Row]:
        some = self.of(reader, None if task == "all" else task, length)
        if not some:
            return []
        right, kept = _percent(some, lambda each: each.right), _percent(some, lambda each: float(each.kept))
        return [
            {
                "reader": reader,
                "task": task,
                "length": length,
                "recall, %": right.value,
                "low": right.low,
                "high": right.high,
                "gold kept, %": kept.value,
                "kept low": kept.low,
                "kept high": kept.high,
                "guessing, %": 100 * statistics.fmean(each.chance for each in some),
                "tokens to choose": statistics.fmean(each.chosen for each in some),
                "tokens to answer": statistics.fmean(each.answered for each in some),
                "seconds a question": statistics.median(each.seconds for each in some),
                "questions": len(some),
                "haystacks": len(set(map(_block, some))),
            }
        ]

    def frame(self, table: str = "by task") -> pd.DataFrame:
        """A row for each reader, task and length; or another of the tables: "all tasks", "changes".

        Recall and gold kept come with their 95 % interval over haystacks. Tokens are means, seconds are the median of
        the questions: the first one may have had to find the heads.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise MissingExtra("pandas", "models") from None
        if table not in self.tables:
            raise UnknownName("table", table, self.tables)
        return pd.DataFrame(self.tables[table])

    # ---------------------------------------------------------------- reading and keeping

    @cached_property
    def findings(self) -> list[str]:
        """What came out, in sentences; the first is the answer."""
        return reader_sentences.findings(self)

    def summary(self) -> str:
        """The answer, followed by the other findings, one per line."""
        answer, *others = self.findings
        return "\n".join([answer, *(f"• {each}" for each in others)])

    def report(self) -> Result:
        """Findings, tables and charts, as pages and files show them."""
        from undilute.report import readers_charts

        return readers_charts.result(self)

    def save_html(self, path: str | Path) -> Path:
        """Write a page that needs no network, and return its path."""
        from undilute.report import readers_page

        return files.write(Path(path), readers_page.page(self))

    def to_json(self) -> str:
        """All answers and settings as text that :meth:`from_json` reads, with the findings and the tables."""
        rows = ",\n  ".join(json.dumps(_finite(list(asdict(each).values())), ensure_ascii=False) for each in self.rows)
        content = {
            "schema": SCHEMA,
            "settings": self.settings,
            "seconds": self.seconds,
            "command": self.command,
            "made": self.made,
            "findings": self.findings,
            "examples": list(map(asdict, self.examples)),
            "tables": self.tables,
            "columns": [each.name for each in fields(Read)],
        }
        lines = [
            f" {json.dumps(name)}: {json.dumps(_finite(each), ensure_ascii=False)}" for name, each in content.items()
        ]
        return "{\n" + ",\n".join(lines) + f',\n "rows": [\n  {rows}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str | Path) -> Comparison:
        """The comparison of :meth:`to_json`, from its text or from the file that holds it."""
        if isinstance(text, Path):
            text = files.read_text(text, "choose a file that a comparison of readers was saved to")
        try:
            content = json.loads(text)
            schema = content.get("schema")
            if schema != SCHEMA:
                raise InvalidValue(f"its schema is {schema!r}: must be {SCHEMA!r}.")
            columns = content["columns"]
            rows = [Read(**_known(dict(zip(columns, row, strict=True)))) for row in content["rows"]]
            shown = [Example(**{**each, "statements": tuple(each["statements"])}) for each in content["examples"]]
            if not rows:
                raise InvalidValue("it holds no answers: must hold at least one.")
            return cls(rows, content["settings"], shown, content["seconds"], content["command"], content["made"])
        except InvalidValue:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidValue(f"it is no comparison of readers ({type(error).__name__}: {error}).") from None

    def save_json(self, path: str | Path) -> Path:
        """Write what :meth:`from_json` reads, and return its path."""
        return files.write(Path(path), self.to_json())

    def save(self, folder: str | Path, also: Mapping[Path, str] | None = None) -> list[Path]:
        """Write everything: the page, results.json, readers.json, a CSV file per table and a PNG file per chart.

        Parameters
        ----------
        folder : where to write; created if it does not exist
        also : other files to write together with these: all or none
        """
        from undilute.report import readers_page, result_files

        return result_files.save(
            self.report(), Path(folder), {FILE: self.to_json()}, also, lambda results: readers_page.page(self)
        )

    def __repr__(self) -> str:
        return f"Comparison of {', '.join(self.readers)} on {self.settings.get('model')!r}: {self.findings[0]}"

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.fragment(self.findings[0], self.tables["all tasks"], self.findings[1:])


def _asked(each: Read) -> tuple[str, int, int, int]:
    return each.task, each.length, each.haystack, each.question


def _block(each: Read) -> tuple[str, int]:
    return each.task, each.haystack


def _percent(some: Sequence[Read], value: Callable[[Read], float]) -> Mean:
    """A share in percent with its interval over haystacks; never certain, even if it is all or none."""
    parts: dict[tuple[str, int], list[float]] = {}
    for each in some:
        parts.setdefault(_block(each), []).append(100 * value(each))
    found = mean(list(parts.values()))
    rest = min(300 / len(some), 100.0) if some else math.nan
    if found.value >= 100:
        return Mean(found.value, 100 - rest, 100.0, found.count)
    return Mean(found.value, 0.0, rest, found.count) if found.value <= 0 else found


def _change(reader: str, made: Change) -> Row:
    return {
        "reader": reader,
        "what": made.what,
        "before, %": made.before,
        "after, %": made.after,
        "difference": made.difference,
        "low": made.low,
        "high": made.high,
        "p": made.p_value,
        "verdict": made.verdict,
        "haystacks": made.count,
    }


def _finite(value: Any) -> Any:
    """The same without NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _known(row: Row) -> Row:
    """The values of a row, if they are of the right kinds."""
    for each in fields(Read):
        value = row[each.name]
        if value is None and each.type == "float":
            row[each.name] = math.nan
        elif not isinstance(value, KINDS[str(each.type)]) or (isinstance(value, bool) and each.type != "bool"):
            raise ValueError(f"{each.name} = {value!r} is not of type {each.type}")
    return row


def _made() -> dict[str, str]:
    """What figures depend on besides their settings."""
    from undilute import __version__

    return {
        "undilute": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        "date": datetime.now(UTC).date().isoformat(),
    }
