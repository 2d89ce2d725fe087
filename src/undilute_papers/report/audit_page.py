"""The audit as a page that needs no network, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files as resources
from itertools import groupby

from undilute.errors import MissingExtra
from undilute_papers.audit import Result, blog
from undilute_papers.audit.preface import PREFACE
from undilute_papers.report import audit_plots, audit_table

SCHEMA = 1


def page(results: Sequence[Result], seed: int) -> str:
    """A self-contained HTML page: preface, summary, every statement with formulas, evidence and plot."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("jinja2", "plot") from None
    template = resources("undilute_papers.report").joinpath("templates/audit.html").read_text()
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        preface=PREFACE,
        summary=audit_table.summary(results, seed),
        groups=[
            (source, list(group)) for source, group in groupby(results, key=lambda result: result.statement.source)
        ],
        table=blog.table() if any(result.statement.id.startswith("A4") for result in results) else {},
        evidence=audit_table.evidence,
        formula=lambda latex: Markup(mathml(latex)),
        plot=lambda statement: Markup(audit_plots.svg(statement.curve()) if statement.curve else ""),
    )


def mathml(latex: str) -> str:
    """A formula as MathML, which browsers draw without scripts."""
    try:
        from latex2mathml.converter import convert
    except ImportError:
        raise MissingExtra("latex2mathml", "plot") from None
    converted: str = convert(latex, display="block")
    return converted


def to_json(results: Sequence[Result], seed: int) -> str:
    """Everything recorded and everything found, for programs."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "seed": seed,
            "reproduced": all(result.reproduces for result in results),
            "statements": [_record(result) for result in results],
        },
        indent=2,
        ensure_ascii=False,
    )


def _record(result: Result) -> dict[str, object]:
    kept = {name: value for name, value in vars(result.statement).items() if name not in ("check", "curve", "source")}
    found = [asdict(finding) for finding in result.findings]
    return {
        **kept,
        "source": asdict(result.statement.source),
        "reproduces": result.reproduces,
        "seconds": round(result.seconds, 3),
        "findings": found,
    }
