"""``undilute rules``: every rule, with what is known about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from undilute import rules
from undilute.rules.parameters import count

console = Console()


def list_rules(
    name: Annotated[
        str | None, typer.Argument(help='A rule to see in detail, with or without parameters: "entmax(alpha=1.3)".')
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Visible keys for the Lipschitz constant.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """List every rule: formula, sums to 1?, sparse?, Lipschitz constant, route, paper."""
    from undilute.report import rule_table

    count("--n", n)
    names = rules.names() if name is None else [rules.preset(name).name]
    if as_json:
        print(json.dumps([asdict(rule_table.facts(each, n)) for each in names], indent=2, ensure_ascii=False))
    elif as_markdown:
        print(rule_table.markdown(names, n))
    elif name is not None:
        print(rule_table.details(names[0], n))
    else:
        console.print(rule_table.terminal(names, n))
