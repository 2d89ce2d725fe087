"""Every rule and what it states about itself, as rows, Markdown or a terminal table."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from undilute import rules
from undilute.engine.api import explain
from undilute.report.markdown import table
from undilute.rules.registry import parameters_of


@dataclass(frozen=True)
class RuleFacts:
    """One line of ``undilute rules``; ``lipschitz`` is None where there is no constant."""

    name: str
    formula: str
    sums_to_one: bool
    is_sparse: bool
    lipschitz: float | None
    route: str
    paper: str


def facts(name: str, n: int) -> RuleFacts:
    """What the preset ``name`` states about itself on rows of n keys."""
    preset, rule = rules.preset(name), rules.get(name)
    return RuleFacts(
        name=name,
        formula=preset.formula,
        sums_to_one=rule.sums_to_one,
        is_sparse=rule.is_sparse,
        lipschitz=constant if math.isfinite(constant := rule.lipschitz(n)) else None,
        route=_route(rule),
        paper=preset.paper,
    )


def _route(rule: rules.Rule) -> str:
    """The route of an ordinary long call on this machine's CPU."""
    q = torch.empty(1, 1, 1024, 64).zero_()
    return explain(q, q, q, rule=rule).name


def _number(value: float | None) -> str:
    """A Lipschitz constant for people."""
    if value is None:
        return "∞"
    return f"{value:.1e}" if value >= 1e4 else f"{value:.3g}"


def _cells(fact: RuleFacts) -> list[str]:
    yes = {True: "yes", False: "no"}
    return [
        fact.name,
        fact.formula,
        yes[fact.sums_to_one],
        yes[fact.is_sparse],
        _number(fact.lipschitz),
        fact.route,
        fact.paper,
    ]


def _header(n: int) -> list[str]:
    return ["rule", "weights", "sums to 1", "sparse", f"Lipschitz (n = {n:,})", "route", "paper"]


def markdown(names: Sequence[str], n: int) -> str:
    """The table of the README."""
    return table(_header(n), [_cells(facts(name, n)) for name in names])


def terminal(names: Sequence[str], n: int) -> Table:
    """The table ``undilute rules`` prints."""
    title = f"z = logits of a row, n = keys it can see, Lip. = Lipschitz constant at n = {n:,}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("rule", "weights", "Σ=1", "sparse", "Lip.", "route", "paper"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "weights")
    for name in names:
        table.add_row(*(Text(cell.removeprefix("arXiv:")) for cell in _cells(facts(name, n))))
    return table


def details(name: str, n: int) -> str:
    """One rule at length: its facts, its parameters with their defaults, and what its files say."""
    preset, rule = rules.preset(name), rules.get(name)
    parameters = ", ".join(str(p) for p in parameters_of(preset.factory).parameters.values()) or "none"
    lines = [f"{head}: {cell}" for head, cell in zip(_header(n), _cells(facts(name, n)), strict=True)]
    lines.append(f"parameters: {parameters}")
    for part in (rule.scale, rule.map):
        source = inspect.getmodule(type(part))
        lines += ["", f"{type(part).__name__}", inspect.cleandoc((source and source.__doc__) or "")]
    return "\n".join(lines)
