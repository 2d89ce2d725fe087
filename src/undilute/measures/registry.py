"""Measures by name: what a diagnosis reports for every head, and how to add one.

    @measure("collision", label="collision probability", formula="Σ p²")
    def collision(rows: Rows) -> Tensor: ...

A measure is a function from :class:`~undilute.measures.attention_rows.Rows` to one number per row. Those of Undilute
are files of this folder, found by themselves; the user's own may be anywhere. Once its file is imported, a measure
appears in ``capture``, in the frame, in the JSON and on the page.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from torch import Tensor

from undilute.errors import InvalidValue, UnknownName
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

    def of(self, rows: Rows) -> Tensor:
        """(heads, rows)."""
        made: object = self.compute(rows)
        if not isinstance(made, Tensor) or made.shape != rows.logits.shape[:2]:
            what = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise InvalidValue(
                f"the measure {self.name!r} returned {what}: must be a tensor with one number for each row, "
                f"{tuple(rows.logits.shape[:2])} for these heads and rows."
            )
        return made


_measures: dict[str, Measure] = {}
_homes: dict[str, str] = {}  # the module that a measure was defined in


def measure(
    name: str,
    *,
    label: str,
    formula: str,
    unit: str = "",
    needs_x: bool = False,
    without_sink: bool = False,
) -> Callable[[Compute], Compute]:
    """Decorator: make a function of :class:`Rows` a measure, wherever it is defined.

    Parameters
    ----------
    name : the column it fills, and what ``capture(measures=[…])`` calls it
    label, formula, unit : what a reader is shown
    needs_x : whether it looks at ``rows.x``, the vectors that are averaged
    without_sink : the same of the rows without their sink is a measure too, with ``_without_sink`` after the name

    Examples
    --------
    The weight of the second-heaviest key:

    >>> import undilute as ud
    >>> @ud.measures.measure("runner_up", label="second weight", formula="p₂")
    ... def runner_up(rows):
    ...     return rows.weights.topk(2).values[..., 1]  # (heads, rows)
    >>> "runner_up" in ud.measures.names()
    True
    >>> ud.measures.unregister("runner_up")
    """

    def add(compute: Compute) -> Compute:
        if not compute.__module__.startswith(f"{__package__}."):
            every()  # so that nobody takes the name of one of ours before it is there
        each = Measure(name, label, formula, unit, compute, needs_x)
        added = [each]
        if without_sink:
            rest = replace(each, name=name + WITHOUT_SINK, label=f"{label}, sink left out")
            added.append(replace(rest, compute=lambda rows: compute(rows.without_sink)))
        for new in added:
            _check_free(new.name, compute)
        for new in added:
            _measures[new.name], _homes[new.name] = new, compute.__module__
        return compute

    return add


def unregister(name: str) -> None:
    """Forget a measure, and the one without the sink, if there is any."""
    for each in (name, name + WITHOUT_SINK):
        _measures.pop(each, None)


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


def names() -> list[str]:
    """The names of all measures, the user's own among them.

    Examples
    --------
    >>> names()[:2]
    ['attended_distance', 'attended_distance_without_sink']
    """
    return list(every())


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
    warnings.warn(f"the measure {name!r} is now called {current!r}.", DeprecationWarning, stacklevel=4)
    return current


def _check_free(name: str, compute: Compute) -> None:
    """Raise if a measure of another file has the name; one's own may be defined again, as notebooks do."""
    if name in _measures and _homes[name] != compute.__module__:
        raise InvalidValue(f"a measure {name!r} already exists, in {_homes[name]}: give yours another name.")
