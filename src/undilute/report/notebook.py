"""How does something show itself in a notebook?  In sentences and tables: plain HTML without scripts.

Every text is escaped, whatever it holds. Colours are those of the notebook, light or dark.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from undilute.diagnosis.heads import Head, Heads
from undilute.diagnosis.result import Diagnosis
from undilute.report.diagnosis_data import kind_rows, read
from undilute.report.result_page import cell
from undilute.report.selection_html import Piece, pieces
from undilute.report.selection_text import printable
from undilute.selection.answering import Choice, Reply
from undilute.selection.result import Selection

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
    parts = [sentence(found.summary, strong=f"{found.subject.model}, {read(found)}:")]
    if found.caution is not None:
        parts.append(sentence(found.caution))
    if found.probe is None:
        parts.append(sentence(f"No questions were asked: {found.why_no_probe}"))
    elif finding := found.heads.retrieval[:WORST]:
        parts += [
            sentence(f"The {len(finding)} heads that find best:" if len(finding) > 1 else "The one:"),
            heads(finding),
        ]
    top = ("top weight", f"top weight at {question.target:,}")
    parts.append(table(["heads", "steady", "kind", "what it does", *top], kind_rows(found)))
    if found.probe is None and (worst := found.heads.diluting[:WORST]):
        parts += [sentence(f"The {len(worst)} heads that lose most:" if len(worst) > 1 else "The one:"), heads(worst)]
    if found.numbering is not None:
        parts.append(sentence(found.numbering))
    parts.append(sentence(found.forecast().summary, strong=f"Forecast at {question.target:,} tokens."))
    parts += [sentence(each.sentence, strong="Tried:") for each in found.trials.tried]
    parts.append(sentence(found.advice))
    return block(*parts)


def heads(some: Heads) -> str:
    """A line for each head, in their order: what they do when asked, if they were, and on plain text."""
    shown, lengths = some[:SHOWN], _lengths(some)
    columns = ["layer", "head", "kind", "share"]
    columns += [f"weight when asked, {length:,}" for length in lengths]
    columns += ["slope", "AUC"] if lengths else []
    columns += ["top weight, short rows", "now", "at the target", "γ"]
    left = len(some) - len(shown)
    rows = [_line(each, lengths) for each in shown]
    return block(table(columns, rows), sentence(f"and {left:,} more") if left else "")


def _lengths(some: Heads) -> list[int]:
    """At which lengths all of them were asked."""
    return list(some[0].alpha) if some and all(each.asked is not None for each in some) else []


def _line(head: Head, lengths: Sequence[int]) -> list[str]:
    asked = head.asked if lengths else None
    cells = [f"{head.layer}", f"{head.head}", head.kind, f"{head.share:.0%}"]
    if asked is not None:
        cells += [f"{asked.alpha[length].value:.2f}" for length in lengths]
        cells += [_signs(f"{asked.law.slope.value:.2f}"), "–" if asked.auc is None else f"{asked.auc:.2f}"]
    weights = [f"{weight:.2g}" for weight in (head.top_short, head.top_now, head.top_target)]
    return [*cells, *weights, _signs(f"{head.gamma:.2f} ({head.gamma_low:.2f} to {head.gamma_high:.2f})")]


def _signs(figure: str) -> str:
    return figure.replace("-", "−")


def selection(found: Selection) -> str:
    """What was kept, in a sentence, and the documents with the kept passages marked."""
    return block(sentence(f"{found.summary()}.", strong=found.question), *_documents(found))


def reply(found: Reply) -> str:
    """The answer, where its words stand, the choices, what the whole documents give, and what was read."""
    numbers = ", ".join(f"[{number}]" for number in found.cited)
    where = f"Its words stand in {numbers}." if numbers else "No passage that was read holds its words."
    parts = [sentence(found.question), sentence(where, strong=found.answer or "(nothing)"), _ranked(found.choices)]
    if found.full is not None:
        parts.append(sentence(found.full.sentence, strong=f"With everything: {found.full.answer or '(nothing)'}"))
        parts.append(_ranked(found.full.choices))
    return block(*parts, sentence(f"{found.selection.summary()}."), *_documents(found.selection))


def _ranked(choices: Sequence[Choice]) -> str:
    rows = [
        [each.text, f"{each.probability:.1%}", _signs(f"{each.mean:.3f}"), _signs(f"{each.total:.3f}")]
        for each in choices
    ]
    return table(["choice", "probability", "log-probability per token", "in all"], rows) if rows else ""


def _documents(found: Selection) -> list[str]:
    style = "white-space: pre-wrap; overflow-wrap: anywhere"
    return [
        sentence("", strong=name) + f'<div style="{style}">{"".join(map(_piece, own))}</div>'
        for name, own in pieces(found).items()
    ]


def _piece(each: Piece) -> str:
    text = html.escape(printable(each.text))
    if each.kind != "kept":
        return f'<span style="opacity: .65">{text if each.kind == "around" else f" {text} "}</span>'
    colour = f"color-mix(in srgb, #e0a800 {round(0.6 * each.strength)}%, transparent)"
    style = f"background: {colour}; color: inherit"
    return f'<mark style="{style}" title="{html.escape(each.hover)}"><strong>[{each.number}]</strong> {text}</mark>'
