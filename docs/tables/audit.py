"""docs/audit.md: what is recorded about every statement of the papers; ``undilute audit`` recomputes the evidence."""

from __future__ import annotations

from itertools import groupby

from undilute_papers.audit import Statement, Verdict, blog, statements
from undilute_papers.audit.preface import PREFACE
from undilute_papers.audit.statement import Source

MEANING = {
    Verdict.TRUE: "true as printed",
    Verdict.CONDITIONAL: "true under a condition that is missing or stated otherwise",
    Verdict.FALSE: "false as printed",
    Verdict.UNVERIFIED: "not checkable here; its consequences are",
}


def page() -> str:
    """docs/audit.md: what is recorded about every statement; the evidence is what the program computes."""
    every = statements()
    lines = ["# The audit: what is true about attention dilution", ""]
    lines += ["*Made by `make docs` from `src/undilute_papers/audit`; `undilute audit` recomputes the evidence.*", ""]
    lines += [line for paragraph in PREFACE for line in (paragraph, "")]
    lines += [f"- **{verdict}**: {meaning}" for verdict, meaning in MEANING.items()] + [""]
    lines += ["| id | statement | verdict |", "|---|---|---|"]
    lines += [f"| [{each.id}](#{_anchor(each)}) | {_plain(each.title)} | {each.verdict} |" for each in every]
    for source, group in groupby(every, key=lambda each: each.source):
        lines += ["", f"## {_heading(source)}", ""]
        for each in group:
            lines += _entry(each)
    return "\n".join(lines).rstrip() + "\n"


def _heading(source: Source) -> str:
    link = f"[{source.title}]({source.url})" if source.url else source.title
    return f"{link}: {source.authors}, {source.version}"


def _anchor(statement: Statement) -> str:
    return statement.id.lower().replace(".", "-")


def _entry(statement: Statement) -> list[str]:
    lines = [f'<a id="{_anchor(statement)}"></a>', "", f"### {statement.id} {_plain(statement.title)}", ""]
    lines += [f"*{_plain(statement.place)}.* **{statement.verdict.value.capitalize()}.** {_plain(statement.claim)}", ""]
    if statement.formula:
        lines += _display(statement.formula)
    if statement.correction:
        lines += [f"What holds: {_plain(statement.correction)}", ""]
    if statement.corrected_formula:
        lines += _display(statement.corrected_formula)
    if statement.id == "A4.1":
        lines += [*_blog_table(), ""]
    return [*lines, f"Why: {_plain(statement.proof)}", ""]


def _display(latex: str) -> list[str]:
    """A formula by itself, in a fence: between dollars GitHub takes the backslashes of ``\\|`` and ``\\{`` away."""
    return ["```math", latex, "```", ""]


def _blog_table() -> list[str]:
    head = "| n | α printed | α computed | H printed | H computed | “bits lost” printed | computed | n_eff computed |"
    lines = [head, "|--:" * 8 + "|"]
    for n, (printed, computed) in blog.table().items():
        cells = [f"{n:,}", f"{printed.alpha:.8f}", f"{computed.alpha:.8f}", f"{printed.entropy:.2f}"]
        cells += [f"{computed.entropy:.4f}", f"{printed.bits_lost:.2f}", f"{computed.bits_lost:.4f}"]
        lines.append("| " + " | ".join([*cells, f"{computed.effective_keys:,.2f}"]) + " |")
    return lines


def _plain(text: str) -> str:
    """Text whose marks Markdown must not take for its own."""
    for mark in "\\*_|<>$`":
        text = text.replace(mark, f"\\{mark}")
    return text
