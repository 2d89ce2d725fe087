"""Measures by name: what a diagnosis reports for every head, and how to add one.

    @measure("collision", label="collision probability", formula="Σ p²", unit="")
    def collision(rows: Rows) -> Tensor: ...

A measure is a function from :class:`~undilute.measures.attention_rows.Rows` to one number per row. Put it in a file of
its own in this folder; it then appears in ``capture``, in the frame, in the JSON and on the page.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from torch import Tensor

from undilute.errors import UnknownName
from undilute.measures.attention_rows import Rows

Compute = Callable[[Rows], Tensor]
WITHOUT_SINK = "_without_sink"
BEFORE = "_beside_sink"  # what WITHOUT_SINK was in 0.1


@dataclass(frozen=True)
class Measure:
    """One number per row of attention.

    Attributes
    ----------
    name : the column it fills
    label : what a reader is shown
    formula : one line; p are the weights, z the logits, n the keys a row sees
    unit : "" for shares and pure numbers
    compute : rows → (heads, rows)
    needs_x : whether it looks at the vectors that are averaged
    """

    name: str
    label: str
    formula: str
    unit: str
    compute: Compute
    needs_x: bool


_measures: dict[str, Measure] = {}


def measure(
    name: str,
    *,
    label: str,
    formula: str,
    unit: str = "",
    needs_x: bool = False,
    without_sink: bool = False,
) -> Callable[[Compute], Compute]:
    """Decorator: make ``name`` a measure; with ``without_sink`` also the same of the row without its sink."""

    def add(compute: Compute) -> Compute:
        _measures[name] = Measure(name, label, formula, unit, compute, needs_x)
        if without_sink:
            rest = Measure(
                name + WITHOUT_SINK,
                f"{label}, sink left out",
                formula,
                unit,
                lambda rows: compute(rows.without_sink),
                needs_x,
            )
            _measures[rest.name] = rest
        return compute

    return add


def every() -> dict[str, Measure]:
    """Every measure by name.

    Examples
    --------
    >>> every()["top_weight"].formula
    'max p'
    """
    from undilute import measures

    for module in pkgutil.iter_modules(measures.__path__):
        importlib.import_module(f"{measures.__name__}.{module.name}")
    return dict(_measures)


def chosen(names: Iterable[str] | None) -> list[Measure]:
    """The measures of these names, in the registry's order; all of them if None."""
    known = every()
    names = list(known) if names is None else [_current(name, known) for name in names]
    for name in names:
        if name not in known:
            raise UnknownName("measure", name, known)
    return [each for each in known.values() if each.name in names]


def _current(name: str, known: Collection[str]) -> str:
    """Today's name of a measure."""
    current = name.removesuffix(BEFORE) + WITHOUT_SINK
    if not name.endswith(BEFORE) or current not in known:
        return name
    warnings.warn(f"the measure {name!r} is called {current!r} now.", DeprecationWarning, stacklevel=4)
    return current
