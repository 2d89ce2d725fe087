"""How does a result show itself in a notebook?  A sentence, a table, and what else is to be said; all text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from undilute.report.result_page import cell


def fragment(answer: str, rows: Sequence[Mapping[str, object]], others: Sequence[str] = ()) -> str:
    """A piece of HTML.

    Parameters
    ----------
    answer : what comes first
    rows : of the table, with equal keys
    others : further sentences, below the table

    Examples
    --------
    >>> fragment("a < b", [], ["c & d"])
    '<p><b>a &lt; b</b></p><ul><li>c &amp; d</li></ul>'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell(row.get(name)))}</td>' for name in columns)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    said = f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in others)}</ul>" if others else ""
    return f"<p><b>{escape(answer)}</b></p>{table}{said}"
