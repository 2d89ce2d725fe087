"""Which rule does each head of a model get?  A plan says so, as data: it can be saved, read, edited and applied.

    plan = undilute.calibrate(model, tokenizer, text, rule="ssmax")
    plan.save("plan.json")
    undilute.apply(model, "plan.json")

A plan belongs to the model it was made for: its architecture, layers and heads are kept with it and checked. In its
file an assignment has the index of its layer and the layer's name in the model. One of them is enough, and a name may
replace the index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undilute import files
from undilute.errors import InvalidValue, UndiluteError
from undilute.models.head_rules import HeadRules, rules_of
from undilute.models.passes import module_of
from undilute.models.question_rows import check_rows
from undilute.models.tensor_parallel import share
from undilute.rules.base import Rule, forward_of
from undilute.rules.data import from_data, to_data
from undilute.rules.parameters import count, number, shown, whole
from undilute.treatment.layers import Head, Layer, by_layer, first_calls, index_of, layers_of
from undilute.treatment.plan_form import checked

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCHEMA = "undilute.plan/1"
SCHEMA_WITH_GAINS = "undilute.plan/2"  # of a plan that has gains, or acts on some rows only


@dataclass(frozen=True)
class Assignment:
    """A rule for some heads of one layer, and a factor on the output of each.

    Attributes
    ----------
    layer : its index
    heads : indices of its heads
    rule : a rule; parameters given per head are those of ``heads``, in that order
    gains : what multiplies the output of each of ``heads``, in that order, before the output projection; None if
        nothing does

    Examples
    --------
    >>> import undilute as ud
    >>> Assignment(3, (0, 4), ud.rules.get("softmax"), gains=(0.5, 1.2)).only([4]).gains
    (1.2,)
    """

    layer: int
    heads: tuple[int, ...]
    rule: Rule
    gains: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.gains is None:
            return
        if isinstance(self.gains, str) or not isinstance(self.gains, Iterable):
            raise InvalidValue(f"gains = {shown(self.gains)}: must be a number for each of the heads, or None.")
        gains = tuple(number("gain", each) for each in self.gains)
        if len(gains) != len(self.heads):
            raise InvalidValue(
                f"layer {self.layer} has {len(gains)} gains for {len(self.heads)} heads: must have one for each."
            )
        object.__setattr__(self, "gains", gains)

    def only(self, heads: Sequence[int]) -> Assignment:
        """The same for some of its heads."""
        places = [self.heads.index(head) for head in heads]
        gains = None if self.gains is None else tuple(self.gains[place] for place in places)
        return Assignment(self.layer, tuple(heads), self.rule.for_heads(places, len(self.heads)), gains)


@dataclass(frozen=True)
class Plan:
    """The rules of some heads of one model; the others keep their softmax.

    Attributes
    ----------
    architecture : the model's class
    layers : names and heads of its attention layers, in the order in which they run
    assignments : rules and gains for some heads of a layer; no head has two
    made : how it came about, in words and figures; only for reading
    rows : which queries it acts on. "all", or "question": where a question is read and answered, which are all queries
        of a pass that continues a cache, and the last 32 (``undilute.models.question_rows``) of one that begins
    """

    architecture: str
    layers: Sequence[Layer]
    assignments: Sequence[Assignment]
    made: Mapping[str, Any] = field(default_factory=dict)
    rows: str = "all"

    def __post_init__(self) -> None:
        check_rows(self.rows)
        seen: set[tuple[int, int]] = set()
        for each in self.assignments:
            if not 0 <= each.layer < len(self.layers):
                raise InvalidValue(f"the plan has a rule for layer {each.layer}: it has {len(self.layers)} layers.")
            for head in each.heads:
                if not 0 <= head < self.layers[each.layer].heads:
                    raise InvalidValue(f"the plan has a rule for head {head} of layer {each.layer}: there is none.")
                if (each.layer, head) in seen:
                    raise InvalidValue(f"the plan has two rules for head {head} of layer {each.layer}: one is needed.")
                seen.add((each.layer, head))
        self._check_shared()

    def _check_shared(self) -> None:
        """Raise if the runs of one module, which has one set of rules, are given different ones."""
        given: dict[str, list[list[Assignment]]] = {}
        for index, layer in enumerate(self.layers):
            own = [each for each in self.assignments if each.layer == index]
            given.setdefault(module_of(layer.name), []).append(sorted(own, key=lambda each: each.heads))
        for module, runs in given.items():
            if not all(_alike(runs[0], each) for each in runs[1:]):
                raise InvalidValue(
                    f"{module} runs {len(runs)} times in one pass, and has one set of rules: the plan gives its runs "
                    f"different ones; give all of them the same, as {module + '.*'!r} and {module + '.heads.0'!r} do."
                )

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, head) of every head that has a rule, in order."""
        return sorted((each.layer, head) for each in self.assignments for head in each.heads)

    @property
    def summary(self) -> str:
        """The plan in one sentence."""
        total = sum(layer.heads for layer in self.layers)
        gained = sum(len(each.heads) for each in self.assignments if each.gains is not None)
        only_gains = gained == len(self.heads) > 0 and all(says_nothing(each) for each in self.assignments)
        what = str(self.made.get("rule") or ("a gain" if only_gains else "a rule"))
        said = f"{what} for {len(self.heads):,} of {total:,} heads of {self.architecture}"
        if gained and not only_gains:
            said += f", {gained:,} of them with a gain"
        return f"{said}, in question rows only." if self.rows == "question" else f"{said}."

    def rule_of(self, layer: int, head: int) -> Rule | None:
        """The rule of one head; None if it keeps its softmax."""
        for each in self.assignments:
            if each.layer == layer and head in each.heads:
                return each.only([head]).rule
        return None

    def gain_of(self, layer: int, head: int) -> float:
        """What multiplies the output of one head; 1 if nothing does."""
        for each in self.assignments:
            if each.layer == layer and head in each.heads and each.gains is not None:
                return each.gains[each.heads.index(head)]
        return 1.0

    def only(self, heads: Sequence[Head]) -> Plan:
        """The plan for some of its heads; the others keep their softmax."""
        own = by_layer(heads)
        left = [(each, [head for head in each.heads if head in own.get(each.layer, ())]) for each in self.assignments]
        return replace(self, assignments=[each.only(kept) for each, kept in left if kept])

    @classmethod
    def of(cls, model: PreTrainedModel) -> Plan:
        """The plan that a treated model follows now: after training, with what was learned.

        With tensor parallelism, every process must call it, and has the whole plan then.

        Examples
        --------
        >>> import transformers, undilute as ud
        >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1)
        >>> model = transformers.GPT2LMHeadModel(config)
        >>> with ud.apply(model, {"layers.1.heads.2": "ssmax"}):
        ...     plan = ud.Plan.of(model)
        >>> plan.heads
        [(1, 2)]
        """
        calls = first_calls(model)
        assignments = []
        rows: set[str] = set()
        for index, call in enumerate(calls.values()):
            rules = rules_of(call.module, call.implementation, call.query.shape[1])
            here = share(call)
            own = [] if rules is None else assignments_of(index, rules, here.first)
            assignments += here.everywhere(own)
            rows.update(here.everywhere([] if rules is None else [rules.rows]))
        return cls(type(model).__name__, layers_of(calls), assignments, rows=rows_of(rows))

    def check_fits(self, architecture: str, layers: Sequence[Layer]) -> None:
        """Raise unless a model of this kind is what the plan was made for."""
        own, other = (
            f"{name} with {len(parts)} attention layers of {_counts(parts)} heads"
            for name, parts in ((self.architecture, self.layers), (architecture, layers))
        )
        if own != other:
            raise InvalidValue(f"the plan is for another model: for {own}, and this is {other}.")
        if list(self.layers) != list(layers):
            raise InvalidValue(
                f"the plan is for another model: its layers are {self.layers[0].name!r}, …, and this one's "
                f"{layers[0].name!r}, …."
            )

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, and return its path."""
        return files.write(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """The plan of a file."""
        text = files.read_text(Path(os.path.expanduser(path)), "give a file that plan.save wrote", "the plan ")
        try:
            return cls.from_json(text)
        except UndiluteError as error:
            raise InvalidValue(f"cannot read the plan {str(path)!r}: {error}") from None

    def to_json(self) -> str:
        """Everything in the plan as JSON."""
        content = {
            "schema": SCHEMA_WITH_GAINS if self._has_gains else SCHEMA,
            "architecture": self.architecture,
            "layers": [{"name": layer.name, "heads": layer.heads} for layer in self.layers],
            "made": dict(self.made),
            **({} if self.rows == "all" else {"rows": self.rows}),
            "assignments": [
                {
                    "layer": each.layer,
                    "name": self.layers[each.layer].name,
                    "heads": list(each.heads),
                    "rule": to_data(each.rule),
                    **({} if each.gains is None else {"gains": list(each.gains)}),
                }
                for each in self.assignments
            ],
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @property
    def _has_gains(self) -> bool:
        """Whether the first schema cannot say all of it."""
        return self.rows != "all" or any(each.gains is not None for each in self.assignments)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of :meth:`to_json`."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidValue(f"it is not JSON ({error}).") from None
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema not in (SCHEMA, SCHEMA_WITH_GAINS):
            raise InvalidValue(
                f"its schema is {shown(schema)}: must be {SCHEMA!r} or {SCHEMA_WITH_GAINS!r}, as plan.save writes it."
            )
        read = checked(content)
        layers = [Layer(each.name, count("heads", each.heads)) for each in read.layers]
        assignments = [
            Assignment(
                _layer(each, layers),
                tuple(whole("head", head, 0) for head in each.heads),
                from_data(each.rule),
                each.gains,
            )
            for each in read.assignments
        ]
        plan = cls(read.architecture, layers, assignments, read.made, read.rows)
        try:
            plan.to_json()
        except RecursionError:
            raise InvalidValue("its 'made' is nested too deeply to be written again.") from None
        return plan

    def show(self) -> None:
        """Print the plan: what it is, and a line for each rule with its heads."""
        print(self.summary)
        for row in self._rows():
            gain = f", gain {row['gain']}" if row.get("gain") else ""
            print(f"{row['rule']}{gain} for heads {row['heads']} of layers {row['layers']}")

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.fragment(self.summary, self._rows())

    def _rows(self) -> list[dict[str, str]]:
        """Rules, gains, heads and layers; layers whose heads have a rule of the same form are one row."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for each in self.assignments:
            rule = f"{each.rule.scale!r} · {each.rule.map!r}"
            found.setdefault((rule, _between(each.gains), _ranges(each.heads)), []).append(each.layer)
        gained = any(gain for _, gain, _ in found)
        return [
            {"rule": rule, **({"gain": gain} if gained else {}), "heads": heads, "layers": _ranges(at)}
            for (rule, gain, heads), at in found.items()
        ]


