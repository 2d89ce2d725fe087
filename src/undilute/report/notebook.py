"""How does something show itself in a notebook?  In sentences and tables: plain HTML without scripts.

Every text is escaped, whatever it holds. Colours are those of the notebook, light or dark.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from undilute.diagnosis.heads import Heads
from undilute.diagnosis.result import Diagnosis
from undilute.report.diagnosis_data import kind_rows
from undilute.report.result_page import cell

LINE = "border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent)"
FIGURE = re.compile(r"[−+]?[\d.,]+.*|[–∞]")
WORST, SHOWN = 10, 20


def block(*parts: str) -> str:
    """What :func:`sentence` and :func:`table` made, one below the other."""
    return f"<div>{''.join(parts)}</div>"


def sentence(text: str, strong: str = "") -> str:
    """A paragraph that begins with ``strong`` in bold.

    Examples
    --------
    >>> sentence("3 heads dilute.", strong="<gpt2>")
    '<p><strong>&lt;gpt2&gt;</strong> 3 heads dilute.</p>'
    """
    bold = f"<strong>{_escaped(strong)}</strong> " if strong else ""
    return f"<p>{bold}{_escaped(text)}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns of figures are aligned on the right."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(head)
    aligned = ["right" if all(map(FIGURE.fullmatch, column)) else "left" for column in columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        styled = zip(cells, aligned, strict=True)
        return "<tr>" + "".join(_cell(tag, text, side) for text, side in styled) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<table style="border-collapse: collapse"><thead>{line("th", head)}</thead><tbody>{body}</tbody></table>'


def fragment(answer: str, rows: Sequence[Mapping[str, object]], others: Sequence[str] = ()) -> str:
    """A sentence in bold, a table of rows with equal keys, and further sentences."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    return block(sentence("", strong=answer), table(columns, cells) if rows else "", *map(sentence, others))


def _cell(tag: str, text: str, side: str) -> str:
    style = f"text-align: {side}; padding: .15em .8em .15em 0; vertical-align: top; {LINE}"
    return f'<{tag} style="{style}">{_escaped(text)}</{tag}>'


def _escaped(text: str) -> str:
    """Text that any document can hold: marks as references, no control characters or halves of characters."""
    return html.escape("".join(mark if mark.isprintable() else " " for mark in text))


def diagnosis(found: Diagnosis) -> str:
    """Headline, heads by kind, and those that lose most."""
    question = found.question
    parts = [sentence(found.summary, strong=f"{found.subject.model}, {question.length:,} tokens read:")]
    top = ("top weight", f"top weight at {question.target:,}")
    parts.append(table(["heads", "kind", "what it does", *top], kind_rows(found)))
    if worst := found.heads.diluting[:WORST]:
        parts += [sentence(f"The {len(worst)} heads that lose most:" if len(worst) > 1 else "The one:"), heads(worst)]
    if found.numbering is not None:
        parts.append(sentence(found.numbering))
    return block(*parts)


def heads(some: Heads) -> str:
    """A line for each head, in their order."""
    columns = ["layer", "head", "kind", "top weight, short rows", "now", "at the target", "γ", "advice"]
    rows = [
        [
            f"{each.layer}",
            f"{each.head}",
            each.kind,
            *(f"{weight:.2g}" for weight in (each.top_short, each.top_now, each.top_target)),
            f"{each.gamma:.2f} ({each.gamma_low:.2f} to {each.gamma_high:.2f})".replace("-", "−"),
            each.advice.summary,
        ]
        for each in some[:SHOWN]
    ]
    left = len(some) - len(rows)
    return block(table(columns, rows), sentence(f"and {left:,} more") if left else "")
