"""What is an evaluation?  Everything that was measured, what changed, and ways to read and keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from undilute import files
from undilute.errors import MissingExtra, UnknownName
from undilute.evaluation import sentences
from undilute.evaluation.changes import Change
from undilute.evaluation.measure import Measurement
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    import pandas

    from undilute.report.result import Result

Kind = Literal["evaluate", "treat", "compare"]  # the model as it is, one treatment, several
PLAN = "plan.json"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of :func:`undilute.evaluate` and :func:`undilute.compare`.

    Attributes
    ----------
    id : "treat" for one treatment, "compare" for several, "evaluate" for none
    measurements : of the same text and questions; that of the model as it is first
    changes : label of a treatment → paired differences from the model as it is
    plans : name of a file → the plan that :meth:`save` writes to it
    notes : what the treatment is, and what to beware of
    settings : what the figures depend on
    seconds : how long it took
    command : what to type for these figures, if they came from the command line
    """

    id: Kind
    measurements: Sequence[Measurement]
    changes: Mapping[str, Sequence[Change]]
    plans: Mapping[str, Plan]
    notes: Sequence[str]
    settings: Mapping[str, Any]
    seconds: float = 0.0
    command: str = field(default="")

    @cached_property
    def findings(self) -> list[str]:
        """What came out, in sentences; the first is the answer."""
        first, *others = self.measurements
        match self.id:
            case "evaluate":
                answer, *more = sentences.as_it_is(first)
            case "treat":
                answer, *more = sentences.findings(first, others[0], self.changes[others[0].label])
            case _:
                answer, *more = sentences.compared(self.measurements, self.changes)
        return [answer, *self.notes, *more]

    def summary(self) -> str:
        """The answer, and then everything else that came out, a line for each."""
        answer, *others = self.findings
        return "\n".join([answer, *(f"• {each}" for each in others)])

    @cached_property
    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Every figure, by the name of its table: changes, loss by position, recall, entropy, cost."""
        from undilute.report import evaluation_result

        return evaluation_result.tables(self.measurements, self.changes)

    def frame(self, table: str | None = None) -> pandas.DataFrame:
        """One of the tables; by default the paired changes, or the loss by position if nothing was changed."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra("pandas", "models") from None
        table = table or ("changes" if self.changes else "loss by position")
        if table not in self.tables:
            raise UnknownName("table", table, self.tables)
        return pandas.DataFrame(self.tables[table])

    def report(self) -> Result:
        """Findings, tables and charts, as pages and files show them."""
        from undilute.report import evaluation_result

        return evaluation_result.result(self)

    def save_html(self, path: str | Path) -> Path:
        """Write a page that needs no network, and return its path."""
        from undilute.report import result_page

        return files.write(Path(path), result_page.page([self.report()]))

    def save_json(self, path: str | Path) -> Path:
        """Write everything the page shows as JSON, and return its path."""
        from undilute.report import result_files

        return files.write(Path(path), result_files.to_json(self.report()))

    def save(self, folder: str | Path, also: Mapping[Path, str] | None = None) -> list[Path]:
        """Write everything: the page, results.json, a CSV file a table, a PNG file a chart, and plans.

        Parameters
        ----------
        folder : where to; made if it is not there
        also : further files that are written with these or not at all
        """
        from undilute.report import result_files

        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        return result_files.save(self.report(), Path(folder), plans, also)

    def __repr__(self) -> str:
        return f"Evaluation of {self.settings.get('model')!r}: {self.findings[0]}"

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        rows = self.tables["changes"] if self.changes else self.tables["loss by position"]
        return notebook.fragment(self.findings[0], rows, self.findings[1:])
