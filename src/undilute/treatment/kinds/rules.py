"""How does a model get another rule?  In place, for some heads or all of them, and undone on exit.

No weight is touched. The layers that get a rule carry it as a submodule while the treatment lasts, and the model's
attention finds it there; the masks, caches and positions stay the model's own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from undilute.engine.scaling import is_trivial
from undilute.errors import InvalidValue
from undilute.models.attention_call import AttentionCall
from undilute.models.head_rules import ATTRIBUTE, HeadRules, obstacle, rules_of
from undilute.models.passes import module_of
from undilute.models.tensor_parallel import Share, share
from undilute.models.watch import check_supported, treated
from undilute.rules import registry
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.maps.softmax import Softmax
from undilute.treatment.apply import InForce, kind
from undilute.treatment.data_parallel import check_not_wrapped
from undilute.treatment.layers import Head, Layer, first_calls, layers_of, matched
from undilute.treatment.plan import Assignment, Plan, says_nothing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RuleLike = str | Rule | Map | Scale
GAIN = "gain"  # to be learned, beside the parameters of rules


class Treated(InForce):
    """Rules in force. Leave them as a context, or call ``undo()``; or keep them for good.

    Attributes
    ----------
    rules : attention module's name → its :class:`HeadRules`, with the parameters that learn, if any
    """

    def __init__(
        self, model: PreTrainedModel, plan: Plan, rules: dict[str, HeadRules], learn: Sequence[str] = ()
    ) -> None:
        super().__init__(self._put_back, plan.summary)
        self.model, self.rules, self._learn = model, rules, learn
        self._start = plan
        self._modules = dict(model.named_modules())
        self._before = {name: self._modules[name]._modules.get(ATTRIBUTE) for name in rules}
        self._standing = treated(model)
        for name, each in rules.items():
            each.neighbours = [(layer.name, layer.heads) for layer in plan.layers]
            _put(self._modules[name], each)

    @property
    def plan(self) -> Plan:
        """Which rule and gain each head was given, with what it has learned since."""
        names = [module_of(layer.name) for layer in self._start.layers]
        given = {names[each.layer]: self._start.layers[each.layer].heads for each in self._start.assignments}
        if any(name not in self.rules or self.rules[name].heads != heads for name, heads in given.items()):
            raise InvalidValue(
                "the model's heads are in several processes (tensor parallelism), and so is what they learn: "
                "Plan.of(model), called in all of them, has all of it."
            )
        now = [self._now(each, self.rules[names[each.layer]]) for each in self._start.assignments]
        return replace(self._start, assignments=now)

    def _now(self, given: Assignment, rules: HeadRules) -> Assignment:
        rule = given.rule if _keeps(given, self._learn) else dict(rules.groups)[given.heads]
        return replace(given, rule=rule, gains=rules.gains_of(given.heads) if GAIN in self._learn else given.gains)

    def _put_back(self) -> None:
        if any(self._modules[name]._modules.get(ATTRIBUTE) is not each for name, each in self.rules.items()):
            raise InvalidValue("a later treatment of the same layers is still in force: undo that one first.")
        for name, each in self._before.items():
            _put(self._modules[name], each)
        self._standing.undo()

    def parameters(self) -> list[nn.Parameter]:
        """What can be learned in the rules: for an optimiser."""
        return [parameter for rules in self.rules.values() for parameter in rules.parameters()]

    def __repr__(self) -> str:
        return f"Treated({type(self.model).__name__}, {len(self._start.heads)} heads)"


@dataclass(frozen=True)
class Rules:
    """Another rule for some heads of a model, or for all.

    Attributes
    ----------
    given : a rule for every head, {pattern: rule}, or a plan
    label : what it is, in a few words
    """

    given: RuleLike | Mapping[str, RuleLike] | Plan
    label: str

    def enter(self, model: PreTrainedModel, learn: Sequence[str] = ()) -> Treated:
        """As :func:`undilute.apply` does it."""
        check_supported(model)
        if learn or _learns(self.given):
            check_not_wrapped(model)
        calls = first_calls(model)
        plan = planned(type(model).__name__, layers_of(calls), self.given)
        if isinstance(learn, str) or not isinstance(learn, Iterable):
            such = learn if isinstance(learn, str) else "s"
            raise InvalidValue(f"learn = {learn!r}: must be names of parameters in a list, such as ({such!r},).")
        _check_learned(plan, learn)
        _check_rows(plan, calls)
        rules: dict[str, HeadRules | None] = {}
        for index, (name, call) in enumerate(calls.items()):
            if module_of(name) not in rules:  # all runs of a module have the same rules
                rules[module_of(name)] = _head_rules(index, call, plan, learn)
        return Treated(model, plan, {name: each for name, each in rules.items() if each is not None}, learn)


@kind("rules")
def read(given: Any) -> Rules | None:
    """A rule by its name or as an object, {pattern: rule}, a plan, or the path of one."""
    if isinstance(given, PathLike) or (isinstance(given, str) and _is_path(given)):
        return Rules(Plan.load(Path(given)), Path(given).stem)
    if isinstance(given, Plan):
        return Rules(given, str(given.made.get("rule") or "plan").strip(" ,"))
    if isinstance(given, Mapping):
        if not given:
            raise InvalidValue("the treatment is an empty mapping: must be {pattern: rule} with at least one pattern.")
        patterns: dict[str, list[str]] = {}
        for pattern, each in given.items():
            patterns.setdefault(shortly(each), []).append(str(pattern))
        said = [name if own == ["*"] else f"{name} for {', '.join(own)}" for name, own in patterns.items()]
        return Rules(given, ", ".join(said))
    if isinstance(given, str | Rule | Map | Scale):
        return Rules(given, shortly(given))
    return None


def shortly(rule: RuleLike) -> str:
    """A rule in a few words: as it was typed, or by those of its parts that softmax does not have.

    >>> shortly(registry.get("top-k(k=8)")), shortly(registry.get("ssmax | entmax15"))
    ('TopK(k=8)', 'LogLength(s=0.43, b=0) | Entmax(alpha=1.5)')
    """
    if isinstance(rule, str):
        return rule
    parts: list[nn.Module] = [rule]
    if type(rule) is Rule:
        parts = [*([] if is_trivial(rule) else [rule.scale]), *([] if type(rule.map) is Softmax else [rule.map])]
    said = [f"{type(part).__name__}({part.extra_repr()})".removesuffix("()") for part in parts]
    return " | ".join(said) or "softmax"


def planned(architecture: str, layers: Sequence[Layer], given: RuleLike | Mapping[str, RuleLike] | Plan) -> Plan:
    """The rules as a plan for a model with these layers."""
    if isinstance(given, Plan):
        given.check_fits(architecture, layers)
        return given
    mapping = given if isinstance(given, Mapping) else {"*": given}
    chosen: dict[Head, int] = {}
    named = list(mapping.values())
    rules = [registry.get(each) for each in named]
    for pattern, each in mapping.items():  # what is given twice is one rule, which then runs once for all its heads
        chosen |= dict.fromkeys(matched(pattern, layers), named.index(each))
    assignments = [
        Assignment(layer, tuple(heads), rules[number])
        for layer in range(len(layers))
        for number in dict.fromkeys(value for (at, _), value in sorted(chosen.items()) if at == layer)
        if (heads := [head for (at, head), value in sorted(chosen.items()) if (at, value) == (layer, number)])
    ]
    return Plan(architecture, layers, assignments, {"rule": ", ".join(dict.fromkeys(map(shortly, named)))})


def _is_path(treatment: str) -> bool:
    return treatment.endswith(".json") or "/" in treatment or "\\" in treatment


def _head_rules(index: int, call: AttentionCall, plan: Plan, learn: Sequence[str]) -> HeadRules | None:
    """The rules of one layer, for all of its heads; None if none of them gets one."""
    here = share(call)
    given = [own for each in plan.assignments if each.layer == index and (own := _here(each, here)).heads]
    if not given:
        return None
    groups = [(each.heads, _own(each, call, learn)) for each in given if not _keeps(each, learn)]
    for heads, rule in groups:
        _check(index, call, heads, rule)
    taken = {head for heads, _ in groups for head in heads}
    before = rules_of(call.module, call.implementation, call.query.shape[1])
    groups += _kept(index, call, before, taken)
    gains = _gains(call, before, given)
    learned = [head for each in given for head in each.heads] if GAIN in learn else []
    if before is None or before.learned_gains is None:
        return HeadRules(groups, gains, learned, plan.rows)
    if learned or any(set(each.heads) & set(before.learned_heads) for each in given if each.gains is not None):
        raise InvalidValue(f"layer {index}: its heads learn their gains in another treatment; undo that one first.")
    made = HeadRules(groups, gains, before.learned_heads, plan.rows)
    made.learned_gains = before.learned_gains  # one parameter, which goes on learning
    return made


def _kept(
    index: int, call: AttentionCall, before: HeadRules | None, taken: set[int]
) -> list[tuple[tuple[int, ...], Rule]]:
    """The heads that get no new rule, with the one that they have."""
    if before is None:
        rest = tuple(head for head in range(call.query.shape[1]) if head not in taken)
        return [(rest, Rule())] if rest else []
    kept = []
    for heads, rule in before.groups:
        left = [head for head in heads if head not in taken]
        if left and len(left) < len(heads):
            if any(True for _ in rule.parameters()):
                raise InvalidValue(f"layer {index}: its heads learn a rule together; undo that treatment first.")
            rule = rule.for_heads([heads.index(head) for head in left], len(heads))
        if left:
            kept.append((tuple(left), rule))
    return kept


def _gains(call: AttentionCall, before: HeadRules | None, given: Sequence[Assignment]) -> Tensor | None:
    """(heads,): the gains that are given, and for the other heads those that they have; None if there are none."""
    old = None if before is None else before.gains
    if old is None and all(each.gains is None for each in given):
        return None
    query = call.query
    full = torch.promote_types(query.dtype, torch.float32)
    gains = torch.ones(query.shape[1], dtype=full, device=query.device) if old is None else old.detach().to(full)
    gains = gains.to(query.device, copy=True)
    for each in given:
        if each.gains is not None:
            gains[list(each.heads)] = torch.tensor(each.gains, dtype=full, device=query.device)
    return gains


def _keeps(given: Assignment, learn: Sequence[str]) -> bool:
    """Whether the heads keep the rule that they have: what is given are gains alone."""
    return says_nothing(given) and not any(name in part.held for part in _parts(given.rule) for name in learn)


def _parts(rule: Rule) -> tuple[Scale, Map]:
    return rule.scale, rule.map


def _here(given: Assignment, here: Share) -> Assignment:
    """The assignment for those of its heads that this process has, by their numbers in this process."""
    if here.mesh is None:
        return given
    if any(True for _ in given.rule.parameters()):
        raise InvalidValue(
            f"layer {given.layer}: its heads are in several processes (tensor parallelism), and the rule learns a "
            "parameter of its own, which each of them would train for its own heads: give a number and learn = […]."
        )
    own = given.only(here.own(given.heads))
    return replace(own, heads=tuple(head - here.first for head in own.heads))


def _own(given: Assignment, call: AttentionCall, learn: Sequence[str]) -> Rule:
    """A copy for this layer, where its queries are; a rule that learns by itself is shared, so that it stays one."""
    if not learn and any(True for _ in given.rule.parameters()):
        return given.rule
    rule = copy.deepcopy(given.rule).to(call.query.device)
    for part in _parts(rule):
        for name in learn:
            if name in part.held:
                part.learn(name, len(given.heads))
    return rule


def _check(index: int, call: AttentionCall, heads: Sequence[int], rule: Rule) -> None:
    """Refuse what cannot stand in for this layer's softmax, before anything is changed."""
    if type(rule.scale).on is not Scale.on:
        raise InvalidValue(
            f"the scale {type(rule.scale).__name__} is computed from the layer's input, which an attention call does "
            "not hold, so it cannot decode: give its fixed form, such as rule = 'as-entmax', or train it in "
            "undilute.nn.Attention."
        )
    for name, value in (*rule.named_parameters(), *rule.named_buffers()):
        if value.dim() > 2:
            raise InvalidValue(
                f"{name} has shape {tuple(value.shape)}, values for the rows of one input, so it cannot decode: give "
                "one number, or one per head."
            )
    if (why := obstacle(call, rule)) is not None:
        raise InvalidValue(f"layer {index}: {why}.")
    HeadRules([(range(len(heads)), rule)]).attend(call.of_heads(heads))  # what does not fit shows on two tokens


