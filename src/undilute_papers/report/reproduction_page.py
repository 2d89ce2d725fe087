"""Reproductions as one HTML file: printed and computed values, charts, and every figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from undilute.report import pages, result_page
from undilute.report.result import Result
from undilute_papers.report import comparisons
from undilute_papers.reproduction.experiment import headings

SHOWN = 12  # comparisons of a result; the others are folded
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5}(?:v\d+)?)")


def page(results: Sequence[Result]) -> str:
    """A self-contained page of one reproduction or many; the same results give the same text."""
    every = [each for result in results for each in result.comparisons]
    return pages.rendered(
        "reproduction.html",
        styles=(*result_page.STYLES, "reproduction.css"),
        package="undilute_papers.report",
        **result_page.parts(results, headings()),
        kind="reproduction",
        heading="Published results on attention dilution, run again",
        summary=comparisons.outcome(every) if every or not results else "",
        total=comparisons.counts(every),
        printed=comparisons.printed,
        computed=comparisons.computed,
        counts=comparisons.counts,
        signs=comparisons.SIGNS,
        shown=SHOWN,
        linked=_linked,
    )


def _linked(source: str) -> Any:
    """A source whose arXiv numbers are links."""
    from markupsafe import Markup, escape

    parts = ARXIV.split(source)  # text, number, text, number, …
    texts = [escape(text) for text in parts[::2]]
    links = [Markup('<a href="https://arxiv.org/abs/{0}">arXiv:{0}</a>').format(number) for number in parts[1::2]]
    return Markup("").join(part for pair in zip(texts, [*links, ""], strict=True) for part in pair)
