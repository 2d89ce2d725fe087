"""Results as Markdown, for the repository: what the README and docs/reproduction.md say is read from results.json."""

from __future__ import annotations

from collections.abc import Sequence

from undilute.report.markdown import table
from undilute.report.result import Result, Row, Verdict
from undilute.report.result_page import chart_files
from undilute_papers.report.comparisons import computed, counts, printed
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.experiment import every
from undilute_papers.sharpness.ceiling.training import FOCUS, OWN
from undilute_papers.sharpness.max_retrieval.published import PRINTED

VERDICTS: tuple[Verdict, ...] = ("agrees", "differs", "other set-up")
PREFACE = """# Reproduction: every table and figure, compared with what was printed

Made by `make docs` from the results in `docs/results`; each names the command that made it. Claims of the papers are
tested on SmolLM2-135M and the text that CPython ships, where the papers have GPT-2 and *War and Peace*: *agrees* and
*differs* are about the claim or formula, not about their run. *Other set-up* means that our run
cannot decide: another model, text or length of training, or too little data; the note says which.
`undilute reproduce` lists the experiments; `undilute reproduce <id>` runs one and writes its page.
"""


def page(results: Sequence[Result], images: str) -> str:
    """The whole page.

    Parameters
    ----------
    results : in the order they are shown
    images : where the pictures are, as seen from the page; a folder for each experiment
    """
    return "\n".join([PREFACE, *(_section(result, images) for result in results)])


def _section(result: Result, images: str) -> str:
    cls = every()[result.id]
    lines = [f"## `{result.id}`: {cls.shows}", "", f"*{cls.source}.* `{result.command}`", ""]
    lines += [f"**{result.findings[0]}**", "", *(f"- {finding}" for finding in result.findings[1:]), ""]
    for chart, file in zip(result.charts, chart_files(result), strict=True):
        lines += [f"![{chart.title}]({images}/{result.id}/{file})", ""]
    lines += [_comparisons(result), ""]
    return "\n".join(lines)


def _comparisons(result: Result) -> str:
    rows = [[each.what, printed(each), computed(each), each.verdict, each.note] for each in result.comparisons]
    return table(["what", "printed", "computed", "verdict", "note"], rows)


def summary(results: Sequence[Result]) -> str:
    """A line per experiment: how its printed values and claims came out, and the answer in a sentence."""
    rows = []
    for result in results:
        counted = counts(result.comparisons)
        rows.append([f"`{result.id}`", *(str(counted[verdict]) for verdict in VERDICTS), result.findings[0]])
    return table(["experiment", *VERDICTS, "what came out"], rows)


def retrieval(result: Result, schedule: str, set_size: str, sizes: Sequence[int]) -> str:
    """Accuracy of max retrieval by rule, with the argmax of the same logits in brackets, from the result's own table.

    Below the rules that the paper has, with its constant rate, stand its printed values.
    """
    lines: dict[tuple[str, str], dict[int, str]] = {}
    seeds: set[object] = set()
    for row in result.tables["accuracy"]:
        if (row["schedule"], row["set_size"]) == (schedule, set_size) and row["items"] in sizes:
            trained, evaluated = str(row["trained_with"]), str(row["evaluated_with"])
            if evaluated in (trained, "adaptive"):
                seeds.add(row["seeds"])
                shown = f"{row['accuracy']:.1f} ({row['argmax_of_the_same_logits']:.1f})"
                lines.setdefault((trained, evaluated), {})[int(row["items"] or 0)] = shown
    body = []
    for (trained, evaluated), cells in lines.items():
        body.append([_tested(trained, evaluated), *(cells.get(items, "–") for items in sizes)])
        if schedule == "constant" and trained == "softmax":
            values = [f"{getattr(PRINTED[items], evaluated)}" if items in PRINTED else "–" for items in sizes]
            body.append([f"*{evaluated}, printed*", *values])
    made = f"*{schedule} learning rate, {' or '.join(map(str, seeds))} seeds, {result.settings['steps']:,} steps*"
    return f"{made}\n\n" + table(["rule", *(f"{items:,}" for items in sizes)], body)


def ceiling(result: Result) -> str:
    """Accuracy of max retrieval by arm, with its worst seed and the argmax of the same logits, from the own table of
    the result.

    Above the arms stand the printed values of adaptive temperature.
    """
    rows = {(row["arm"], row["evaluated_with"]): row for row in result.tables["arms"]}
    own = [row for (_, evaluated), row in rows.items() if evaluated == OWN]
    sizes = _sizes(own[0])
    printed = [f"{PRINTED[items].adaptive}" if items in PRINTED else "–" for items in sizes]
    body = [["*adaptive, printed*", "", *printed, "–"]]
    for row in own:
        argmax = rows[row["arm"], ARGMAX]
        cells = [
            f"{row[f'mean_at_{n}']:.1f} ({argmax[f'mean_at_{n}']:.1f}), worst {row[f'worst_seed_at_{n}']:.1f}"
            for n in sizes
        ]
        change = f"{row['beside']}, but {row['changes']}" if row["beside"] else str(row["changes"])
        body.append([f"`{row['arm']}`", change, *cells, _trained(row)])
    return table(["arm", "what it is", *(f"{items:,}" for items in sizes), "seeds that train"], body)


def inference(result: Result) -> str:
    """Accuracy of every arm of the ceiling at the largest size: own rule, focus at inference, argmax of the logits."""
    rows = {(row["arm"], row["evaluated_with"]): row for row in result.tables["arms"]}
    largest, rules = _sizes(result.tables["arms"][0])[-1], [OWN, *FOCUS, ARGMAX]
    body = [
        [f"`{arm}`", *(f"{rows[arm, rule][f'mean_at_{largest}']:.1f}" for rule in rules), _trained(rows[arm, OWN])]
        for arm in dict.fromkeys(arm for arm, _ in rows)
    ]
    return table([f"arm, {largest:,} items", *rules, "seeds that train"], body)


def _sizes(row: Row) -> list[int]:
    """The sizes that a line of an arm is about."""
    return [int(name.removeprefix("mean_at_")) for name in row if name.startswith("mean_at_")]


def lengths(result: Result, task: str, shown: Sequence[int]) -> str:
    """Accuracy on one task of length generalisation by rule, with the argmax of the same logits in brackets."""
    lines: dict[str, list[Row]] = {}
    for row in result.tables["means"]:
        if row["task"] == task and row["length"] in shown and row["evaluated_with"] != ARGMAX:
            trained, evaluated = str(row["trained_with"]), str(row["evaluated_with"])
            lines.setdefault(_tested(trained, evaluated), []).append(row)
    body = [
        [
            name,
            *(f"{row['accuracy']:.1f} ({row['argmax_of_the_same_logits']:.1f})" for row in rows),
            f"{rows[-1]['worst_seed']:.1f} to {rows[-1]['best_seed']:.1f}",
            _trained(rows[0]),
        ]
        for name, rows in lines.items()
    ]
    ends = f"seeds at {shown[-1]:,}"
    return table([task, *(f"{length:,}" for length in shown), ends, "seeds that train"], body)


def _tested(trained: str, evaluated: str) -> str:
    return trained if trained == evaluated else f"{evaluated} (on {trained}'s weights)"


def _trained(row: Row) -> str:
    return "–" if row["seeds_that_train"] is None else f"{row['seeds_that_train']} of {row['seeds']}"