def _check_learned(plan: Plan, learn: Sequence[str]) -> None:
    held = {name for each in plan.assignments for part in _parts(each.rule) for name in part.held}
    for name in learn:
        if name not in held and name != GAIN:
            raise InvalidValue(
                f"learn = {list(learn)!r}: no rule of the treatment has a parameter {name!r}; they have "
                f"{', '.join(sorted(held)) or 'none'}, and every head has a {GAIN!r}."
            )


def _check_rows(plan: Plan, calls: Mapping[str, AttentionCall]) -> None:
    """Refuse rows that one plan cannot have together, and question rows where queries see what comes after them."""
    if not plan.assignments:
        return
    for call in calls.values():
        before = rules_of(call.module, call.implementation, call.query.shape[1])
        if before is not None and before.rows != plan.rows:
            raise InvalidValue(
                f"rows = {plan.rows!r}: the model has rules already, with rows = {before.rows!r}; must be the same, or "
                "undo that treatment first."
            )
    every = list(calls.items())
    ahead = [every[each.layer][0] for each in plan.assignments if every[each.layer][1].looks_ahead]
    if plan.rows == "question" and ahead:
        raise InvalidValue(
            f"rows = 'question': the queries of {ahead[0]} see what comes after them, so none of them reads a question "
            "about the rest; must be layers of a causal model, or rows = 'all'."
        )


def _learns(given: RuleLike | Mapping[str, RuleLike] | Plan) -> bool:
    """Whether one of the rules has parameters of its own."""
    if isinstance(given, Plan):
        rules: list[object] = [each.rule for each in given.assignments]
    else:
        rules = list(given.values()) if isinstance(given, Mapping) else [given]
    return any(isinstance(each, nn.Module) and any(True for _ in each.parameters()) for each in rules)


def _put(module: nn.Module, rules: nn.Module | None) -> None:
    if rules is None:
        module._modules.pop(ATTRIBUTE, None)
    else:
        module.add_module(ATTRIBUTE, rules)
