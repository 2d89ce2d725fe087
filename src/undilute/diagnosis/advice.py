"""What would hold a head's top weight at the length you care about?  Computed from the head's own rows.

A factor β on the logits moves the logit of the top weight by Δ(β). It is measured on the sampled rows at β = 2 and 4
(powers of the weights give it exactly), with straight lines between. From the measured length L to the target T the
fitted law falls by some amount; the β whose Δ(β) equals it holds the weight. For equal competitors this is exact:
Δ(β) = (β − 1)·gap. The advised rule is Llama 4's scale, 1 up to L and then growing with ln n to β at T. It leaves short
contexts unchanged; a line s·ln n + b through both points would flatten or even invert them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from undilute.diagnosis.kinds import Kind
from undilute.theory import adaptive, sparse

HOLDS = 0.1  # an exponent below which words may say that a weight holds
WORTH_SAYING = 0.1  # a sink's share from which advice mentions it
DIGITS = 4  # of β: the fit knows no more, and what is printed is what is meant
LARGEST_SCALE = 8.0  # twice what was measured: beyond it the straight line says nothing


@dataclass(frozen=True)
class Advice:
    """What to do about a head.

    Attributes
    ----------
    rule : a name for ``undilute.rules.get``, or None to leave the head alone
    parameters : for that rule
    expression : both as text that can be typed wherever a rule is named, such as ``llama4(beta=0.331,
        floor_length=1025)``; it means exactly this rule
    scale : the factor on the logits at the target length; 1 to leave it alone
    summary : the same in a few words
    text : the same in words, with the reasons
    """

    rule: str | None
    parameters: dict[str, float]
    expression: str | None
    scale: float
    summary: str
    text: str


@dataclass(frozen=True)
class Findings:
    """What advice is computed from, of one head.

    Attributes
    ----------
    kind : of head
    length, target : keys at the measured and at the wanted length
    is_bounded : whether a sliding window keeps the keys from growing
    gamma : dilution exponent
    fall : by which the logit of the fitted top weight falls from the length to the target
    top_now, top_target : fitted top weight at both, sink left out
    rise_doubled, rise_quadrupled : what β = 2 and 4 add to the logit of the top weight; medians of long rows
    lead : of the first key over the second, in nats; median of long rows
    sink_share, recent_share : medians of long rows
    recent : how many of the last keys count as recent
    entropy_target : forecast entropy at the target, in nats
    """

    kind: Kind
    length: int
    target: int
    is_bounded: bool
    gamma: float
    fall: float
    top_now: float
    top_target: float
    rise_doubled: float
    rise_quadrupled: float
    lead: float
    sink_share: float
    recent_share: float
    recent: int
    entropy_target: float


def advise(head: Findings) -> Advice:
    """Advice for one head."""
    if head.kind != "diluting" or head.target <= head.length:
        return Advice(None, {}, None, 1.0, "leave it", _leave(head))
    scale = scale_to_hold(head)
    if scale is None:
        words = (
            f"no factor up to {LARGEST_SCALE:g} on its logits holds {head.top_now:.3g} at {head.target:,} tokens: its "
            f"keys are too close to tell apart.{_sparse(head)}"
        )
        return Advice(None, {}, None, 1.0, f"no factor on its logits holds {head.top_now:.2g}", words)
    floor_length = head.length + 1
    growth = math.log1p(head.target // floor_length)
    beta = float(f"{(scale - 1) / growth:.{DIGITS}g}")
    scale = 1 + beta * growth
    expression = f"llama4(beta={beta}, floor_length={floor_length})"
    words = (
        f"{expression} (logits unchanged up to {head.length:,} tokens, × {scale:.2f} at {head.target:,}) would hold "
        f"its top weight at {head.top_now:.2g} instead of {head.top_target:.2g}."
    ) + (_sink(head) + _sparse(head) + _adaptive(head))
    parameters = {"beta": beta, "floor_length": floor_length}
    return Advice("llama4", parameters, expression, scale, f"{expression} would hold {head.top_now:.2g}", words)


def scale_to_hold(head: Findings) -> float | None:
    """The factor on the logits that holds the top weight of length ``length`` at ``target``; None if none does.

    Examples
    --------
    Equal competitors and a gap of 6: β·6 = 6 + ln(65535/1023).

    >>> fall = math.log(65535 / 1023)
    >>> found = Findings("diluting", 1024, 65536, False, 1.0, fall, 0.28, 0.006, 6.0, 18.0, 6.0, 0.0, 0.0, 64, 11.0)
    >>> round(scale_to_hold(found), 4)
    1.6933
    """
    if head.fall <= head.rise_doubled:
        return 1 + head.fall / head.rise_doubled if head.rise_doubled > 0 else 1.0
    slope = (head.rise_quadrupled - head.rise_doubled) / 2
    scale = 2 + (head.fall - head.rise_doubled) / slope if slope > 0 else math.inf
    return scale if scale <= LARGEST_SCALE else None


def _leave(head: Findings) -> str:
    if head.is_bounded:
        return f"leave it: its window keeps it at {head.length:,} keys, however long the context."
    if head.kind == "sink":
        return f"leave it: {head.sink_share:.0%} of its attention rests on the first token, so little of it can dilute."
    if head.kind == "local":
        return (
            f"leave it: {head.recent_share:.0%} of what it distributes goes to the last {head.recent} tokens; a "
            "sliding window would cost it little and bound it at every length."
        )
    if head.kind == "diffuse":
        return "leave it: it averages at every length; a sharper rule would change what it computes."
    if head.gamma < HOLDS:
        return f"leave it: it holds its top weight, {head.top_now:.2g} (γ = {head.gamma:.2f})."
    return (
        f"leave it for now: its top weight falls slowly, from {head.top_now:.2g} to {head.top_target:.2g} at the "
        f"target (γ = {head.gamma:.2f})."
    )


def _sink(head: Findings) -> str:
    if head.sink_share < WORTH_SAYING:
        return ""
    return f" The factor also feeds its sink, which has {head.sink_share:.0%}."


def _sparse(head: Findings) -> str:
    if not math.isfinite(head.lead):
        return ""
    floor = float(sparse.weight_floor(torch.tensor(max(head.lead, 0.0)), 1.5))
    if floor < head.top_now:
        return ""
    return f" entmax15 would keep at least {floor:.2g} at any length while its first key leads by {head.lead:.2g} nats."


def _adaptive(head: Findings) -> str:
    limit = _switch_off_entropy()
    if head.entropy_target <= limit:
        return ""
    return (
        f" Adaptive temperature as published would do nothing: {head.entropy_target:.1f} nats is past its {limit:.2f}."
    )


@cache
def _switch_off_entropy() -> float:
    return adaptive.switch_off_entropy()