def is_identity(rule: Rule) -> bool:
    """Whether a rule is plain softmax, which is what a head has without one."""
    from undilute.engine.scaling import is_trivial
    from undilute.rules.maps.softmax import Softmax

    return is_trivial(rule) and forward_of(rule.map) is Softmax


def says_nothing(assignment: Assignment) -> bool:
    """Whether an assignment has gains and nothing else: its heads keep the rule that they have."""
    rule = assignment.rule
    return assignment.gains is not None and type(rule) is Rule and is_identity(rule)


def assignments_of(index: int, rules: HeadRules, first: int = 0) -> list[Assignment]:
    """What the heads of layer ``index`` have in the place of plain softmax; ``first`` is the number of their first."""
    found = []
    for heads, rule in rules.groups:
        gains = rules.gains_of(heads)
        if is_identity(rule):  # only those that have a gain
            heads = tuple(head for head, gain in zip(heads, gains, strict=True) if gain != 1.0)
            gains = tuple(gain for gain in gains if gain != 1.0)
        own = gains if any(gain != 1.0 for gain in gains) else None
        if heads:
            found.append(Assignment(index, tuple(first + head for head in heads), rule, own))
    return found


def rows_of(found: Iterable[str]) -> str:
    """The rows of a plan whose layers act on these; an error if they do not agree."""
    rows = sorted(set(found))
    if len(rows) > 1:
        raise InvalidValue(
            "some layers of the model are treated in all rows and others in question rows only, which no plan can "
            "say: undo one of the two treatments."
        )
    return rows[0] if rows else "all"


