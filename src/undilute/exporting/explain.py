"""What of a plan can leave this library, how, and at what error?

    undilute.exporting.explain(plan, model).rows()

Constants fold into weights. A factor that grows with the length needs a curve in the configuration, one for all heads.
Everything else stays here, and the reason is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undilute.exporting import curves
from undilute.exporting.factors import Curve, Explanation, Factors, Part
from undilute.exporting.layouts import Place, places
from undilute.models.attention_call import AttentionCall
from undilute.models.passes import module_of
from undilute.rules.base import Rule
from undilute.treatment.kinds.rules import shortly
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTH = 8192  # tokens up to which errors are taken, where no model says how far it reads
QUESTION = "it acts on question rows only, and weights act on all: tune with rows = 'all' to export"
STATING = ("llama", "mistral")  # model types that transformers' Ministral 3 can stand in for
CURVE = "config: llama_4_scaling"


def explain(
    plan: Plan,
    model: PreTrainedModel | None = None,
    calls: Mapping[str, AttentionCall] | None = None,
    *,
    length: int | None = None,
    half: bool = False,
) -> Explanation:
    """What becomes of every head of a plan.

    Parameters
    ----------
    plan : which rule and gain each head has
    model, calls : what it is for, with the first call of each layer; without them, only the rules are judged
    length : tokens up to which errors are taken; by default as many as the model reads
    half : will weights be float16?

    Examples
    --------
    >>> import undilute as ud
    >>> from undilute.treatment import Assignment
    >>> from undilute.treatment.layers import Layer
    >>> rules = [ud.rules.get("temperature", T=0.5), ud.rules.get("entmax15")]
    >>> plan = ud.Plan("", [Layer("attention", 2)], [Assignment(0, (head,), rules[head]) for head in (0, 1)])
    >>> [(part.head, part.verdict, part.way) for part in explain(plan).parts]
    [(0, 'exact', 'W_Q'), (1, 'cannot', '')]
    """
    length = length or int(getattr(getattr(model, "config", None), "max_position_embeddings", None) or LENGTH)
    found = {} if model is None or calls is None else places(model, calls)
    n = curves.lengths(length)
    wanted = _wanted(plan, n)
    needs_curve = any(not torch.equal(row, row[:1].expand_as(row)) for row in wanted.values())
    rules = [each.rule for each in plan.assignments if curves.obstacle(each.rule) is None]
    no_curve = _no_curve(model) if needs_curve else None
    curve = None
    if needs_curve and no_curve is None:
        curve = curves.nearest(torch.stack(list(wanted.values())), n, rules, None, half)
    parts: list[Part] = []
    factors: list[Factors] = []
    for index, layer in enumerate(plan.layers):
        name = module_of(layer.name)
        own = _of_layer(plan, index, found.get(name), wanted, n, curve, no_curve)
        parts += own
        factors.append(_factors(plan, index, name, own, wanted, n, curve))
    return Explanation(tuple(parts), tuple(each for each in factors if each.changes), curve, length)


def _wanted(plan: Plan, n: Tensor) -> dict[tuple[int, int], Tensor]:
    """f(n) of every head of the model that has one, (points,); 1 for those without a rule."""
    found = {
        (index, head): torch.ones_like(n) for index, layer in enumerate(plan.layers) for head in range(layer.heads)
    }
    for each in plan.assignments:
        if curves.obstacle(each.rule) is None:
            rows = curves.values(each.rule, len(each.heads), n)
            found |= {(each.layer, head): row for head, row in zip(each.heads, rows, strict=True)}
    return found


def _no_curve(model: PreTrainedModel | None) -> str | None:
    """Why a model's configuration has no room for a curve of the length; None if it has."""
    if model is None:
        return None
    config = model.config
    kind = type(model).__name__
    if config.model_type not in STATING or not kind.endswith("ForCausalLM"):
        return f"its factor grows with the length, and no configuration of {kind} says that"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "its factor grows with the length, which Ministral 3's layout says, but that has no biases"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        return (
            f"its factor grows with the length, and the model's rotary positions ({rope['rope_type']}) need that entry"
        )
    return None


def _of_layer(
    plan: Plan,
    index: int,
    place: Place | None,
    wanted: Mapping[tuple[int, int], Tensor],
    n: Tensor,
    curve: Curve | None,
    no_curve: str | None,
) -> list[Part]:
    """What becomes of the heads of one layer that have a rule or a gain; of all heads, if there is a curve."""
    parts = []
    heads = range(plan.layers[index].heads)
    different = len({tuple(_beta(wanted[index, head], n, curve)[:1].tolist()) for head in heads}) > 1
    for head in heads:
        rule = plan.rule_of(index, head)
        if rule is not None or curve is not None:
            parts.append(_of_logits(index, head, rule, place, wanted[index, head], n, curve, no_curve, plan, different))
        if (gain := plan.gain_of(index, head)) != 1.0:
            why = QUESTION if plan.rows == "question" else None if place is None else place.no_outputs
            said = f"gain {gain:.4g}"
            parts.append(
                Part(index, head, "output", said, "cannot" if why else "exact", "" if why else "W_O", why or "")
            )
    return [each for each in parts if each.rule]


def _beta(row: Tensor, n: Tensor, curve: Curve | None) -> Tensor:
    return row[:1] if curve is None else curves.multiples(row[None], n, curve)


def _of_logits(
    index: int,
    head: int,
    rule: Rule | None,
    place: Place | None,
    row: Tensor,
    n: Tensor,
    curve: Curve | None,
    no_curve: str | None,
    plan: Plan,
    different: bool,
) -> Part:
    """What becomes of the logits of one head."""
    said = "softmax" if rule is None else _said(rule)
    varies = not torch.equal(row, row[:1].expand_as(row))
    changed = bool((row != 1.0).any()) or curve is not None
    why = QUESTION if plan.rows == "question" else None
    why = why or (None if rule is None else curves.obstacle(rule))
    if why is None and varies:
        why = no_curve
    if why is None and place is not None and changed:
        why = place.no_logits or (place.same_logits if different else None)
    if why is not None:
        return Part(index, head, "logits", said, "cannot", "", why)
    if not changed:
        return Part(index, head, "logits", "" if rule is None else said, "exact", "nothing to do")
    way = "W_Q" if place is None else place.way
    if curve is None:
        return Part(index, head, "logits", said, "exact", way)
    made = _beta(row, n, curve) * curves.at(curve, n)
    error = float((made - row).abs().max())
    close = error <= curves.SAME * float(row.abs().max()) * 10
    reason = "" if close else "one curve of the length serves all heads, and this one is not its multiple"
    return Part(index, head, "logits", said, "exact" if close else "approximate", f"{way}, {CURVE}", reason, error)


def _said(rule: Rule) -> str:
    """A rule of one head in a few words."""
    return shortly(rule)


def _factors(
    plan: Plan,
    index: int,
    name: str,
    parts: Sequence[Part],
    wanted: Mapping[tuple[int, int], Tensor],
    n: Tensor,
    curve: Curve | None,
) -> Factors:
    """The constants of one layer; 1 for what cannot be done."""
    done = {(part.head, part.what) for part in parts if part.verdict != "cannot"}
    heads = range(plan.layers[index].heads)
    logits = [float(_beta(wanted[index, head], n, curve)[0]) if (head, "logits") in done else 1.0 for head in heads]
    outputs = [plan.gain_of(index, head) if (head, "output") in done else 1.0 for head in heads]
    return Factors(index, name, tuple(logits), tuple(outputs))