def _layer(assignment: Any, layers: Sequence[Layer]) -> int:
    """The index of an assignment's layer, given as index, as name, or as both."""
    name = assignment.name
    given = name if assignment.layer is None else assignment.layer
    if given is None:
        raise InvalidValue("an assignment has no 'layer': must be a whole number, or the layer's name.")
    index = index_of(given if isinstance(given, str) else whole("layer", given, 0), layers)
    if name is not None and index != index_of(name, layers):
        raise InvalidValue(f"it has a rule for layer {shown(given)} with the name {name!r}, which is another layer.")
    return index


def _alike(some: Sequence[Assignment], others: Sequence[Assignment]) -> bool:
    """Whether two runs of a module are given the same rules and gains, for the same heads."""
    return [(each.heads, each.gains) for each in some] == [(each.heads, each.gains) for each in others] and all(
        one.rule is other.rule or to_data(one.rule) == to_data(other.rule)
        for one, other in zip(some, others, strict=True)
    )


def _counts(layers: Sequence[Layer]) -> str:
    return ", ".join(str(count) for count in sorted({layer.heads for layer in layers}))


def _between(gains: Sequence[float] | None) -> str:
    """Gains in few words.

    >>> _between((0.5, 1.25)), _between((0.5,)), _between(None)
    ('0.5 to 1.25', '0.5', '')
    """
    if gains is None:
        return ""
    return f"{min(gains):.4g}" if min(gains) == max(gains) else f"{min(gains):.4g} to {max(gains):.4g}"


def _ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in few words.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    runs: list[list[int]] = []
    for each in sorted(numbers):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
